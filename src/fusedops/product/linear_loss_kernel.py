# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of rows that a cross entropy needs of a product, by one kernel that multiplies.

Its epilogue runs the LOAD, and of each row of a tile it writes the logarithm of the sum of
exponentials, and the logit of the target; no logits are in memory. `loss_parts` joins the tiles, as
it joins blocks of classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops._runtime import Delegate, Plan, Reason
from fusedops.bind.bind import Bound
from fusedops.bind.generator import draw
from fusedops.generate.product import write_factors
from fusedops.generate.source import Member
from fusedops.generate.target import Target
from fusedops.generate.views import View
from fusedops.jit import env
from fusedops.plan.placing import parts_of
from fusedops.plan.planned import Call, Results, Tensors
from fusedops.plan.planner import plan
from fusedops.product.choice import HALVES_ALONE, Choice, chosen_for, features_of_sizes
from fusedops.product.factors import HALVES
from fusedops.product.product_kernel import ProductPass, build_or_warn, by_none, factors_of
from fusedops.run.autograd import without_memory
from fusedops.run.runnable import flags_of
from fusedops.schedule.architectures import TILINGS, ProductTiling

if TYPE_CHECKING:
    from fusedops.generate.arguments import ArgumentWriter
    from fusedops.ops.losses import CrossEntropy
    from fusedops.plan.placing import Outline

__all__ = ["LossOfTiles", "ProductRowSums", "chosen", "explained"]

#: The columns that tiles of a kernel with sums of rows may have.
_COLUMNS = sorted({one.cols for one in TILINGS.values() if one.several and one.one_column})


def chosen(
    part: CrossEntropy,
    x: Tensor,
    w: Tensor,
    operands: Mapping[str, Any],
    target: Target | None = None,
) -> Choice:
    """Whether one kernel runs product and loss, as far as shapes and types decide, and why.

    `part` gives the numbers of a part's rows; x is a matrix, and the target of the loss is among
    the operands. What runs it is by default the device of the call, which runs it now.
    """
    if x.dtype is not w.dtype or x.dtype not in HALVES:
        return Choice(None, HALVES_ALONE)
    if target is None and env.record_file() is not None:
        return Choice(None, "calls are recorded, and losses of blocks are built for every GPU")
    target = target or Target.of(operands["target"].device)
    sizes = x.shape[0], w.shape[0], w.shape[1], 1
    found = features_of_sizes(part, sizes, x.dtype, operands, target)  # type: ignore[arg-type]
    if not isinstance(found, Choice):
        found = found._replace(writes=0, store=f"row sums of {part.text}", row_sums=True)
    choice = chosen_for(found, target)
    tiling = choice.tiling
    if tiling is not None and not (tiling.several and tiling.one_column):
        return Choice(None, f"one kernel of the tiling {tiling.name} has no sums of rows")
    return choice


