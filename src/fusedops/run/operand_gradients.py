# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The places in a declaration where functors use operands whose gradients are wanted."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from fusedops.bind.tables import contributions

if TYPE_CHECKING:
    from fusedops.bind.bind import Bound
    from fusedops.declare.declaration import Declaration
    from fusedops.functors import TableOf


class Occurrence(NamedTuple):
    """One use of an operand by a functor; an operand that two functors use has two gradients.

    Attributes:
        side: The side on which the functor stands, "load" or "store"; "op" for a row operand of the
            operator itself.
        place: The index of the functor in the declaration's functors of that side; 0 for "op".
        number: The index of the operand among those of the functor that have gradients.
        name: The name of the operand.
    """

    side: str
    place: int
    number: int
    name: str


def occurrences(op: Declaration, wanted: Collection[str]) -> list[Occurrence]:
    """All uses of the operands in `wanted`, numbered as in the C++: LOAD, STORE, operator."""
    found = []
    for side, chain in (("load", op.load), ("store", op.store)):
        for place, functor in enumerate(chain):
            for index, name in enumerate(functor.gradients()):
                if name in wanted:
                    found.append(Occurrence(side, place, index, str(name)))
    own = enumerate(op.row_operands)
    return found + [Occurrence("op", 0, index, name) for index, name in own if name in wanted]


def lookup_of(op: Declaration, one: Occurrence) -> TableOf | None:
    """The table that an occurrence is, if its functor looks it up."""
    if one.side == "op":
        return None
    functor = (op.load if one.side == "load" else op.store)[one.place]
    return next((table for table in functor.tables if table.table == one.name), None)


def gradient_like(bound: Bound, one: Occurrence) -> Any:
    """A tensor of the shape and dtype in which a kernel gives the gradient of an operand.

    It broadcasts against x, and is the operand itself, be it a number, unless that is a table.
    """
    value = bound.operands[one.name]
    table = lookup_of(bound.op, one) if bound.op.tables else None
    if table is None:
        return value
    return contributions(table, value, bound.operands, bound.x.dim(), bound.compute)


def acting_place(op: Declaration, bound: Bound, one: Occurrence) -> int:
    """The index of an occurrence's functor among those of its side that act in this call."""
    if one.side == "op":
        return 0
    chain = op.load if one.side == "load" else op.store
    acting = bound.load if one.side == "load" else bound.store
    if len(chain) == len(acting):
        return one.place
    gone = sum(1 for f in chain[: one.place] if not any(f is g for g in acting))
    return one.place - gone
