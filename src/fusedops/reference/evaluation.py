# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""One evaluation of an op's chain of torch calls, with the sizes of the numbers in it.

`error_bound` makes several: in double, in the compute type, with each step off by a rounding, with
each tanh of the hardware off by what it may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.reference.hardware_tanh import Site
from fusedops.reference.roundings import Roundings, copied, in_place_of
from fusedops.reference.unfused import Chain, gradients_of

#: Backward passes that estimate a norm: it is then known to a few tenths.
_PROBES = 16


class Evaluation:
    """One evaluation of a chain, forward and backward.

    Attributes:
        outputs: Not rounded, by name.
        gradients: Of x and the floating operands, by name; whole: an element for every one of x, or
            for every row if it is the operator's own operand.
        sizes: Of the numbers that made each element of a gradient, where they may cancel.
        stored: The values that the STORE's steps rounded on the way to y.
        statistic_sizes: Of the numbers that each statistic was added up from, by name.
    """

    def __init__(
        self,
        bound: Bound,
        compute: torch.dtype,
        streams: Mapping[str, Tensor],
        upstream: Mapping[str, Tensor],
        *,
        whole: bool = False,
        nudge: float = 0.0,
        bend: Roundings | None = None,
        inexact: Site | None = None,
    ) -> None:
        leaves = {}
        own = {*bound.op.row_operands}.difference(bound.op.row_roles)
        of_rows = [1 if d in bound.reduced else size for d, size in enumerate(bound.x.shape)]
        pair = bound.op.pair
        as_they_are = {*bound.tables, *(one.name for one in (pair.operands() if pair else ()))}
        for name, value in {"x": bound.x, **bound.operands}.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                leaf = value.detach().to(compute)
                if whole and name not in as_they_are:
                    leaf = leaf.expand(of_rows if name in own else bound.x.shape).clone()
                leaves[name] = leaf.requires_grad_(bool(upstream))
        operands = {**bound.operands, **leaves}
        operands.pop("x", None)
        moved = bound._replace(x=leaves["x"], operands=operands, compute=compute)
        chain = _Following(moved, streams, nudge, bend, inexact)
        outputs = chain.outputs()
        self.outputs = {name: outputs[name].detach() for name in bound.op.outputs}
        self.stored = chain.stored
        self.statistic_sizes = {
            name: bound.op.statistic_sizes(name, chain.reduced.detach(), value).to(value)
            for name, value in self.outputs.items()
            if name in bound.op.statistics and bound.columns
        }
        self.gradients: dict[str, Tensor] = {}
        self.sizes: dict[str, Tensor] = {}
        if upstream:
            self._differentiate(chain, outputs, leaves, upstream, whole)

    def _differentiate(
        self,
        chain: _Following,
        outputs: Mapping[str, Tensor],
        leaves: Mapping[str, Tensor],
        upstream: Mapping[str, Tensor],
        whole: bool,
    ) -> None:
        inputs = [*leaves.values(), *([chain.reduced, chain.result] if whole else [])]
        arriving = [upstream[name].to(outputs[name].dtype) for name in upstream]
        results = gradients_of([outputs[name] for name in upstream], inputs, arriving)
        self.gradients = dict(zip(leaves, results, strict=False))
        if not whole:
            return
        size = chain.cancelling(results[-1], upstream)
        through = gradients_of([chain.reduced], [*leaves.values()], [size])
        self.sizes = {name: one.abs() for name, one in zip(leaves, through, strict=True)}
        for name in leaves.keys() & {*chain.operands}:
            self.sizes[name] = chain.probed(leaves[name], results[-1].abs(), upstream)


