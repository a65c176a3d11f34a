# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Where the dimensions of a tensor belong in x: the cures of errors about its shape.

It knows nothing of torch or of any operator: sizes in, text out.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from fusedops.bind.geometry import mismatch

#: The most ways to write a tensor that an error names.
_MOST = 3


def fits(shape: Sequence[int], own: Sequence[int], single: Collection[int]) -> bool:
    """Whether sizes `own` broadcast against `shape`, with size 1 in the dimensions `single`."""
    if mismatch(shape, own) is not None:
        return False
    absent = len(shape) - len(own)
    return all(own[dim - absent] == 1 for dim in single if dim >= absent)


def wanted(shape: Sequence[int], single: Collection[int]) -> tuple[int, ...]:
    """The largest sizes that fit."""
    return tuple(1 if dim in single else size for dim, size in enumerate(shape))


def cure(key: str, shape: Sequence[int], own: Sequence[int], single: Collection[int]) -> str:
    """How to write an operand of sizes `own` so that it fits, by new dimensions or a transpose.

    >>> cure("n", (2, 4, 8, 8), (2,), (3,))
    'use n[:, None, None, None]'
    >>> cure("n", (2, 2, 8, 8), (2,), (3,))
    'use n[:, None, None, None] for dimension 0 of x or n[:, None, None] for dimension 1'

    Args:
        key: The name of the operand.
        shape: The sizes of x.
        own: The sizes of the operand.
        single: The dimensions of x in which it must have size 1.

    Returns:
        The cure, or an empty text where there is none.
    """
    found: list[tuple[str, tuple[int, ...]]] = []
    for places in itertools.combinations(range(len(shape)), len(own)) if own else ():
        moved = [1] * (len(shape) - places[0])
        for place, size in zip(places, own, strict=True):
            moved[place - places[0]] = size
        if list(own) != moved and fits(shape, moved, single):
            index = [":" if dim in places else "None" for dim in range(places[0], len(shape))]
            while index[-1] == ":":
                index.pop()
            found.append((f"{key}[{', '.join(index)}]", places))
    if len(own) > 1 and not found and fits(shape, [*own[:-2], own[-1], own[-2]], single):
        return f"use {key}.transpose(-2, -1)"
    if len(found) == 1:
        return f"use {found[0][0]}"
    told = [f"{text} for {_dims(places)}" for text, places in found[:_MOST]]
    return f"use {' or '.join(told)}".replace(" or ", " of x or ", 1) if told else ""


def _dims(places: Sequence[int]) -> str:
    which = ", ".join(map(str, places))
    return f"dimension{'s' * (len(places) > 1)} {which}"
