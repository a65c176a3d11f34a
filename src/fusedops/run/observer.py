# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The interface through which the launch path reports calls that need a kernel.

`prebuild` records calls and writes them as text. The launch path only calls this interface, so it
does not depend on `prebuild`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant

if TYPE_CHECKING:
    from fusedops.plan.wanted_gradients import WantedGradients


class CallText(Protocol):
    """A call as text: `str` of it is what ``fusedops build --call`` takes."""

    @property
    def op(self) -> str:
        """The text of the called declaration (`declare.text`)."""


class Observer(Protocol):
    """An object that the launch path notifies of calls that need a kernel."""

    def of_call(
        self,
        bound: Bound,
        factors: Mapping[str, Tensor] | None = None,
        wanted: Collection[str] = (),
    ) -> CallText:
        """Return a checked forward call as text.

        Args:
            bound: The call.
            factors: The factors by name, x and w, where the call follows a matrix product and one
                kernel is to run both.
            wanted: With factors, x and the operands whose gradients are wanted: the call is then
                the gradient of the forward call, and the product is the gradient of its result.
        """

    def of_gradient(
        self,
        gradient: WantedGradients,
        dy: Tensor,
        given: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> CallText:
        """Return a backward call as text.

        Args:
            gradient: The gradients that are wanted, and of which call.
            dy: The gradient of the result.
            given: The other tensors and numbers of the backward call, by keyword.
            options: The options of the backward call.
        """

    def notify(
        self,
        call: Callable[[], CallText],
        variants: Callable[[Target], Iterable[Variant]],
        own: Target,
    ) -> None:
        """Report a call that needs kernels.

        `own` is the target that the call is about to run on.
        """
