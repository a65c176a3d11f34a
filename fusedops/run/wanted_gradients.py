# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""One set of wanted gradients of a declaration: what it reads, and how a backward call is laid out.

As a declaration is to its op, this is the data of a `Gradient`; nothing here is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedops.bind.bind import KEPT
from fusedops.run.operand_gradients import occurrences
from fusedops.run.saved_tensors import joining_name, needed, saved_name

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration

__all__ = ["WantedGradients"]


class WantedGradients:
    """One set of wanted gradients of a declaration.

    Attributes:
        op: The declaration.
        wanted: The names whose gradients are asked for, "x" among them.
        joining: The saved streams that have gradients.
        needed: What the backward pass reads.
        occurrences: The wanted operands, wherever a functor uses one.
        names: What each result is the gradient of; a name is there twice if two functors use it.
        places: Where among the results that of x is, and of each operand, if there is one.
        numbers: The number of each keyword of a backward call, counted from 1.
    """

    def __init__(self, op: Declaration, wanted: frozenset[str], joining: frozenset[str]) -> None:
        self.op = op
        self.wanted = wanted
        self.joining = joining
        self.needed = needed(op, wanted)
        self.occurrences = occurrences(op, wanted)
        self.names = ["x"] * ("x" in wanted) + [one.name for one in self.occurrences]
        at = {name: place for place, name in enumerate(self.names)}
        self.places = [at.get(name) for name in ("x", *op.slots)]
        keywords = [KEPT, "x", *op.slots]
        keywords += [saved_name(name) for name in op.saves]
        keywords += [joining_name(name) for name in op.saves]
        self.numbers = {name: number for number, name in enumerate(keywords, 1)}
