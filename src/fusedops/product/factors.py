# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The factors of a matrix product: what they may be, and how a kernel of our own reads them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fusedops.bind.broadcasting import broadcast_cure, mismatch
from fusedops.bind.operands import FLOATING, begins_whole, check_layouts, parts_of
from fusedops.errors import IN_SYMBOLIC_TRACE, UnsupportedError, shortened
from fusedops.generate.product import BATCH_DIMS, Factor

__all__ = [
    "HALVES",
    "MULTIPLIED",
    "as_factor",
    "check_broadcast",
    "check_factors",
    "factor_dtype",
    "linear",
    "matrices_of",
    "matrix_of",
    "multiply",
    "of_eight_bits",
    "product_sizes",
    "read_dtype",
    "rows_of",
    "torch_copies",
    "wants_gradient",
    "wrong_shape",
    "wrong_weight",
]

#: The most products in turn; each is one launch.
_MOST = 8


def multiply(first: Tensor, second: Tensor) -> Tensor:
    """``first @ second``, of which neither is differentiated.

    cuBLAS takes one stride for all matrices, so torch.matmul copies a factor whose batch dimensions
    are no single one, as of heads that lie within rows. Where one of two is small, there is one
    batched product for each of its indices (docs/explanation/products.md has what that gives).

    >>> heads = torch.ones(8, 3, 2, 4).transpose(1, 2)
    >>> multiply(heads, heads.mT).shape
    torch.Size([8, 2, 3, 3])
    """
    dim = _along(first, second)
    if dim is None:
        return first @ second
    made = first.new_empty((*first.shape[:-1], second.shape[-1]))
    for at in range(first.shape[dim]):
        torch.bmm(first.select(dim, at), second.select(dim, at), out=made.select(dim, at))
    return made


def _along(first: Tensor, second: Tensor) -> int | None:
    """The batch dimension to go along; None where one product is as good, or torch is watching."""
    plain = type(first) is Tensor and type(second) in (Tensor, torch.nn.Parameter)
    if not plain or not first.is_cuda or torch.is_grad_enabled():
        return None
    batch = first.shape[:-2]
    if len(batch) != 2 or second.shape[:-2] != batch or first.dtype is not second.dtype:
        return None
    dim = 0 if batch[0] <= batch[1] else 1
    if batch[dim] > _MOST or torch.is_autocast_enabled("cuda") or not torch_copies(first, second):
        return None
    return dim


#: The dtypes of 8 bits that both factors of a `Linear` may have, each its own.
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)

#: Those of 16 bits.
HALVES = (torch.float16, torch.bfloat16)
#: CUtensorMapDataType in cuda.h; of 8 bits copies are of bytes.
_KINDS = {torch.float16: 6, torch.bfloat16: 9, **dict.fromkeys(EIGHT_BITS, 0)}
#: The dtypes of factors that a kernel of our own multiplies, both of one.
MULTIPLIED = (*_KINDS,)


def check_broadcast(
    name: str, what: str, shape: Sequence[int], operands: Mapping[str, Any]
) -> None:
    """Raise the error of an operand that does not fit what a product makes, in words without x.

    `what` says what the product makes, such as "the product", and `shape` is that of it. Numbers
    fit.
    """
    shape = tuple(shape)
    for key, value in operands.items():
        wrong = mismatch(shape, value.shape) if isinstance(value, Tensor) else None
        if wrong is not None:
            detail = (
                f"{what} has no dimension {wrong.dim}"
                if wrong.wanted is None
                else f"size {wrong.got} in dimension {wrong.dim} where it has {wrong.wanted}"
            )
            cure = broadcast_cure(key, shape, value.shape, ())
            raise ValueError(
                f"{name}: operand {key!r} of shape {tuple(value.shape)} does not broadcast against "
                f"{what} of shape {shape}: {detail}; "
                f"{cure or f'give it a shape that broadcasts against {shape}'}"
            )