class _Following(Chain):
    """A chain that continues from streams saved elsewhere, and records its own values of them.

    Attributes:
        reduced: What the reduction gets.
        result: What it makes of that.
        able: The differentiable statistics that the call returns, by name.
        operands: The names of the operator's own operands.
        stored: The values that the STORE's steps saw and made, each in x's place.
    """

    def __init__(
        self,
        bound: Bound,
        streams: Mapping[str, Tensor],
        nudge: float,
        bend: Roundings | None,
        inexact: Site | None,
    ) -> None:
        super().__init__(bound)
        self._inexact = inexact
        self._streams = streams
        self._nudge = nudge
        self._bend = bend
        self._bends = False  # within a functor whose derivative cancels
        self.operands = bound.op.row_operands
        self.stored: list[Tensor] = []

    def save(self, name: str, value: Tensor) -> Tensor:
        if self._gone is None:
            self.saved[name] = self.restore(value)
        return self.rounded(name, value)

    def rounded(self, name: str, value: Tensor) -> Tensor:
        stream = self.arrange(self._streams[name]).to(value.dtype)
        return in_place_of(value, stream)

    def maximum(self, name: str, value: Tensor) -> None:
        self.saved[name] = self.restore(value.detach().abs())

    def apply(self, side: str, value: Tensor, places: range) -> Tensor:
        functors = self._bound.chains[side]
        if side == "store":
            if self._bend is not None and self._bound.op.centred:
                value = in_place_of(value, self._bend.about_the_mean(value.detach()))
            self.result = value
            self._note(value)
        for place in places:
            functor = functors[place]
            nudged = (functor.rounds or functor.straight_through) and self._nudge != 0
            if nudged:
                value = cast(Any, _Nudged).apply(self._kept(value), self._nudge, 0.0)
            if side == "store":
                for one in functor.intermediates(value, self):
                    self._note(one)
            value = self._after(side, value, place)
            if nudged:
                value = cast(Any, _Nudged).apply(value, 0.0, self._nudge)
            if side == "store":
                self._note(value)
        return self._kept(value)

    def _after(self, side: str, value: Tensor, place: int) -> Tensor:
        """What one functor makes; its derivative is that at arguments that are bent.

        Without gradients the value is, too.
        """
        functor = self._bound.chains[side][place]
        here = range(place, place + 1)
        if self._inexact is not None and self._inexact[:2] == (side, place):
            with self._inexact.mode:
                return super().apply(side, value, here)
        made = super().apply(side, value, here)
        if not functor.cancels or self._bend is None:
            return made
        self._bends = True
        with self._bend:
            bent = super().apply(side, copied(value), here)
        self._bends = False
        return in_place_of(bent, made.detach()) if made.requires_grad else bent

    def value(self, name: str) -> Tensor | float:
        value = super().value(name)
        return copied(value) if self._bends and isinstance(value, Tensor) else value

    def _load(self) -> Tensor:
        self.reduced = super()._load()
        return self.reduced

    def _reduced(self, value: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        result, statistics = super()._reduced(value)
        self.able = {k: one for k, one in statistics.items() if k in self._bound.op.joining}
        return result, statistics

    def _note(self, value: Tensor) -> None:
        self.stored.append(self.restore(value.detach().expand(self.result.shape)))

    def cancelling(self, gradient: Tensor, upstream: Mapping[str, Tensor]) -> Tensor:
        """Magnitudes of the terms in the operator's gradient sums, before they cancel."""
        op, g = self._bound.op, gradient.abs()
        if not self.columns:
            return g
        statistics = {k: v.abs().to(g) for k, v in upstream.items() if k in op.statistics}
        found = op.gradient_sizes(self.reduced.detach(), self.result.detach(), g, statistics)
        return self.probed(self.reduced, g, upstream) if found is None else found

    def probed(self, of: Tensor, g: Tensor, upstream: Mapping[str, Tensor]) -> Tensor:
        """The 2-norm of the terms of a gradient, estimated by random probes.

        With random signs of the upstream gradients, the expected square of a sum is the sum of the
        squares of its terms.
        """
        generator = torch.Generator(g.device).manual_seed(0)
        incoming = [g, *(upstream[name].to(g.dtype) for name in self.able)]
        total = torch.zeros_like(of)
        for _ in range(_PROBES):
            signed = [
                one * (torch.randint(0, 2, one.shape, device=g.device, generator=generator) * 2 - 1)
                for one in incoming
            ]
            (found,) = gradients_of([self.result, *self.able.values()], [of], signed)
            total += found.detach().square()
        return (total / _PROBES).sqrt()


class _Nudged(torch.autograd.Function):
    """Moves a value and its gradient by shares of their rows' largest elements.

    Around a functor that rounds, this decides whether what lies between two numbers goes up or
    down: `by` before it the values, `by_gradient` after it the gradients.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, by: float, by_gradient: float) -> Tensor:
        ctx.by = by_gradient
        return _beside(value, by)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _beside(gradient, ctx.by), None, None


def _beside(value: Tensor, by: float) -> Tensor:
    size = finite(value.abs()).amax(-1, keepdim=True) if value.numel() else value
    return value + 4 * by * size


def finite(size: Tensor) -> Tensor:
    """A tensor with 0 where it is infinite or NaN."""
    return torch.where(size.isfinite(), size, 0)