class LossOfTiles:
    """The numbers of rows of each tile of a product, where one kernel can be had and is faster.

    Args:
        part: The op that gives the numbers of a part's rows.
        declaration: The op that is called, as warnings name it.

    Attributes:
        able: Whether kernels can be had: False once one was missing and there was no compiler.
    """

    def __init__(self, part: CrossEntropy, declaration: str) -> None:
        self._part, self._declaration = part, declaration
        self.able = True
        slots = [*((one.name, flags_of(one.role)) for one in part.operands)]
        slots.append(("w", _runtime.SLOT_TENSOR))
        name = "LinearCrossEntropy"
        self._call = _runtime.Dispatcher(name, slots, self._slow, draw, tuple, label=name)

    def __call__(
        self, x: Tensor, w: Tensor, operands: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], Tensor, int] | None:
        """Run a call; None if a product and a loss of blocks of classes have to.

        Args:
            x: The left factor, as a matrix.
            w: The right factor.
            operands: The operands of the LOAD; and the target, with the dimensions of the logits'
                rows and a last one of size 1.

        Returns:
            What `joined_blocks` takes: the numbers of each row by name, tiles in a first dimension;
            the logit of each row's target, which means nothing where that is no class; and the
            columns of a tile.
        """
        if not self.able or not x.is_cuda:
            return None
        if chosen(self._part, x, w, operands).tiling is None:
            return None
        found = self._call(x, w=w, **operands)
        if found is None:
            return None
        rows = operands["target"].shape[:-1]
        numbers, at = found[0].view(*found[0].shape[:2], *rows), found[1].view(rows)
        parts = dict(zip(numbers_of(self._part), numbers, strict=True))
        if "correct" in self._part.outputs:
            parts["correct"] = hits_of(at, parts["largest"])
        return parts, at, columns_of(found[0].shape[1], w.shape[0])

    def _slow(
        self, reason: Reason, x: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Plan | Delegate | None:
        if reason is not Reason.MISS:
            return None
        w = operands.pop("w")
        one = pass_of(self._part, x, w, operands)
        planned = None if one is None else plan(one)
        if planned is None:
            return Delegate(by_none)
        instead = "the product and the loss of each block of classes run as two kernels"
        made = build_or_warn(planned, self._declaration, instead)
        self.able = made is not None
        return made or Delegate(by_none)


def columns_of(tiles: int, classes: int) -> int:
    """The columns of each tile of a kernel that has so many: it may be of an earlier choice."""
    return next(cols for cols in _COLUMNS if -(-classes // cols) == tiles)


def hits_of(at: Tensor, largest: Tensor) -> Tensor:
    """Whether the target's logit is the largest of a tile; in a row without classes none is."""
    return ((at >= largest) & (largest > -torch.inf)).to(at.dtype)


def numbers_of(part: CrossEntropy) -> list[str]:
    """The numbers that the kernel gives of a tile's rows, in the order of `RowNumbers`."""
    smooths = part.constants["label_smoothing"] > 0
    further = [name for name in ("entropy", "largest") if name in part.outputs]
    return ["lse", *["mean"] * smooths, *further]


def pass_of(
    part: CrossEntropy,
    x: Tensor,
    w: Tensor,
    operands: Mapping[str, Any],
    target: Target | None = None,
) -> ProductRowSums | None:
    """The pass of a call that one kernel runs, whose target has a last dimension of size 1."""
    tiling = chosen(part, x, w, operands, target).tiling
    if tiling is None or part.lacking(dict(operands)):
        return None
    label = operands["target"]
    like = label.new_empty((), dtype=x.dtype)  # where the call runs, and x may be but described
    z = without_memory(like, (*label.shape[:-1], w.shape[0]))
    return ProductRowSums(part.bind(z, dict(operands)), x, w, tiling)


class ProductRowSums(ProductPass):
    """The pass of the numbers of rows of each tile of a product as one kernel.

    `bound` is the call of the loss on a product that need not be there; x is a matrix, and w has
    shape (N, K). Which dimension of w is contiguous follows from its strides, whatever the tiling
    says.
    """

    entry = "product_row_sums"
    product = "LinearCrossEntropy"

    def __init__(self, bound: Bound, x: Tensor, w: Tensor, tiling: ProductTiling) -> None:
        self.rows, self.columns = x.shape[0], w.shape[0]
        if w.stride(-1) != 1 and w.stride(-2) == 1:
            w, tiling = w.mT, dataclasses.replace(tiling, mn_major=True)
        super().__init__(bound, x.dtype, tiling)
        self.slots = bound.op.slots
        self.numbers = numbers_of(bound.op)  # type: ignore[arg-type]
        self.tiles = -(-self.columns // tiling.cols)
        self.info = f"{tiling.name}, sums of rows"
        self.factors = factors_of(bound, x, w, len(self.slots) + 1, tiling)

    def tensors(self, outline: Outline, vectors: bool) -> Tensors | None:
        """The operands; None if bulk copies cannot read the factors."""
        if self.factors is None:
            return None
        parts = parts_of(self.bound, outline, vectors)
        return {name: parts[name] for name in parts if name in self.slots}, ()

    def results(self, call: Call) -> Results:
        """The numbers of each tile's rows, and the logit of each row's target."""
        of_tiles = len(self.numbers), self.tiles, self.rows
        return Results([(torch.float32, of_tiles), (torch.float32, (self.rows,))])

    def streams(self, views: Mapping[Any, View]) -> tuple[dict[str, View], dict[str, View]]:
        """None is written, and nothing joins."""
        return {}, {}

    def members(
        self, call: Call, write: ArgumentWriter, declared: Sequence[Member], results: Results
    ) -> list[Member]:
        """Write where the results go, and the factors."""
        assert self.factors is not None
        write.pointer((_runtime.OUTPUT, 0))
        write.constant(self.tiles)
        flags = [name in self.numbers for name in ("mean", "entropy", "largest")]
        kind = f"gemm::RowNumbers<{', '.join(str(one).lower() for one in flags)}>"
        write.pointer((_runtime.OUTPUT, 1))
        members = [Member(kind, "numbers"), Member("float*", "at")]
        return members + write_factors(write, *self.factors, self.tiling)


def explained(part: CrossEntropy, x: Tensor, w: Tensor, operands: Mapping[str, Any]) -> Choice:
    """How a call is run, and why, strides and alignment included; nothing is built."""
    choice = chosen(part, x, w, operands)
    if choice.tiling is None:
        return choice
    one = pass_of(part, x, w, operands)
    if one is None:
        return Choice(None, "one kernel leaves out no operand")
    if plan(one) is None:
        return Choice(
            None,
            "one kernel reads x and w by bulk copies, from rows that begin at multiples of 16 "
            "bytes",
        )
    return choice
