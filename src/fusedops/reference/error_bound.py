# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Expected results of a call in float64, with error bounds derived from its chain.

The bound that each element is held to is docs/explanation/arithmetic.md's: 0.51 ulp of the output's
type for its one rounding, and four times the error that the chain makes in the compute type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.reference.roundings import Roundings, copied, in_place_of
from fusedops.reference.unfused import Chain, gradients_of

#: Two chains in double differ by so much of the largest number at hand: nothing here is more exact.
_DOUBLE = 2.0**-44

#: Backward passes that estimate a norm: it is then known to a few tenths.
_PROBES = 16

#: Ways to round a functor's steps: the error of one element is then no less than a sixteenth of the
#: usual one, but once in 10^6.
_BENDS = 5


class Expected(NamedTuple):
    """The expected value and error bound of one output or gradient.

    Attributes:
        value: In double.
        error: The error that a chain in the compute type makes, per element.
        inherited: How far it may be off since x may be, per element.
    """

    value: Tensor
    error: Tensor
    inherited: Tensor | float = 0.0

    def allowed(self, dtype: torch.dtype) -> Tensor:
        """How far a result of this dtype may be off, per element."""
        return 0.51 * ulp(self.value, dtype) + 4 * self.error + self.inherited


def expected(
    bound: Bound,
    streams: Mapping[str, Tensor],
    upstream: Mapping[str, Tensor],
    spread: Tensor | None = None,
    of_upstream: Mapping[str, Tensor] | None = None,
) -> dict[str, Expected]:
    """Every output by name, and every gradient as "gradient of name".

    Args:
        bound: The call, its generator where it was when the fused op drew from it.
        streams: The saved streams that the fused op made: the chain goes on from these.
        upstream: The gradients of y and of the streams; empty if none are asked for.
        spread: How far each element of x may be off, independently of the others, in an op that
            reduces nothing; None where x is exact.
        of_upstream: How far each element of the gradients in `upstream` may be off, likewise; None
            where they are exact.
    """
    double = bound.compute is torch.float64
    eps = _DOUBLE if double else torch.finfo(bound.compute).eps
    true = _Run(bound, torch.float64, streams, upstream, whole=True)
    runs = [] if double else [_Run(bound, bound.compute, streams, upstream)]
    if any(functor.rounds for functor in (*bound.load, *bound.store)):
        # What falls on the other side of a rounding within the chain is no error.
        runs += [_Run(bound, torch.float64, streams, upstream, nudge=n) for n in (eps, -eps)]
    moved = []
    if spread is not None:
        ends = (bound.x.double() + spread, bound.x.double() - spread)
        moved = [
            _Run(bound._replace(x=end), torch.float64, streams, upstream, whole=True)
            for end in ends
        ]
    arriving = []
    if of_upstream is not None:  # gradients are linear in those that arrive
        arriving = [_Run(bound, torch.float64, streams, of_upstream, whole=True)]
    bent: list[_Run] = []
    shaken: list[_Run] = []
    cancels = any(functor.cancels for functor in (*bound.load, *bound.store))
    if cancels:
        # Values of steps that cancel, or of a power, are off by more than a rounding of themselves.
        shaken = [
            _Run(bound, torch.float64, streams, {}, bend=Roundings(eps, seed))
            for seed in range(_BENDS)
        ]
    if upstream and (cancels or (bound.op.centred and bound.store)):
        # Terms of a derivative that cancel leave roundings of their own sizes: so much does the
        # derivative change where each argument and each step of the functor changes by one, and
        # each element of a norm by one of those about the mean.
        bent = [
            _Run(bound, torch.float64, streams, upstream, bend=Roundings(eps, seed))
            for seed in range(_BENDS)
        ]
    found = {}
    for name, value in true.outputs.items():
        size = value.abs()
        if name == "y":
            size = torch.stack([_finite(seen.abs()) for seen in (value, *true.stored)]).amax(0)
        elif name in bound.op.maxima:
            # Of magnitudes before the maximum: it is off by no more than the element farthest off.
            size = torch.stack([_finite(seen.abs()) for seen in true.stored]).amax(0)
        elif name in true.statistic_sizes:
            size = true.statistic_sizes[name]
        error = _largest(eps * _finite(size), [_apart(run.outputs[name], value) for run in (*runs, *shaken)])
        of_rows = name in bound.op.statistics
        off = _largest(torch.zeros_like(value), [_apart(run.outputs[name], value) for run in moved])
        error = error if of_rows else _by_row(error, bound)
        if name in bound.op.maxima and value.numel():
            value, error, off = value.amax(), error.amax(), off.amax()
        elif name in bound.op.maxima:
            value, error, off = (value.new_zeros(()) for _ in range(3))
        found[name] = Expected(value, error, off)
    for name, terms in true.gradients.items():
        shape = (bound.x if name == "x" else bound.operands[name]).shape
        value = terms.sum_to_size(shape)
        size = _finite(torch.maximum(terms.abs(), true.sizes[name])).sum_to_size(shape)
        looked_up = name in bound.tables
        added = bound.x.numel() if looked_up else terms.numel()
        count = added // max(1, value.numel())
        # A sum of n terms is certain to log2(n) roundings of the sum of their sizes, be it added in
        # pairs. Half an eps is one rounding.
        error = eps * max(1.0, math.log2(max(1, count)) / 2) * size
        chains = [run.gradients[name].sum_to_size(shape) for run in (*runs, *bent)]
        error = _largest(error, [_apart(chain, value) for chain in chains])
        whole = terms.numel() == value.numel() and not looked_up
        off = _largest(
            torch.zeros_like(terms), [_apart(run.gradients[name], terms) for run in moved]
        )
        off = off + sum(_finite(run.gradients[name].abs()) for run in arriving)
        if bound.op.from_rounded_result and bound.dtype is not bound.compute:
            off = off + _of_rounded_result(bound, name, true.outputs["y"], upstream)
        off = independent(off.sum_to_size(shape), off.square().sum_to_size(shape))
        error = _by_row(error, bound) if whole else error
        found[f"gradient of {name}"] = Expected(value, error, off)
    return found


