# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The kernel that multiplies groups of rows and runs an epilogue, and when it is chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops.bind.bind import Bound
from fusedops.bind.geometry import Placed
from fusedops.generate.product import BATCH_DIMS, MOST_GROUPS, Factor, write_factors
from fusedops.generate.source import Member
from fusedops.generate.views import STORAGE, OtherHalf, Part, View, part_of
from fusedops.plan.planned import Call, Results, Tensors
from fusedops.product.choice import MOST_ROWS, Choice, able, decided, features_of_sizes
from fusedops.product.factors import HALVES, matrix_of
from fusedops.product.product_kernel import MOST_APART, ProductPass, is_near
from fusedops.schedule import override
from fusedops.schedule.architectures import ProductTiling

if TYPE_CHECKING:
    from fusedops.generate.arguments import ArgumentWriter
    from fusedops.generate.target import Target
    from fusedops.plan.placing import Outline
    from fusedops.product.epilogue import Epilogue

__all__ = ["GroupedProduct", "bind_groups", "chosen_for_groups", "write_groups"]

#: The rows of x that one copy takes: those of a warpgroup, since a group may have few.
WARPGROUP_ROWS = 64


def chosen_for_groups(
    epilogue: Epilogue,
    x: Tensor,
    w: Tensor,
    arguments: Mapping[str, Any],
    beside: int,
    target: Target,
    dtype: torch.dtype,
    keeps: bool = False,
) -> Choice:
    """How a call is run, as far as sizes and dtypes decide it.

    Args:
        epilogue: The STORE.
        x: The rows of all groups.
        w: A matrix for each group.
        arguments: Operands and options.
        beside: The columns of the product that make one of the result, 1 or 2.
        target: What runs it.
        dtype: The dtype that the factors have when they are multiplied.
        keeps: Whether the product is an output.
    """
    if not able(epilogue) or epilogue.causal or epilogue.positions:
        return Choice(None, "its functors are not supported in the epilogue of a grouped GEMM")
    (rows, depth), (groups, columns, _) = x.shape, w.shape
    sizes = rows, columns, depth, groups
    found = features_of_sizes(epilogue, sizes, dtype, arguments, target, grouped=True)
    if isinstance(found, Choice):
        return found
    found = found._replace(writes=found.writes + keeps)
    choice = decided(found, target, override.current().product)
    tiling = choice.tiling
    if tiling is None:
        return choice
    if tiling.in_turns or not (tiling.several and tiling.one_column):
        return Choice(None, f"there is no kernel for groups of the tiling {tiling.name}")
    most = max(rows * groups, columns)
    if not 2 <= groups <= MOST_GROUPS or rows < 2 or most >= MOST_ROWS:
        return Choice(None, f"one kernel for both takes from 2 to {MOST_GROUPS} groups")
    of_y, tile = columns // beside, tiling.cols // beside
    if of_y % 8 or depth % 8 or not depth or of_y < tile:
        return Choice(
            None,
            f"one kernel for both has tiles of {tile} columns of y, and x and w of multiples of 8 "
            "columns",
        )
    return choice


def bind_groups(
    epilogue: Epilogue,
    x: Tensor,
    w: Tensor,
    arguments: Mapping[str, Any],
    by_expert: Collection[str],
    half: str | None,
) -> Bound | None:
    """The call of the STORE on a product with a dimension for the groups; None if there is none.

    The rows of a result are those of x, whatever their group, so it has that dimension in the
    strides of operands alone: 0, but where an operand has an entry for each group.

    Args:
        epilogue: The STORE.
        x: The rows.
        w: A matrix for each group.
        arguments: Operands and options.
        by_expert: The operands that have an entry for each group.
        half: The operand that is the other half of the product, if one is.
    """
    given = dict(arguments)
    groups, columns, _ = w.shape
    if half is not None:
        columns //= 2
    z = x.new_empty((1, 1, columns)).expand(groups, x.shape[0], columns)
    for name, value in arguments.items():
        if not isinstance(value, Tensor) or name not in epilogue.slots:
            continue
        if name in by_expert:
            given[name] = value[:, None, None] if value.dim() == 1 else value[:, None]
        elif value.dim() > 2:
            return None
    if half is not None:
        given[half] = z
    if given.get("out") is not None or epilogue.lacking(given):
        return None
    bound = epilogue.bind(z, given)
    return None if bound.dropout_slots or bound.tables else bound


