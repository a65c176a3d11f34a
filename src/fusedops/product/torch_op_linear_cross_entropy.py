# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The passes of a `LinearCrossEntropy`, as operators of torch.

The gradient of x is a sum over classes, and that of w a sum over rows. Each is one product, whose
sums are in the GEMM, if the logits are cut the other way: x's by chunks of rows, w's by blocks of
classes. Each part of the logits is multiplied when it is needed, and its gradient takes its memory.

- ``fusedops::linear_cross_entropy(x, w, target, tensors, names, numbers, counts, op, ...)`` gives
  the results of the call. The gradients named in ``early`` are made with them, up to the gradient
  of the loss; it goes by chunks of rows then, and otherwise by blocks of classes, whose numbers of
  rows it joins. For what is left of ``wanted`` it also gives the numbers of each row that gradients
  are made of.
- ``fusedops::linear_cross_entropy_late(upstream, outputs, kept, ahead, spent, ...)`` goes by blocks
  of classes in the backward pass, and makes the other gradients of these numbers. Of w's gradient
  the first classes may be there, in ``ahead``.
- ``fusedops::linear_cross_entropy_scaled(upstream, gradient, spent)`` multiplies an early one by
  the gradient of the loss.

With ``spent`` nobody reads the early gradients again, and each gives its memory back as soon as it
has been multiplied. So gradients do not exist twice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, library

from fusedops.declare.text import read
from fusedops.functors import Scale
from fusedops.jit import env
from fusedops.map import Map
from fusedops.product.factors import check_broadcast, rows_of
from fusedops.product.linear_loss_logits import (
    Logits,
    ahead_of,
    block_columns,
    chunk_of,
    sweeps_of,
)
from fusedops.product.recorded import record_loss
from fusedops.torch_ops.calls import numbers_of, schema
from fusedops.torch_ops.operators import define, define_gradient, namespace


def by_parts(
    op: Any,
    x: Tensor,
    w: Tensor,
    target: Tensor,
    operands: Mapping[str, Tensor],
    numbers: Sequence[float],
    counts: Sequence[int],
) -> dict[str, Tensor]:
    """The results of a call of the op, by name. Dynamo traces it."""
    sweeps = sweeps_of(op, x, w, operands)
    given = (x, w, target.long(), [*operands.values()], [*operands], numbers, counts, op.text)
    found = torch.ops.fusedops.linear_cross_entropy(*given, *sweeps)
    return dict(zip(op.outputs, found, strict=False))


class _Call(NamedTuple):
    """The arguments of ``linear_cross_entropy``, which are the last ones of its gradient, too."""

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

    @property
    def ahead(self) -> int:
        """For how many classes the gradient of w is made in the forward pass."""
        if "w" not in self.early:
            return 0
        return ahead_of(read(self.op), self.x, self.w)

    @property
    def late(self) -> list[str]:
        """Which gradients, or parts of them, are made in the backward pass."""
        whole = [name for name in self.early if name != "w" or self.ahead == self.w.shape[0]]
        return [name for name in self.wanted if name not in whole]

    @property
    def operands(self) -> dict[str, Tensor]:
        """The operands that are tensors, by name."""
        return dict(zip(self.names, self.tensors, strict=True))

    def like(self, names: Sequence[str]) -> list[Tensor]:
        """The tensors of these names, whose shapes and dtypes their gradients have."""
        known = {"x": self.x, "w": self.w, **self.operands}
        return [known[name] for name in names]

    def like_early(self) -> list[Tensor]:
        """The same of the early gradients, of which w's may lack classes."""
        named = zip(self.early, self.like(self.early), strict=True)
        return [one[: self.ahead] if name == "w" else one for name, one in named]

    def logits(self) -> Logits:
        """What is known of the logits."""
        op = read(self.op)
        numbers = numbers_of(op.whole, (*self.names, "target"), self.numbers, self.counts)
        return Logits(op, self.x, self.w, self.target, self.operands, numbers)


