# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The backward pass of a call.

The gradient of the STORE becomes the LOAD of the backward kernel, and the gradient of the LOAD its
STORE. If slices of the rows share a gradient, a second kernel adds up their partial sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fusedops import _runtime
from fusedops.bind.bind import KEPT, Bound
from fusedops.bind.geometry import Placed, Sharing
from fusedops.generate.arguments import Symbol
from fusedops.generate.source import Member
from fusedops.generate.views import STORAGE, Blank, View, filled, widened
from fusedops.plan.abreast import rows_abreast
from fusedops.plan.backward_schedule import backward_schedule, cut_of
from fusedops.plan.forward import HOST_INLINE
from fusedops.plan.members import scheduled
from fusedops.plan.planned import Call, Results, Tensors
from fusedops.plan.reading import as_read
from fusedops.plan.saved_tensors import into_name, joining_name, saved_name
from fusedops.plan.shared_gradients import stream_as_row
from fusedops.plan.wanted_gradients import Occurrence, acting_place, gradient_like
from fusedops.schedule.backward import resident_rows, with_ring
from fusedops.schedule.features import BackwardFeatures
from fusedops.schedule.row_partition import piece_columns

if TYPE_CHECKING:
    from collections.abc import Collection

    from fusedops.bind.geometry import Geometry
    from fusedops.generate.arguments import ArgumentWriter
    from fusedops.generate.target import Target
    from fusedops.plan.placing import Outline
    from fusedops.plan.reading import Reading
    from fusedops.plan.wanted_gradients import WantedGradients
    from fusedops.schedule import Schedule


