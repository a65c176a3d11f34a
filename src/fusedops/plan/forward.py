# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a call, and what the runtime runs where it has no plan of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusedops.bind.bind import KEPT, Bound
from fusedops.errors import UNFUSED, UnsupportedError
from fusedops.functors import WHOLE_ROW
from fusedops.generate.source import Member
from fusedops.plan.abreast import MOST, rows_abreast
from fusedops.plan.members import scheduled
from fusedops.plan.placing import parts_of
from fusedops.plan.planned import Call, Planned, Results, Tensors
from fusedops.plan.planner import plan
from fusedops.plan.reading import USUAL, Reading
from fusedops.schedule import Schedule, override
from fusedops.schedule import forward as schedule
from fusedops.schedule.independent import choose_map

if TYPE_CHECKING:
    from fusedops.bind.geometry import Geometry
    from fusedops.generate.arguments import ArgumentWriter
    from fusedops.generate.target import Target
    from fusedops.generate.views import View
    from fusedops.plan.placing import Outline

#: The most elements for which a call on a CPU uses one thread only. Two threads against one,
#: residual LayerNorm in float32: 16384 elements 10 us against 11, 32768 elements 12 against 28.
HOST_INLINE = 16384

#: Elements that a CPU thread takes at a time: 16 threads then share 65536 elements among all.
HOST_GRAIN = 4096

#: The most columns of a row in a GPU kernel, which counts them in 32 bits.
MOST_COLUMNS = 2**31 - 1


