# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Whether an operand's sizes broadcast against those of x, and how to write one so that they do."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

#: The most ways to write a tensor that an error names.
_MOST = 3


class Mismatch(NamedTuple):
    """Why a shape does not broadcast against x's."""

    dim: int  # the dimension, counted from the end (-1 is the last)
    got: int  # the operand's size in that dimension
    wanted: int | None  # the size of x in that dimension, or None if x has no such dimension


def mismatch(shape: Sequence[int], operand: Sequence[int]) -> Mismatch | None:
    """Return where the shape `operand` fails to broadcast against `shape`; None if it does not.

    Unlike in torch, the operand may not have more dimensions than x: the result has x's shape.

    >>> mismatch((8, 16, 32), (16, 1))
    >>> mismatch((8, 16, 32), (8, 32))
    Mismatch(dim=-2, got=8, wanted=16)
    """
    extra = len(operand) - len(shape)
    if extra > 0:
        return Mismatch(-len(shape) - 1, operand[extra - 1], None)
    for dim, (got, wanted) in enumerate(zip(reversed(operand), reversed(shape), strict=False), 1):
        if got != wanted and got != 1:
            return Mismatch(-dim, got, wanted)
    return None


def broadcasts(shape: Sequence[int], own: Sequence[int], single: Collection[int]) -> bool:
    """Whether sizes `own` broadcast against `shape`, with size 1 in the dimensions `single`."""
    if mismatch(shape, own) is not None:
        return False
    absent = len(shape) - len(own)
    return all(own[dim - absent] == 1 for dim in single if dim >= absent)


def broadcast_shape(shape: Sequence[int], single: Collection[int]) -> tuple[int, ...]:
    """The largest sizes that fit."""
    return tuple(1 if dim in single else size for dim, size in enumerate(shape))


def broadcast_cure(
    key: str, shape: Sequence[int], own: Sequence[int], single: Collection[int]
) -> str:
    """How to write an operand of sizes `own` so that it fits, by new dimensions or a transpose.

    `single` are the dimensions of x in which it must have size 1. Empty where there is no cure.

    >>> broadcast_cure("n", (2, 4, 8, 8), (2,), (3,))
    'use n[:, None, None, None]'
    >>> broadcast_cure("n", (2, 2, 8, 8), (2,), (3,))
    'use n[:, None, None, None] for dimension 0 of x or n[:, None, None] for dimension 1'
    """
    found: list[tuple[str, tuple[int, ...]]] = []
    for places in itertools.combinations(range(len(shape)), len(own)) if own else ():
        moved = [1] * (len(shape) - places[0])
        for place, size in zip(places, own, strict=True):
            moved[place - places[0]] = size
        if list(own) != moved and broadcasts(shape, moved, single):
            index = [":" if dim in places else "None" for dim in range(places[0], len(shape))]
            while index[-1] == ":":
                index.pop()
            found.append((f"{key}[{', '.join(index)}]", places))
    if len(own) > 1 and not found and broadcasts(shape, [*own[:-2], own[-1], own[-2]], single):
        return f"use {key}.transpose(-2, -1)"
    if len(found) == 1:
        return f"use {found[0][0]}"
    ways = [f"{text} for {dims_in_words(places)}" for text, places in found[:_MOST]]
    return f"use {' or '.join(ways)}".replace(" or ", " of x or ", 1) if ways else ""


def dims_in_words(places: Sequence[int]) -> str:
    """Such as "dimension 1" or "dimensions 0, 2"."""
    which = ", ".join(map(str, places))
    return f"dimension{'s' * (len(places) > 1)} {which}"
