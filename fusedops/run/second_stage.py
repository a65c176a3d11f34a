# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The second kernel of a gradient: adds up the parts that slices of the rows left of each sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fusedops.bind.geometry import Geometry, Placed
from fusedops.generate.arguments import ArgumentWriter
from fusedops.generate.views import View
from fusedops.run.operand_gradients import Occurrence
from fusedops.schedule.row_partition import Sharing

__all__ = ["SecondStage", "second_stage"]

#: How the second stage sums: the first whose most parts of a sum, and most columns, are not
#: exceeded; then the columns of a block and its threads, 1, 128 or 32 a column. The order of
#: additions is the same (op/column_sums.cuh, docs/measured-facts.md).
_SUMS = (
    (64, None, 128, 128),
    (None, 999, 8, 1024),
    (None, 2048, 16, 512),
    (None, None, 32, 1024),
)


class SecondStage(NamedTuple):
    """What is generated of it: its members and words, its rows, and how a GPU's blocks take them.

    Attributes:
        wide: Columns of a block.
        block: Threads of a block.
    """

    members: Sequence[tuple[str, str]]
    write: ArgumentWriter
    rows: int
    blocks: int
    wide: int
    block: int


def second_stage(
    geometry: Geometry,
    sharing: Mapping[Occurrence, Sharing],
    views: Mapping[Any, View],
    parts_of: Mapping[Occurrence, tuple[tuple[int, int], int]],
    compute: str,
) -> SecondStage:
    """Generate what adds up `parts_of`: for each operand, where its parts are and how many."""
    write = ArgumentWriter(
        compute=compute,
        sizes=(1,),
        columns=0,
        queries=0,
        operands={},
        outputs={},
        query=(),
        logical_row=(),
        slots={},
    )

    def rows_of(one: Occurrence) -> int:  # of an operand's gradient
        return geometry.rows // sharing[one].group

    members, rows, blocks = [], 0, 0
    most = max(parts // rows_of(one) for one, (_, parts) in parts_of.items())
    wide, block = _sums_of(most, geometry.columns)
    for number, (one, (patch, all_parts)) in enumerate(parts_of.items()):
        share, view = sharing[one], views[one]
        columns = 1 if share.kind == "row" else geometry.columns
        groups = rows_of(one)
        place = Placed((share.outer,), view.placed.column_stride)
        to = write.view(view._replace(placed=place, width=1 if view.width else 0, shared=False))
        write.pointer(patch)
        for constant in (all_parts // groups, groups, columns):
            write.constant(constant)
        members.append((f"PartsOf<{to}, {write.compute}>", f"sum{number}"))
        rows += groups
        blocks += -(-columns // wide) * groups
    return SecondStage(members, write, rows, blocks, wide, block)


def _sums_of(parts: int, columns: int) -> tuple[int, int]:
    """How the second stage sums so many parts: columns of a block, and its threads."""
    for most_parts, most_columns, wide, block in _SUMS:
        if parts <= (most_parts or parts) and columns <= (most_columns or columns):
            return wide, block
    raise AssertionError("the last of _SUMS takes all")
