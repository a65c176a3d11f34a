# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Whom the launch path tells of its calls: the recording, and calls as text.

This module is a `run.observer.Observer`. Text is seldom asked for: `signature` is imported then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fusedops.jit.lock import guard
from fusedops.prebuild.recording import record

if TYPE_CHECKING:
    from fusedops.bind.bind import Bound
    from fusedops.prebuild.signature import Signature
    from fusedops.run.gradient import Gradient

__all__ = ["notify", "of_call", "of_gradient"]

notify = record


def of_call(bound: Bound) -> Signature:
    """The signature of a checked call."""
    with guard:
        from fusedops.prebuild import signature

    return signature.of_call(bound)


def of_gradient(
    gradient: Gradient, dy: Tensor, given: Mapping[str, Any], options: Mapping[str, Any]
) -> Signature:
    """The signature of a backward pass."""
    with guard:
        from fusedops.prebuild import signature

    return signature.of_gradient(gradient, dy, given, options)
