# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Global shape and offset of a shard, and which rows share a dropout draw: how rows are numbered.

Draws of a dropout and queries of masks made from indices count the rows of the whole tensor of
which a call's x is a part. So a shard has the mask that the same elements have in the whole tensor
(docs/explanation/dropout.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fusedops.bind.scalars import read_ints
from fusedops.declare.declaration import Declaration
from fusedops.errors import counted, shortened
from fusedops.functors import Functor


def shared_dims(functor: Functor, rank: int) -> tuple[int, ...]:
    """The dimensions along which a functor that draws has one draw, ascending and from 0."""
    shares = functor.shares
    return tuple(sorted({dim % rank for dim in shares})) if shares else ()


def drawn_rows(
    shape: Sequence[int], reduced: Sequence[int], draws: Iterable[tuple[int, ...]]
) -> dict[tuple[int, ...], list[int]]:
    """The maps from rows to their numbers in the dropout contract, by the shared dimensions.

    A map is a number for each of x's dimensions: what one step along it adds.

    `draws` has the dimensions along which each functor of the call that draws shares its draw.
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


#: The number of a row has 48 bits of the counter of a draw (docs/explanation/dropout.md).
_MOST_ROWS = 1 << 48


class Whole(NamedTuple):
    """The whole tensor: its sizes, and the index of x's first element in it."""

    sizes: tuple[int, ...]
    first: tuple[int, ...]


def check_part_of(
    name: str, shape: Sequence[int], reduced: Sequence[int], given: Any
) -> Whole | None:
    """Validate ``part_of=`` for an x of this shape; None if it is not given.

    Raises:
        TypeError: It is no pair of sequences of ints.
        ValueError: x does not lie within such a tensor, or does not hold whole rows of it.
    """
    if given is None:
        return None
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(
            f"{name}: part_of must be (sizes, first), the sizes of the whole tensor and the index "
            f"of x's first element in it, got {shortened(given)}"
        )
    sizes, first = (read_ints(name, "part_of", one) for one in given)
    x = tuple(shape)
    fits = len(sizes) == len(first) == len(x) and all(
        at >= 0 and at + here <= size for size, at, here in zip(sizes, first, x, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{name}: x of shape {x} must lie within the tensor of which it is a part, got "
            f"part_of={shortened((sizes, first))}; give the sizes of the whole tensor and the "
            "index of x's first element in it, one number each for each dimension of x"
        )
    if any(sizes[dim] != x[dim] for dim in reduced):
        raise ValueError(
            f"{name}: x must hold whole rows of the tensor of which it is a part, got "
            f"{[x[dim] for dim in reduced]} of {[sizes[dim] for dim in reduced]} in the reduced "
            "dimensions; gather the columns before the call"
        )
    if math.prod(size for dim, size in enumerate(sizes) if dim not in reduced) > _MOST_ROWS:
        raise ValueError(f"{name}: part_of must name at most 2**48 rows, got sizes {sizes}")
    return Whole(sizes, first)


def first_rows(
    whole: Whole | None, maps: Mapping[tuple[int, ...], Sequence[int]]
) -> dict[tuple[int, ...], int] | None:
    """The number of x's first row in each of the maps of `drawn_rows`; None if x is no part."""
    if whole is None:
        return None
    return {
        shared: sum(at * step for at, step in zip(whole.first, strides, strict=True))
        for shared, strides in maps.items()
    }