def _of_rounded_result(
    bound: Bound, name: str, y: Tensor, upstream: Mapping[str, Tensor]
) -> Tensor:
    """How far a gradient is off that a softmax computes from a y that was rounded."""
    g = upstream["y"].double() if "y" in upstream else torch.zeros_like(y)
    half = ulp(y, bound.dtype) / 2
    off = (g.abs() * half).sum(bound.reduced, keepdim=True)  # of the sum
    if name in bound.op.row_operands:
        return _finite(off * (1 - y.sum(bound.reduced, keepdim=True)).abs())
    total = (g * y).sum(bound.reduced, keepdim=True)
    for key, value in upstream.items():
        if key in bound.op.statistics:
            total = total - value.double().reshape(total.shape)
    return _finite(half * (g - total).abs() + (y + half) * off)


def independent(total: Tensor, squares: Tensor) -> Tensor:
    """How far a sum may be off whose terms are off independently of one another.

    That is never more than the sum of what the terms are off by. By Hoeffding's inequality it is
    more than 8 times the root of the sum of the squares once in 10^13.

    Args:
        total: The sum of what the terms may be off by.
        squares: The sum of the squares of that.
    """
    return torch.minimum(total, 8 * squares.sqrt())


def _largest(error: Tensor, others: Sequence[Tensor]) -> Tensor:
    for other in others:
        error = torch.maximum(error, other)
    return error


class _Run:
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
    ) -> None:
        leaves = {}
        own = bound.op.row_operands
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
        chain = _Following(moved, streams, nudge, bend)
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
        self, bound: Bound, streams: Mapping[str, Tensor], nudge: float, bend: Roundings | None
    ) -> None:
        super().__init__(bound)
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
        functors = self._bound.load if side == "load" else self._bound.store
        if side == "store":
            if self._bend is not None and self._bound.op.centred:
                value = in_place_of(value, self._bend.about_the_mean(value.detach()))
            self.result = value
            self._note(value)
        for place in places:
            functor = functors[place]
            nudged = functor.rounds and self._nudge != 0
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
        functor = (self._bound.load if side == "load" else self._bound.store)[place]
        here = range(place, place + 1)
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
    size = _finite(value.abs()).amax(-1, keepdim=True) if value.numel() else value
    return value + 4 * by * size


def _apart(chain: Tensor, value: Tensor) -> Tensor:
    """The error of a chain; one that overflows counts as one that gives zero."""
    error = (chain.double() - value).abs()
    return _finite(torch.where(chain.isfinite(), error, value.abs()))


def _finite(size: Tensor) -> Tensor:
    return torch.where(size.isfinite(), size, 0)


def _by_row(error: Tensor, bound: Bound) -> Tensor:
    """The largest error in each element's row."""
    dims = [dim - bound.x.dim() for dim in bound.reduced]
    dims = [dim for dim in dims if -dim <= error.dim()]  # others have size 1 and are left out
    return error.amax(dims, keepdim=True).expand(error.shape) if error.numel() and dims else error


def ulp(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance of the numbers of a dtype at each of these values."""
    info = torch.finfo(dtype)
    smallest = math.log2(info.tiny)
    exponent = torch.where(value == 0, smallest, torch.frexp(value).exponent.double() - 1)
    return torch.exp2(exponent.clamp(min=smallest)) * info.eps