class _Gradients:
    """Gradients that the parts of the logits add to, in float32 where several add to an element.

    By rows, that of w is made for the classes that are ahead.
    """

    def __init__(self, logits: Logits, names: Sequence[str], *, by_rows: bool, ahead: int) -> None:
        self.logits, self.by_rows, self.ahead = logits, by_rows, ahead
        self.found: dict[str, Tensor] = {}
        for name in names:
            w = logits.w[:ahead] if by_rows else logits.w
            one = {"x": logits.x, "w": w, **logits.operands}[name]
            if name in ("x", "w"):
                alone, make = (name == "x") == by_rows, one.new_empty
            else:
                alone = logits.of_rows(one) if by_rows else logits.of_classes(one)
                make = one.new_zeros
            dtype = one.dtype if alone else torch.promote_types(one.dtype, logits.dtype)
            self.found[name] = make(one.shape, dtype=dtype)

    def add(self, rows: slice, classes: slice, found: Mapping[str, Tensor]) -> None:
        """Take in what the gradients of a part and of its operands give."""
        logits, dz = self.logits, rows_of(found["x"])
        for name, total in self.found.items():
            if name == "x":
                _add_product(total[rows], dz, logits.w[classes], first=classes.start == 0)
            elif name == "w":
                some, of = (slice(self.ahead),) * 2 if self.by_rows else (slice(None), classes)
                _add_product(total[of], dz[:, some].t(), logits.x[rows], first=rows.start == 0)
            else:
                logits.cut(total, rows, classes).add_(found[name])

    def finished(self, like: Sequence[Tensor]) -> list[Tensor]:
        """The gradients, of the dtypes and shapes of these tensors."""
        named = zip([*self.found], like, strict=True)
        return [self.found.pop(name).to(one.dtype).view(one.shape) for name, one in named]


def _add_product(total: Tensor, one: Tensor, other: Tensor, *, first: bool) -> None:
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


def _by_rows(call: _Call) -> tuple[dict[str, Tensor], list[Tensor], list[Tensor]]:
    """The results of each row, what is kept of it where that is read, and the early gradients."""
    logits, op = call.logits(), read(call.op)
    rows = chunk_of(op, call.x, call.w, of_w="w" in call.wanted, ahead=call.ahead)
    gradients = _Gradients(logits, call.early, by_rows=True, ahead=call.ahead)
    upstream = logits.upstream({"loss": logits.x.new_ones((), dtype=logits.dtype)})
    made: list[Sequence[Tensor]] = []
    for here, classes, z in logits.parts(rows, logits.classes):
        operands = logits.operands_of(here, classes)
        *results, kept = logits.op.trained(z, **operands, **logits.numbers)
        made.append((*results, kept))
        incoming = [None if one is None else one[here] for one in upstream]
        found = logits.gradients(call.early, z, kept, operands, incoming)
        gradients.add(here, classes, found)
        del z, found  # before w's gradient is made of its sum
    *results, kept = (torch.cat(parts) for parts in zip(*made, strict=True))
    named = dict(zip(logits.op.outputs, results, strict=True))
    return named, [kept] * bool(call.late), gradients.finished(call.like_early())


def _by_classes(call: _Call) -> tuple[dict[str, Tensor], list[Tensor], list[Tensor]]:
    """The same without gradients, joined from numbers of tiles or of blocks."""
    logits, op = call.logits(), read(call.op)
    if env.record_file() is not None:  # beside the losses of blocks, which run then
        record_loss(op.of_part.whole, logits.x, logits.w, logits.of_all)
    tiles = op.of_tiles(logits.x, logits.w, logits.of_all)
    if tiles is not None:
        parts, at, columns = tiles
    else:
        columns = block_columns(logits.x.shape[1], logits.classes)
        found = _results_of_blocks(logits, op.of_part.whole, columns)
        parts, at = logits.op.numbers_of_blocks(found, logits.target, columns)
    results = logits.op.joined_blocks(parts, at, logits.target, columns, logits.classes)
    if not call.late:
        return results, [], []
    kept = logits.op.kept_of_blocks(parts, results, logits.target, logits.classes)
    return results, [kept.flatten(0, -2)], []


