# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Where a backward kernel puts the gradients of operands: C++ targets and their workspaces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from fusedops import _runtime
from fusedops.bind.bind import Bound
from fusedops.bind.geometry import Geometry, Placed, Sharing
from fusedops.generate.arguments import ArgumentWriter, Symbol
from fusedops.generate.source import Member
from fusedops.generate.views import STORAGE, View
from fusedops.run.operand_gradients import Occurrence, acting_place
from fusedops.schedule import Schedule
from fusedops.schedule.row_partition import Slices, piece_columns


def is_partial(share: Sharing, slices: Slices, rows: int, split: bool) -> bool:
    """Whether a sum is left in partial sums, one for each slice of the rows that share it.

    A `split` kernel leaves partial sums of every sum over all rows, however few rows there are.
    Where neighbouring columns share an element, every row leaves some. So does a sum over all
    rows of an operand that has none, since even one row needs no kernel of its own then.

    Args:
        share: How elements of x share one of the sum's.
        slices: The row partition.
        rows: The number of rows of the call.
        split: Whether the kernel is split.
    """
    if share.kind == "channel" or share.of_all:
        return True
    if split and share.group == rows > 1:
        return True
    return share.group > slices.rows


class BlockNumbers(NamedTuple):
    """What the workspaces of the sums over rows are made from.

    Attributes:
        pack: What a row has in common with a pack of 16 bytes of the compute type, in columns.
        blocks: The number of thread blocks, in each of which the sums of all slices are combined;
            on a CPU that of slices.
        of_one: Elements of shared memory that the sums of one operand take in a block.
    """

    pack: int
    blocks: int
    of_one: int