class Forward:
    """The forward pass of a call.

    `single` is whether to have a kernel for this row length alone, if the row is cut into chunks;
    `shape` is that of the outputs of x's size, if not x's: of as many elements.
    """

    entry = "forward"
    product = info = ""
    gradient = from_result = in_order = False
    from_stream: str | None = None

    def __init__(
        self, bound: Bound, single: bool = False, shape: Sequence[int] | None = None
    ) -> None:
        self.bound = bound
        self.op = bound.op
        self.slots = bound.op.slots
        self.forms = bound.op.forms
        self.dtype = bound.x.dtype
        self.single = single
        self.shape = shape

    def tensors(self, outline: Outline, vectors: bool) -> Tensors:
        """The operands by name, and the outputs (`placing.parts_of`)."""
        return parts_of(self.bound, outline, vectors), ()

    def schedule(
        self,
        geometry: Geometry,
        outline: Outline,
        target: Target,
        reading: Reading,
        sharing: int = MOST,
    ) -> tuple[Schedule | None, str]:
        """The schedule of a GPU or None, and the storage of a row.

        `sharing` is the number of rows that a thread can have at a time (plan/abreast.py).
        """
        bound, op, gpu = self.bound, self.op, target.gpu
        columns, forced = max(geometry.columns, 1), override.current()
        if gpu is None:
            return None, schedule.choose_host(columns, forced.storage)
        check_columns(op.name, columns)
        row = schedule.Row(
            columns=columns,
            element_bytes=bound.x.element_size(),
            compute_bytes=bound.compute.itemsize,
            # Packs of one width for all lengths: lanes that hold a block are then neighbours.
            dropout=len(bound.dropout_slots) > 0 or op.block is not None,
            streams=outline.streams,
            centred=op.centred,
            single=self.single,
            align=op.block or 0,
            forgets=not op.has_result,
            narrow_result=op.quantized is not None,
            paired=op.pair is not None,
            sharing=1 if op.pair is None else sharing,
        )
        if op.reduces or op.block == WHOLE_ROW:
            tile = schedule.choose(row, target.arch, gpu, forced.storage, forced.forward)
        else:
            tile = choose_map(row, target.arch, gpu, forced.storage, forced.forward)
        return tile, tile.storage

    def settled(self, call: Call) -> Call:
        """Decide how many rows are abreast, and whether rows go through shared memory."""
        gpu, bound, op = call.target.gpu, self.bound, self.op
        if call.tile is not None and call.tile.launch.abreast > 1:
            most = rows_abreast(call.tile, call)
            if most < call.tile.launch.abreast:
                given = call.geometry, call.outline, call.target, call.reading
                call = call._replace(tile=self.schedule(*given, most)[0])
        if gpu is None or not gpu.bulk_copies or not (op.reduces or op.block == WHOLE_ROW):
            return call
        tile = call.tile
        assert tile is not None
        if op.block is not None or not op.has_result:  # what is staged is stored by elements
            return call._replace(tile=tile.replaced(staged_bytes=0)) if tile.staged_bytes else call
        if call.outline.streams == "many":
            return call
        x, y = call.views["x"], call.views["out", "y"]
        if x.placed[1:] != (1, 1) or y.placed[1:] != (1, 1):  # columns apart, or shared
            return call._replace(tile=tile.replaced(staged_bytes=0)) if tile.staged_bytes else call
        sizes = (bound.x.element_size(), bound.output_dtype("y").itemsize)
        own = min(size * min(tile.width, 16 // size) for size in sizes)
        access = min(x.width * sizes[0], y.width * sizes[1])
        staged = schedule.staged(tile, own, access, max(sizes), gpu.shared_limit)
        return call if staged is tile else call._replace(tile=staged)

    def results(self, call: Call | None) -> Results:
        """The outputs; those of x's size have the shape that is asked for."""
        bound, op, outputs, cleared = self.bound, self.op, [], []
        whole = tuple(bound.x.shape if self.shape is None else self.shape)
        for place, name in enumerate(bound.outputs):
            shape = whole
            if name == KEPT or name in op.statistics or name in (*op.maxima, *op.of_blocks):
                shape = bound.output_shape(name)
            if name == "y" and op.packed > 1:
                shape = (*whole[:-1], whole[-1] // op.packed)
            tiles = name in op.of_blocks and op.store[-1].block_layout == "tiles"
            if name in op.maxima or tiles:  # the rest of the last tiles is zero
                cleared.append(place)
            dtype = bound.compute if name == KEPT else bound.output_dtype(name)
            outputs.append((dtype, shape))
        return Results([*outputs], cleared=cleared)

    def streams(self, views: Mapping[Any, View]) -> tuple[dict[str, View], dict[str, View]]:
        """The outputs; nothing joins them."""
        keys = {name: KEPT if name == KEPT else ("out", name) for name in self.bound.outputs}
        return {name: views[key] for name, key in keys.items() if key in views}, {}

    def members(
        self, call: Call, write: ArgumentWriter, declared: Sequence[Member], results: Results
    ) -> list[Member]:
        """Write y, the row statistics, and what the schedule leaves to the argument."""
        bound, op, operator = self.bound, self.op, declared[2].cpp
        members = [Member(write.output("y"), "y")] if op.has_result else []
        kept = f"Kept<{write.output(KEPT)}, " if bound.keep and op.kept else ""
        returned = [
            f"Statistic<&{operator}::Finish::{op.statistics[name].member}, {write.output(name)}>"
            for name in op.outputs
            if name in op.statistics
        ]
        if returned:
            kind = f"Statistics<{', '.join(returned)}>"
        else:
            write.constant(0)
            kind = "NoStatistics"
        members.append(Member(f"{kept}{kind}, {op.kept}>" if kept else kind, "statistics"))
        return members + scheduled(write, call.tile)

    def types(self, call: Call) -> tuple[object, ...] | None:
        """Whether rows are prefetched and statistics kept."""
        tile = call.tile
        if tile is None:
            return None, self.bound.keep
        return None if tile.chunks > 1 else (tile.launch.prefetch == "never", self.bound.keep)

    def launch(self, call: Call, results: Results) -> tuple[int, int, int, int, int]:
        """Rows, grain, grid, block and shared memory of the kernel."""
        rows, columns, tile = call.geometry.rows, call.geometry.columns, call.tile
        # A thread of a CPU takes all rows where it runs alone.
        grain = rows if rows * columns <= HOST_INLINE else max(1, HOST_GRAIN // columns)
        if tile is None:
            return rows, grain, 1, 1, 0
        return rows, grain, tile.grid(rows), tile.threads_per_block, tile.shared_bytes


def describe(
    bound: Bound,
    target: Target | None = None,
    reading: Reading = USUAL,
    single: bool = False,
    shape: Sequence[int] | None = None,
) -> Planned:
    """Plan a call whose reduced dimensions merge, without building anything.

    The arguments are those of `plan` and `Forward`.
    """
    planned = plan(Forward(bound, single, shape), target, reading)
    assert planned is not None, "`columns_apart` comes before"
    return planned


def check_columns(name: str, columns: int) -> None:
    """Raise UnsupportedError for rows of more columns than a GPU kernel counts in 32 bits."""
    if columns > MOST_COLUMNS:
        raise UnsupportedError(
            f"{name}: rows of {columns} columns, a GPU kernel holds at most {MOST_COLUMNS}; "
            f"compute on the CPU, or use {UNFUSED}"
        )
