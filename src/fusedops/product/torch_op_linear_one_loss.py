# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The two sweeps of a `LinearCrossEntropy` that returns its loss alone, as operators of torch.

The gradient of x is a sum over classes, and that of w a sum over rows. Each is one product, whose
sums are in the GEMM, if the logits are cut the other way:

- ``fusedops::linear_cross_entropy_loss(x, w, target, tensors, names, numbers, counts, op, ...)``
  goes by chunks of rows. The logits of a chunk are all of its rows', so their gradient is known up
  to the gradient of the loss; it takes their memory, and the gradients named in ``early`` are made
  of it. What comes out is the loss, the numbers of each row that its gradient is made of, and
  these gradients. That of w may be one of them, added up over the chunks in float32.
- ``fusedops::linear_cross_entropy_loss_of_w(...)`` goes by blocks of classes in the backward pass,
  and multiplies each again, which gives that of w otherwise.
- ``fusedops::linear_cross_entropy_loss_scaled(upstream, gradients)`` multiplies the early ones by
  the gradient of the loss.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, library

from fusedops.declare.text import read
from fusedops.functors import Scale
from fusedops.map import Map
from fusedops.product.factors import factor_dtype, rows_of
from fusedops.product.torch_op_linear_cross_entropy import add_product, block_columns, blocks_of
from fusedops.run.backward import Saved, run_backward
from fusedops.run.recipe import recipe_of
from fusedops.torch_ops.calls import numbers_of, schema
from fusedops.torch_ops.operators import define, define_gradient, namespace

__all__ = ["Sweeps", "chunk_rows", "columns_of_block", "has_room_for_sums", "sweeps_of"]

#: With fewer rows a product with w takes longer to read w than to multiply.
_FEWEST = 1024
#: A block of classes whose logits take as many bytes as x.
_OF_FEATURES = 1


def chunk_rows(rows: int, features: int, *, of_w: bool) -> int:
    """How many rows are multiplied at a time, all chunks but the last having as many.

    Where a gradient of w is made, the logits of a chunk take no more memory than it does. It is
    allocated when they are gone, so they take none of their own.

    >>> chunk_rows(rows=16384, features=2048, of_w=True)
    2048
    """
    wanted = max(features, _FEWEST) if of_w else _FEWEST
    count = max(1, math.ceil(rows / wanted))
    return math.ceil(math.ceil(rows / count) / 64) * 64


def has_room_for_sums(rows: int, classes: int) -> bool:
    """Whether w's gradient is added up in the forward sweep, which saves a product.

    The sum in float32 may take 8 bytes for each element of x.
    """
    return classes <= 2 * rows


def columns_of_block(features: int, classes: int) -> int:
    """How many classes are multiplied at a time in the backward pass."""
    return block_columns(features, classes, of_features=_OF_FEATURES)


class Sweeps(NamedTuple):
    """Which gradients a call makes, and which of them already in the forward sweep."""

    wanted: list[str]
    early: list[str]


def sweeps_of(op: Any, x: Tensor, w: Tensor, operands: Mapping[str, Tensor]) -> Sweeps | None:
    """What a call of a `LinearCrossEntropy` makes in two sweeps; None if it does not go that way.

    What is made early waits for the gradient of the loss, so that has to be one number, or a number
    for each row of x. In float16 it could underflow meanwhile; losses are scaled against that.
    Operands are the same for all rows, or have numbers of their own for each.
    """
    named = {"x": x, "w": w, **operands}
    wanted = [k for k, one in named.items() if torch.is_grad_enabled() and one.requires_grad]
    by_row, rows = op.constants["reduction"] == "none", math.prod(x.shape[:-1])
    if not wanted or op.outputs != ("loss",) or factor_dtype(x) is torch.float16:
        return None
    if by_row and not {"x", "w"}.issuperset(wanted):
        return None
    if any(one.dim() > 1 and one.shape[:-1].numel() not in (1, rows) for one in operands.values()):
        return None
    sums = not by_row and has_room_for_sums(rows, w.shape[0])
    return Sweeps(wanted, [name for name in wanted if name != "w" or sums])


class _Forward(NamedTuple):
    """The arguments of ``linear_cross_entropy_loss``."""

    x: Tensor
    w: Tensor
    target: Tensor
    tensors: Sequence[Tensor]
    names: Sequence[str]
    numbers: Sequence[float]
    counts: Sequence[int]
    op: str
    wanted: Sequence[str]
    early: Sequence[str]


class _OfW(NamedTuple):
    """The arguments of ``linear_cross_entropy_loss_of_w``."""

    upstream: Tensor
    kept: Tensor
    x: Tensor
    w: Tensor
    target: Tensor
    tensors: Sequence[Tensor]
    names: Sequence[str]
    numbers: Sequence[float]
    counts: Sequence[int]
    op: str


class _Scaling(NamedTuple):
    """The arguments of ``linear_cross_entropy_loss_scaled``."""

    upstream: Tensor
    gradients: Sequence[Tensor]


