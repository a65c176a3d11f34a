# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What runs a product and the functors beside it, one kernel or two: which is right and fastest.

Each is checked before it is timed. What a call is, a problem says: product.py for a product and its
STORE, product_backward.py for the gradient between two products.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from fusedops.bind.bind import Bound
from fusedops.errors import FusedOpsError, UnsupportedError
from fusedops.generate.target import Target
from fusedops.product.choice import Choice, choose, why_never
from fusedops.schedule.features import ProductFeatures
from fusedops.schedule.launch import IMPLEMENTATIONS, ProductConfig
from fusedops.testing import force_launch, last_schedule
from fusedops.testing.comparison import Comparison
from fusedops.tuning import clock
from fusedops.tuning.inputs import filled
from fusedops.tuning.search import GAIN, Outcome, Tried

__all__ = ["ImplementationProblem", "elements_to_check"]

#: Elements of the product in the call that is checked, since its truth is in double; and rows that
#: it has in any case, since a tile wants some.
CHECKED, CHECKED_ROWS = 1 << 23, 512


def elements_to_check(bound: Bound) -> int:
    """The most elements that the product has in the call that is checked."""
    return max(CHECKED, CHECKED_ROWS * bound.columns)


class ImplementationProblem(abc.ABC):
    """A call on a GPU that one kernel may run, or two.

    It is timed at its own sizes, on which the choice depends, and checked with fewer rows.

    Args:
        name: The name of the op in error messages.
        found: The features of the call, or why one kernel never runs such a one.
        device: The GPU.

    Attributes:
        name: The same.
        features: The features by which what runs the call is looked up.
    """

    #: What to leave out or to give in place of a call that has nothing to tune.
    cure: ClassVar[str]

    #: A call that is checked under each implementation.
    _comparison: Comparison

    def __init__(self, name: str, found: ProductFeatures | Choice, device: torch.device) -> None:
        self.name, self._device, self._target = name, device, Target.of(device)
        if isinstance(found, Choice):
            raise self._refused(found.why)
        if never := why_never(getattr(torch, found.dtype), self._target):
            raise self._refused(never)
        self.features = found

    def search(self, done: Callable[[Tried], None] = lambda tried: None) -> Outcome:
        """Find the fastest implementation that is right; each is checked before it is timed.

        Raises:
            AssertionError: What runs the call now gives wrong results.
            FusedOpsError: It cannot be built.
        """
        gpu = self._target.gpu
        assert gpu is not None
        chosen = choose(self.features, self._target.arch, gpu).tiling
        before = ProductConfig(IMPLEMENTATIONS[0] if chosen is None else chosen.name)
        self.check(before)
        tried = [Tried("as it is", before, self.seconds(before))]
        done(tried[-1])
        for implementation in IMPLEMENTATIONS:
            config = ProductConfig(implementation)
            if config != before:
                tried.append(self._try(config))
                done(tried[-1])
        timed = [one for one in tried if one.seconds is not None]
        if len(timed) == 1:
            reasons = "; ".join(f"{one.config.implementation}: {one.reason}" for one in tried[1:])  # type: ignore[union-attr]
            raise UnsupportedError(f"{self.name}: there is nothing to tune: {reasons}")
        best = min(timed, key=lambda one: one.seconds or 0.0)
        if best.config == before:
            least = best.seconds or 0.0
            return Outcome(before, before, least, least, tuple(tried))
        # Once more in turn: a clock that has changed meanwhile would favour one of them.
        assert isinstance(best.config, ProductConfig)
        first, second = self.seconds(before), self.seconds(best.config)
        after = best.config if second < first * (1 - GAIN) else before
        return Outcome(before, after, first, second if after != before else first, tuple(tried))

    def _try(self, config: ProductConfig) -> Tried:
        try:
            self.check(config)
            return Tried("implementation", config, self.seconds(config))
        except AssertionError:
            return Tried("implementation", config, None, "its results are wrong")
        except (FusedOpsError, RuntimeError, ValueError) as error:
            return Tried("implementation", config, None, str(error).partition("\n")[0])

    def check(self, config: ProductConfig) -> None:
        """Compare the results with those in float64; AssertionError beyond the bound.

        Raises:
            UnsupportedError: The call is not run by this implementation.
        """
        with force_launch(product=config):
            out = [one for one in self._comparison.again() if one.share > 1]
            self._check_implementation(config)
        if out:
            raise AssertionError(f"{self.name}: {out[0]} under {config}")

    def seconds(self, config: ProductConfig) -> float:
        """Device seconds of one call."""
        with force_launch(product=config), torch.no_grad():
            calls = self._calls()
            calls[0]()
            self._check_implementation(config)
            return self._clock(calls)

    @property
    def _clock(self) -> Callable[[Sequence[clock.Call]], float]:
        return clock.graph_seconds

    @abc.abstractmethod
    def _calls(self) -> list[clock.Call]:
        """The call that is timed, on each set of tensors."""

    @abc.abstractmethod
    def _why(self) -> str:
        """Why the call is run as it is, under the implementation that is forced."""

    def _check_implementation(self, config: ProductConfig) -> None:
        ran = (last_schedule() or "").partition(",")[0]  # "Together, gradient"
        if (ran if ran in IMPLEMENTATIONS else IMPLEMENTATIONS[0]) != config.implementation:
            raise UnsupportedError(
                f"{self.name}: {config.implementation} does not run this call: {self._why()}"
            )

    def _refused(self, why: str) -> UnsupportedError:
        return UnsupportedError(f"{self.name}: there is nothing to tune, {why}; {self.cure}")

    def _filled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Random values; those of w so small that the product is of the size of the operands."""
        given = filled(values, self.features.columns, self._device)
        given["w"] *= self.features.depth**-0.5
        return given