def check_factors(
    name: str, keys: tuple[str, ...], factors: tuple[Any, ...], eight_bits: bool = False
) -> None:
    """Raise TypeError or ValueError unless these are floating tensors that can be multiplied.

    `keys` are their names, and with `eight_bits` all may have 8 bits. Shapes are the caller's to
    check.
    """
    first, kind = keys[0], factors[0]
    eight_bits = eight_bits and all(of_eight_bits(one) for one in factors)
    for key, value in zip(keys, factors, strict=True):
        if not isinstance(value, Tensor):
            cure = f"a call is op({', '.join(keys)}, ...), these by position, all else by name"
            several = isinstance(value, (list, tuple, torch.nn.ParameterList))
            if isinstance(value, torch.fx.Proxy):
                cure = IN_SYMBOLIC_TRACE
            elif several and isinstance(next(iter(value), None), Tensor):
                cure = f"make one with torch.stack([*{key}])"
            elif hasattr(value, "__len__") and not isinstance(value, (str, bytes)):
                cure = f"make one with torch.as_tensor({key})"
            elif isinstance(getattr(value, "weight", None), Tensor):
                cure = f"pass {key}.weight"
            raise TypeError(
                f"{name}: {key} must be a torch.Tensor, got {type(value).__name__}; {cure}"
            )
        if value.layout is not torch.strided or value.is_nested:
            check_layouts(name, {key: value})
        if value.dtype not in FLOATING and not eight_bits:
            allowed = ", ".join(map(str, FLOATING))
            raise TypeError(
                f"{name}: {key} must be floating point ({allowed}), got {value.dtype}; "
                + (parts_of(key) if value.is_complex() else f"convert it with {key}.float(), say")
            )
        if value.device != kind.device:
            raise ValueError(
                f"{name}: {key} must be on {first}'s device {kind.device}, got {value.device}; "
                f"move it with .to({str(kind.device)!r})"
            )
        if eight_bits:
            if wants_gradient((value,)):
                raise UnsupportedError(
                    f"{name}: {key} has 8 bits and wants a gradient, which there is none of; call "
                    f"{key}.detach()"
                )
        elif value.dtype is not kind.dtype and not _casts(kind):
            raise TypeError(
                f"{name}: {key} must have {first}'s dtype {kind.dtype}, got {value.dtype}; convert "
                f"it with {key}.to({first}.dtype), the module that has it with "
                f".to({kind.dtype}), or call the op under torch.autocast"
            )


def of_eight_bits(factor: Any) -> bool:
    """Whether a factor is a tensor of float8."""
    return isinstance(factor, Tensor) and factor.dtype in EIGHT_BITS


def factor_dtype(factor: Tensor) -> torch.dtype:
    """The dtype of the product: that in which torch multiplies, which autocast may lower.

    Of factors of 8 bits it is bfloat16, which has all of their numbers.
    """
    if factor.dtype in EIGHT_BITS:
        return torch.bfloat16
    if factor.dtype is not torch.float64 and _casts(factor):
        return torch.get_autocast_dtype(factor.device.type)
    return factor.dtype


def _casts(factor: Tensor) -> bool:
    """Whether autocast is on where a factor lies."""
    device = factor.device.type  # torch does not know it of "meta"
    return device != "meta" and torch.is_autocast_enabled(device)


def read_dtype(factor: Tensor) -> torch.dtype:
    """The dtype in which a kernel reads a factor: the product's, or its own if that has 8 bits."""
    return factor.dtype if factor.dtype in EIGHT_BITS else factor_dtype(factor)


