# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Where in a declaration the operands stand whose gradients are wanted."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fusedops.bind.bind import Bound
    from fusedops.declare.declaration import Declaration

__all__ = ["Occurrence", "acting_place", "occurrences"]


class Occurrence(NamedTuple):
    """A wanted operand where a functor uses it; one that two functors use has two gradients.

    Attributes:
        side, place: Of the functor.
        number: Of the operand within the functor.
    """

    side: str
    place: int
    number: int
    name: str


def occurrences(op: Declaration, wanted: Collection[str]) -> list[Occurrence]:
    """Those of the operands in `wanted`, by the numbers that the C++ functors give them."""
    found = []
    for side, chain in (("load", op.load), ("store", op.store)):
        for place, functor in enumerate(chain):
            for index, name in enumerate(functor.gradients()):
                if name in wanted:
                    found.append(Occurrence(side, place, index, str(name)))
    return found


def acting_place(op: Declaration, bound: Bound, one: Occurrence) -> int:
    """The functor's place among those that act."""
    chain = op.load if one.side == "load" else op.store
    acting = bound.load if one.side == "load" else bound.store
    if len(chain) == len(acting):
        return one.place
    gone = sum(1 for f in chain[: one.place] if not any(f is g for g in acting))
    return one.place - gone
