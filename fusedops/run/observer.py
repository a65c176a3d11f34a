# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Who is told of the calls that need a kernel, as the launch path sees it.

Recording calls and writing them as text is the business of `prebuild`. The launch path only hands
on what it knows, so it does not depend on that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant

if TYPE_CHECKING:
    from fusedops.run.wanted_gradients import WantedGradients

__all__ = ["CallText", "Observer"]


class CallText(Protocol):
    """A call as text: `str` of it is what ``fusedops build --call`` takes."""

    @property
    def op(self) -> str:
        """The text of the declaration."""


class Observer(Protocol):
    """Is told of calls that need a kernel."""

    def of_call(self, bound: Bound) -> CallText:
        """A forward call as text."""

    def of_gradient(
        self,
        gradient: WantedGradients,
        dy: Tensor,
        given: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> CallText:
        """A backward call as text."""

    def notify(
        self,
        call: Callable[[], CallText],
        variants: Callable[[Target], Iterable[Variant]],
        own: Target,
    ) -> None:
        """Say that a call needs kernels on `own`, and how to find which on any other target."""
