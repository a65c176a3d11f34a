# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The logits of a `LinearCrossEntropy`, of which some rows or some classes exist at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops.product.factors import factor_dtype, rows_of
from fusedops.run.backward import Saved, run_backward
from fusedops.run.recipe import recipe_of
from fusedops.torch_ops.tracing import is_exporting

#: With fewer rows a product with w takes about as long to read w as to multiply, and with more
#: much less.
_FEWEST_ROWS, _ENOUGH_ROWS = 512, 1024
#: With fewer classes products are small, and with more their logits take memory.
_FEWEST_CLASSES, _MOST_CLASSES = 2048, 16384


def chunk_rows(
    rows: int, features: int, classes: int, *, of_w: bool, sums: int = 0, spare: int = 0
) -> int:
    """How many rows are multiplied at a time, all chunks but the last having as many.

    Where a gradient of w is made, their logits take no more memory than it does, which is allocated
    when they are gone. If those are few rows, they may take as much as x beside it, less the sums;
    and in any case as much as spare memory beside it, less the sums.

    Args:
        rows: The rows of x.
        features: The columns of both factors.
        classes: The rows of w.
        of_w: Whether a gradient of w is made, in either pass.
        sums: How many logits have the bytes of the sums of w's gradient.
        spare: How many have those of the memory that a call may take.

    >>> chunk_rows(rows=16384, features=2048, classes=32000, of_w=True)
    2048
    """
    of_gradient = (features - -(-sums // classes)) * of_w
    room = rows * features // classes + of_gradient
    most = max(min(room, _ENOUGH_ROWS), spare // classes + of_gradient)
    wanted = max(_FEWEST_ROWS, most, features * of_w) // 64 * 64
    count = max(1, math.ceil(rows / wanted))
    return math.ceil(math.ceil(rows / count) / 64) * 64


def block_columns(features: int, classes: int, *, backward: bool = False) -> int:
    """How many classes are multiplied at a time, all blocks but the last having as many.

    Their logits take twice the bytes of x, and in the backward pass, where gradients are there as
    well, as many as x, unless that makes them few or many.

    >>> block_columns(features=4096, classes=128256)
    8064
    """
    wanted = min(max(features if backward else 2 * features, _FEWEST_CLASSES), _MOST_CLASSES)
    count = max(1, math.ceil(classes / wanted))
    return math.ceil(math.ceil(classes / count) / 64) * 64


def classes_ahead(rows: int, classes: int, size: int) -> int:
    """For how many classes w's gradient is summed in the forward sweep, which saves their product.

    The sum, in float32 or wider, takes no more memory than x does. Its classes grow by steps with
    the rows, so that code that is compiled once serves many numbers of rows.

    >>> classes_ahead(rows=16384, classes=32000, size=2)  # a quarter; w has almost twice x's rows
    8000
    """
    steps = sum(step * classes <= 2 * rows for step in range(1, 5))  # of half of w's bytes each
    ahead = classes * steps * min(size, 4) // 8
    return classes if ahead >= classes else ahead // 64 * 64


def keeps_logits(op: Any, x: Tensor, w: Tensor, operands: Iterable[Any]) -> bool:
    """Whether a call makes gradients, and may take the memory of all logits, which it keeps.

    The factors may wait for a cast by autocast; whatever else is asked here is of cast ones, for
    which autocast does not count: a backward pass may run where it is another than before.
    """
    if not (memory := op.constants.get("memory", 0)) or is_exporting():
        return False
    tensors = [one for one in (x, w, *operands) if isinstance(one, Tensor)]
    wants = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    size = factor_dtype(x).itemsize
    return wants and math.prod(x.shape[:-1]) * w.shape[0] * size <= memory


def ahead_of(op: Any, x: Tensor, w: Tensor) -> int:
    """For how many classes a call may make w's gradient in the forward sweep.

    The sums take no more memory than x does, or than a call may take beside the least chunk of
    rows, of which the gradient of w, which comes later, has a part.
    """
    rows, (classes, features), size = math.prod(x.shape[:-1]), w.shape, x.dtype.itemsize
    if memory := op.constants.get("memory", 0):
        least = max(min(rows, _FEWEST_ROWS) - features, 0) * classes * size
        rows = max(rows, (memory - least) // (features * size))
    return classes_ahead(rows, classes, size)


def chunk_of(op: Any, x: Tensor, w: Tensor, *, of_w: bool, ahead: int) -> int:
    """How many rows of a call are multiplied at a time, where gradients are made of them.

    The factors have the dtype of the product; `of_w` says whether a gradient of w is made, in
    either pass, `ahead` for how many classes the forward sweep makes it.
    """
    rows, (classes, features), size = math.prod(x.shape[:-1]), w.shape, x.dtype.itemsize
    sums, spare = ahead * features * max(size, 4) // size, op.constants.get("memory", 0) // size
    return min(rows, chunk_rows(rows, features, classes, of_w=of_w, sums=sums, spare=spare))


class Sweeps(NamedTuple):
    """Which gradients a call makes, and which of them already in the forward pass.

    That of w may be among the early ones for some of its classes alone.
    """

    wanted: list[str]
    early: list[str]


def sweeps_of(op: Any, x: Tensor, w: Tensor, operands: Mapping[str, Tensor]) -> Sweeps:
    """Which gradients a call of a `LinearCrossEntropy` makes, and when."""
    named = {"x": x, "w": w, **operands}
    wanted = [k for k, one in named.items() if torch.is_grad_enabled() and one.requires_grad]
    if why_late(op, x, operands, wanted):
        return Sweeps(wanted, [])
    sums = op.constants["reduction"] != "none" and ahead_of(op, x, w) > 0
    return Sweeps(wanted, [name for name in wanted if name != "w" or sums])


def why_late(op: Any, x: Tensor, operands: Mapping[str, Tensor], wanted: Iterable[str]) -> str:
    """Why no gradient of a call is made in the forward pass, in words; empty if some may be.

    What is made there waits for the gradient of the loss, so that has to be one number, or a number
    for each row of x. In float16 it could underflow meanwhile; losses are scaled against that. Of
    an operand a chunk of rows has all, or their part.
    """
    if is_exporting():
        return "an exported program may never go back, and is one for all sizes"
    if sum(name in op.whole.able for name in op.outputs) > 1:
        return "a further result has a gradient as well"
    if x.dtype is torch.float16:
        return "float16 is rounded when the loss has its scale"
    if op.constants["reduction"] == "none" and not {"x", "w"}.issuperset(wanted):
        return "that of an operand counts each row by the gradient of its loss"
    if not _lie_by_rows(operands.values(), math.prod(x.shape[:-1])):
        return "some rows share an operand"
    return ""


def _lie_by_rows(operands: Iterable[Tensor], rows: int) -> bool:
    """Whether operands are the same for all rows, or have numbers of their own for each."""
    return all(one.dim() < 2 or one.shape[:-1].numel() in (1, rows) for one in operands)


class Logits:
    """The logits of a call by parts, whose rows are one dimension unless some share an operand.

    Attributes:
        whole, op: The loss of the call, and the one that gives a number for each row.
        x, w: The factors, x as a matrix.
        rows: The dimensions of the rows.
        count, classes: How many rows and classes there are.
        dtype: The dtype in which the loss is computed.
        target: The class of each row.
        numbers: The operands that are no tensors.
    """

    def __init__(
        self,
        op: Any,
        x: Tensor,
        w: Tensor,
        target: Tensor,
        operands: Mapping[str, Tensor],
        numbers: Mapping[str, Any],
    ) -> None:
        self.whole, self.op, self.numbers = op.whole, op.whole.rows, numbers
        self.x, self.w = rows_of(x), w
        self.count, self.classes = self.x.shape[0], w.shape[0]
        self.dtype = torch.promote_types(x.dtype, torch.float32)
        flat = _lie_by_rows(operands.values(), self.count)
        self.rows = (self.count,) if flat else tuple(x.shape[:-1])
        self.target = target.reshape(self.rows)
        self.operands = {
            name: rows_of(one) if flat and one.dim() > 1 else one for name, one in operands.items()
        }

    def of_rows(self, one: Tensor) -> bool:
        """Whether an operand has numbers of its own for each row."""
        return one.dim() == 2 and one.shape[0] == self.count > 1

    def of_classes(self, one: Tensor) -> bool:
        """Whether an operand has numbers of its own for each class."""
        return one.dim() > 0 and one.shape[-1] == self.classes > 1

    def cut(self, one: Tensor, rows: slice, classes: slice) -> Tensor:
        """What these logits have of an operand, or of its gradient."""
        one = one[rows] if self.of_rows(one) else one
        return one[..., classes] if self.of_classes(one) else one

    def operands_of(self, rows: slice, classes: slice) -> dict[str, Tensor]:
        """The operands of these logits that are tensors, the targets counted from their first."""
        found = {name: self.cut(one, rows, classes) for name, one in self.operands.items()}
        found["target"] = (self.target[rows] - classes.start)[..., None]
        return found

    @property
    def of_all(self) -> dict[str, Any]:
        """The operands of all logits, numbers and the targets among them."""
        return {**self.operands, **self.numbers, "target": self.target[..., None]}

    def room(self, rows: int, classes: int) -> Tensor:
        """Memory for logits as a matrix, whose rows begin where a product writes them well."""
        return self.x.new_empty((rows, math.ceil(classes / 64) * 64))

    def in_rows(self, z: Tensor) -> Tensor:
        """The logits of a matrix in the dimensions of their rows."""
        return z if len(self.rows) == 1 else z.view(*self.rows, z.shape[1])

    def parts(
        self, rows: int, classes: int, first: int = 0
    ) -> Iterator[tuple[slice, slice, Tensor]]:
        """The logits from the first class on, so many rows and classes at a time, in one memory."""
        room = self.room(min(rows, self.count), min(classes, self.classes - first))
        for here in pieces(self.count, rows):
            for of in pieces(self.classes, classes, first):
                z = room[: here.stop - here.start, : of.stop - of.start]
                torch.mm(self.x[here], self.w[of].t(), out=z)
                yield here, of, self.in_rows(z)

    def upstream(self, incoming: Mapping[str, Tensor]) -> list[Tensor | None]:
        """The gradients of what each row returns, of those of the results by name."""
        found = {name: one.to(self.dtype) for name, one in incoming.items()}
        if "loss" in found and self.whole is not self.op:
            found["loss"] = self.whole.reduced(found["loss"], self.target)
        rows = {k: one.reshape(-1).expand(self.count).view(self.rows) for k, one in found.items()}
        return [rows.get(name) for name in self.op.outputs]

    def gradients(
        self,
        wanted: Iterable[str],
        z: Tensor,
        kept: Tensor,
        operands: Mapping[str, Tensor],
        upstream: Sequence[Tensor | None],
    ) -> dict[str, Tensor]:
        """The gradient of some logits z, by the name x and in their memory, and of operands.

        `kept` are the numbers of the logits' rows that the forward pass has kept, `operands` what
        `operands_of` gives of them, and `upstream` the gradients of what their rows return.
        """
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
        found = run_backward(saved, (kept, *tensors.values()), upstream, in_place=True)
        return dict(zip(("x", *op.slots), found, strict=True))


def pieces(whole: int, size: int, first: int = 0) -> Iterator[slice]:
    """``range(first, whole)`` in pieces of this size, of which the last may be shorter."""
    for start in range(first, whole, size):
        yield slice(start, min(start + size, whole))
