# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A declaration that can be called: its dispatchers, and what they cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusedops import _runtime
from fusedops.declare.declaration import Declaration

if TYPE_CHECKING:
    from fusedops.plan.reading import Hints
    from fusedops.run.observer import Observer


class Runnable(_runtime.Dispatcher, Declaration):
    """A declaration that can be called.

    Its dispatchers run the calls. The derived class, `RowOp`, says what they do for a call that has
    no plan yet.

    Attributes:
        trained: The dispatcher of calls that also return row statistics for the backward pass, as
            the last element of a tuple.
        recipes: Which tensors a forward pass saves (`autograd.Recipe`), by which of the autograd
            function's inputs need gradients.
        merging: The layouts of calls whose reduced dimensions are known to merge (`run.merging`).
        gradients: The backward passes (`gradient.Gradient`), by the set of names whose gradients
            are wanted, whether y is read in place of x, and the names of the saved streams that
            have a gradient.
        hints: By which readings calls are served for which no kernel of their own is loaded.
        observer: The object that is notified of calls that need a kernel.
    """

    trained: _runtime.Dispatcher
    recipes: dict[tuple[bool, ...], Any]
    merging: set[tuple[Any, ...]]
    gradients: dict[tuple[Any, ...], Any]
    hints: Hints
    observer: Observer

    @property
    def direct(self) -> _runtime.Dispatcher:
        """The dispatcher of the torch operator: runs on memory even in tracing; returns a tuple."""
        raise NotImplementedError
