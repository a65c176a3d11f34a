# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What one element of a tensor holds while a functor's graph is lowered: text, and its kind."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from fusedops.functors.definition import COMPUTE, TRUTH
from fusedops.functors.integers import Range
from fusedops.functors.whole import WHOLE


class Memory:
    """The contents of one element of a tensor's memory: the C++ text of the value, and its kind.

    Of integers that floating point holds also the range; truth values are such, floating point is
    none, nor are whole numbers (`functors.whole`). What was moved away has no text; torch's
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
    """What a truth value or a whole number was computed by.

    Attributes:
        name: The operation of torch's.
        given: Its arguments by name: what tensors hold, and numbers.
    """

    name: str
    given: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, given: Mapping[str, Any]) -> Tree:
        """The same, apart from what is written to memory later."""
        kept = {k: copy.copy(v) if isinstance(v, Memory) else v for k, v in given.items()}
        return cls(name, kept)


def is_whole(memory: Any) -> bool:
    """Whether this holds a whole number."""
    return isinstance(memory, Memory) and memory.kind == WHOLE


def is_divisor(value: Any) -> bool:
    """Whether this is a number other than 0 that is known."""
    return bool(value.number if isinstance(value, Memory) else value)
