# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""One set of wanted gradients of a declaration: what it reads, and how a backward call is laid out.

This is the data of a `Gradient`, as a declaration is the data of an op; it cannot be called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusedops import _runtime
from fusedops.bind.bind import KEPT
from fusedops.run.operand_gradients import occurrences
from fusedops.run.saved_tensors import RESULT, joining_name, needed, saved_name

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration


class WantedGradients:
    """One set of wanted gradients of a declaration.

    Attributes:
        op: The declaration that is differentiated.
        wanted: The names whose gradients are wanted: operands, and "x" if its own is.
        joining: The names of the results besides y that have a gradient of their own.
        blanks: What is known of the tensors of a backward call (`backward_parts`), by the operands
            of which all rows read the same columns, and by the compute type.
        cuts: How rows of its calls are cut (`backward_cut`).
        forms: What its backward kernels have in common whatever the sizes (`backward_form`).
        needed: The saved tensors that the backward pass reads.
        occurrences: Each use of a wanted operand by a functor, LOAD before STORE.
        of_rows: Whether the operator itself has operands among them, numbers of rows.
        possible: Each use of an operand by a functor that can have a gradient.
        names: The name that each result is the gradient of; a name is there twice if two functors
            use it.
        twice: Those names that are there twice.
        of_statistics: The keywords of the gradients of row statistics.
        places: The index among the results of x's gradient, then of each operand's in the order of
            `op.slots`; None where there is none.
        results: The key of each result in `backward_parts.Parts`: ("to",) of x, else the use of the
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
    ) -> None:
        self.op = op
        self.wanted = wanted
        self.joining = joining
        self.blanks: dict[tuple[object, ...], Any] = {}
        self.cuts: dict[tuple[object, ...], Any] = {}
        self.forms: dict[tuple[object, ...], Any] = {}
        self.needed = needed(op, wanted, from_result)
        self.occurrences = occurrences(op, wanted)
        self.of_rows = bool(self.occurrences) and self.occurrences[-1].side == "op"
        self.possible = occurrences(op, op.slots)
        self.names = ["x"] * ("x" in wanted) + [one.name for one in self.occurrences]
        self.results: list[Any] = [("to",)] * ("x" in wanted) + [*self.occurrences]
        self.twice = {name for name in self.names if self.names.count(name) > 1}
        self.of_statistics = {joining_name(n) for n in op.joining if n in op.statistics}
        at = {name: place for place, name in enumerate(self.names)}
        self.places = [at.get(name) for name in ("x", *op.slots)]
        keywords = [KEPT, "x", *op.slots]
        keywords += [saved_name(name) for name in op.saves]
        keywords += [joining_name(name) for name in op.joining]
        keywords += [RESULT] * from_result
        self.numbers = {name: number for number, name in enumerate(keywords, 1)}
        unread = {*op.slots} - self.needed.operands
        unread |= {name for name, read in (("x", self.needed.x), (KEPT, op.kept)) if not read}
        self.read = {
            name: (_runtime.POINTER, number)
            for name, number in self.numbers.items()
            if name not in unread
        }