def _results_of_blocks(logits: Logits, part: Any, columns: int) -> dict[str, Tensor]:
    """What the loss of a part gives of each block, of which nothing else is left then."""
    made: list[Sequence[Tensor]] = []
    for rows, classes, z in logits.parts(logits.count, columns):
        operands = logits.operands_of(rows, classes)
        operands["target"].clamp_(0, z.shape[-1] - 1)  # one that lies elsewhere is not read
        made.append(part(z, **operands, **logits.numbers))
        del z, operands
    return {k: torch.stack(every) for k, *every in zip(part.outputs, *made, strict=True)}


def _run(*arguments: Any) -> list[Tensor]:
    call = _Call(*arguments)
    op = read(call.op).whole
    check_broadcast(_TITLE, "the logits", (*call.x.shape[:-1], call.w.shape[0]), call.operands)
    with torch.no_grad():
        results, kept, gradients = (_by_rows if call.early else _by_classes)(call)
        results = {name: one.view(call.target.shape) for name, one in results.items()}
        if op is not op.rows:
            results["loss"] = op.reduced(results["loss"].sum(), call.target)
    return [*results.values(), *kept, *gradients]


def _fake(*arguments: Any) -> list[Tensor]:
    call = _Call(*arguments)
    op = read(call.op).whole
    shapes: list[Any] = [call.target.shape for _ in op.outputs]
    if op is not op.rows:
        shapes[0] = ()
    shapes += [(math.prod(call.x.shape[:-1]), op.kept)] * bool(call.late)
    dtype = torch.promote_types(call.x.dtype, torch.float32)
    made = [call.x.new_empty(shape, dtype=dtype) for shape in shapes]
    return [*made, *(one.new_empty(one.shape) for one in call.like_early())]


def _run_late(
    upstream: Sequence[Tensor],
    outputs: Sequence[str],
    kept: Tensor,
    ahead: Sequence[Tensor],
    spent: bool,
    *arguments: Any,
) -> list[Tensor]:
    call = _Call(*arguments)
    with torch.no_grad():
        logits, first = call.logits(), call.ahead
        gradients = _Gradients(logits, call.late, by_rows=False, ahead=first)
        for one in ahead:
            _multiply(one, upstream[0], gradients.found["w"][:first], spent=spent)
        columns = block_columns(logits.x.shape[1], logits.classes, backward=True)
        incoming = logits.upstream(dict(zip(outputs, upstream, strict=True)))
        kept = kept.view(*logits.rows, -1)
        for rows, classes, z in logits.parts(logits.count, columns, first):
            operands = logits.operands_of(rows, classes)
            found = logits.gradients(call.late, z, kept, operands, incoming)
            gradients.add(rows, classes, found)
            del z, found  # before x's gradient is made of its sum
        return gradients.finished(call.like(call.late))


def _fake_late(
    upstream: Any, outputs: Any, kept: Any, ahead: Any, spent: bool, *arguments: Any
) -> list[Tensor]:
    call = _Call(*arguments)
    return [one.new_empty(one.shape) for one in call.like(call.late)]


@functools.cache
def _scaling() -> Map:
    """One product an element, rounded once; torch's, of two dtypes, has no wide accesses."""
    return Map(load=[Scale("by")])