class _Logits:
    """What both sweeps know of a call, its rows in one dimension."""

    def __init__(self, call: _Forward | _OfW) -> None:
        self.whole = read(call.op).whole
        self.op = self.whole.rows
        self.x, self.w = rows_of(call.x), call.w
        self.target = call.target.reshape(-1)
        self.rows, self.classes = self.x.shape[0], call.w.shape[0]
        self.dtype = torch.promote_types(call.x.dtype, torch.float32)
        self.numbers = numbers_of(self.op, (*call.names, "target"), call.numbers, call.counts)
        self.given = {
            name: one if one.dim() < 2 else one.reshape(-1, one.shape[-1])
            for name, one in zip(call.names, call.tensors, strict=True)
        }

    def of_rows(self, one: Tensor) -> bool:
        """Whether an operand has numbers of its own for each row."""
        return one.dim() == 2 and one.shape[0] == self.rows > 1

    def operands(self, rows: slice, classes: slice) -> dict[str, Tensor]:
        """The operands of these logits."""
        found = {"target": (self.target[rows] - classes.start)[:, None]}
        for name, one in self.given.items():
            one = one[rows] if self.of_rows(one) else one
            wide = one.dim() > 0 and one.shape[-1] == self.classes > 1
            found[name] = one[..., classes] if wide else one
        return found

    def memory(self, rows: int, classes: int) -> Tensor:
        """Room for logits, whose rows begin where a product writes them well."""
        return self.x.new_empty((rows, math.ceil(classes / 64) * 64))

    def upstream(self, of_loss: Tensor) -> Tensor:
        """The gradient of each row's loss."""
        one: Tensor = self.whole.reduced(of_loss.to(self.dtype), self.target)
        return one.reshape(-1).expand(self.rows)

    def gradients(
        self,
        wanted: Iterable[str],
        z: Tensor,
        kept: Tensor,
        operands: Mapping[str, Tensor],
        upstream: Tensor,
    ) -> dict[str, Tensor]:
        """The gradient of z, in its memory, and of these operands."""
        op, wanted = self.op, {"x", *wanted}
        recipe = recipe_of(op, tuple(name in wanted for name in ("x", *op.slots)))
        tensors, given = {"x": z}, dict(self.numbers)
        for name, keep in zip(op.slots, recipe.kept, strict=True):
            one = operands.get(name)
            if one is not None and keep:
                tensors[name] = one
            elif name not in given:
                given[name] = None if one is None else (one.dtype, one.shape)
        saved = Saved(op, recipe.wanted, [*tensors], given, self.dtype, z.shape)
        found = run_backward(saved, (kept, *tensors.values()), [upstream], in_place=True)
        return dict(zip(("x", *op.slots), found, strict=True))


class _Early:
    """The gradients that the forward sweep makes: each chunk adds its terms, or has its rows."""

    def __init__(self, logits: _Logits, call: _Forward) -> None:
        self.logits, self.call = logits, call
        self.found: dict[str, Tensor] = {}
        for name in call.early:
            if name == "x":
                self.found[name] = logits.x.new_empty(logits.x.shape)
            elif name == "w":
                self.found[name] = call.w.new_empty(call.w.shape, dtype=logits.dtype)
            else:
                one = logits.given[name]
                dtype = one.dtype if logits.of_rows(one) else logits.dtype
                self.found[name] = one.new_zeros(one.shape, dtype=dtype)

    def add(self, rows: slice, found: Mapping[str, Tensor]) -> None:
        """Take in what the gradients of a chunk's logits and operands give."""
        dz = found["x"]
        for name, total in self.found.items():
            if name == "x":
                torch.mm(dz, self.logits.w, out=total[rows])
            elif name == "w":
                add_product(total, dz.t(), self.logits.x[rows], first=rows.start == 0)
            elif self.logits.of_rows(self.logits.given[name]):
                total[rows] = found[name]
            else:
                total += found[name]

    def finished(self) -> list[Tensor]:
        """The gradients, of the dtypes and shapes of their tensors."""
        like = _named(self.call)
        return [self.found.pop(k).to(like[k].dtype).view(like[k].shape) for k in self.call.early]


def _named(call: _Forward) -> dict[str, Tensor]:
    return {"x": call.x, "w": call.w, **dict(zip(call.names, call.tensors, strict=True))}


def _run(*arguments: Any) -> list[Tensor]:
    call = _Forward(*arguments)
    with torch.no_grad():
        logits = _Logits(call)
        early = _Early(logits, call)
        rows, classes = logits.rows, logits.classes
        size = chunk_rows(rows, logits.x.shape[1], of_w="w" in call.wanted)
        memory = logits.memory(min(size, rows), classes)
        upstream = logits.upstream(logits.x.new_ones((), dtype=logits.dtype))
        losses: list[Tensor] = []
        keeps: list[Tensor] = []
        for start in range(0, rows, size):
            part = slice(start, min(start + size, rows))
            z = memory[: part.stop - start, :classes]
            torch.mm(logits.x[part], call.w.t(), out=z)
            operands = logits.operands(part, slice(0, classes))
            loss, kept = logits.op.trained(z, **operands, **logits.numbers)
            losses.append(loss)
            keeps.append(kept)
            if call.early:
                wanted = {*call.early} - {"x", "w"}
                found = logits.gradients(wanted, z, kept, operands, upstream[part])
                early.add(part, found)
                del found
        del memory, z  # before w's gradient is made of its sum
        loss = torch.cat(losses)
        if logits.whole is logits.op:
            loss = loss.view(call.target.shape)
        else:
            loss = logits.whole.reduced(loss.sum(), logits.target)
        return [loss, torch.cat(keeps), *early.finished()]


