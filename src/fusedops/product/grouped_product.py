# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows, each with a matrix of its own, and their gradients.

The groups follow one another, and where each one ends is known on the device alone. Both functions
here are differentiated by one another, as often as needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fusedops.errors import UnsupportedError
from fusedops.product.factors import as_factor, factor_dtype
from fusedops.product.grouped_plain import without_store
from fusedops.product.grouped_weights import gradient_of_weights
from fusedops.product.routing import Route, combine, dispatch, sum_of_choices
from fusedops.run.table_gradients import sorted_sums
from fusedops.torch_ops.tracing import is_mapped

__all__ = [
    "by_torch",
    "ends_of",
    "group_of_rows",
    "grouped_product",
    "product_of_tokens",
    "rows_of_groups",
    "summed_product",
    "sums_of_groups",
]

#: torch's own product of groups; it has been public since 2.10.
_BY_TORCH: Any = getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
#: The bytes at whose multiples torch wants rows to begin.
_ALIGNED = 16


def by_torch(dtype: torch.dtype) -> bool:
    """Whether torch multiplies groups of this dtype in one call."""
    return _BY_TORCH is not None and dtype in _DTYPES


def ends_of(offsets: Tensor, rows: int, groups: int) -> Tensor:
    """Where each group ends, as int32, of offsets (groups + 1,) or counts (groups,).

    Rows before the first offset are those of the first group, rows after the last one those of the
    last group: so each row is in a group, and no element of a result is left as it was.
    """
    if offsets.shape[0] == groups:
        ends = offsets.cumsum(0, dtype=torch.int32)
    else:
        ends = offsets[1:].to(torch.int32, copy=True)
    ends[-1:].fill_(rows)
    return ends


def group_of_rows(ends: Tensor, rows: int) -> Tensor:
    """The group of each row, of shape (rows,), computed on the device."""
    numbers = torch.arange(rows, dtype=torch.int32, device=ends.device)
    return torch.searchsorted(ends, numbers, right=True, out_int32=True)


def grouped_product(
    x: Tensor,
    w: Tensor,
    ends: Tensor,
    made: Tensor | None = None,
    *,
    unfused: bool = False,
) -> Tensor:
    """The product ``x[group] @ w[group].T`` of each group of rows, below one another.

    Args:
        x: The rows, of shape (T, K).
        w: A matrix for each group, of shape (E, N, K), in the same dtype.
        ends: Where the groups end, of shape (E,) and int32; the last one is T.
        made: The product, if a kernel has made it, or a tensor without memory in the place of one
            that nobody reads: then autograd gets to know what it is.
        unfused: Whether torch multiplies, in the gradient too.
    """
    if is_mapped(x, w):
        return _in_turn(x, w.mT, ends)
    result: Tensor = _Product.apply(x, w, ends, unfused, [] if made is None else [made])
    return result


def product_of_tokens(
    x: Tensor, rows: Tensor, w: Tensor, way: Route, made: Tensor | None
) -> Tensor:
    """The product of each group of rows as a function of the tokens that they are (`dispatch`).

    Args:
        x: The tokens.
        rows: The tokens in the order of the groups.
        w: A matrix for each group.
        way: Where the rows come from.
        made: The product, if there is one, as for `grouped_product`.
    """
    args = rows, way, [] if made is None else [made]
    result: Tensor = _ProductOfTokens.apply(x, w, *args)
    return result


def summed_product(h: Tensor, w: Tensor, way: Route, tokens: int) -> Tensor:
    """The product of each group of rows, and of each token the sum of its rows (`combine`).

    Where one kernel multiplies, it writes the rows of a token below one another.
    """
    if (groups := len(way.offsets) - 1) != len(w):
        raise ValueError(f"GroupedLinear: w has {len(w)} matrices, and rows are of {groups} groups")
    dtype = factor_dtype(h)
    result: Tensor = _SummedProduct.apply(h.to(dtype), as_factor(w, dtype), way, tokens)
    return result


def rows_of_groups(table: Tensor, ends: Tensor, rows: int) -> Tensor:
    """For each row the entry of its group in a table of shape (E, n), or (E,) for n = 1."""
    table = table.reshape(table.shape[0], -1)
    if is_mapped(table):  # not by index: the gradient would be added up in the table's dtype
        sizes = _sizes(ends)
        return torch.cat([one.expand(n, -1) for one, n in zip(table, sizes, strict=True)])
    result: Tensor = _Rows.apply(table, ends, rows)
    return result


