# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Lookup tables of functors: the view that a kernel reads, and the layout of their gradients.

A table of shape (entries, n) does not broadcast against x. What does is its first entry, with its n
numbers along one dimension of x; the other entries lie a constant step further. The gradient comes
element by element of the index (`contribution_sizes`), and is summed by `run.table_gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fusedops.functors import TableOf


class SeenTable(NamedTuple):
    """A table as a kernel sees it."""

    first: Tensor  # its first entry, which broadcasts against x
    entries: int  # the number of entries
    step: int  # the step from one entry to the next, in elements


def check_table(name: str, one: TableOf, table: Tensor, x: Tensor, reduced: Sequence[int]) -> None:
    """Raise ValueError for a table whose shape does not fit x."""
    wanted = "(entries,), since dim is None" if one.dim is None else ""
    if one.dim is not None:
        dim = one.dim % x.dim()
        if dim in reduced:
            raise ValueError(
                f"{name}: the table {one.table!r} has a number for each index along dimension "
                f"{one.dim} of x, which this call reduces; name another with Gather(dim=)"
            )
        size = x.shape[dim]
        wanted = f"(entries, {size}), x's size in dimension {one.dim}, or (entries, 1)"
        fits = table.dim() == 2 and table.shape[1] in (1, size)
    else:
        fits = table.dim() == 1
    if not fits or not table.shape[0]:
        cure = "give it an entry at least"
        if not fits:
            cure = "name the dimension of x that its second one stands for with Gather(dim=)"
        raise ValueError(
            f"{name}: the table {one.table!r} must have shape {wanted}, got "
            f"{tuple(table.shape)}; {cure}"
        )


def seen(table: Tensor, one: TableOf, rank: int) -> SeenTable:
    """The view of a table that a kernel reads, for an x of this rank."""
    first = table.detach()[0]
    if one.dim is not None:
        for _ in range(rank - 1 - one.dim % rank):
            first = first[..., None]
    return SeenTable(first, table.shape[0], table.stride(0))


def contribution_sizes(
    one: TableOf, table: Sequence[int], index: Sequence[int], rank: int
) -> list[int]:
    """The shape in which a table's gradient comes, of one that broadcasts against x.

    It has the index's sizes, and the table's second one along its dimension of x.
    """
    if one.dim is None:
        return list(index)
    at = one.dim % rank
    sizes = [1] * (rank - len(index)) + list(index)
    sizes[at] = max(sizes[at], table[1])
    return sizes[min(at, rank - len(index)) :]