def as_factor(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor in the dtype of the product, to which autocast casts it."""
    if tensor.dtype is dtype:
        return tensor
    # On a GPU autocast acts on einsum, and so it casts a parameter once, however often it is used.
    return torch.einsum("...->...", tensor).to(dtype)


def rows_of(tensor: Tensor) -> Tensor:
    """A tensor as a matrix, of any sizes: ``reshape(-1, ...)`` takes no columns of none."""
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ w.T``, plus a bias of shape (N,), by torch, which adds it before it rounds.

    Of a strided bias, or an x of several dimensions that is not contiguous, `functional.linear`
    would round the product, and add the bias then.
    """
    if x.dtype in EIGHT_BITS:
        return _linear_of_eight_bits(x, w)
    if bias is None:
        return functional.linear(x, w)
    bias = bias.contiguous()
    if x.dim() == 2 or x.is_contiguous():
        return functional.linear(x, w, bias)
    return functional.linear(rows_of(x), w, bias).view(*x.shape[:-1], w.shape[0])


def _linear_of_eight_bits(x: Tensor, w: Tensor) -> Tensor:
    """``x @ w.T`` in bfloat16: by instructions for 8 bits where torch has them, or in bfloat16.

    A bfloat16 has every number of 8 bits, and their products are exact in float32, so both ways
    differ by roundings of sums alone.
    """
    rows = rows_of(x)
    if _torch_multiplies(rows, w):
        one = _one(x)
        z = torch._scaled_mm(rows, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    else:
        z = rows.bfloat16() @ w.bfloat16().t()
    return z.view(*x.shape[:-1], w.shape[0])


def _one(x: Tensor) -> Tensor:
    """A scale of 1 on x's device, made once for a stream but for what torch traces or captures.

    Another stream would have to wait until it is there.
    """
    device = x.device
    if type(x) is not Tensor or torch.compiler.is_compiling():
        return torch.ones((), device=device)
    key = device, torch.cuda.current_stream(device).cuda_stream
    found = _ones.get(key)
    if found is None:
        found = torch.ones((), device=device)
        if not torch.cuda.is_current_stream_capturing():  # its memory would be the graph's
            _ones[key] = found
    return found


_ones: dict[tuple[torch.device, int], Tensor] = {}


def _torch_multiplies(x: Tensor, w: Tensor) -> bool:
    """Whether torch's product of 8 bits takes these matrices."""
    if not x.is_cuda or x.dtype is w.dtype is torch.float8_e5m2:
        return False
    if x.shape[0] == 0 or x.shape[1] % 16 or w.shape[0] % 16 or x.shape[1] == 0:
        return False
    dense = all(one.is_contiguous() and begins_whole(one) for one in (x, w))
    return dense and torch.cuda.get_device_capability(x.device) >= (8, 9)


def wants_gradient(values: Iterable[Any]) -> bool:
    """Whether a gradient goes back through a call of these values, tensors among them."""
    return torch.is_grad_enabled() and any(
        isinstance(one, Tensor) and one.requires_grad for one in values
    )


def wrong_shape(name: str, key: str, value: Tensor, wanted: str, cure: str) -> ValueError:
    """The error of a factor whose shape does not fit."""
    return ValueError(
        f"{name}: {key} must have shape {wanted}, got {shortened(tuple(value.shape))}; {cure}"
    )


def wrong_weight(name: str, key: str, value: Tensor, columns: int, of: str) -> ValueError:
    """The error of a weight whose rows do not have this many columns, those of `of`."""
    cure = "each row of it makes one number of each row, as in torch.nn.Linear"
    if value.dim() == 2 and value.shape[0] == columns:
        cure = f"pass {key}.mT: the rows of {key} are the outputs, as in torch.nn.Linear"
    elif value.dim() == 2:
        outputs, takes = value.shape
        cure = f"this {key} is one of torch.nn.Linear({takes}, {outputs}), for {takes} columns"
    return wrong_shape(name, key, value, f"(N, {columns}) for {of}", cure)


def product_sizes(x: Tensor, w: Tensor) -> tuple[tuple[int, ...], int, int]:
    """The shape of x @ w.mT, the number of its products, and the rows of each.

    Args:
        x: The factor of shape (..., M, K). A w without batch dimensions multiplies all its rows at
            once, and it may have one dimension.
        w: The factor of shape (..., N, K).
    """
    if w.dim() == 2:
        shape = (*x.shape[:-1], w.shape[0])
        return shape, 1, math.prod(shape[:-1])
    batch, rows = _batch_sizes(x, w), x.shape[-2]
    return (*batch, rows, w.shape[-2]), math.prod(batch), rows


def _batch_sizes(x: Tensor, w: Tensor) -> list[int]:
    """The batch dimensions of both, which have been checked; torch's function takes 15 us."""
    mine, others = x.shape[:-2], w.shape[:-2]
    pairs = itertools.zip_longest(reversed(mine), reversed(others), fillvalue=1)
    return [other if own == 1 else own for own, other in pairs][::-1]


def torch_copies(x: Tensor, w: Tensor) -> bool:
    """Whether torch's product copies a factor first: batch dimensions that are no single one."""
    sizes, apart = _batches((x, w))
    return any(len(_merged(sizes, [one])) > 1 for one in apart)


def _batches(factors: tuple[Tensor, Tensor]) -> tuple[Sequence[int], list[Sequence[int]]]:
    """The sizes of the batch dimensions, and the strides of each factor, 0 where it is expanded."""
    sizes = _batch_sizes(*factors)
    return sizes, [_expanded(one, sizes) for one in factors]


def _expanded(factor: Tensor, sizes: Sequence[int]) -> list[int]:
    lead = len(sizes) + 2 - factor.dim()
    own = zip(sizes[lead:], factor.shape, factor.stride(), strict=False)  # but for the last two
    return [0] * lead + [step if mine == size else 0 for size, mine, step in own]


def _merged(sizes: Sequence[int], apart: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """As few dimensions as all of these strides allow, each a size and its strides, inner first."""
    merged: list[tuple[int, ...]] = []
    for size, *steps in reversed([*zip(sizes, *apart, strict=True)]):
        if size == 1:
            continue
        inner, *of_inner = merged[-1] if merged else (0,)
        if inner and steps == [inner * step for step in of_inner]:
            merged[-1] = (inner * size, *of_inner)
        else:
            merged.append((size, *steps))
    return merged


def matrix_of(factor: Tensor, slot: int, box: int) -> Factor | None:
    """A factor as a matrix that bulk copies can read; None where they cannot.

    `slot` is the number of its operand in the call, `box` the rows that one copy takes.
    """
    try:
        matrix = factor.view(-1, factor.shape[-1])
    except RuntimeError:
        return None  # rows that are not evenly apart
    return _factor(matrix, slot, box)


def matrices_of(
    factors: tuple[Tensor, Tensor], slots: tuple[int, int], boxes: tuple[int, int]
) -> tuple[Factor, Factor] | None:
    """Both factors as matrices that bulk copies can read, in batch dimensions; None where not.

    Their batch dimensions broadcast; slots and boxes are as for `matrix_of`.
    """
    merged = _merged(*_batches(factors))
    if len(merged) > BATCH_DIMS:
        return None
    merged += [(1, 0, 0)] * (BATCH_DIMS - len(merged))
    found = []
    for at, one in enumerate(factors, 1):
        factor = _factor(one[(0,) * (one.dim() - 2)], slots[at - 1], boxes[at - 1])
        batch = tuple((each[0], each[at] * one.element_size()) for each in merged)
        if factor is None or any(step % 16 or step >= 2**40 for _, step in batch):
            return None
        found.append(factor._replace(batch=batch))
    return found[0], found[1]


def _factor(matrix: Tensor, slot: int, box: int) -> Factor | None:
    """A matrix as bulk copies read it, without batch dimensions."""
    pitch = matrix.stride(0) * matrix.element_size()
    if matrix.stride(1) != 1 or pitch % 16 or pitch == 0 or matrix.data_ptr() % 16:
        return None
    rows, columns = matrix.shape
    return Factor(slot, rows, columns, pitch, box, _KINDS[matrix.dtype])
