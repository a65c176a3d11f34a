# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Integers in a functor: which of them floating point computes exactly.

A kernel has one type for all values, float or double. Truth values that are counted, as in
``(x > 0).int() + 1``, come out the same there. Integers that wrap, or have more digits than a
float, do not: so each has a bound, and what has none is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from fusedops.functors.definition import COMPUTE, TRUTH
from fusedops.functors.pointwise import WHOLE


class Memory:
    """The contents of one element of a tensor's memory: the C++ text of the value, and its kind.

    Of integers that floating point holds also the range; truth values are such, floating point is
    none, nor are whole numbers (`functors.pointwise`). What was moved away has no text; torch's
    formulas move some tensors whose values nothing uses.
    """

    def __init__(
        self,
        text: str | None,
        kind: str = COMPUTE,
        given: bool = False,
        integers: Range | None = None,
        moved: str = "",
        number: int | None = None,
    ) -> None:
        self.text = text
        self.kind = kind
        self.given = given
        self.integers = Range(1) if kind == TRUTH else integers
        self.moved = moved
        self.number = number  # of a constant


class Tree(NamedTuple):
    """The expression that computed a boolean or an integer."""

    name: str  # the operation of torch's
    given: Mapping[str, Any]  # its arguments by name: what tensors hold, and numbers

    @classmethod
    def of(cls, name: str, given: Mapping[str, Any]) -> Tree:
        """An expression over copies of its arguments, which later writes do not change."""
        kept = {k: copy.copy(v) if isinstance(v, Memory) else v for k, v in given.items()}
        return cls(name, kept)


def is_whole(memory: Any) -> bool:
    """Whether this holds a whole number."""
    return isinstance(memory, Memory) and memory.kind == WHOLE


def is_divisor(value: Any) -> bool:
    """Whether this is a number other than 0 that is known."""
    return bool(value.number if isinstance(value, Memory) else value)


#: Every integer up to here is a float.
EXACT = 1 << 24

#: The result is a number that was given.
CONSTANT = frozenset(["full", "full_like", "new_full", "scalar_tensor"])

#: The result is -1, 0 or 1.
SMALL = frozenset(
    [
        *("sign", "sgn", "ones", "ones_like", "new_ones"),
        *("zero", "zeros", "zeros_like", "new_zeros", "_efficientzerotensor"),
    ]
)

#: The result is one of the arguments, but for its sign.
_SELECTS = frozenset(
    [
        *("where", "masked_fill", "maximum", "minimum", "clamp", "clamp_min", "clamp_max"),
        *("neg", "abs", "relu", "fill"),
        *("_to_copy", "clone", "lift_fresh", "lift_fresh_copy", "positive"),
    ]
)

_SUMS = ("add", "sub", "rsub")
_MAKES_NEGATIVE = ("neg", "sub", "rsub", "sign", "sgn")


class Range(NamedTuple):
    """The range of the integers in a tensor: the largest magnitude, and whether any is negative."""

    most: float
    signed: bool = False

    @classmethod
    def of(cls, number: float) -> Range:
        """The range of one number."""
        return cls(abs(number), number < 0)


def is_integer(dtype: torch.dtype) -> bool:
    """Whether a dtype is an integer dtype; bool is not."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def range_of(
    name: str,
    numbers: Mapping[str, float],
    tensors: Mapping[str, Range | None],
    dtype: torch.dtype,
) -> Range | None:
    """The range of an operation's results; None where a float may not compute them exactly.

    `numbers` are those among its arguments that are no tensors; `tensors` has the ranges of the
    others, None for what is floating point.
    """
    scale, power = numbers.get("alpha", 1), numbers.get("exponent", 0)
    plain = [Range.of(v) for key, v in numbers.items() if key not in ("alpha", "exponent")]
    makes = name in CONSTANT or name in SMALL
    choosing = ("condition", "mask", *(["self"] if name == "fill" else []))
    known = [one for key, one in tensors.items() if not makes and key not in choosing]
    given = [*plain, *(one for one in known if one is not None)]
    if len(given) < len(plain) + len(known) or any(
        one.most % 1 for one in (*given, Range.of(scale))
    ):
        return None
    sizes = [one.most for one in given]
    if name in SMALL:
        most = 1.0
    elif name in _SUMS:
        most = sum(sizes) * max(1, abs(scale))
    elif name in ("mul", "square"):
        most = sizes[0] * sizes[-1]
    elif name == "pow" and 0 <= power <= 24 and "exponent" in numbers and len(sizes) == 1:
        most = max(1.0, sizes[0]) ** power
    elif name in _SELECTS or name in CONSTANT:
        most = max(sizes, default=0)
    else:
        return None
    info = torch.iinfo(dtype)
    negative = any(one.signed for one in given) or scale < 0 or name in _MAKES_NEGATIVE
    fits = most <= min(EXACT, info.max) and (info.min < 0 or not negative)
    return Range(most, negative) if fits else None
