# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A declaration that can be called: what its dispatchers are, and what they remember."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusedops import _runtime
from fusedops.declare.declaration import Declaration

if TYPE_CHECKING:
    from fusedops.run.observer import Observer

__all__ = ["Runnable"]


class Runnable(_runtime.Dispatcher, Declaration):
    """A declaration that can be called.

    Calling it is the business of its dispatchers; what they do where they have no plan is set by
    the class that derives from this one, `RowOp`.

    Attributes:
        trained: Dispatches calls that keep a row's statistics; returns a tuple that ends with them.
        recipes: What a forward pass keeps, by which of its inputs need gradients.
        gradients: The backward passes (`gradient.Gradient`), by the names of the wanted gradients
            and of saved streams that have one.
        observer: Is told of calls that need a kernel.
    """

    trained: _runtime.Dispatcher
    recipes: dict[tuple[bool, ...], Any]
    gradients: dict[tuple[Any, ...], Any]
    observer: Observer

    @property
    def direct(self) -> _runtime.Dispatcher:
        """The op as an operator of torch runs it: on memory, whoever traces; returns a tuple."""
        raise NotImplementedError
