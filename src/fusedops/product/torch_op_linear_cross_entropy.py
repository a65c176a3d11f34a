# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The two loops over blocks of classes of a `LinearCrossEntropy`, as operators of torch.

- ``fusedops::linear_cross_entropy(x, w, target, tensors, names, numbers, counts, op)`` multiplies
  each block of w, and gives the numbers of a `CrossEntropy` of the block alone, of all blocks: each
  of shape (blocks, *rows).
- ``fusedops::linear_cross_entropy_backward(...)`` multiplies each block again, and gives the wanted
  gradients: of w by one product over all rows for each block, whose sums the GEMM has in float32,
  of x added up in float32, block by block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, library

from fusedops.declare.text import read
from fusedops.product.factors import check_broadcast, rows_of
from fusedops.torch_ops.calls import numbers_of, schema
from fusedops.torch_ops.operators import define, define_gradient, namespace

__all__ = ["add_product", "block_columns", "blocks_of", "check_logits"]

#: A block has twice as many columns as x, so that its logits take twice the bytes of x, as x's
#: gradient does in float32: fewer columns make small products, more take memory.
_OF_FEATURES = 2
_FEWEST, _MOST = 2048, 16384
_RECORDS = torch._C.DispatchKey.AutogradFunctionality


def block_columns(features: int, classes: int, of_features: int = _OF_FEATURES) -> int:
    """How many columns of logits are multiplied at a time, all blocks but the last having as many.

    They take the memory of x this many times, unless that makes them few or many.

    >>> block_columns(features=4096, classes=128256)
    8064
    """
    wanted = min(max(of_features * features, _FEWEST), _MOST)
    count = max(1, math.ceil(classes / wanted))
    return math.ceil(math.ceil(classes / count) / 64) * 64


def blocks_of(columns: int, classes: int) -> list[tuple[int, int]]:
    """The first class of each block, and the one after its last."""
    return [(at, min(at + columns, classes)) for at in range(0, classes, columns)]


class _Forward(NamedTuple):
    """The arguments of ``linear_cross_entropy``."""

    x: Tensor
    w: Tensor
    target: Tensor
    tensors: Sequence[Tensor]
    names: Sequence[str]
    numbers: Sequence[float]
    counts: Sequence[int]
    op: str


class _Backward(NamedTuple):
    """The arguments of ``linear_cross_entropy_backward``: gradients of the results named first."""

    upstream: Sequence[Tensor]
    outputs: Sequence[str]
    x: Tensor
    w: Tensor
    target: Tensor
    tensors: Sequence[Tensor]
    names: Sequence[str]
    numbers: Sequence[float]
    counts: Sequence[int]
    op: str
    wanted: Sequence[str]


def check_logits(call: Any) -> None:
    """Raise ValueError for an operand that does not broadcast against the logits of a call."""
    shape = (*call.x.shape[:-1], call.w.shape[0])
    given = dict(zip(call.names, call.tensors, strict=True))
    check_broadcast("LinearCrossEntropy", "the logits", shape, given)


class _Loop:
    """The blocks of a call, one after the other, in one memory."""

    def __init__(self, call: _Forward | _Backward) -> None:
        op = read(call.op)
        self.block, self.call = op.block, call
        self.ignored = call.target == op.constants["ignore_index"]
        self.rows, self.classes = call.x.shape[:-1], call.w.shape[0]
        self.columns = block_columns(call.x.shape[-1], self.classes)
        self.x = rows_of(call.x)
        self.given = dict(zip(call.names, call.tensors, strict=True))
        check_logits(call)
        present = (*call.names, "target")
        self.numbers = numbers_of(self.block, present, call.numbers, call.counts)
        self.memory = call.x.new_empty(self.x.shape[0] * self.columns)

    def of_columns(self, tensor: Tensor) -> bool:
        """Whether an operand has a number for each class."""
        return tensor.dim() > 0 and tensor.shape[-1] == self.classes > 1

    def __iter__(self) -> Iterator[tuple[int, int, Tensor, dict[str, Any]]]:
        """Of each block its first and last class, its logits, and the arguments of its loss."""
        for start, stop in blocks_of(self.columns, self.classes):
            size = stop - start
            z = self.memory[: self.x.shape[0] * size].view(-1, size)
            torch.mm(self.x, self.call.w[start:stop].t(), out=z)
            inside = (self.call.target >= start) & (self.call.target < stop)
            local = torch.where(inside, self.call.target - start, 0)
            given = {
                name: one[..., start:stop] if self.of_columns(one) else one
                for name, one in self.given.items()
            }
            target = local.masked_fill(self.ignored, -1)
            yield start, stop, z.view(*self.rows, size), {"target": target, **given, **self.numbers}


def _run(*arguments: Any) -> list[Tensor]:
    call = _Forward(*arguments)
    with torch.no_grad():
        found = [loop.block(z, **given) for loop in [_Loop(call)] for _, _, z, given in loop]
    return [torch.stack(parts) for parts in zip(*found, strict=True)]