class GroupedProduct(ProductPass):
    """The pass of a product of groups of rows and its STORE as one kernel.

    Args:
        bound: The call of the STORE (`bind_groups`).
        x: The rows of all groups, of shape (T, K).
        w: A matrix for each group, of shape (E, N, K).
        offsets: Where the groups are, as the call gives it, or (ends) where each ends.
        slots: The number of each operand among the arguments of the call, offsets and w among them.
        half: The operand that is the other half of the product, if one is.
        interleaved: Whether its rows of w are between those of the STORE's x, else below these.
        tiling: The form of the kernel, but for which of w's dimensions is contiguous.
        ends: Whether offsets are where each group ends.
        keeps: Whether the product is the last output, after those of the STORE.
        moves: Whether row i of the result goes to row to[i] of it, by an operand of that name; the
            STORE then is empty.
    """

    product = "GroupedLinear"

    def __init__(
        self,
        bound: Bound,
        x: Tensor,
        w: Tensor,
        offsets: Tensor,
        slots: dict[str, int],
        half: str | None,
        interleaved: bool,
        tiling: ProductTiling,
        *,
        ends: bool = False,
        keeps: bool = False,
        moves: bool = False,
    ) -> None:
        self.ends, self.keeps, self.moves, self.of_product = ends, keeps, moves, w.shape[1]
        self.groups, self.rows, self.columns = *w.shape[:1], x.shape[0], bound.columns
        if w.stride(-1) != 1 and w.stride(-2) == 1:
            w, tiling = w.mT, dataclasses.replace(tiling, mn_major=True)
        super().__init__(bound, x.dtype, tiling)
        self.slots, self.half, self.offsets = slots, half, offsets
        self.factors = _factors_of(bound, x, w, offsets, slots["w"], tiling)
        self.entry = "interleaved_product" if interleaved else "halved_product"
        if half is None:
            self.entry = "grouped_product"

    def tensors(self, outline: Outline, vectors: bool) -> Tensors | None:
        """The operands and outputs of the STORE; None if bulk copies cannot read the factors."""
        if self.factors is None:
            return None
        parts: dict[Any, Part] = {}
        for name, value in self.bound.operands.items():
            if isinstance(value, Tensor) and name != self.half:
                patch = (_runtime.POINTER, self.slots[name])
                parts[name] = part_of(value, patch, name in outline.shared[vectors])
        shape, strides = (1, self.rows, self.columns), (0, self.columns, 1)
        for number, name in enumerate(self.bound.outputs):
            dtype, patch = self.bound.output_dtype(name), (_runtime.OUTPUT, number)
            parts["out", name] = Part(shape, strides, dtype, patch, 16)
        return parts, ()

    def settled(self, call: Call) -> Call | None:
        """The call, unless a tile cannot address its tensors; with the half of the product."""
        if len(call.geometry.sizes) != 2 or not is_near(call):
            return None
        if self.keeps and self.of_product >= MOST_APART:
            return None
        if self.half is None:
            return call
        half = OtherHalf(STORAGE[self.dtype])
        return call._replace(views={**call.views, self.half: half})  # type: ignore[dict-item]

    def results(self, call: Call) -> Results:
        """The outputs of the STORE, and the product if it is kept."""
        shape = self.rows, self.columns
        made = [(self.bound.output_dtype(name), shape) for name in self.bound.outputs]
        return Results([*made, *[(self.dtype, (self.rows, self.of_product))] * self.keeps])

    def members(
        self, call: Call, write: ArgumentWriter, declared: Sequence[Member], results: Results
    ) -> list[Member]:
        """Write y, the product if it is kept, where the groups are, and the factors."""
        assert self.factors is not None
        members = [Member(write.output("y"), "y")]
        if self.keeps:
            patch = _runtime.OUTPUT, len(self.bound.outputs)
            place = Placed((0, self.of_product), 1)
            z = View(STORAGE[self.dtype], place, self.tiling.width, patch, False)
            members.append(Member(write.view(z), "z"))
        members.append(Member("gemm::Groups", "groups"))
        write_groups(write, self.offsets, self.slots["offsets"], self.rows, self.groups, self.ends)
        if self.moves:
            members.append(Member("gemm::Moved", "places"))
            write.pointer((_runtime.POINTER, self.slots["to"]))
        return members + write_factors(write, *self.factors, self.tiling)

    def launch(self, call: Call, results: Results) -> tuple[int, int, int, int, int]:
        """Rows, grain, grid, block and shared memory of the kernel."""
        tiling = self.tiling
        pair = tiling.cluster * tiling.rows
        most = self.rows // pair + min(self.groups, self.rows)  # pairs of tiles of all groups
        columns = self.columns * (1 if self.half is None else 2)
        grid = tiling.grid(most * pair, columns, call.target.multiprocessors)
        return self.rows, 1, grid, tiling.threads, tiling.shared_bytes


def write_groups(
    write: ArgumentWriter, offsets: Tensor, slot: int, rows: int, groups: int, ends: bool
) -> None:
    """Write `gemm::Groups`: where groups are, by offsets in an argument of the call."""
    counts, long = not ends and offsets.shape[0] == groups, offsets.dtype is torch.int64
    write.pointer((_runtime.POINTER, slot))
    write.constant(rows, groups, counts | long << 1 | ends << 2)  # Groups::Form


def _factors_of(
    bound: Bound, x: Tensor, w: Tensor, offsets: Tensor, slot: int, tiling: ProductTiling
) -> tuple[Factor, Factor] | None:
    """The factors as bulk copies read them, w as it lies; None where no kernel runs the call."""
    apart = w.stride(0) * w.element_size()
    if bound.compute is not torch.float32 or bound.whole is not None or offsets.stride(0) != 1:
        return None
    if x.dtype not in HALVES or apart % 16 or not 0 < apart < 2**40:
        return None
    if w.dtype is not x.dtype or tiling.dtype != STORAGE[x.dtype]:
        return None
    rows = matrix_of(x, 0, WARPGROUP_ROWS)
    matrix = matrix_of(w[0], slot, tiling.boxes[1])
    if rows is None or matrix is None:
        return None
    batch = ((w.shape[0], apart), *[(1, 0)] * (BATCH_DIMS - 1))
    return rows, matrix._replace(batch=batch)