def _fake(*arguments: Any) -> list[Tensor]:
    call = _Forward(*arguments)
    op = read(call.op).whole
    dtype = torch.promote_types(call.x.dtype, torch.float32)
    rows = math.prod(call.x.shape[:-1])
    loss = call.x.new_empty(call.target.shape if op is op.rows else (), dtype=dtype)
    kept = call.x.new_empty((rows, op.kept), dtype=dtype)
    like = _named(call)
    return [loss, kept, *(like[name].new_empty(like[name].shape) for name in call.early)]


def _run_of_w(*arguments: Any) -> list[Tensor]:
    call = _OfW(*arguments)
    with torch.no_grad():
        logits = _Logits(call)
        rows, classes, features = logits.rows, logits.classes, logits.x.shape[1]
        found = call.w.new_empty(call.w.shape)
        columns = columns_of_block(features, classes)
        upstream = logits.upstream(call.upstream)
        memory = logits.memory(rows, min(columns, classes))
        for start, stop in blocks_of(columns, classes):
            operands = logits.operands(slice(0, rows), slice(start, stop))
            z = memory[:, : stop - start]
            torch.mm(logits.x, call.w[start:stop].t(), out=z)
            dz = logits.gradients((), z, call.kept, operands, upstream)["x"]
            torch.mm(dz.t(), logits.x, out=found[start:stop])
        return [found]


def _fake_of_w(*arguments: Any) -> list[Tensor]:
    call = _OfW(*arguments)
    return [call.w.new_empty(call.w.shape)]


@functools.cache
def _scaling() -> Map:
    """One product an element, rounded once; torch's, of two dtypes, has no wide accesses."""
    return Map(load=[Scale("by")])


def _scale(*arguments: Any) -> list[Tensor]:
    upstream, gradients = _Scaling(*arguments)
    by = upstream.reshape(-1, 1) if upstream.dim() > 0 else upstream  # one for each row of x
    with torch.no_grad():
        flat = [one.reshape(-1, one.shape[-1] if one.dim() > 0 else 1) for one in gradients]
        made = [_scaling()(one, by=by) for one in flat]
    return [one.view(like.shape) for one, like in zip(made, gradients, strict=True)]


def _fake_scale(*arguments: Any) -> list[Tensor]:
    return [torch.empty_like(one) for one in _Scaling(*arguments).gradients]


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    call = _Forward(*inputs)
    ctx.set_materialize_grads(False)
    ctx.late = [name for name in call.wanted if name not in call.early]
    _, kept, *gradients = output
    # These stay results that have a gradient: a second derivative of them is refused.
    again = [kept, call.x, call.w, call.target, *call.tensors] if ctx.late else []
    ctx.save_for_backward(*gradients, *again)
    ctx.call = call._replace(x=None, w=None, target=None, tensors=None)  # type: ignore[arg-type]


def _differentiate(ctx: Any, incoming: Sequence[Tensor | None]) -> tuple[Any, ...]:
    call: _Forward = ctx.call
    upstream, found = incoming[0], dict[str, Tensor]()
    if upstream is not None:
        saved = ctx.saved_tensors  # once: a checkpoint hands them out a single time
        gradients, again = saved[: len(call.early)], saved[len(call.early) :]
        if ctx.late:
            kept, x, w, target, *tensors = again
            (found["w"],) = torch.ops.fusedops.linear_cross_entropy_loss_of_w(
                upstream, kept, x, w, target, tensors, *call[4:8]
            )
        scaled = torch.ops.fusedops.linear_cross_entropy_loss_scaled(upstream, [*gradients])
        found.update(zip(call.early, scaled, strict=True))
    lists: list[Any] = [None if one else [] for one in (call.names, call.numbers, call.counts)]
    operands = [found.get(name) for name in call.names]
    early: list[Any] | None = None if call.early else []  # an empty list counts as one of tensors
    return (found.get("x"), found.get("w"), None, operands, *lists, None, None, early)


_NAME = "linear_cross_entropy_loss"
define(_NAME, schema(_Forward), _run, _fake)
library.register_autograd(
    f"fusedops::{_NAME}", _differentiate, setup_context=_set_up, lib=namespace
)
for _name, _call, _ran, _faked in (
    (f"{_NAME}_of_w", _OfW, _run_of_w, _fake_of_w),
    (f"{_NAME}_scaled", _Scaling, _scale, _fake_scale),
):
    define_gradient(_name, schema(_call), _ran, _faked, "LinearCrossEntropy")
