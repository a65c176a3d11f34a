# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the fastest of the launch configurations that are right.

What checks and times is handed in (`Trial`), so the choice itself needs no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from fusedops.errors import FusedOpsError
from fusedops.schedule.launch import LaunchConfig, ProductConfig
from fusedops.tuning.candidates import Kernel, steps

__all__ = ["Outcome", "Trial", "Tried", "search"]

#: How often all steps are gone through, unless one round finds nothing faster.
ROUNDS = 2

#: The share of the time that a configuration must save to be taken: below it, two runs of the same
#: kernel differ as much.
GAIN = 0.005


class Trial(Protocol):
    """Checks and times a call under a launch configuration."""

    def check(self, config: LaunchConfig) -> None:
        """Compare the results with those in float64; AssertionError where one is out of bounds."""

    def seconds(self, config: LaunchConfig) -> float:
        """Device seconds of one call."""


class Tried(NamedTuple):
    """One trial: what was varied, the configuration, its time, or why it has none."""

    step: str
    config: LaunchConfig | ProductConfig
    seconds: float | None
    reason: str = ""


class Outcome(NamedTuple):
    """What a search found.

    Attributes:
        before, after: The configuration at the beginning and the fastest one.
        seconds_before, seconds_after: Device seconds of one call with each, timed in turn.
        tried: Every trial, in order.
    """

    before: LaunchConfig | ProductConfig
    after: LaunchConfig | ProductConfig
    seconds_before: float
    seconds_after: float
    tried: tuple[Tried, ...]

    @property
    def faster(self) -> float:
        """How many times as fast the kernel has become."""
        return self.seconds_before / self.seconds_after


def search(
    kernel: Kernel, trial: Trial, done: Callable[[Tried], None] = lambda tried: None
) -> Outcome:
    """Find the fastest launch configuration of a kernel.

    Each configuration is checked before it is timed; one that is wrong, or that cannot be built or
    launched, is passed over. The tile stays as it is, and with it the bits of the results.

    Args:
        kernel: The kernel and its schedule now.
        trial: What checks and times.
        done: Called after each trial.

    Raises:
        AssertionError: The configuration that the kernel has now gives wrong results.
        FusedOpsError: It cannot be built.
    """
    before = best = kernel.schedule.launch
    trial.check(before)
    tried = [Tried("as it is", before, trial.seconds(before))]
    done(tried[-1])
    least = tried[-1].seconds or 0.0
    known = {kernel.distinct(before)}
    for _ in range(ROUNDS):
        found = best
        for name, step in steps(kernel):
            for config in step(best):
                if kernel.distinct(config) in known or not kernel.allows(config):
                    continue
                known.add(kernel.distinct(config))
                tried.append(_try(name, config, trial))
                done(tried[-1])
                seconds = tried[-1].seconds
                if seconds is not None and seconds < least * (1 - GAIN):
                    best, least = config, seconds
        if best == found:
            break
    if best == before:
        return Outcome(before, before, least, least, tuple(tried))
    # Once more in turn: a clock that has changed meanwhile would favour one of them.
    first, second = trial.seconds(before), trial.seconds(best)
    if second >= first * (1 - GAIN):
        return Outcome(before, before, first, first, tuple(tried))
    return Outcome(before, best, first, second, tuple(tried))


def _try(name: str, config: LaunchConfig, trial: Trial) -> Tried:
    try:
        trial.check(config)
        return Tried(name, config, trial.seconds(config))
    except AssertionError:
        return Tried(name, config, None, "its results are wrong")
    except (FusedOpsError, RuntimeError, ValueError) as error:
        return Tried(name, config, None, str(error).partition("\n")[0])
