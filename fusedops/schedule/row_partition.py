# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Cut the rows of a gradient into slices: who adds up what, and in which order.

Rows that share an element of an operand are neighbours in visiting order, a group. Whoever takes a
slice of the rows adds up each group in it. The cut follows from the call and the device's size
alone, so two runs add in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fusedops.bind.geometry import Placed

__all__ = ["Sharing", "Slices", "cut", "sharing"]

#: Slices of a CPU's rows at most: more than any number of threads shares well, few enough that
#: their partial sums stay in the caches.
HOST_SLICES = 64

#: Elements that a slice on a CPU has at least.
HOST_SLICE = 4096


class Sharing(NamedTuple):
    """Which elements of x share one of an operand.

    Attributes:
        kind: "each": none do; "column": rows do; "row": columns do, and maybe rows; "apart": rows
            that are no neighbours in visiting order.
        group: Neighbouring rows that share one.
        outer: The operand's step from group to group.
    """

    kind: str
    group: int
    outer: int


def sharing(place: Placed, sizes: Sequence[int], columns: int) -> Sharing:
    """How an operand in this place is shared among rows of these dimensions, outermost first."""
    group, outer = 1, 0
    dims = list(zip(sizes, place.row_strides, strict=True))
    while dims and (dims[-1][1] == 0 or dims[-1][0] == 1):
        group *= dims.pop()[0]
    by_row = place.column_stride == 0 and columns > 1
    if any(step == 0 and size > 1 for size, step in dims):
        return Sharing("apart", group, 0)
    reach = None
    for size, step in reversed(dims):
        if size == 1:
            continue
        if reach is None:
            outer = step
        elif step != reach:
            outer = -1  # groups of groups: no single step
        reach = step * size
    if by_row:
        return Sharing("row", group, outer)
    return Sharing("each" if group == 1 else "column", group, outer)


class Slices(NamedTuple):
    """As in row/slices.cuh: `per_span` slices of `rows` rows tile each span; `total` in all."""

    rows: int
    span: int
    per_span: int
    total: int


def cut(
    rows: int,
    columns: int,
    shared: Sequence[Sharing],
    resident: int | None,
    lanes: int = 1,
    visits: bool = False,
) -> Slices:
    """Cut the rows.

    Args:
        rows: How many there are.
        columns: Of a row.
        shared: The operands' gradients.
        resident: Rows that the device visits at a time; None for a CPU.
        visits: Slices of several rows are wanted in any case.
        lanes: Slices that are summed up together; all of them lie in one span.
    """
    groups = sorted({one.group for one in shared if one.kind in ("column", "row")})
    if resident is None:
        fewest = -(-HOST_SLICE // max(columns, 1))
        wanted = max(1, min(HOST_SLICES, rows // max(fewest, 1)))
    elif not visits and (not groups or groups[-1] == 1):
        return Slices(1, max(rows, 1), max(rows, 1), rows)
    else:
        wanted = max(1, min(resident, rows))
    # A group is summed by one slice where that leaves slices enough.
    whole = [group for group in groups if rows // group >= wanted or group == 1]
    unit = whole[-1] if whole else 1
    span = next((group for group in groups if group > unit), rows)
    span = max(span, 1)
    size = unit * math.ceil(math.ceil(rows / wanted) / unit)
    size = max(1, min(size, span))
    per_span = math.ceil(span / size / lanes) * lanes
    return Slices(size, span, per_span, math.ceil(rows / span) * per_span)
