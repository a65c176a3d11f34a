# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Overrides of schedules, for tests and the tuner: storage, launch, or one kernel or two.

`fusedops.testing` sets it, and parts the plans that are made under it from all others.
"""

from __future__ import annotations

from typing import NamedTuple

from fusedops.schedule.launch import LaunchConfig, ProductConfig


class Override(NamedTuple):
    """Choices that are made beforehand; None leaves a choice to the schedules."""

    storage: str | None = None  # the storage of rows, in both passes
    #: The launch configuration of a pass on a GPU.
    forward: LaunchConfig | None = None
    backward: LaunchConfig | None = None
    product: ProductConfig | None = None  # how a matrix product and the functors after it are run


_current = Override()


def current() -> Override:
    """The override in force."""
    return _current


def replace(override: Override) -> Override:
    """Put an override in force, and return the one that was."""
    global _current
    before, _current = _current, override
    return before