def sums_of_groups(rows: Tensor, ends: Tensor) -> Tensor:
    """The sum of the rows of each group, of shape (T, n), zeros for one of no rows: (E, n)."""
    if is_mapped(rows):
        return torch.stack([one.sum(0) for one in rows.split_with_sizes(_sizes(ends))])
    result: Tensor = _Sums.apply(rows, ends)
    return result


def _outer(a: Tensor, b: Tensor, ends: Tensor, unfused: bool = False) -> Tensor:
    """``a[group].T @ b[group]`` for each group, zeros for one of no rows."""
    if is_mapped(a, b):
        return _in_turn(a.mT, b, ends)
    result: Tensor = _Outer.apply(a, b, ends, unfused)
    return result


class _Product(torch.autograd.Function):
    """``x[group] @ w[group].T`` for each group."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, ends: Tensor, unfused: bool, made: list[Tensor]) -> Tensor:
        if made:
            return made.pop()  # it is no input, or autograd would take it for a view of one
        found = None if unfused else without_store(x, w, ends, ends=True)
        return _multiplied(x, w.mT, ends) if found is None else found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, ends, ctx.unfused, _ = inputs
        of_x, of_w, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x if of_w else None, w if of_x else None, ends)

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, w, ends = ctx.saved_tensors
        dx = None if w is None else grouped_product(dz, w.mT, ends, unfused=ctx.unfused)
        dw = None if x is None else _outer(dz, x, ends, ctx.unfused)
        return dx, dw, None, None, None


class _ProductOfTokens(torch.autograd.Function):
    """The product of rows that are tokens, whose gradient is the product that sums rows again."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, rows: Tensor, way: Route, made: list[Tensor]) -> Tensor:
        return _Product.forward(rows, w, way.ends, False, made)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, rows, way, _ = inputs
        of_x, of_w, *_ = ctx.needs_input_grad
        ctx.tokens = x.shape[0]
        ctx.save_for_backward(rows if of_w else None, w if of_x else None, *way)

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        rows, w, *tensors = ctx.saved_tensors
        way = Route(*tensors)
        dx = None if w is None else _SummedProduct.apply(dz, w.mT, way, ctx.tokens)
        dw = None if rows is None else _outer(dz, rows, way.ends)
        return dx, dw, None, None, None


class _SummedProduct(torch.autograd.Function):
    """The product and the sum of the rows of each token, in the order of its choices."""

    @staticmethod
    def forward(h: Tensor, w: Tensor, way: Route, tokens: int) -> Tensor:
        moved = without_store(h, w, way.offsets, way.order, ends=False)
        if moved is None:
            ends = ends_of(way.offsets, h.shape[0], w.shape[0])
            return combine(_multiplied(h, w.mT, ends), way, tokens)
        return sum_of_choices(moved, tokens)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        h, w, way, _ = inputs
        of_h, of_w, *_ = ctx.needs_input_grad
        ctx.save_for_backward(h if of_w else None, w if of_h else None, *way)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        h, w, *tensors = ctx.saved_tensors
        way = Route(*tensors)
        rows = dispatch(dy, way)
        dh = None if w is None else grouped_product(rows, w.mT, way.ends)
        dw = None if h is None else _outer(rows, h, way.ends)
        return dh, dw, None, None


class _Outer(torch.autograd.Function):
    """``a[group].T @ b[group]`` for each group, zeros for one of no rows; unfused, by torch."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, ends: Tensor, unfused: bool) -> Tensor:
        made = None if unfused else gradient_of_weights(a, b, ends)
        return _multiplied(a.mT, b, ends) if made is None else made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])

    @staticmethod
    def backward(ctx: Any, dw: Tensor) -> tuple[Tensor | None, ...]:
        a, b, ends = ctx.saved_tensors
        of_a, of_b, *_ = ctx.needs_input_grad
        da = grouped_product(b, dw, ends, unfused=True) if of_a else None
        db = grouped_product(a, dw.mT, ends, unfused=True) if of_b else None
        return da, db, None, None


class _Rows(torch.autograd.Function):
    """The entry of each row's group; its gradient is a sum of rows in a fixed order."""

    @staticmethod
    def forward(table: Tensor, ends: Tensor, rows: int) -> Tensor:
        return table.index_select(0, group_of_rows(ends, rows))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, each: Tensor) -> tuple[Tensor, None, None]:
        (ends,) = ctx.saved_tensors
        return sums_of_groups(each, ends), None, None


