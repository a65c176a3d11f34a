# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The uses of operands whose gradients are wanted, and what a backward pass for these reads.

`WantedGradients` is the data of a `Gradient`, as a declaration is the data of an op; it cannot be
called.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fusedops import _runtime
from fusedops.bind.bind import KEPT
from fusedops.bind.tables import contribution_sizes
from fusedops.plan.saved_tensors import RESULT, into_name, joining_name, needed, saved_name

if TYPE_CHECKING:
    from fusedops.bind.bind import Bound
    from fusedops.declare.declaration import Declaration
    from fusedops.functors import TableOf


class Occurrence(NamedTuple):
    """One use of an operand by a functor; an operand that two functors use has two gradients."""

    #: The side on which the functor stands, "load" or "store"; "op" for a row operand of the
    #: operator itself.
    side: str
    place: int  # the index of the functor in the declaration's functors of that side; 0 for "op"
    number: int  # the index of the operand among those of the functor that have gradients
    name: str  # the name of the operand


def occurrences(op: Declaration, wanted: Collection[str]) -> list[Occurrence]:
    """All uses of the operands in `wanted`, numbered as in the C++: LOAD, STORE, operator."""
    found = []
    for side, chain in op.chains.items():
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
    functor = op.chains[one.side][one.place]
    return next((table for table in functor.tables if table.table == one.name), None)


def gradient_like(bound: Bound, one: Occurrence) -> Any:
    """A tensor of the shape and dtype in which a kernel gives the gradient of an operand.

    It broadcasts against x, and is the operand itself, be it a number, unless that is a table.
    """
    value = bound.operands[one.name]
    table = lookup_of(bound.op, one) if bound.op.tables else None
    if table is None:
        return value
    index = bound.operands[table.indices]
    sizes = contribution_sizes(table, value.shape, index.shape, bound.x.dim())
    return torch.empty(sizes, dtype=bound.compute, device="meta")


def acting_place(bound: Bound, one: Occurrence) -> int:
    """The index of an occurrence's functor among those of its side that act in this call."""
    if one.side == "op":
        return 0
    chain, acting = bound.op.chains[one.side], bound.chains[one.side]
    if len(chain) == len(acting):
        return one.place
    gone = sum(1 for f in chain[: one.place] if not any(f is g for g in acting))
    return one.place - gone


class WantedGradients:
    """One set of wanted gradients of a declaration.

    Attributes:
        op: The declaration that is differentiated.
        wanted: The names whose gradients are wanted: operands, and "x" if its own is.
        joining: The names of the results besides y that have a gradient of their own.
        blanks: What is known of the tensors of a call (`Backward.tensors`), by the operands that
            all rows share, and by the compute type.
        cuts: How rows of its calls are cut (`backward_schedule.cut_of`).
        forms: What its backward kernels have in common whatever the sizes (`plan.planner`).
        needed: The saved tensors that the backward pass reads.
        in_place: Whether the gradient of x is written to x's memory, and is none of the results.
        into: The names whose gradients are written to tensors of the call, and are no results.
        occurrences: Each use of a wanted operand by a functor, LOAD before STORE.
        of_rows: Whether the operator itself has operands among them, numbers of rows.
        possible: Each use of an operand by a functor that can have a gradient.
        names: The name that each result is the gradient of; a name is there twice if two functors
            use it.
        twice: Those names that are there twice.
        lookups: The results that are gradients of tables, by their places among all.
        of_statistics: The keywords of the gradients of row statistics.
        places: The index among the results of x's gradient, then of each operand's in the order of
            `op.slots`; None where there is none, in `picks` -1.
        results: The key of each result among the tensors: ("to",) of x, else the use of the
            operand.
        numbers: The slot number of each keyword of a backward call, counted from 1.
        read: By keyword of each tensor that the kernel reads, the source of its pointer.
    """

    def __init__(
        self,
        op: Declaration,
        wanted: frozenset[str],
        joining: frozenset[str],
        from_result: bool = False,
        in_place: bool = False,
        into: Collection[str] = (),
    ) -> None:
        self.op = op
        self.wanted = wanted
        self.joining = joining
        self.blanks: dict[tuple[object, ...], Any] = {}
        self.cuts: dict[tuple[object, ...], Any] = {}
        self.forms: dict[tuple[object, ...], Any] = {}
        self.needed = needed(op, wanted, from_result)
        self.in_place = in_place and "x" in wanted and self.needed.x
        self.occurrences = occurrences(op, wanted)
        self.of_rows = bool(self.occurrences) and self.occurrences[-1].side == "op"
        self.possible = occurrences(op, op.slots)
        uses = [one.name for one in self.occurrences]
        self.twice = {name for name in uses if uses.count(name) > 1}
        self.into = frozenset(into) & {"x", *uses} - self.twice
        own = "x" in wanted and not self.in_place and "x" not in self.into
        returned = [one for one in self.occurrences if one.name not in self.into]
        self.names = ["x"] * own + [one.name for one in returned]
        self.results: list[Any] = [("to",)] * own + [*returned]
        tables = ((at, lookup_of(op, one)) for at, one in enumerate(returned, int(own)))
        self.lookups = {at: table for at, table in tables if table is not None}
        self.of_statistics = {joining_name(n) for n in op.joining if n in op.statistics}
        at = {name: place for place, name in enumerate(self.names)}
        self.places = [at.get(name) for name in ("x", *op.slots)]
        self.picks = [-1 if place is None else place for place in self.places]
        keywords = [KEPT, "x", *op.slots]
        keywords += [saved_name(name) for name in op.saves]
        keywords += [joining_name(name) for name in op.joining]
        keywords += [RESULT] * from_result
        keywords += [into_name(name) for name in ("x", *op.slots) if name in self.into]
        self.numbers = {name: number for number, name in enumerate(keywords, 1)}
        unread = {*op.slots} - self.needed.operands
        unread |= {name for name, read in (("x", self.needed.x), (KEPT, op.kept)) if not read}
        self.read = {
            name: (_runtime.POINTER, number)
            for name, number in self.numbers.items()
            if name not in unread
        }
