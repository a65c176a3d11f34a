# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Random draws that elements share along dimensions of x: which they are, and how rows count then.

The dropout contract (docs/dropout.md) numbers rows as if the shared dimensions had size 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusedops.declare.declaration import Declaration
from fusedops.errors import counted
from fusedops.functors import Functor

__all__ = ["check_shared", "drawn_rows", "shared_dims"]


def shared_dims(functor: Functor, rank: int) -> tuple[int, ...]:
    """The dimensions along which a functor that draws has one draw, ascending and from 0."""
    shares = functor.shares
    return tuple(sorted({dim % rank for dim in shares})) if shares else ()


def drawn_rows(
    shape: Sequence[int], reduced: Sequence[int], draws: Iterable[tuple[int, ...]]
) -> dict[tuple[int, ...], list[int]]:
    """The maps from rows to their numbers in the dropout contract, by the shared dimensions.

    A map is a number for each of x's dimensions: what one step along it adds.

    Args:
        shape: The shape of x.
        reduced: The dimensions of x that make a row.
        draws: The dimensions along which each functor of the call that draws shares its draw.
    """
    maps = {}
    for shared in draws:
        strides, step = [0] * len(shape), 1
        for dim in reversed(range(len(shape))):
            if dim not in reduced and dim not in shared:
                strides[dim] = step
                step *= max(shape[dim], 1)
        maps[shared] = strides
    return maps


def check_shared(op: Declaration, rank: int, reduced: tuple[int, ...]) -> None:
    """Raise ValueError for shared dimensions that an x of this rank lacks, or in part reduced."""
    for functor in op.drawing:
        if not functor.shares:
            continue
        for dim in functor.shares:
            if not -rank <= dim < rank:
                raise ValueError(
                    f"{op.name}: {functor!r} shares its draw along dimension {dim}, but x has "
                    f"{counted(rank, 'dimension')}; give x in as many "
                    "dimensions as the declaration counts on"
                )
        both = {*shared_dims(functor, rank)} & {*reduced}
        if both and both != {*reduced}:
            raise ValueError(
                f"{op.name}: {functor!r} shares its draw along some of the reduced dimensions "
                f"{reduced} of this call; share along all of them or none, or drop elements of x "
                "before the call"
            )
