# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The members of a kernel's argument, the struct `Arguments` of the generated source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["Member", "Members", "Purpose", "of_side"]


#: What a kernel does with a member of its argument: it is a functor of the LOAD or the STORE; it
#: receives the gradient of an operand; it is the number of rows between a prefetch and
#: its use, or of columns in an even chunk; it is the operator of a norm whose LOAD masks elements,
#: which are zero in y, or of a map whose LOAD does; or it has a place of its own among the kernel's
#: parameters.
Purpose: TypeAlias = (
    'Literal["functor", "target", "distance", "chunk", "masked", "masked map", "other"]'
)


class Member(NamedTuple):
    """One member of a kernel's argument.

    Attributes:
        cpp: Its C++ type.
        name: Its C++ name.
        purpose: What the kernel does with it.
        side: Where the functor stands that the member is, or belongs to: "load" or "store"; "op"
            for the target of an operand of the operator itself.
        place: The index of that functor among those that act on its side.
        drawn: Whether the functor's random draw lies in memory: a kernel then calls `drawn()` of
            it, once.
        sums: Where a target keeps sums over rows: "registers", "shared" or "memory".
        masks: Whether the functor is a mask.
    """

    cpp: str
    name: str
    purpose: Purpose = "other"
    side: str = ""
    place: int = -1
    drawn: bool = False
    sums: str = ""
    masks: bool = False

    @property
    def field(self) -> str:
        """The declaration of the member in the struct, a line of the generated source."""
        return f"  alignas(8) {self.cpp} {self.name};"


Members: TypeAlias = Sequence[Member]


def of_side(members: Iterable[Member], purpose: Purpose, side: str) -> list[Member]:
    """The members of one purpose and one side, in order."""
    return [one for one in members if one.purpose == purpose and one.side == side]
