# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The dimensions of x whose coordinates decide something, so that a shard must know where it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusedops.bind.positions import read_positions

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration

__all__ = ["dims_that_count", "never_sharded"]


def dims_that_count(op: Declaration, rank: int, reduced: Sequence[int], draws: bool) -> set[int]:
    """The dimensions of rows in which a shard must know where it lies.

    That are the queries of a causal mask, say, and for a dropout all along which draws differ.
    """
    rows = [dim for dim in range(rank) if dim not in reduced]
    counted = {rows[-1]} if rows and op.causal else set()
    for functor in (*op.load, *op.store) if draws else ():
        if functor.draws is not None:
            counted |= {*rows} - {dim % rank for dim in functor.shares}
    return counted


def never_sharded(op: Declaration, rank: int) -> set[int]:
    """The dimensions of x that stay whole, whatever a call says of its part.

    That are those whose coordinates a functor reads, and those along which a table has its numbers.
    """
    tables = {one.dim % rank for one in op.tables.values() if one.dim is not None}
    return {*read_positions(op, rank)} | tables
