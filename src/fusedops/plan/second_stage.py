# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The second kernel of a backward pass: adds up the partial sums that slices of the rows left.

The first kernel writes the partial sums to a workspace in memory. Types follow from where the sums
go, whatever their sizes, so they are generated once and filled in for each call.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from fusedops.bind.geometry import Placed
from fusedops.generate.arguments import ArgumentWriter, Recipe
from fusedops.generate.source import Member
from fusedops.generate.views import View
from fusedops.plan.planned import Call, Results
from fusedops.plan.symbolic import Opening
from fusedops.plan.wanted_gradients import Occurrence
from fusedops.schedule import Schedule
from fusedops.schedule.launch import LaunchConfig
from fusedops.schedule.tiling import Tile

#: Columns and threads of a thread block where sums are over pieces of neighbouring columns as well:
#: each of its warps has a column.
_PIECES = (8, 256)

#: How the second stage sums, as (most partial sums, most columns, columns a thread block, threads a
#: thread block): the first entry whose limits are not exceeded is used; None is no limit. A column
#: is summed by 1, 128 or 32 threads. All entries add in the same order (op/column_sums.cuh,
#: benchmarks/log, 10).
#:
#: `_BY_FOUR` takes the place of the last one where four columns divide all rows: a thread reads
#: four columns at once.
_SUMS = (
    (64, None, 128, 128),
    (None, 999, 8, 1024),
    (None, 2048, 16, 512),
    (None, None, 32, 1024),
)
_BY_FOUR = (32, 256)


class Sum(NamedTuple):
    """Where one gradient is added up: all that types depend on."""

    storage: str  # C++ storage type of the gradient
    column_stride: int  # the step from one of its elements to the next
    width: int  # 1, or 0 on a CPU
    to: tuple[int, int] | None  # the source of its pointer
    parts: tuple[int, int]  # the source of the workspace's pointer
    pieces: bool  # whether sums are over pieces of neighbouring columns as well


class Argument(NamedTuple):
    """The argument of a second kernel with the numbers of its calls left open."""

    members: tuple[Member, ...]  # its members
    words: int  # the number of its words
    recipe: Recipe  # its words
    patches: list[tuple[int, int, int]]  # the relocations of that
    #: For each member, the index of the word that holds its number of partial sums.
    parts_at: tuple[int, ...]


def argument_of(
    views: Mapping[Any, View],
    parts_of: Mapping[Occurrence, tuple[tuple[int, int], Any]],
    pieces_of: Mapping[Occurrence, int],
    compute: str,
) -> Argument:
    """The types of the argument of the kernel that adds up partial sums; the numbers are open.

    Views are those of the backward call's tensors. For each gradient that has partial sums
    `parts_of` has the source of the workspace's pointer and their number; and `pieces_of`, where it
    has such sums, the number of neighbouring columns of the workspace that are summed for one
    element. `compute` is the C++ type in which they are added, "float" or "double".
    """
    sums = []
    for one, (patch, _) in parts_of.items():
        storage, place, width, to, _ = views[one]
        sums.append(Sum(storage, place.column_stride, min(width, 1), to, patch, one in pieces_of))
    return _argument(tuple(sums), compute)


def second_stage(
    argument: Argument, call: Call, results: Results
) -> tuple[bytes, Schedule | None, int, int, int, int]:
    """Fill in the numbers of a call, and choose the launch.

    The argument is that of `argument_of`. The gradients have the rows and columns of the call; the
    results say which of them have partial sums.

    Returns:
        The words of the argument, the schedule (None on a CPU), and, as in `Launch`, the rows, one
        for each row of each gradient that is summed, the grain, the grid and the block.
    """
    geometry, sharing, pieces_of = call.geometry, call.sharing, results.pieces_of
    numbers: list[int] = []
    shapes: list[tuple[int, int]] = []
    most = all_rows = 0
    for one, (_, parts) in results.parts_of.items():
        kind, group, outer, _ = sharing[one]
        columns = 1 if kind == "row" else geometry.columns
        if kind == "channel":
            columns //= call.views[one].placed.repeats
        rows = geometry.rows // group  # of the operand's gradient
        most = max(most, parts // rows)
        all_rows += rows
        shapes.append((rows, columns))
        numbers += (outer, pieces_of.get(one, 1), parts // rows, rows, columns)
    wide, block = _PIECES if pieces_of else _sums_of(most, geometry.columns)
    fours = (wide, block) == _SUMS[-1][2:] and all(columns % 4 == 0 for _, columns in shapes)
    if fours:
        wide, block = _BY_FOUR
    blocks = sum([-(-columns // wide) * rows for rows, columns in shapes])
    words = argument.recipe.fill(numbers)
    if call.tile is None:
        return words, None, all_rows, 1, blocks, 1
    return words, sums_schedule(block, wide, 4 if fours else 1), all_rows, 1, blocks, block


@functools.cache  # of few pairs
def sums_schedule(threads: int, columns: int, of_thread: int) -> Schedule:
    """The schedule of the kernel: threads and columns of a block, and columns of a thread."""
    tile = Tile(threads, of_thread, columns, 1, threads * columns)
    return Schedule("register", tile, LaunchConfig(), exact=False, compute_bytes=4)


@functools.lru_cache(maxsize=1024)
def _argument(sums: tuple[Sum, ...], compute: str) -> Argument:
    """The argument of a second kernel, with five numbers of each sum open."""
    write = ArgumentWriter(compute=compute, sizes=(1,))
    members, parts_at, new = [], [], Opening().number
    for number, one in enumerate(sums):
        outer, pieces, parts, groups, columns = [new() for _ in range(5)]
        place = Placed((outer,), one.column_stride)
        to = write.view(View(one.storage, place, one.width, one.to, False))
        write.pointer(one.parts)
        if one.pieces:
            write.constant(pieces)
        parts_at.append(len(write.words))
        write.constant(parts, groups, columns)
        kind = "PiecesOf" if one.pieces else "PartsOf"
        members.append(Member(f"{kind}<{to}, {write.compute}>", f"sum{number}"))
    words = len(write.words)
    return Argument(tuple(members), words, write.recipe(), write.patches, tuple(parts_at))


def _sums_of(parts: int, columns: int) -> tuple[int, int]:
    """The columns and the threads of a thread block, for so many partial sums of each column."""
    for most_parts, most_columns, wide, block in _SUMS:
        if parts <= (most_parts or parts) and columns <= (most_columns or columns):
            return wide, block
    raise AssertionError("the last of _SUMS takes all")
