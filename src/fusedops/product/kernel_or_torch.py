# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Calls without a STORE that one kernel runs where it can be had, and torch elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusedops import _runtime
from fusedops._runtime import Delegate, Plan, Reason
from fusedops.bind.generator import draw
from fusedops.jit import env
from fusedops.product.product_kernel import build_or_warn, by_none

if TYPE_CHECKING:
    from fusedops.product.product_kernel import Buildable


class KernelOrTorch:
    """Kernels that are each chosen and planned once for each kind of call.

    A call gives None where torch has to run.

    Args:
        name: What errors and warnings call them.
        instead: What a warning says that runs where one cannot be built.
    """

    def __init__(self, name: str, instead: str) -> None:
        self.name, self.instead = name, instead
        #: Whether kernels can be had: False once one was missing and could not be built.
        self.available = True

    def dispatcher(
        self, slots: Sequence[tuple[str, int]], result: Any = None, label: str = ""
    ) -> _runtime.Dispatcher:
        """What is called: with x, and with the operands of these slots by name."""
        drawing = functools.partial(draw, op=self.name)
        label = label or self.name
        return _runtime.Dispatcher(self.name, slots, self._slow, drawing, result, label=label)

    def planned(self, x: Any, operands: dict[str, Any]) -> Buildable | None:
        """The kernel of a call; None where torch has to run."""
        raise NotImplementedError

    def _slow(
        self, reason: Reason, x: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Plan | Delegate | None:
        if reason is not Reason.MISS:
            return None
        planned = self.planned(x, operands)
        if planned is None:
            return left_to_torch()
        made = build_or_warn(planned, self.name, self.instead)
        self.available = self.available and made is not None
        return made or left_to_torch()


def left_to_torch() -> Delegate | None:
    """What answers calls that torch has; nothing that would outlive a recording of calls."""
    return None if env.record_file() is not None else Delegate(by_none)
