# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What all functors are, and what their operands may be."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import keyword
import math
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from fusedops.functors.protocols import Chain, Writer

__all__ = ["Functor", "Operand", "Reads", "Role", "check_name", "is_finite", "rounded"]


class Role(enum.Enum):
    """What an operand is, which decides what may be passed for it."""

    VALUE = "a floating-point tensor or a number"
    FLAGS = "a bool tensor"
    COUNT = "an int32 or int64 tensor or an int"
    PROBABILITY = "a float in [0, 1]"
    ROW = "a floating-point tensor of one number a row, or a number"


@dataclasses.dataclass(frozen=True)
class Operand:
    """A name that the call must give a value to."""

    name: str
    role: Role


class Reads(NamedTuple):
    """What a functor's gradient reads.

    Attributes:
        input: Whether it needs the value that the functor saw.
        operands: The operands that it fetches.
    """

    input: bool
    operands: tuple[str, ...]


class Functor:
    """Base of all functors: derive from it to write one of your own (docs/functors.md).

    A functor is a frozen dataclass with the names of its operands. It says what it is in torch
    (`apply`) and which C++ struct does the same (`spell`, with `header` or `definition`).
    """

    #: The header of the C++ struct, under include/fusedops/functor/.
    header: ClassVar[str]
    #: Takes elements out of the row: stands in the LOAD of softmax and log-softmax alone.
    masks: ClassVar[bool] = False
    #: Draws random numbers, eight elements at a time: a pack is that wide.
    draws: ClassVar[bool] = False
    #: Has a gradient; an op with a functor that has none runs forward only.
    differentiable: ClassVar[bool] = True
    #: Asks which query a row is: likewise.
    needs_query: ClassVar[bool] = False

    @property
    def headers(self) -> tuple[str, ...]:
        """The headers of its C++, under include/fusedops/."""
        if not hasattr(self, "header"):
            raise NotImplementedError(
                f"{type(self).__name__}: give it a header, the file of its C++ struct under "
                "include/fusedops/functor/; or a definition, its C++ text, and headers of its own"
            )
        return (f"functor/{self.header}",)

    @property
    def definition(self) -> str:
        """C++ text that the headers do not hold: that of a functor of the user's own."""
        return ""

    def operands(self) -> tuple[Operand, ...]:
        """The operands that a call gives, in the order of the C++ struct's members."""
        return ()

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        """The functor in torch; x and all operands have the reduced dimensions last, flattened."""
        raise NotImplementedError(f"{type(self).__name__}: apply(x, chain), its meaning in torch")

    def masked(self, chain: Chain) -> Tensor:
        """For functors that mask, in place of `apply`: the elements that leave the row."""
        raise NotImplementedError(f"{type(self).__name__}: masked(chain), what leaves the row")

    def gradients(self) -> tuple[str | None, ...]:
        """The operands that have gradients, each in the place of its number in the C++ struct."""
        return tuple(
            operand.name if operand.role is Role.VALUE else None for operand in self.operands()
        )

    def reads(self, wanted: Collection[str]) -> Reads:
        """What the C++ ``backward`` reads when the gradients of these operands are asked for.

        All there is, unless a functor knows better. What is not listed is not kept for the
        backward pass: fetched there, an operand is zero, and so is the gradient that it goes into.
        """
        return Reads(True, tuple(operand.name for operand in self.operands()))

    def spell(self, write: Writer) -> str:
        """The C++ type; calls on ``write`` append its members, in their order."""
        raise NotImplementedError(f"{type(self).__name__}: spell(write), its type in C++")


def check_name(functor: object, field: str, name: object) -> None:
    """Raise TypeError or ValueError if an operand cannot have this name."""
    kind = type(functor).__name__
    if not isinstance(name, str):
        raise TypeError(
            f"{kind}: {field} names an operand and must be a string, got {name!r}; the value "
            "itself is given at the call"
        )
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{kind}: {field} must be usable as a keyword argument, got {name!r}")


def is_finite(value: object) -> bool:
    """Whether a constant is a number that a double can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the largest double
        return False


def rounded(value: float, compute: str) -> float:
    """A constant in the compute type; infinite, as in torch, where float has no room for it."""
    return ctypes.c_float(value).value if compute == "float" else value
