# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The second kernel of a backward pass: adds up the partial sums that slices of the rows left.

The first kernel writes the partial sums to a workspace in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fusedops.bind.geometry import Geometry, Placed
from fusedops.generate.arguments import ArgumentWriter, RowMaps
from fusedops.generate.members import Member
from fusedops.generate.views import View
from fusedops.run.operand_gradients import Occurrence
from fusedops.schedule.row_partition import Sharing

#: Columns and threads of a thread block where sums are over pieces of neighbouring columns as well:
#: each of its warps has a column.
_PIECES = (8, 256)

#: How the second stage sums, as (most partial sums, most columns, columns a thread block, threads a
#: thread block): the first entry whose limits are not exceeded is used; None is no limit. A column
#: is summed by 1, 128 or 32 threads. All entries add in the same order (op/column_sums.cuh,
#: docs/measured-facts.md).
_SUMS = (
    (64, None, 128, 128),
    (None, 999, 8, 1024),
    (None, 2048, 16, 512),
    (None, None, 32, 1024),
)


class SecondStage(NamedTuple):
    """The generated second kernel: its argument and its launch configuration.

    Attributes:
        members: The members of the kernel's argument.
        write: The writer that holds the argument words and their relocations.
        rows: The number of rows of the kernel, one for each row of each gradient that is summed.
        blocks: The grid size, in thread blocks.
        wide: The number of columns that a thread block sums.
        block: The number of threads in a thread block.
        parts_at: For each member, the index of the argument word that holds its number of partial
            sums.
    """

    members: Sequence[Member]
    write: ArgumentWriter
    rows: int
    blocks: int
    wide: int
    block: int
    parts_at: Sequence[int]


def second_stage(
    geometry: Geometry,
    sharing: Mapping[Occurrence, Sharing],
    views: Mapping[Any, View],
    parts_of: Mapping[Occurrence, tuple[tuple[int, int], int]],
    pieces_of: Mapping[Occurrence, int],
    compute: str,
) -> SecondStage:
    """Generate the kernel that adds up the partial sums of operands' gradients.

    Args:
        geometry: The rows and columns of the backward call.
        sharing: How the rows share each operand's gradient.
        views: The views of the backward call's tensors; those of the gradients by occurrence.
        parts_of: The source of the workspace's pointer and the number of partial sums in it, for
            each gradient that has partial sums.
        pieces_of: The number of neighbouring columns of the workspace that are summed for one
            element, for each gradient that has such sums.
        compute: The C++ compute type, "float" or "double".
    """
    write = ArgumentWriter(
        compute=compute,
        sizes=(1,),
        columns=0,
        queries=0,
        operands={},
        outputs={},
        maps=RowMaps(),
        slots={},
    )

    members, rows, blocks, parts_at = [], 0, 0, []
    # The number of rows of each operand's gradient.
    rows_of = {one: geometry.rows // sharing[one].group for one in parts_of}
    most = max([parts // rows_of[one] for one, (_, parts) in parts_of.items()])
    wide, block = _PIECES if pieces_of else _sums_of(most, geometry.columns)
    for number, (one, (patch, all_parts)) in enumerate(parts_of.items()):
        share, view = sharing[one], views[one]
        columns = 1 if share.kind == "row" else geometry.columns // view.placed.repeats
        groups = rows_of[one]
        place = Placed((share.outer,), view.placed.column_stride)
        to = write.view(View(view.storage, place, 1 if view.width else 0, view.patch, False))
        write.pointer(patch)
        kind = "PartsOf"
        if one in pieces_of:
            kind = "PiecesOf"
            write.constant(pieces_of[one])
        parts_at.append(len(write.words))
        write.constant(all_parts // groups, groups, columns)
        members.append(Member(f"{kind}<{to}, {write.compute}>", f"sum{number}"))
        rows += groups
        blocks += -(-columns // wide) * groups
    return SecondStage(members, write, rows, blocks, wide, block, parts_at)


def _sums_of(parts: int, columns: int) -> tuple[int, int]:
    """The columns and the threads of a thread block, for so many partial sums of each column."""
    for most_parts, most_columns, wide, block in _SUMS:
        if parts <= (most_parts or parts) and columns <= (most_columns or columns):
            return wide, block
    raise AssertionError("the last of _SUMS takes all")
