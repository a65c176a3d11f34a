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

__all__ = ["InexactTanh", "Site", "inexact_tanhs", "mixes"]

#: The relative error of ``tanh.approx.f32`` that PTX allows, and a hundredth more for the terms of
#: second order, which an evaluation with exactly this error may not show.
_MOST = 1.01 * 2.0**-11

#: Ways to make each element too large or too small, where elements of a row mix: five of random
#: signs miss half of the largest error of a row once in 32 if it comes from a single element.
_DRAWS = 5


class InexactTanh(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which torch.tanh and torch.sigmoid, computed by it, are as far off as is allowed.

    Autograd does not see it, but keeps the inexact results for the backward pass, as a kernel
    computes derivatives from its inexact tanh.

    Args:
        seed: None for results that are too large everywhere, else that of random signs.
        sign: -1.0 for the opposite direction.
    """

    def __init__(self, seed: int | None, sign: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._sign = seed, sign

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.tanh.default:
            tanh, factor = made, 1.0
        elif func is torch.ops.aten.sigmoid.default:  # (1 + tanh(x / 2)) / 2
            tanh, factor = 2 * made - 1, 0.5
        else:
            return made
        off = factor * _MOST * self._sign * tanh.abs()
        if self._seed is not None:
            generator = torch.Generator(made.device).manual_seed(self._seed)
            bits = torch.randint(0, 2, made.shape, device=made.device, generator=generator)
            off = off * (bits.to(off.dtype) * 2 - 1)
        return made + off


class Site(NamedTuple):
    """A functor with `hardware_tanh` in a call, and one way in which its tanh may be off.

    Attributes:
        side: "load" or "store".
        place: Its index there.
        mode: The way.
    """

    side: str
    place: int
    mode: InexactTanh


def inexact_tanhs(bound: Bound) -> Iterator[list[Site]]:
    """For each functor of a call whose tanh is the hardware's, ways in which it may be off.

    The largest change among these ways is what that functor may change. Where no element depends on
    another one, that is exact to first order: all too large, and all too small.
    """
    if bound.compute is torch.float64:
        return  # GPUs have no such instruction for doubles
    ways: list[tuple[int | None, float]] = [(None, 1.0), (None, -1.0)]
    if mixes(bound):
        ways += [(seed, 1.0) for seed in range(_DRAWS)]
    for side, chain in bound.chains.items():
        for place, functor in enumerate(chain):
            if functor.hardware_tanh:
                yield [Site(side, place, InexactTanh(*way)) for way in ways]


def mixes(bound: Bound) -> bool:
    """Whether a result depends on several elements of its row."""
    return bound.op.reduces or bound.op.block is not None