class Backward:
    """The backward pass of a call.

    `given` are the other tensors and numbers of the backward call, by keyword; `split` is whether
    every sum over all rows is left in partial sums (`is_partial`).
    """

    entry = "gradient"
    product = info = ""
    gradient, in_order = True, False

    def __init__(
        self,
        wanted: WantedGradients,
        bound: Bound,
        dy: Tensor,
        given: Mapping[str, Any],
        split: bool = False,
    ) -> None:
        self.wanted = wanted
        self.bound = bound
        self.op = wanted.op
        self.dy = dy
        self.given = given
        self.split = split
        self.slots = wanted.numbers
        self.forms = wanted.forms
        self.dtype = bound.x.dtype
        self.from_result = wanted.needed.result
        self.from_stream = stream_as_row(bound.load, wanted)

    def tensors(self, outline: Outline, vectors: bool) -> Tensors:
        """What the kernel reads by keyword, and what it writes.

        The gradient of y is ("upstream",), that of x ("to",), and those of operands have their
        `Occurrence`. Then come, as ("whole",), a tensor of x's shape, and as ("rows",), one of a
        number a row, where one may be needed.
        """
        wanted, bound = self.wanted, self.bound
        shared = outline.shared[vectors]
        blanks = wanted.blanks.get((shared, bound.compute))
        if blanks is None:
            blanks = wanted.blanks[shared, bound.compute] = self._blanks(shared)
        values: dict[Any, Any] = {**self.given, "upstream": self.dy}
        for name, table in bound.tables.items():
            values[name] = table.first
        for one in wanted.occurrences if bound.tables else ():
            values[one] = gradient_like(bound, one)
        for name in self.op.row_roles:  # as wide as x
            values[name] = bound.operands[name]
        parts = filled(blanks, values, bound.x.shape, bound.reduced)
        for name in wanted.of_statistics:
            if name in parts:
                parts[name] = widened(parts[name], bound.reduced)
        last = len(parts) - 1 - wanted.of_rows
        return parts, range(last - len(wanted.occurrences), last)

    def _blanks(self, shared: Collection[str]) -> list[Blank]:
        """What is known of the tensors, whatever their sizes."""
        wanted, op, compute = self.wanted, self.op, self.bound.compute
        blanks = []
        if op.has_result:  # else the operator's gradient knows what comes in
            blanks.append(Blank(("upstream",), "upstream", True, 0, None, (_runtime.POINTER, 0)))
        for name, patch in wanted.read.items():
            count = op.kept if name == KEPT else 0
            blanks.append(Blank(name, name, True, count, None, patch, name in shared))
        if wanted.in_place:
            blanks.append(Blank(("to",), "x", True, 0, None, wanted.read["x"]))
        made: list[tuple[str, Any]] = [("x", ("to",))] * ("x" in wanted.wanted)
        made = made[wanted.in_place :] + [(one.name, one) for one in wanted.occurrences]
        for name, key in made:
            if name in wanted.into:
                to = into_name(name)
                blanks.append(Blank(key, to, True, 0, None, wanted.read[to]))
                continue
            like = key if name in op.tables else name
            dtype = compute if name in wanted.twice else None
            index = wanted.results.index(key)
            blanks.append(Blank(key, like, False, 0, dtype, (_runtime.OUTPUT, index)))
        blanks.append(Blank(("whole",), "x", False, 0, compute, (0, 0)))
        if wanted.of_rows:
            blanks.append(Blank(("rows",), "x", False, 1, compute, (0, 0)))
        return blanks

    def schedule(
        self, geometry: Geometry, outline: Outline, target: Target, reading: Reading, **known: Any
    ) -> tuple[Schedule | None, str]:
        """`backward_schedule`, with what is known of the tensors."""
        given = self.bound, outline, geometry, target, self.wanted, reading
        return backward_schedule(*given, starts=self.from_stream is not None, **known)

    def settled(self, call: Call) -> Call:
        """Cut the rows into slices, and choose where the gradients of operands are summed."""
        geometry, wanted, reading = call.geometry, self.wanted, call.reading
        uses = wanted.occurrences
        places = [call.views[one].placed for one in uses]
        shared = as_read(self.bound, call.outline, geometry, reading, uses, places)
        tile = self._with_ring(call)
        if tile is not None and tile.launch.abreast > 1:
            most = rows_abreast(tile, call, shared)
            if most < tile.launch.abreast:
                tile = self._chosen(call, sharing=most)
        sums = cut_of(wanted.cuts, geometry, shared, tile, call.target, self.split, reading.many)
        for at in sums.apart:
            shared[at] = shared[at]._replace(kind="apart")
        return Call(*call[:-3], sums.tile, dict(zip(uses, shared, strict=True)), sums)

    def _with_ring(self, call: Call) -> Schedule | None:
        """The schedule of the row, with a ring of rows in shared memory if it has one.

        Where the tensors do not allow that, or every slice has one row, it is another schedule.
        """
        tile: Schedule | None = call.tile
        gpu, stream = call.target.gpu, self.from_stream
        read: list[Any] = ["x" if stream is None else saved_name(stream), ("upstream",)]
        read += [] if stream is None else [joining_name(stream)]
        if tile is None or gpu is None or not tile.launch.ring_stages or read[1] not in call.views:
            return tile
        if not self.op.reduces:
            return tile
        found = None
        assert isinstance(tile.features, BackwardFeatures)
        there = all(key in call.views for key in read)
        if tile.features.bulk_rows and tile.launch.sum_storage != "memory" and there:
            sizes = [call.parts[key].dtype.itemsize for key in read]
            views = [call.views[key] for key in read]
            dense = all(view.placed[1:] == (1, 1) for view in views)
            access = {view.width * size for view, size in zip(views, sizes, strict=True)}
            several = call.geometry.rows > resident_rows(tile, call.target.multiprocessors)
            pack = tile.width * tile.features.element_bytes
            if dense and access == {pack} and several:
                to = call.views.get(("to",))
                in_words = to is not None and to.placed[1:] == (1, 1)
                leaving = call.parts[("to",)].dtype.itemsize if in_words else 0
                found = with_ring(tile, gpu, sizes, pack, self.op.kept, leaving)
        if found is not None:
            return found
        return self._chosen(call, aligned=False)

    def _chosen(self, call: Call, **known: Any) -> Schedule | None:
        """The schedule of the row, with what is known of its tensors (`backward_schedule`)."""
        given = call.geometry, call.outline, call.target, call.reading
        return self.schedule(*given, **known)[0]

    def results(self, call: Call) -> Results:
        """The gradients: that of x, then those of operands."""
        parts, keys = call.parts, self.wanted.results
        outputs = [(parts[key].dtype, tuple(parts[key].shape)) for key in keys]
        if not outputs:  # all are written elsewhere, and a plan of the runtime returns something
            outputs.append((self.bound.compute, (1,)))
        return Results([*outputs], len(outputs))

    def streams(self, views: Mapping[Any, View]) -> tuple[dict[str, View], dict[str, View]]:
        """The saved streams that are read, and the gradients that join."""
        op, joining = self.op, self.wanted.joining
        read = {n: views[saved_name(n)] for n in op.saves if saved_name(n) in views}
        return read, {n: views[joining_name(n)] for n in op.joining if n in joining}

    def members(
        self, call: Call, write: ArgumentWriter, declared: Sequence[Member], results: Results
    ) -> list[Member]:
        """Write what comes in, the gradients, and the slices of the rows."""
        views, sums, op = call.views, call.sums, self.op
        assert sums is not None
        upstream = views.get(("upstream",))
        members = [] if upstream is None else [Member(write.view(upstream), "upstream")]
        members.append(Member(write.view(views[KEPT]) if op.kept else write.absent(), "kept"))
        to = views.get(("to",))
        members.append(Member(write.absent() if to is None else write.view(to), "to"))
        targets = GradientTargets(call, results, write)
        members += [targets.member(one) for one in self.wanted.occurrences]
        members += scheduled(write, call.tile)
        write.constant(sums.slices.rows, sums.slices.span, sums.slices.per_span)
        return [*members, Member("Slices", "slices")]

    def types(self, call: Call) -> tuple[object, ...] | None:
        """How rows are cut, and what a workspace is accessed by."""
        sums = call.sums
        assert sums is not None
        return None if sums.told is None else (_pack(call), self.bound.x.dtype, sums.told)

    def launch(self, call: Call, results: Results) -> tuple[int, int, int, int, int]:
        """Slices, grain, grid, block and shared memory of the kernel."""
        geometry, tile, sums = call.geometry, call.tile, call.sums
        assert sums is not None
        total = sums.slices.total
        grain = total if geometry.rows * geometry.columns <= HOST_INLINE else 1
        if tile is None:
            return total, grain, 1, 1, 0
        grid = -(-total // tile.rows_per_block) * tile.blocks_per_row
        shared = sums.of_one * results.in_shared * self.bound.compute.itemsize + tile.ring_bytes
        return total, grain, grid, tile.threads_per_block, shared


def _pack(call: Call) -> int:
    """What a row has in common with a pack of 16 bytes of the compute type, in columns."""
    return math.gcd(call.merged.columns, 16 // call.one.bound.compute.itemsize)


class GradientTargets:
    """The members of a backward kernel's argument that receive the gradients of operands.

    `results` is what the backward call allocates; workspaces are appended to it.
    """

    def __init__(self, call: Call, results: Results, write: ArgumentWriter) -> None:
        assert call.sums is not None
        self.bound = call.one.bound
        self.geometry = call.geometry
        self.tile = call.tile
        self.views = call.views
        self.compute = self.bound.compute
        self.sharing = call.sharing
        self.sums = call.sums
        self.partial = dict(zip(call.sharing, call.sums.partial, strict=True))
        self.pack = _pack(call)
        self.results = results
        self.write = write

    def member(self, one: Occurrence) -> Member:
        """The member that receives the gradient of an operand."""
        place = acting_place(self.bound, one)
        name = f"of_{one.side}{place}_{one.number}"
        kind, sums = self._type(one, f"{place}, {one.number}")
        return Member(kind, name, "target", one.side, place, sums=sums)

    def _type(self, one: Occurrence, numbers: str) -> tuple[str, str]:
        """The C++ type of a target, and where it keeps sums over rows, as in `Member`.

        `numbers` are the place of the functor and the number of its operand.
        """
        share, view, write = self.sharing[one], self.views[one], self.write
        columns = self.geometry.columns
        if share.kind == "apart":
            # Rows that share it are no neighbours: it is written in x's shape, the caller sums it.
            self.results.loose = True
            view = self._whole(one, view)
            if one.side != "op":
                return f"Each<{numbers}, {write.view(view)}>", ""
            share = Sharing("row", 1, 0)
        if share.kind == "each":
            return f"Each<{numbers}, {write.view(view)}>", ""
        if share.kind == "channel":
            return self._by_channel(one, numbers), ""
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
            kind = self._by_column(one, numbers, memory, sums, partial=True)
        else:
            # Whether slices share a sum follows from how many rows there are: one kernel does both.
            whole = self._by_column(one, numbers, memory, sums, partial=False)
            split = self._by_column(one, numbers, memory, sums, partial=True)
            write.constant(int(partial))
            kind = f"ByColumnOrSplit<{whole}, {split}>"
        self.results.in_shared += sums == "shared"
        return kind, sums

    def _by_column(
        self, one: Occurrence, numbers: str, memory: View | None, sums: str, *, partial: bool
    ) -> str:
        """The C++ type of a sum over rows; `memory` is its workspace, if it has one."""
        columns, view, write = self.geometry.columns, self.views[one], self.write
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
        taken = self.sums.of_one * self.results.in_shared  # by sums before it, in shared memory
        write.constant(taken, self.sharing[one].group, columns)
        flags = f"{str(partial).lower()}, Sums::k{sums.capitalize()}, {write.compute}"
        return f"ByColumn<{numbers}, {to}, {flags}>"

    def _by_channel(self, one: Occurrence, numbers: str) -> str:
        """The C++ type of a target whose elements each stand for several neighbouring columns."""
        columns, repeats = self.geometry.columns, self.views[one].placed.repeats
        write = self.write
        piece = repeats if self.tile is None else piece_columns(self.tile, repeats)
        if self.tile is not None:
            self.results.pieces_of[one] = repeats // piece
        memory = self._scratch(one, columns // piece)
        write.pointer(memory.patch)
        write.constant(columns // piece, repeats)
        return f"ByChannel<{numbers}, {0 if self.tile is None else piece}, {write.compute}>"

    def _is_whole(self, share: Sharing) -> bool:
        """Whether one block has all rows, so that its part of a sum over them is the sum."""
        return self.sums.few and share.of_all

    def _scratch(self, one: Occurrence, columns: int) -> View:
        """Allot a workspace of `columns` elements of the compute type for each partial sum."""
        patch = (_runtime.OUTPUT, len(self.results.outputs))
        tile, kind = self.tile, self.sharing[one].kind
        combined = kind == "column" and tile is not None and tile.launch.sum_storage != "memory"
        parts = self.sums.blocks if combined else self.sums.slices.total
        if kind == "channel":
            parts = self.geometry.rows
        self.results.outputs.append((self.compute, (parts, columns)))
        if self.partial[one]:
            self.results.parts_of[one] = patch, parts
        return self._workspace(columns, patch)

    def _workspace(self, columns: int, patch: tuple[int, int] | None) -> View:
        """The view of rows of so many columns in the compute type; None is a null pointer."""
        width = 0
        if self.tile is not None:
            whole = 16 // self.compute.itemsize
            width = self.pack if isinstance(columns, Symbol) else math.gcd(whole, columns)
            width = min(width, self.tile.width)
        place = Placed((columns,), 1)
        return View(STORAGE[self.compute], place, width, patch, False)

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
        self.results.outputs[index] = (self.compute, tuple(shape))
        return self.views[place,]._replace(patch=(kind, index))
