# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Make a functor's tanh as inexact as a GPU's instruction may be, to see what that does to a call.

docs/explanation/arithmetic.md has the bound that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusedops.bind.bind import Bound

#: The relative error of ``tanh.approx.f32`` that PTX allows, and a hundredth more for the terms of
#: second order, which an evaluation with exactly this error may not show.
_MOST = 1.01 * 2.0**-11

_TANHS = (torch.ops.aten.tanh.default, torch.ops.aten.tanh_.default)
_SIGMOIDS = (torch.ops.aten.sigmoid.default, torch.ops.aten.sigmoid_.default)

#: Ways to make each element too large or too small, where elements of a row mix: five of random
#: signs miss half of the largest error of a row once in 32 if it comes from a single element.
_DRAWS = 5


class InexactTanh(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which one call of torch.tanh or torch.sigmoid is as far off as is allowed.

    Autograd does not see it, but keeps the inexact result for the backward pass, as a kernel
    computes derivatives from its inexact tanh.

    Args:
        call: The index of that call among those that run in the mode.
        seed: None for a result that is too large everywhere, else that of random signs.
        sign: -1.0 for the opposite direction.

    Attributes:
        calls: How many calls there have been since the mode was last entered.
    """

    def __init__(self, call: int, seed: int | None, sign: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call, self._seed, self._sign = call, seed, sign
        self.calls = 0

    def __enter__(self) -> InexactTanh:
        self.calls = 0
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _TANHS:
            off = _MOST * made.abs()
        elif func in _SIGMOIDS:  # (1 + tanh(x / 2)) / 2
            off = _MOST * (made - 0.5).abs()
        else:
            return made
        self.calls += 1
        if self.calls - 1 != self._call:
            return made
        off = self._sign * off
        if self._seed is not None:
            generator = torch.Generator(made.device).manual_seed(self._seed)
            bits = torch.randint(0, 2, made.shape, device=made.device, generator=generator)
            off = off * (bits.to(off.dtype) * 2 - 1)
        operation: Any = func
        return made.add_(off) if operation._schema.is_mutable else made + off


class Site(NamedTuple):
    """A functor with `hardware_tanh`, and one way in which a tanh of it may be off."""

    side: str  # "load" or "store"
    place: int  # its index there
    mode: InexactTanh  # the way


def inexact_tanhs(bound: Bound) -> Iterator[list[Site]]:
    """For each tanh of a call that is the hardware's, ways in which it may be off.

    The largest change among these ways is what that tanh may change, and the sum over all of them
    what they may change together. Where no element depends on another one, that is so to first
    order: each is too large or too small. The ways of one are to be evaluated before the next is
    asked for, since that tells how many there are.
    """
    if bound.compute is torch.float64:
        return  # GPUs have no such instruction for doubles
    ways: list[tuple[int | None, float]] = [(None, 1.0), (None, -1.0)]
    if mixes(bound):
        ways += [(seed, 1.0) for seed in range(_DRAWS)]
    for side, chain in bound.chains.items():
        for place, functor in enumerate(chain):
            call, calls = 0, 1 if functor.hardware_tanh else 0
            while call < calls:
                sites = [Site(side, place, InexactTanh(call, *way)) for way in ways]
                yield sites
                call, calls = call + 1, sites[0].mode.calls


def mixes(bound: Bound) -> bool:
    """Whether a result depends on several elements of its row."""
    return bound.op.reduces or bound.op.block is not None