def _multiply(gradient: Tensor, upstream: Tensor, out: Tensor, *, spent: bool) -> None:
    """Multiply an early gradient by that of the loss; its memory goes back if it is spent."""
    if gradient.numel() > 0 and gradient.untyped_storage().nbytes() == 0:
        raise RuntimeError(
            f"{_TITLE}: a backward pass of this loss has ended in an error after it gave back the "
            "memory of gradients; run the forward pass again, or keep them with retain_graph=True"
        )
    by = upstream.reshape(-1, 1) if upstream.dim() > 0 else upstream  # one for each row of x
    columns = out.shape[-1] if out.dim() > 0 else 1
    _scaling()(gradient.reshape(-1, columns), by=by, out=out.view(-1, columns))
    if spent:
        gradient.untyped_storage().resize_(0)


def _scale(upstream: Tensor, gradient: Tensor, spent: bool) -> list[Tensor]:
    made = torch.empty_like(gradient)
    with torch.no_grad():
        _multiply(gradient, upstream, made, spent=spent)
    return [made]


def _fake_scale(upstream: Tensor, gradient: Tensor, spent: bool) -> list[Tensor]:
    return [torch.empty_like(gradient)]


def _is_last_use() -> bool:
    """Whether what a node has saved for this backward pass is read no more after it.

    What is traced may be run more than once.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    return not torch._C._autograd._get_current_graph_task_keep_graph()


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    call = _Call(*inputs)
    ctx.set_materialize_grads(False)
    op = read(call.op)
    named = zip(op.outputs, output, strict=False)
    if constant := [one for name, one in named if name not in op.whole.able]:
        ctx.mark_non_differentiable(*constant)
    # These stay results that have a gradient: a second derivative of them is refused.
    made = output[len(op.outputs) :]
    again = [call.x, call.w, call.target, *call.tensors] if call.late else []
    ctx.save_for_backward(*made, *again)
    # With hooks on saved tensors, those that come back may be anybody's.
    ctx.hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    ctx.late = call.late
    ctx.call = call._replace(x=None, w=None, target=None, tensors=None)  # type: ignore[arg-type]


def _differentiate(ctx: Any, incoming: Sequence[Tensor | None]) -> tuple[Any, ...]:
    call: _Call = ctx.call
    outputs = read(call.op).outputs
    arriving = {k: one for k, one in zip(outputs, incoming, strict=False) if one is not None}
    found = dict[str, Tensor]()
    if arriving:
        saved = [*ctx.saved_tensors]  # once: a checkpoint hands them out a single time
        kept = [saved.pop(0) for _ in ctx.late[:1]]
        early = {name: saved.pop(0) for name in call.early}
        spent = not ctx.hooked and _is_last_use()
        if late := ctx.late:
            x, w, target, *tensors = saved
            ahead = [early.pop("w")] if "w" in late and "w" in early else []
            made = torch.ops.fusedops.linear_cross_entropy_late(
                *([*arriving.values()], [*arriving], *kept, ahead, spent),
                *(x, w, target, tensors, *call[4:]),
            )
            found.update(zip(late, made, strict=True))
        for name, one in early.items():  # one by one: in compiled code each is gone before the next
            (found[name],) = torch.ops.fusedops.linear_cross_entropy_scaled(
                arriving["loss"], one, spent
            )
    operands = [found.get(name) for name in call.names]
    rest: list[Any] = [
        None if one else [] for one in call[4:]
    ]  # an empty list counts as one of tensors
    return (found.get("x"), found.get("w"), None, operands, *rest)


_NAME, _TITLE = "linear_cross_entropy", "LinearCrossEntropy"
_LATE = (
    f"Tensor[] upstream, str[] outputs, Tensor kept, Tensor[] ahead, bool spent, {schema(_Call)}"
)
define(_NAME, schema(_Call), _run, _fake)
library.register_autograd(
    f"fusedops::{_NAME}", _differentiate, setup_context=_set_up, lib=namespace
)
define_gradient(f"{_NAME}_late", _LATE, _run_late, _fake_late, _TITLE)
_SCALED = "Tensor upstream, Tensor gradient, bool spent"
define_gradient(f"{_NAME}_scaled", _SCALED, _scale, _fake_scale, _TITLE)
