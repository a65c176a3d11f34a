# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Partition the rows of a backward pass into slices, which fixes the order of every sum over rows.

Rows that share an element of an operand's gradient are neighbours in processing order and form a
group. Each slice of rows is processed by one block, or by part of one, which adds up each group in
it (a split reduction). The partition follows from the call and the size of the device alone, so two
runs add in the same order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from fusedops.bind.geometry import Sharing
from fusedops.schedule.row_schedule import Schedule

__all__ = ["FEW_ROWS", "Slices", "cut", "cut_few", "is_sum", "may_interleave", "piece_columns"]

#: Largest number of slices on a CPU: more than any number of threads shares well, few enough that
#: their partial sums stay in the caches.
HOST_SLICES = 64

#: Smallest number of elements in a slice on a CPU.
HOST_SLICE = 4096


#: So many rows that share an operand are visited by one thread block, if they fit.
FEW_ROWS = 8


def is_sum(share: Sharing) -> bool:
    """Whether the gradient of an operand is a sum over neighbouring rows."""
    return share.kind in ("column", "row") and (share.group > 1 or share.of_all)


def piece_columns(tile: Schedule, repeats: int) -> int:
    """Columns of one piece of a row, where neighbouring columns share an element of a gradient.

    A row leaves one sum for each piece (row/channel_target.cuh). A piece is what neighbouring lanes
    hold of a pack, and lies within the columns that share an element and within a chunk, so that
    all of its lanes have the pack or none has.

    `repeats` neighbouring columns share each element.
    """
    if tile.pieces:  # the packs at the end of a row are narrower
        return 1
    width = math.gcd(repeats, tile.width)
    if width < tile.width:
        return width
    of_chunk = 0 if tile.chunks == 1 else tile.chunk // width
    return width * math.gcd(repeats // width, of_chunk, tile.threads, 32)


class Slices(NamedTuple):
    """A row partition, as in row/slices.cuh: `per_span` slices of `rows` rows cover each span."""

    rows: int  # rows in a slice
    span: int  # rows in a span; no slice straddles two spans
    per_span: int  # slices in a span
    total: int  # number of slices in all


def cut(
    rows: int,
    columns: int,
    shared: Sequence[Sharing],
    resident_rows: int | None,
    lanes: int = 1,
    persistent: bool = False,
    interleaved: bool = False,
    abreast: int = 1,
) -> Slices:
    """Partition the rows of a backward pass into slices.

    Args:
        rows: Number of rows in the call.
        columns: Row length in elements.
        shared: How rows share each operand that has a gradient.
        resident_rows: Rows that the device's persistent blocks process at a time; None for a CPU.
        lanes: Number of slices that are summed up together; all of them lie in one span.
        persistent: Whether slices of several rows (persistent blocks) are wanted in any case.
        interleaved: Whether slices take rows in turns; all that rows share, all of them share.
        abreast: Rows that a slice has at a time; they divide the rows.
    """
    if resident_rows is None:
        fewest = -(-HOST_SLICE // max(columns, 1))
        wanted = max(1, min(HOST_SLICES, rows // max(fewest, 1)))
    elif not persistent and not any(is_sum(one) for one in shared):
        return Slices(abreast, max(rows, 1), max(rows, 1) // abreast, rows // abreast)
    else:
        wanted = max(1, min(resident_rows, rows))
        if interleaved:
            # No more slices than rows in turns need: a last turn of a few blocks leaves most idle.
            turns = math.ceil(rows / wanted)
            slices = math.ceil(rows / turns)
            return Slices(turns, max(rows, 1), slices, slices)
    groups = tuple([one.group for one in shared if one.kind in ("column", "row")])
    return _cut(rows, groups, wanted, lanes, abreast)


@functools.lru_cache(maxsize=1024)
def _cut(rows: int, shared: tuple[int, ...], wanted: int, lanes: int, abreast: int) -> Slices:
    """As `cut`, into so many slices or fewer; `shared` are the rows that share an element."""
    groups = sorted({*shared})
    # One slice sums a whole group, where that leaves enough slices.
    whole = [group for group in groups if rows // group >= wanted or group == 1]
    unit = math.lcm(whole[-1] if whole else 1, abreast)
    span = next((group for group in groups if group > unit), rows)
    span = max(span, 1)
    size = unit * math.ceil(math.ceil(rows / wanted) / unit)
    size = max(1, min(size, span))
    per_span = math.ceil(span / size / lanes) * lanes
    return Slices(size, span, per_span, math.ceil(rows / span) * per_span)


def may_interleave(shared: Sequence[Sharing]) -> bool:
    """Whether slices may take rows in turns: each element is one row's, or all rows share it."""
    return all(
        one.kind == "each" or (one.kind in ("column", "row") and (one.of_all or one.group == 1))
        for one in shared
    )


def cut_few(rows: int, shared: Sequence[Sharing], lanes: int) -> Slices:
    """Partition few rows into as many slices as one block has, some of them empty.

    A slice has whole groups of those operands that not all rows share.

    There are `lanes` slices in a block, and rows are at most as many.
    """
    groups = {one.group for one in shared if is_sum(one) and not one.of_all}
    return Slices(max({1} | {group for group in groups if group < rows}), rows, lanes, lanes)
