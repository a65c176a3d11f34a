# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How the rows of a backward call are cut into slices, and which sums are then left in parts.

On a GPU this does not depend on the length of a row but by its schedule, so calls with other
lengths look it up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fusedops.bind.geometry import Geometry, Sharing
from fusedops.generate.target import Target
from fusedops.run.backward_schedule import (
    FEW_ROWS,
    in_one_block,
    without_prefetch_across_rows,
)
from fusedops.run.gradient_targets import is_partial
from fusedops.schedule import Schedule
from fusedops.schedule.backward import resident_rows
from fusedops.schedule.row_partition import Slices, cut, cut_few, is_sum

__all__ = ["Cut", "cut_of"]

#: The most cuts that a gradient remembers.
MOST = 1024


class Cut(NamedTuple):
    """The row partition of a backward call.

    Attributes:
        chosen: The schedule that was chosen for the row; None on a CPU.
        tile: The schedule of the kernel.
        few: Whether one block has all rows, so that no sum over them is in parts.
        slices: The slices of the rows.
        partial: Whether each gradient is a sum that is left in parts.
        apart: The indices of those of which the caller makes the sum, since no single stride leads
            from group to group of the rows.
        blocks, of_one: As in `BlockNumbers`.
        told: All of this that the types of a kernel follow from; None where numbers are among that.
    """

    chosen: Schedule | None
    tile: Schedule | None
    few: bool
    slices: Slices
    partial: list[bool]
    apart: list[int]
    blocks: int
    of_one: int
    told: tuple[object, ...] | None


def cut_of(
    known: dict[tuple[object, ...], Cut],
    geometry: Geometry,
    shared: Sequence[Sharing],
    chosen: Schedule | None,
    target: Target,
    split: bool,
    many: bool,
) -> Cut:
    """Cut the rows of a call.

    Args:
        known: What is remembered.
        geometry: The rows and columns of the call.
        shared: How elements of x share those of each operand that has a gradient.
        chosen: The schedule of the row; None on a CPU.
        target: The target that kernels are built for.
        split: Whether every sum over all rows is left in partial sums.
        many: Whether a single row is read as one of many (`Reading.many`).
    """
    rows = geometry.rows
    if chosen is None or chosen.features is None:  # a map's, which is made anew for each call
        return _cut(geometry, shared, chosen, target, split, many)
    told = tuple([(kind, group, outer < 0, of_all) for kind, group, outer, of_all in shared])
    # The cut keeps the schedule, so no other can have the same id.
    key = (told, rows, id(chosen), target.gpu, split, many)
    found = known.get(key)
    if found is None:
        if len(known) >= MOST:
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
) -> Cut:
    rows, tile = geometry.rows, chosen
    few = None if split else _few(rows, shared, tile, target, many)
    if few is not None:
        tile, slices = few, cut_few(rows, shared, few.rows_per_block)
    else:
        slices = cut(
            rows,
            geometry.columns,
            shared,
            None if tile is None else resident_rows(tile, target.multiprocessors),
            1 if tile is None else tile.rows_per_block,
            tile is not None and tile.launch.persistent,
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
    return Cut(chosen, tile, few is not None, slices, partial, apart, blocks, of_one, told)


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
