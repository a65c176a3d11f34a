# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What runs a product and its STORE, one kernel or two: whether each is right, how fast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.errors import FusedOpsError, UnsupportedError
from fusedops.generate.target import Target
from fusedops.product.choice import Choice, choose
from fusedops.product.fused import able, features_of
from fusedops.product.fusible import FusibleProduct
from fusedops.schedule.launch import VEHICLES, ProductConfig
from fusedops.testing import force_launch, last_schedule
from fusedops.testing.products import ProductComparison
from fusedops.tuning import clock
from fusedops.tuning.inputs import fewer_rows, filled
from fusedops.tuning.search import GAIN, Outcome, Tried

__all__ = ["ProductProblem"]

#: Elements of the product in the call that is checked, since its truth is in double; and rows that
#: it has in any case, since a tile wants some.
CHECKED, CHECKED_ROWS = 1 << 23, 512


class ProductProblem:
    """A call of a `Linear` or a `Matmul` on a GPU that wants no gradient.

    It is timed at its own sizes, on which the choice depends, and checked with fewer rows.

    Attributes:
        features: The features by which what runs it is looked up.
    """

    def __init__(
        self,
        op: FusibleProduct,
        bound: Bound,
        factors: Mapping[str, Tensor],
        device: torch.device,
        options: Mapping[str, Any],
    ) -> None:
        x, w = factors["x"], factors["w"]
        arguments = {**bound.operands, **options}
        op = op.that_adds(x, op.turned(w), arguments)
        self.op, self._options = op, options
        self._target = Target.of(device)
        found = features_of(op.epilogue, x, w, arguments, self._target)
        if isinstance(found, Choice) or not able(op.epilogue):
            why = found.why if isinstance(found, Choice) else "its functors make 8 bits"
            raise UnsupportedError(f"{op.name}: there is nothing to tune, {why}")
        self.features = found[0]
        if self._target.arch != "sm_90":
            raise UnsupportedError(
                f"{op.name}: there is nothing to tune, one kernel for product and STORE needs "
                f"sm_90, and this is {self._target.arch}"
            )
        self._device, self._draws = device, bool(bound.dropout_slots)
        z, operands = fewer_rows(bound, max(CHECKED, CHECKED_ROWS * bound.columns))
        given = self._filled({"x": _cut(x, z, 1), "w": _cut(w, z, 2), **operands})
        pair = given.pop("x"), op.turned(given.pop("w"))
        self._comparison = ProductComparison(op, pair, given, options)
        self._whole = {"x": x, "w": w, **bound.operands}
        tensors = [one for one in (*self._whole.values(), bound.x) if isinstance(one, Tensor)]
        count = clock.sets(sum(one.numel() * one.element_size() for one in tensors))
        self._sets = [self._filled(self._whole) for _ in range(count)]

    def search(self, done: Callable[[Tried], None] = lambda tried: None) -> Outcome:
        """Find the fastest vehicle that is right; each is checked before it is timed.

        Raises:
            AssertionError: What runs the call now gives wrong results.
            FusedOpsError: It cannot be built.
        """
        gpu = self._target.gpu
        assert gpu is not None
        chosen = choose(self.features, self._target.arch, gpu).tiling
        before = ProductConfig(VEHICLES[0] if chosen is None else chosen.name)
        self.check(before)
        tried = [Tried("as it is", before, self.seconds(before))]
        done(tried[-1])
        for vehicle in VEHICLES:
            config = ProductConfig(vehicle)
            if config != before:
                tried.append(self._try(config))
                done(tried[-1])
        timed = [one for one in tried if one.seconds is not None]
        if len(timed) == 1:
            reasons = "; ".join(f"{one.config.vehicle}: {one.reason}" for one in tried[1:])  # type: ignore[union-attr]
            raise UnsupportedError(f"{self.op.name}: there is nothing to tune: {reasons}")
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
            return Tried("vehicle", config, self.seconds(config))
        except AssertionError:
            return Tried("vehicle", config, None, "its results are wrong")
        except (FusedOpsError, RuntimeError, ValueError) as error:
            return Tried("vehicle", config, None, str(error).partition("\n")[0])

    def check(self, config: ProductConfig) -> None:
        """Compare the outputs with those in float64; AssertionError beyond the bound.

        Raises:
            UnsupportedError: The call is not run by this vehicle.
        """
        with force_launch(product=config):
            out = [one for one in self._comparison.again() if one.share > 1]
            self._check_vehicle(config)
        if out:
            raise AssertionError(f"{self.op.declaration}: {out[0]} under {config}")

    def seconds(self, config: ProductConfig) -> float:
        """Device seconds of one call."""
        with force_launch(product=config), torch.no_grad():
            calls = [functools.partial(self._call, given) for given in self._sets]
            calls[0]()
            self._check_vehicle(config)
            return self._clock(calls)

    @property
    def _clock(self) -> Callable[[Sequence[clock.Call]], float]:
        # A draw from torch's generator cannot be captured in a graph.
        return clock.queue_seconds if self._draws else clock.graph_seconds

    def _call(self, given: Mapping[str, Any]) -> object:
        operands = {name: one for name, one in given.items() if name not in ("x", "w")}
        return self.op(given["x"], self.op.turned(given["w"]), **operands, **self._options)

    def _check_vehicle(self, config: ProductConfig) -> None:
        ran = last_schedule()
        if (ran if ran in VEHICLES else VEHICLES[0]) != config.vehicle:
            given = self._sets[0]
            operands = {name: one for name, one in given.items() if name not in ("x", "w")}
            w = self.op.turned(given["w"])
            why = self.op.vehicle(given["x"], w, {**operands, **self._options}).why
            raise UnsupportedError(
                f"{self.op.name}: {config.vehicle} does not run this call: {why}"
            )

    def _filled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Random values; those of w so small that the product is of the size of the operands."""
        given = filled(values, self.features.columns, self._device)
        given["w"] *= self.features.depth**-0.5
        return given


def _cut(factor: Tensor, z: Tensor, last: int) -> Tensor:
    """A factor for fewer rows of the product, but for so many of its last dimensions."""
    for dim in range(-factor.dim(), -last):
        if factor.shape[dim] > 1:  # else it is shared
            factor = factor.narrow(dim, 0, z.shape[dim])
    return factor