def _fake(*arguments: Any) -> list[Tensor]:
    call = _Forward(*arguments)
    op = read(call.op)
    count = len(blocks_of(block_columns(call.x.shape[-1], call.w.shape[0]), call.w.shape[0]))
    dtype = torch.float64 if call.x.dtype is torch.float64 else torch.float32
    shape = (count, *call.x.shape[:-1])
    return [call.x.new_empty(shape, dtype=dtype) for _ in op.block.outputs]


def _run_backward(*arguments: Any) -> list[Tensor]:
    call = _Backward(*arguments)
    loop, wanted = _Loop(call), {*call.wanted}
    compute = torch.promote_types(call.x.dtype, torch.float32)
    dx = torch.empty_like(loop.x, dtype=compute) if "x" in wanted else None
    found: dict[str, Tensor] = {}
    for name in wanted - {"x", "w"}:
        one = loop.given[name]
        if loop.of_columns(one):
            found[name] = torch.empty_like(one)
        else:
            found[name] = torch.zeros_like(one, dtype=torch.promote_types(one.dtype, compute))
    if "w" in wanted:
        found["w"] = torch.empty_like(call.w)
    # Autograd sees each block, below which the dispatcher calls operators.
    recorded = torch._C._SetExcludeDispatchKeyGuard(_RECORDS, False)
    with torch.no_grad(), recorded:
        for at, (start, stop, z, given) in enumerate(loop):
            names = [name for name in loop.given if name in wanted]
            for name in names:
                given[name] = given[name].detach().requires_grad_()
            leaf = z.detach().requires_grad_()
            with torch.enable_grad():
                made = loop.block(leaf.view_as(leaf), **given)
            results = [getattr(made, name) for name in call.outputs]
            upstream = [one[at] for one in call.upstream]
            leaves = [leaf, *(given[name] for name in names)]
            dz, *others = torch.autograd.grad(results, leaves, upstream)
            del made, results, leaf, leaves
            dz = rows_of(dz)
            if dx is not None:
                add_product(dx, dz, call.w[start:stop], first=start == 0)
            if "w" in wanted:
                torch.mm(dz.t(), loop.x, out=found["w"][start:stop])
            for name, one in zip(names, others, strict=True):
                if loop.of_columns(loop.given[name]):
                    found[name][..., start:stop] = one
                else:
                    found[name] += one
    del loop.memory, dz, z  # before another tensor of x's size is made
    if dx is not None:
        found["x"] = dx.to(call.x.dtype).view(call.x.shape)
    return [
        found[name] if name in ("x", "w") else found[name].to(loop.given[name].dtype)
        for name in call.wanted
    ]


def add_product(total: Tensor, one: Tensor, other: Tensor, *, first: bool) -> None:
    """``total += one @ other``, added in total's dtype; the first product is all of it."""
    wide: dict[str, Any] = {}
    if total.dtype is not one.dtype:
        if total.is_cuda:
            wide = {"out_dtype": total.dtype}
        else:
            one, other = one.to(total.dtype), other.to(total.dtype)
    if first:
        torch.mm(one, other, out=total, **wide)
    else:
        torch.addmm(total, one, other, out=total, **wide)


def _fake_backward(*arguments: Any) -> list[Tensor]:
    call = _Backward(*arguments)
    known = {"x": call.x, "w": call.w, **dict(zip(call.names, call.tensors, strict=True))}
    return [torch.empty_like(known[name]) for name in call.wanted]


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    call = _Forward(*inputs)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(call.x, call.w, call.target, *call.tensors)
    ctx.call = call._replace(x=None, w=None, target=None, tensors=None)  # type: ignore[arg-type]
    needs = ctx.needs_input_grad
    ctx.wanted = [name for name, need in zip(("x", "w"), needs, strict=False) if need]
    ctx.wanted += [
        name for name, one in zip(call.names, call.tensors, strict=True) if one.requires_grad
    ]


def _differentiate(ctx: Any, incoming: Sequence[Tensor | None]) -> tuple[Any, ...]:
    call: _Forward = ctx.call
    outputs = read(call.op).block.outputs
    arriving = {k: one for k, one in zip(outputs, incoming, strict=True) if one is not None}
    x, w, target, *tensors = ctx.saved_tensors
    results = torch.ops.fusedops.linear_cross_entropy_backward(
        [*arriving.values()], [*arriving], x, w, target, tensors, *call[4:], ctx.wanted
    )
    found = dict(zip(ctx.wanted, results, strict=True))
    given = (call.names, call.numbers, call.counts)
    lists: list[Any] = [None if one else [] for one in given]
    return (found.get("x"), found.get("w"), None, [found.get(k) for k in call.names], *lists, None)


define("linear_cross_entropy", schema(_Forward), _run, _fake)
library.register_autograd(
    "fusedops::linear_cross_entropy", _differentiate, setup_context=_set_up, lib=namespace
)
define_gradient(
    "linear_cross_entropy_backward",
    schema(_Backward),
    _run_backward,
    _fake_backward,
    "LinearCrossEntropy",
)
