# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Expected results of a call in float64, with error bounds derived from its chain.

The bound that each element is held to is docs/explanation/arithmetic.md's: 0.51 ulp of the output's
type for its one rounding, and four times the error that the chain makes in the compute type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.reference.evaluation import Evaluation, finite
from fusedops.reference.hardware_tanh import inexact_tanhs, mixes
from fusedops.reference.roundings import Roundings

#: Two chains in double differ by so much of the largest number at hand: nothing here is more exact.
_DOUBLE = 2.0**-44

#: Ways to round a functor's steps: the error of one element is then no less than a sixteenth of the
#: usual one, but once in 10^6.
_BENDS = 5


class Expected(NamedTuple):
    """The expected value and error bound of one output or gradient."""

    value: Tensor  # in double
    error: Tensor  # the error that a chain in the compute type makes, per element
    #: How far it may be off since x may be, and a tanh of the hardware, per element.
    inherited: Tensor | float = 0.0

    def allowed(self, dtype: torch.dtype) -> Tensor:
        """How far a result of this dtype may be off, per element."""
        off = 4 * self.error + self.inherited
        # What is rounded may lie beyond the next power of two, where numbers are further apart.
        return 0.51 * ulp(self.value.abs() + off, dtype) + off


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
    true = Evaluation(bound, torch.float64, streams, upstream, whole=True)
    runs = [] if double else [Evaluation(bound, bound.compute, streams, upstream)]
    if any(one.rounds or one.straight_through for one in (*bound.load, *bound.store)):
        # What falls on the other side of a rounding within the chain is no error.
        runs += [Evaluation(bound, torch.float64, streams, upstream, nudge=n) for n in (eps, -eps)]
    moved = []
    if spread is not None:
        ends = (bound.x.double() + spread, bound.x.double() - spread)
        moved = [
            Evaluation(bound._replace(x=end), torch.float64, streams, upstream, whole=True)
            for end in ends
        ]
    arriving = []
    if of_upstream is not None:  # gradients are linear in those that arrive
        arriving = [Evaluation(bound, torch.float64, streams, of_upstream, whole=True)]
    bent: list[Evaluation] = []
    shaken: list[Evaluation] = []
    cancels = any(functor.cancels for functor in (*bound.load, *bound.store))
    if cancels:
        # Values of steps that cancel, or of a power, are off by more than a rounding of themselves.
        shaken = [
            Evaluation(bound, torch.float64, streams, {}, bend=Roundings(eps, seed))
            for seed in range(_BENDS)
        ]
    if upstream and (cancels or (bound.op.centred and bound.store)):
        # Terms of a derivative that cancel leave roundings of their own sizes: so much does the
        # derivative change where each argument and each step of the functor changes by one, and
        # each element of a norm by one of those about the mean.
        bent = [
            Evaluation(bound, torch.float64, streams, upstream, bend=Roundings(eps, seed))
            for seed in range(_BENDS)
        ]
    inexact = [
        [
            Evaluation(bound, torch.float64, streams, upstream, whole=True, inexact=way)
            for way in ways
        ]
        for ways in inexact_tanhs(bound)
    ]
    found = {}
    for name, value in true.outputs.items():
        size = value.abs()
        if name == "y":
            size = torch.stack([finite(seen.abs()) for seen in (value, *true.stored)]).amax(0)
        elif name in bound.op.maxima:
            # Of magnitudes before the maximum: it is off by no more than the element farthest off.
            size = torch.stack([finite(seen.abs()) for seen in true.stored]).amax(0)
        elif name in true.statistic_sizes:
            size = true.statistic_sizes[name]
        error = _largest(
            eps * finite(size), [_apart(run.outputs[name], value) for run in (*runs, *shaken)]
        )
        of_rows = name in bound.op.statistics
        off = _largest(torch.zeros_like(value), [_apart(run.outputs[name], value) for run in moved])
        for ways in inexact:
            off = off + _of_ways(bound, [one.outputs[name] for one in ways], value, of_rows)
        error = error if of_rows else _by_row(error, bound)
        if name in bound.op.maxima and value.numel():
            value, error, off = value.amax(), error.amax(), off.amax()
        elif name in bound.op.maxima:
            value, error, off = (value.new_zeros(()) for _ in range(3))
        found[name] = Expected(value, error, off)
    for name, terms in true.gradients.items():
        shape = (bound.x if name == "x" else bound.operands[name]).shape
        value = terms.sum_to_size(shape)
        size = finite(torch.maximum(terms.abs(), true.sizes[name])).sum_to_size(shape)
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
        off = off + sum(finite(run.gradients[name].abs()) for run in arriving)
        if bound.op.from_rounded_result and bound.dtype is not bound.compute:
            off = off + _of_rounded_result(bound, name, true.outputs["y"], upstream)
        off = independent(off.sum_to_size(shape), off.square().sum_to_size(shape))
        for ways in inexact:
            of_terms = _of_ways(bound, [one.gradients[name] for one in ways], terms)
            off = off + of_terms.sum_to_size(shape)
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
        return finite(off * (1 - y.sum(bound.reduced, keepdim=True)).abs())
    total = (g * y).sum(bound.reduced, keepdim=True)
    for key, value in upstream.items():
        if key in bound.op.statistics:
            total = total - value.double().reshape(total.shape)
    return finite(half * (g - total).abs() + (y + half) * off)


def _of_ways(bound: Bound, ways: Sequence[Tensor], value: Tensor, of_rows: bool = False) -> Tensor:
    """How far results may be off since one functor's tanh is, from ways in which it may be.

    Where the elements of a row mix, these ways are samples, and a row's largest error is allowed
    four times to each of its elements, as that of a chain is.
    """
    off = _largest(torch.zeros_like(value), [_apart(one, value) for one in ways])
    if not mixes(bound):
        return off
    return 4 * (off if of_rows else _by_row(off, bound))


def independent(total: Tensor, squares: Tensor) -> Tensor:
    """How far a sum may be off whose terms are off independently of one another.

    That is never more than the sum of what the terms are off by. By Hoeffding's inequality it is
    more than 8 times the root of the sum of the squares once in 10^13.

    `total` is the sum of what the terms may be off by, `squares` the sum of its squares.
    """
    return torch.minimum(total, 8 * squares.sqrt())


def _largest(error: Tensor, others: Sequence[Tensor]) -> Tensor:
    for other in others:
        error = torch.maximum(error, other)
    return error


def _apart(chain: Tensor, value: Tensor) -> Tensor:
    """The error of a chain; one that overflows counts as one that gives zero."""
    error = (chain.double() - value).abs()
    return finite(torch.where(chain.isfinite(), error, value.abs()))


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