class GradientTargets:
    """The members of a backward kernel's argument that receive the gradients of operands.

    Args:
        bound: The forward call.
        geometry: The rows and columns of the backward call.
        schedule: The schedule of the kernel; None on a CPU.
        slices: The row partition.
        sharing: How rows and columns share each operand.
        views: The tensors of the kernel; those of gradients by `Occurrence`.
        outputs: Dtype and shape of each tensor that the call allocates; workspaces are appended.
        partial: Whether each gradient that is a sum is left in partial sums (`is_partial`).
        few: Whether one block has all rows, and a sum over them is not in parts.
        numbers: What workspaces are made from.

    Attributes:
        loose: Whether some gradient has the shape of x and is for the caller to sum.
        in_shared: The number of operands whose sums a block keeps in shared memory.
        parts_of: For each gradient that has partial sums, the source of the pointer of their
            workspace, and their number.
        pieces_of: For each gradient that is summed over pieces of a row's columns too, the number
            of pieces that make one element; on a CPU there is one, and none is listed.
    """

    def __init__(
        self,
        bound: Bound,
        geometry: Geometry,
        schedule: Schedule | None,
        slices: Slices,
        sharing: Mapping[Occurrence, Sharing],
        views: Mapping[Any, View],
        outputs: list[tuple[torch.dtype, Sequence[int]]],
        partial: Mapping[Occurrence, bool],
        few: bool,
        numbers: BlockNumbers,
    ) -> None:
        self.bound = bound
        self.geometry = geometry
        self.tile = schedule
        self.slices = slices
        self.sharing = sharing
        self.views = views
        self.outputs = outputs
        self.partial = partial
        self.few = few
        self.numbers = numbers
        self.loose = False
        self.in_shared = 0
        self.parts_of: dict[Occurrence, tuple[tuple[int, int], int]] = {}
        self.pieces_of: dict[Occurrence, int] = {}

    @property
    def shared_sums(self) -> int:
        """Elements of shared memory that the sums of a block take."""
        return self.numbers.of_one * self.in_shared

    def member(self, write: ArgumentWriter, one: Occurrence) -> Member:
        """The member that receives the gradient of an operand."""
        place = acting_place(self.bound.op, self.bound, one)
        name = f"of_{one.side}{place}_{one.number}"
        kind, sums = self._type(write, one, f"{place}, {one.number}")
        return Member(kind, name, "target", one.side, place, sums=sums)

    def _type(self, write: ArgumentWriter, one: Occurrence, numbers: str) -> tuple[str, str]:
        """The C++ type of a target, and where it keeps sums over rows, as in `Member`.

        `numbers` are the place of the functor and the number of its operand.
        """
        share, view = self.sharing[one], self.views[one]
        columns = self.geometry.columns
        if share.kind == "apart":
            # Rows that share it are no neighbours: it is written in x's shape, the caller sums it.
            self.loose = True
            view = self._whole(one, view)
            if one.side != "op":
                return f"Each<{numbers}, {write.view(view)}>", ""
            share = Sharing("row", 1, 0)
        if share.kind == "each":
            return f"Each<{numbers}, {write.view(view)}>", ""
        if share.kind == "channel":
            return self._by_channel(write, one, numbers), ""
        partial = self.partial[one]
        flag = str(partial).lower()
        if share.kind == "row":
            if partial:
                view = self._scratch(one, 1)
            kind = f"ByRow<{numbers}, "
            if one.side == "op":
                kind = f"OfRow<{one.number}, "
            kind += f"{write.view(view)}, {flag}, {write.compute}>"
            write.constant(share.group)
            return kind, ""
        sums = "memory" if self.tile is None else self.tile.launch.sum_storage
        memory = None
        if (partial and not self._is_whole(share)) or sums == "memory":
            memory = self._scratch(one, columns)
        if share.of_all:
            kind = self._by_column(write, one, numbers, memory, partial=True, sums=sums)
        else:
            # Whether slices share a sum follows from how many rows there are: one kernel does both.
            whole = self._by_column(write, one, numbers, memory, partial=False, sums=sums)
            split = self._by_column(write, one, numbers, memory, partial=True, sums=sums)
            write.constant(int(partial))
            kind = f"ByColumnOrSplit<{whole}, {split}>"
        self.in_shared += sums == "shared"
        return kind, sums

    def _by_column(
        self,
        write: ArgumentWriter,
        one: Occurrence,
        numbers: str,
        memory: View | None,
        *,
        partial: bool,
        sums: str,
    ) -> str:
        """The C++ type of a sum over rows; `memory` is its workspace, if it has one."""
        columns, view = self.geometry.columns, self.views[one]
        if not partial:
            to = write.view(view)
        elif self._is_whole(self.sharing[one]):
            place = Placed((0,), view.placed.column_stride)  # the only part is the gradient
            to = write.view(view._replace(placed=place, shared=False))
        elif sums == "memory":
            to = write.absent()
        else:
            to = write.view(memory or self._workspace(columns, None))
        write.pointer(memory.patch if memory is not None and sums == "memory" else None)
        write.constant(self.shared_sums, self.sharing[one].group, columns)
        flags = f"{str(partial).lower()}, Sums::k{sums.capitalize()}, {write.compute}"
        return f"ByColumn<{numbers}, {to}, {flags}>"

    def _by_channel(self, write: ArgumentWriter, one: Occurrence, numbers: str) -> str:
        """The C++ type of a target whose elements each stand for several neighbouring columns."""
        columns, repeats = self.geometry.columns, self.views[one].placed.repeats
        piece = repeats if self.tile is None else piece_columns(self.tile, repeats)
        if self.tile is not None:
            self.pieces_of[one] = repeats // piece
        memory = self._scratch(one, columns // piece)
        write.pointer(memory.patch)
        write.constant(columns // piece, repeats)
        return f"ByChannel<{numbers}, {0 if self.tile is None else piece}, {write.compute}>"

    def _is_whole(self, share: Sharing) -> bool:
        """Whether one block has all rows, so that its part of a sum over them is the sum."""
        return self.few and share.of_all

    def _scratch(self, one: Occurrence, columns: int) -> View:
        """Allot a workspace of `columns` elements of the compute type for each partial sum."""
        patch = (_runtime.OUTPUT, len(self.outputs))
        tile, kind = self.tile, self.sharing[one].kind
        combined = kind == "column" and tile is not None and tile.launch.sum_storage != "memory"
        parts = self.numbers.blocks if combined else self.slices.total
        if kind == "channel":
            parts = self.geometry.rows
        self.outputs.append((self.bound.compute, (parts, columns)))
        if self.partial[one]:
            self.parts_of[one] = patch, parts
        return self._workspace(columns, patch)

    def _workspace(self, columns: int, patch: tuple[int, int] | None) -> View:
        """The view of rows of so many columns in the compute type; None is a null pointer."""
        width = 0
        if self.tile is not None:
            pack = 16 // self.bound.compute.itemsize
            width = self.numbers.pack if isinstance(columns, Symbol) else math.gcd(pack, columns)
            width = min(width, self.tile.width)
        place = Placed((columns,), 1)
        return View(STORAGE[self.bound.compute], place, width, patch, False)

    def _whole(self, one: Occurrence, view: View) -> View:
        """Replace the output for an operand's gradient by one that rows do not share.

        It has the compute type and x's shape, or size 1 in the reduced dimensions for an operand of
        the operator itself.
        """
        assert view.patch is not None  # an output
        kind, index = view.patch
        place = "rows" if one.side == "op" else "whole"
        shape = list(self.bound.x.shape)
        if one.side == "op":
            shape = [1 if d in self.bound.reduced else size for d, size in enumerate(shape)]
        self.outputs[index] = (self.bound.compute, tuple(shape))
        return self.views[place,]._replace(patch=(kind, index))
