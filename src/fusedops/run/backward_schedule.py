# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The schedules of a backward call: what the choice depends on, found in the call."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.bind.geometry import Geometry
from fusedops.generate.target import Target
from fusedops.run import forward, placing
from fusedops.run.operand_gradients import Occurrence, gradient_like
from fusedops.run.outline import Outline, is_shared
from fusedops.run.reading import Reading, may_broadcast
from fusedops.schedule import Schedule, override
from fusedops.schedule.architectures import Gpu
from fusedops.schedule.backward import choose_gradient, values_of
from fusedops.schedule.features import BackwardFeatures
from fusedops.schedule.forward import choose_host
from fusedops.schedule.forward_tile import Row
from fusedops.schedule.independent import choose_map_gradient
from fusedops.schedule.launch import LaunchConfig
from fusedops.schedule.row_schedule import reserved_shared
from fusedops.schedule.tiling import Tile

if TYPE_CHECKING:
    from fusedops.run.wanted_gradients import WantedGradients

#: So many rows that share an operand are visited by one thread block, if they fit.
FEW_ROWS = 8

#: Bytes of static shared memory in which sums in registers are combined over the rows of a block.
STATIC_SHARED = 40 << 10

#: The number of sums that stands for all of a gradient's where its operand has row dimensions: how
#: many there are follows from the batch, and a schedule must not. From so many on, each is made by
#: one slice of a few neighbouring rows.
MANY_SUMS = 1024

#: Rows from which on an operand with row dimensions that all rows share, such as one of (1,
#: columns), has the schedule of one sum. Fewer rows are taken for a batch that happens to be small,
#: which has the kernel of larger ones; sums over them are short whatever the schedule.
ONE_SUM_ROWS = 1024


def backward_schedule(
    bound: Bound,
    outline: Outline,
    geometry: Geometry,
    target: Target,
    gradient: WantedGradients,
    reading: Reading,
) -> tuple[Schedule | None, str]:
    """Choose the schedule of a backward call: that of a GPU or None, and the storage of a row.

    Args:
        bound: The forward call.
        outline: The outline of that.
        geometry: The rows and columns of the backward call.
        target: The target that kernels are built for.
        gradient: The gradients that are wanted.
        reading: How the call is read where its shapes leave that open.

    Raises:
        UnsupportedError: A row has more columns than a GPU kernel counts.
        ValueError: A storage that a test forces cannot hold the row.
    """
    columns = max(geometry.columns, 1)
    forced = override.current()
    if target.gpu is None:
        return None, choose_host(columns, forced.storage)
    forward.check_columns(bound.op.name, columns)
    drops = outline.traffic.draws > 0
    row = Row(columns, bound.x.dtype.itemsize, bound.compute.itemsize, drops)
    many_rows = geometry.rows >= ONE_SUM_ROWS
    key = (reading.vectors, reading.broadcast, many_rows)
    sums = outline.sums.get(key)
    if sums is None or bound.tables or gradient.op is not bound.op:
        sums = tuple(_sums(bound, gradient, reading, many_rows))
        if not bound.tables and gradient.op is bound.op:
            outline.sums[key] = sums
    if not bound.op.reduces:
        across = any(_is_across(bound, one) for one in gradient.occurrences)
        more = gradient.needed.x or outline.traffic.more
        chosen = choose_map_gradient(
            row, target.gpu, len(sums), across, more, forced.storage, forced.backward
        )
        return chosen, chosen.storage
    chosen = choose_gradient(
        row,
        target.arch,
        target.gpu,
        values_of(bound.op.gradient_schedule == "norm", outline.beside),
        sums,
        forced.storage,
        forced.backward,
    )
    return chosen, chosen.storage


def _is_across(bound: Bound, one: Occurrence) -> bool:
    """Whether the gradient of an operand is a sum over all columns of a row."""
    tensor = gradient_like(bound, one)
    lead = bound.x.dim() - tensor.dim()
    return all(dim < lead or tensor.shape[dim - lead] == 1 for dim in bound.reduced)


def _sums(
    bound: Bound, gradient: WantedGradients, reading: Reading, many_rows: bool
) -> Iterator[int]:
    """For each operand whose gradient can be a sum over rows, the number of such sums or MANY."""
    x, reduced = bound.x, bound.reduced
    shape = x.shape
    for one in gradient.possible:
        tensor = gradient_like(bound, one)
        if not isinstance(tensor, Tensor) or one.side == "op":
            continue
        missing = len(shape) - tensor.dim()
        own = (1,) * missing + tensor.shape
        if any(own[dim] != shape[dim] for dim in reduced):
            continue
        if is_shared(bound, one.name, tensor, reading.vectors):
            yield 1
        elif reading.broadcast and may_broadcast(bound, tensor):
            yield MANY_SUMS
        elif any(dim < missing or own[dim] < shape[dim] for dim in placing.rows_of(bound)):
            rows = placing.rows_of(bound)
            of_all = math.prod([own[dim] for dim in rows]) == 1
            yield 1 if of_all and many_rows and not reading.broadcast else MANY_SUMS


def in_one_block(schedule: Schedule, gpu: Gpu) -> Schedule | None:
    """The schedule of few rows that share operands, of which one block has all; None without one.

    It follows from `schedule` and the GPU, and holds for all numbers of rows up to its
    `rows_per_block`: one kernel more for each kernel of many rows. No sum over rows then has parts
    for a second kernel to add up: LayerNorm and RMSNorm of 8 rows of 1024 columns take 2.84 and
    2.13 us so, 3.26 and 2.85 with two kernels (one H200, float16).
    """
    launch, tile = schedule.launch, schedule.tile
    if not schedule.one_tile or schedule.blocks_per_row > 1 or launch.sum_storage == "memory":
        return None
    own = schedule if launch.rows_per_block > 1 else None
    forced = override.current().backward is not None
    if forced or launch.rows_per_block >= FEW_ROWS or tile.threads > 32:
        return own
    threads, sums = tile.threads * FEW_ROWS, FEW_ROWS * tile.capacity * schedule.compute_bytes
    if launch.sum_storage == "shared":
        assert isinstance(schedule.features, BackwardFeatures)
        sums *= schedule.features.sums
        room = gpu.shared_limit - reserved_shared(threads, schedule.compute_bytes)
    else:
        room = STATIC_SHARED
    if sums > room:
        return own
    return schedule.replaced(launch=launch._replace(rows_per_block=FEW_ROWS))


def without_prefetch_across_rows(schedule: Schedule) -> Schedule:
    """The schedule where slices have several rows, so that no later block takes a later row."""
    if schedule.launch.prefetch != "across_rows":
        return schedule
    return schedule.replaced(launch=schedule.launch._replace(prefetch="never"))


@functools.cache  # of the few pairs that `second_stage` has
def sums_schedule(threads: int, columns: int) -> Schedule:
    """The schedule of the kernel that adds up partial sums: threads and columns of a block."""
    tile = Tile(threads, 1, columns, 1, threads * columns)
    return Schedule("register", tile, LaunchConfig(), exact=False, compute_bytes=4)
