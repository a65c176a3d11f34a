# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The schedule of a backward call, and how its rows are cut into slices.

On a GPU the cut does not depend on the length of a row but by its schedule, so calls with other
lengths look it up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.bind.geometry import Geometry, Sharing
from fusedops.functors import Role
from fusedops.generate.target import Target
from fusedops.plan import forward
from fusedops.plan.abreast import MOST
from fusedops.plan.placing import Outline, is_shared
from fusedops.plan.planned import Sums
from fusedops.plan.reading import Reading, may_broadcast
from fusedops.plan.wanted_gradients import Occurrence, gradient_like
from fusedops.schedule import Schedule, override
from fusedops.schedule.architectures import Gpu
from fusedops.schedule.backward import choose_gradient, resident_rows, values_of
from fusedops.schedule.features import BackwardFeatures
from fusedops.schedule.forward import choose_host
from fusedops.schedule.forward_tile import Row
from fusedops.schedule.independent import choose_map_gradient
from fusedops.schedule.row_partition import (
    FEW_ROWS,
    Slices,
    cut,
    cut_few,
    is_sum,
    may_interleave,
)
from fusedops.schedule.row_schedule import reserved_shared

if TYPE_CHECKING:
    from fusedops.plan.wanted_gradients import WantedGradients

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
    aligned: bool = True,
    sharing: int = MOST,
    starts: bool = False,
) -> tuple[Schedule | None, str]:
    """Choose the schedule of a backward call: that of a GPU or None, and the storage of a row.

    The geometry is that of the backward call. `aligned` says whether bulk copies can read x and the
    gradient of y, as far as is known; `sharing` how many rows a thread can have at a time
    (plan/abreast.py); `starts` whether a saved stream takes the place of the LOAD
    (`Backward.from_stream`).

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
    if bound.op.pair is not None:
        row = row._replace(paired=True, sharing=sharing)
    many_rows = geometry.rows >= ONE_SUM_ROWS
    key = (reading.vectors, reading.broadcast, many_rows, gradient.wanted)
    remembers = not bound.tables and gradient.op is bound.op
    sums = outline.sums.get(key) if remembers else None
    if sums is None:
        sums = tuple(_sums(bound, gradient.possible, reading, many_rows))
        wanted = next(_sums(bound, gradient.occurrences, reading, many_rows), None)
        if bound.op.reduces and bound.op.reduces_gradient and wanted is None:
            sums = ()  # Blocks need not stay where no sum is wanted; the tile is that of all calls.
        if remembers:
            outline.sums[key] = sums
    if not (bound.op.reduces and bound.op.reduces_gradient):
        across = any(_is_across(bound, one) for one in gradient.occurrences)
        more = gradient.needed.x or outline.traffic.more
        straight = bound.op.row_roles.get("target") is Role.TARGET and not bound.load
        chosen = choose_map_gradient(
            row,
            target.arch,
            target.gpu,
            len(sums),
            across,
            more,
            forced.storage,
            forced.backward,
            straight,
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
        # Functors of a LOAD may read x again, after a later row has taken its place. A STORE with
        # others than parameters was not measured.
        aligned and (starts or not bound.load) and all(one.channel_operands for one in bound.store),
    )
    return chosen, chosen.storage


def _is_across(bound: Bound, one: Occurrence) -> bool:
    """Whether the gradient of an operand is a sum over all columns of a row."""
    tensor = gradient_like(bound, one)
    lead = bound.x.dim() - tensor.dim()
    return all(dim < lead or tensor.shape[dim - lead] == 1 for dim in bound.reduced)


def _sums(
    bound: Bound, uses: Iterable[Occurrence], reading: Reading, many_rows: bool
) -> Iterator[int]:
    """For each use whose gradient can be a sum over rows, the number of such sums or MANY."""
    shape, reduced, rows = bound.x.shape, bound.reduced, bound.rows
    for one in uses:
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
        elif any(dim < missing or own[dim] < shape[dim] for dim in rows):
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
    few = launch._replace(rows_per_block=FEW_ROWS)
    several = isinstance(schedule.features, BackwardFeatures) and schedule.features.sums > 1
    if several and FEW_ROWS * tile.capacity * schedule.compute_bytes <= STATIC_SHARED:
        # One row needs no running sums: LayerNorm of 1024 columns takes 2.39 us so, 2.53 otherwise.
        few = few._replace(sum_storage="registers")
    return schedule.replaced(launch=few)


def with_slices_of(schedule: Schedule, shared: Sequence[Sharing]) -> Schedule:
    """The schedule whose slices take rows in turns only if that splits no group of rows."""
    launch, by_itself = schedule.launch, schedule.rows_per_block == schedule.launch.abreast == 1
    if not launch.interleaved or (by_itself and may_interleave(shared)):
        return schedule
    return schedule.replaced(launch=launch._replace(interleaved=False))


def without_prefetch_across_rows(schedule: Schedule) -> Schedule:
    """The schedule where slices have several rows, so that no later block takes a later row."""
    if schedule.launch.prefetch != "across_rows":
        return schedule
    return schedule.replaced(launch=schedule.launch._replace(prefetch="never"))


# ------------------------------------------------------------------ the cut of the rows into slices

#: The most cuts that a gradient remembers.
MOST_CUTS = 1024


def cut_of(
    known: dict[tuple[object, ...], Sums],
    geometry: Geometry,
    shared: Sequence[Sharing],
    chosen: Schedule | None,
    target: Target,
    split: bool,
    many: bool,
) -> Sums:
    """Cut the rows of a call.

    `known` remembers results of earlier calls. `shared` says how elements of x share those of each
    operand that has a gradient. `chosen` is the schedule of the row, None on a CPU. `split` says
    whether every sum over all rows is left in partial sums, `many` whether a single row is read as
    one of many (`Reading.many`).
    """
    rows = geometry.rows
    if chosen is None or chosen.features is None:  # a map's, which is made anew for each call
        return _cut(geometry, shared, chosen, target, split, many)
    told = tuple([(kind, group, outer < 0, of_all) for kind, group, outer, of_all in shared])
    # The cut keeps the schedule, so no other can have the same id.
    key = (told, rows, id(chosen), target.gpu, split, many)
    found = known.get(key)
    if found is None:
        if len(known) >= MOST_CUTS:
            known.clear()
        found = known[key] = _cut(geometry, shared, chosen, target, split, many)
    return found


def _cut(
    geometry: Geometry,
    shared: Sequence[Sharing],
    chosen: Schedule | None,
    target: Target,
    split: bool,
    many: bool,
) -> Sums:
    rows, tile = geometry.rows, chosen
    few = None if split else _few(rows, shared, tile, target, many)
    if few is not None:
        few = few.replaced(launch=few.launch._replace(abreast=1))
        tile, slices = few, cut_few(rows, shared, few.rows_per_block)
    else:
        tile = None if tile is None else with_slices_of(tile, shared)
        slices = cut(
            rows,
            geometry.columns,
            shared,
            None if tile is None else resident_rows(tile, target.multiprocessors),
            1 if tile is None else tile.rows_per_block,
            tile is not None and tile.launch.persistent,
            tile is not None and tile.launch.interleaved,
            1 if tile is None else tile.launch.abreast,
        )
    if tile is not None and any(is_sum(share) for share in shared):
        tile = without_prefetch_across_rows(tile)
    partial = [one.kind != "apart" and is_partial(one, slices, rows, split) for one in shared]
    apart = [at for at, one in enumerate(shared) if partial[at] and one.outer < 0]
    for at in apart:
        partial[at] = False
    blocks, of_one = slices.total, 0
    if tile is not None:
        blocks = slices.total // tile.rows_per_block
        of_one = tile.threads_per_block * tile.packs * tile.width
    numbers = (tile is not None and tile.chunks > 1) or apart
    told: tuple[object, ...] | None = None
    if not numbers and not any(one.kind in ("apart", "channel") for one in shared):
        kinds = [(one.kind, one.of_all) for one in shared]
        told = (_of_tile(tile), few is not None, *kinds, *partial)
    return Sums(chosen, tile, few is not None, slices, partial, apart, blocks, of_one, told)


def _of_tile(tile: Schedule | None) -> tuple[object, ...] | None:
    """All of a schedule that members depend on, of one that has a row in a block."""
    if tile is None:
        return None
    return (tile.launch.sum_storage, tile.width, tile.launch.prefetch == "never")


def _few(
    rows: int, shared: Sequence[Sharing], tile: Schedule | None, target: Target, many: bool
) -> Schedule | None:
    """The schedule with which one block has all rows, where few rows share an operand.

    Whether there is one follows from the schedule of many rows, and which of the two a call has
    from its number of rows alone, for that decides the order in which sums are added up. Only
    a single row has no such order, and may be read as one of many.
    """
    if tile is None or target.gpu is None or rows > max(FEW_ROWS, tile.rows_per_block):
        return None
    whole = any(one.of_all and one.kind == "column" for one in shared)
    if not whole or (rows == 1 and many):
        return None
    few = in_one_block(tile, target.gpu)
    return None if few is None or rows > few.rows_per_block else few


def is_partial(share: Sharing, slices: Slices, rows: int, split: bool) -> bool:
    """Whether a sum is left in partial sums, one for each slice of the rows that share it.

    A `split` kernel leaves partial sums of every sum over all rows, however few rows there are.
    Where neighbouring columns share an element, every row leaves some. So does a sum over all
    rows of an operand that has none, since even one row needs no kernel of its own then.
    """
    if share.kind == "channel" or share.of_all:
        return True
    if split and share.group == rows > 1:
        return True
    return share.group > slices.rows