class _Sums(torch.autograd.Function):
    """The sum of the rows of each group, zeros for one of no rows."""

    @staticmethod
    def forward(each: Tensor, ends: Tensor) -> Tensor:
        return _summed(each, ends)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        each, ends = inputs
        ctx.save_for_backward(ends)
        ctx.rows = each.shape[0]

    @staticmethod
    def backward(ctx: Any, sums: Tensor) -> tuple[Tensor, None]:
        (ends,) = ctx.saved_tensors
        return rows_of_groups(sums, ends, ctx.rows), None


def _multiplied(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """``a @ b``, of groups along the dimension that is not the batch of b.

    Args:
        a: Of shape (T, K), for a b of shape (E, K, N); of shape (M, T) for one of (T, N).
        b: The right factor.
        ends: Where the groups end in T.

    Returns:
        Of shape (T, N), or (E, M, N).
    """
    if not a.numel() or not b.numel() or (a.is_meta and not by_torch(a.dtype)):
        lead = () if b.dim() == 3 else (ends.shape[0],)
        return a.new_zeros((*lead, a.shape[0], b.shape[-1]))
    if by_torch(a.dtype):
        # Groups may begin anywhere in T, so its neighbours are not neighbours in memory.
        left = _readable(a) if b.dim() == 3 else _readable(a.mT).mT
        result: Tensor = _BY_TORCH(left, _readable(b), offs=ends)
        return result
    if a.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            f"GroupedLinear: products of {a.dtype} run group by group, of sizes that the host has "
            "to read, which no CUDA graph can capture; capture bfloat16"
        )
    return _in_turn(a, b, ends)


def _in_turn(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """As `_multiplied`, by a product for each group, whose sizes the host reads."""
    sizes = _sizes(ends)
    if b.dim() == 3:
        return torch.cat(
            [left @ right for left, right in zip(a.split_with_sizes(sizes), b, strict=True)]
        )
    pairs = zip(a.split_with_sizes(sizes, 1), b.split_with_sizes(sizes), strict=True)
    return torch.stack([left @ right for left, right in pairs])


def _sizes(ends: Tensor) -> list[int]:
    """How many rows each group has, read on the host."""
    try:
        found = ends.tolist()
    except RuntimeError as error:
        if not is_mapped(ends):
            raise
        raise UnsupportedError(
            "GroupedLinear: torch.vmap cannot map offsets, which the host reads under it; sort the "
            "rows of all batches by group, and make one call"
        ) from error
    return [end - begin for begin, end in zip([0, *found[:-1]], found, strict=True)]


def _readable(matrices: Tensor) -> Tensor:
    """Matrices that torch's grouped product can read: a copy where it cannot read these.

    The elements of a row have to be neighbours, of many matrices those of a row or of a column, and
    all rows or columns begin at multiples of 16 bytes.
    """
    step = _ALIGNED // matrices.element_size()
    traced = torch.compiler.is_compiling() or type(matrices) not in (Tensor, torch.nn.Parameter)
    for one in (matrices, matrices.mT)[: matrices.dim() - 1]:
        if traced:  # what is traced has no address, and Dynamo no strides that are symbols
            fits = one.is_contiguous() and one.shape[-1] % step == 0
        else:
            lead, inner = one.stride()[:-1], one.stride(-1)
            fits = inner == 1 and lead[-1] >= one.shape[-1] and not any(n % step for n in lead)
            fits = fits and matrices.data_ptr() % _ALIGNED == 0
        if fits:
            return matrices
    columns = matrices.shape[-1]
    padded = functional.pad(matrices, (0, -columns % step))
    if padded.shape[-1] == columns:
        return padded.clone(memory_format=torch.contiguous_format)
    return padded[..., :columns]


def _summed(rows: Tensor, ends: Tensor) -> Tensor:
    """The sum of each group's rows, in an order that the sizes alone decide."""
    if rows.is_cuda and rows.dtype is torch.bfloat16 and by_torch(rows.dtype):
        # As a product it reads each row once, and adds up in float32.
        ones = rows.new_ones((rows.shape[0], _ALIGNED // rows.element_size()))
        return _multiplied(ones.mT, rows, ends)[:, 0]
    group = group_of_rows(ends, rows.shape[0])
    wide = rows if rows.dtype is torch.float64 else rows.float()
    return sorted_sums(wide.t(), group, ends.shape[0]).t().to(rows.dtype)
