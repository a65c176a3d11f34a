# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Overrides of schedules, for tests and the tuner: storage, launch, or one kernel or two.

`fusedops.testing` sets it, and parts the plans that are made under it from all others.
"""

from __future__ import annotations

from typing import NamedTuple

from fusedops.schedule.launch import LaunchConfig, ProductConfig


class Override(NamedTuple):
    """Choices that are made beforehand; None leaves a choice to the schedules.

    Attributes:
        storage: The storage of rows, in both passes.
        forward, backward: The launch configuration of a pass on a GPU.
        product: How a matrix product and the functors after it are run.
    """

    storage: str | None = None
    forward: LaunchConfig | None = None
    backward: LaunchConfig | None = None
    product: ProductConfig | None = None


_current = Override()


def current() -> Override:
    """The override in force."""
    return _current


def replace(override: Override) -> Override:
    """Put an override in force, and return the one that was."""
    global _current
    before, _current = _current, override
    return before
