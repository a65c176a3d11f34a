# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The words of a kernel's argument with numbers left open, so that one walk serves many calls.

A walk over a declaration that is given a `Symbol` in the place of each number of a call writes
where that number goes. A symbol can be moved and multiplied, and nothing else: whoever compares,
adds or writes one into text raises TypeError, so a type that depends on a number cannot be taken
for one that does not.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Sequence
from typing import Any, NoReturn

__all__ = ["Recipe", "Symbol", "divider", "known"]


class Symbol:
    """A number of a call that is not known yet.

    Attributes:
        at: Its index among the numbers of the call.
        times: What it is multiplied by.
    """

    __slots__ = ("at", "times")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, at: int, times: int = 1) -> None:
        self.at = at
        self.times = times

    def __mul__(self, times: int) -> Symbol:
        if type(times) is not int:
            return NotImplemented
        return Symbol(self.at, self.times * times)

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("a symbol has no value")

    def __bool__(self) -> NoReturn:
        raise TypeError("a symbol has no value")

    def __str__(self) -> NoReturn:
        raise TypeError("a symbol has no value")

    def __format__(self, spec: str) -> NoReturn:
        raise TypeError("a symbol has no value")


def known(values: Sequence[Any], numbers: Sequence[int]) -> tuple[int, ...]:
    """The values of symbols, and of numbers the numbers themselves."""
    return tuple([numbers[one.at] * one.times if type(one) is Symbol else one for one in values])


def divider(size: int) -> tuple[int, int]:
    """The two words of a `Divider`, which divides by `size` in 32 bits."""
    shift = (size - 1).bit_length()
    multiplier = ((1 << 32) * ((1 << shift) - size)) // size + 1
    word = size | multiplier << 32
    return word if multiplier < 1 << 31 else word - (1 << 64), shift


class Recipe:
    """The words of an argument, some of which are numbers of the call.

    Args:
        words: The words, two at least, each a number or a symbol.
        dividers: Where a `Divider` of a number of the call begins, as pairs of the index of its
            first word and of the number.
    """

    def __init__(self, words: Sequence[Any], dividers: Sequence[tuple[int, int]]) -> None:
        symbols = [word for word in words if isinstance(word, Symbol)]
        self._constants = [word for word in words if not isinstance(word, Symbol)]
        self._products = [(one.at, one.times) for one in symbols if one.times != 1]
        self._dividers = dividers
        self._layout = struct.Struct(f"<{len(words)}q")
        constant, product = itertools.count(), itertools.count(len(self._constants))
        first = len(self._constants) + len(self._products)

        def place(word: Any) -> int:
            """Where a word is among constants, products and then the numbers of a call."""
            if not isinstance(word, Symbol):
                return next(constant)
            return first + word.at if word.times == 1 else next(product)

        self._in_order = operator.itemgetter(*map(place, words))

    def fill(self, numbers: Sequence[int]) -> bytes:
        """The words of a call with these numbers, as the bytes that the kernel takes."""
        products = [numbers[at] * times for at, times in self._products]
        words = self._in_order([*self._constants, *products, *numbers])
        if self._dividers:
            words = [*words]
            for index, at in self._dividers:
                words[index : index + 2] = divider(numbers[at])
        return self._layout.pack(*words)
