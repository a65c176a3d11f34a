# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The tensor of which a call's x is a part: what counts rows then counts those of the whole.

That are the draws of a dropout and the queries of masks made from indices. A shard of a tensor has
so the mask that the same elements have in the whole tensor (docs/dropout.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fusedops.bind.scalars import read_ints
from fusedops.errors import shortened

__all__ = ["Whole", "check_part_of", "first_query", "first_rows"]

#: The number of a row has 48 bits of the counter of a draw (docs/dropout.md).
_MOST_ROWS = 1 << 48


class Whole(NamedTuple):
    """The whole tensor: its sizes, and the index of x's first element in it."""

    sizes: tuple[int, ...]
    first: tuple[int, ...]


def check_part_of(
    name: str, shape: Sequence[int], reduced: Sequence[int], given: Any
) -> Whole | None:
    """What ``part_of=`` says of an x of this shape; None if nothing is given.

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


def first_query(whole: Whole | None, rows: Sequence[int]) -> int:
    """The number of x's first query; queries are the last of the dimensions of the rows."""
    return whole.first[rows[-1]] if whole is not None and rows else 0


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
