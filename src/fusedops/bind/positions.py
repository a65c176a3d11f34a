# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The dimensions of x whose coordinates functors read."""

from __future__ import annotations

from collections.abc import Sequence

from fusedops.bind.shard_offset import Whole
from fusedops.declare.declaration import Declaration
from fusedops.errors import counted

__all__ = ["check_positions", "read_positions", "row_positions"]


def read_positions(op: Declaration, rank: int) -> tuple[int, ...]:
    """The dimensions of an x of this rank whose coordinates are read, ascending and from 0."""
    return tuple(sorted({dim % rank for dim in op.positions})) if op.positions else ()


def row_positions(
    op: Declaration, shape: Sequence[int], reduced: Sequence[int]
) -> dict[int, list[int]]:
    """The maps from rows to the coordinates that are read, by dimension.

    A map is a number for each of x's dimensions: what one step along it adds.
    """
    if not op.positions:
        return {}
    dims = [dim for dim in read_positions(op, len(shape)) if dim not in reduced]
    return {dim: [int(dim == one) for one in range(len(shape))] for dim in dims}


def check_positions(
    op: Declaration, shape: Sequence[int], reduced: Sequence[int], part_of: Whole | None
) -> None:
    """Raise ValueError for positions along dimensions that x lacks, or in which it is not whole.

    ``part_of`` says of which tensor x is a part, and has been checked.
    """
    rank = len(shape)
    if op.causal and len(reduced) == rank:
        functor = next(one for one in op.load if one.needs_query)
        raise ValueError(
            f"{op.name}: {functor!r} compares the number of a query with that of a key, but x of "
            f"shape {tuple(shape)} has no dimension of queries, all are reduced; "
            "give it one: x[None] is a single query, which stands at the first key, or with "
            "align='bottom-right' at the last"
        )
    for functor in (*op.load, *op.store):
        for dim in functor.positions:
            if not -rank <= dim < rank:
                raise ValueError(
                    f"{op.name}: {functor!r} reads position({dim}), but x has "
                    f"{counted(rank, 'dimension')}; give x in as many dimensions "
                    "as the functor counts on"
                )
            if part_of is not None and part_of.sizes[dim] != shape[dim]:
                raise ValueError(
                    f"{op.name}: {functor!r} reads position({dim}), along which x must be whole, "
                    f"got {shape[dim]} of {part_of.sizes[dim]} by part_of; give x whole there"
                )
