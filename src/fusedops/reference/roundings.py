# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Perturb each torch operation by one rounding, to measure how a chain propagates errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Roundings(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which each operation is off by one rounding, up or down at random.

    Autograd does not see it: what it keeps for the backward pass is off, and gradients pass as they
    are. So terms of a derivative that cancel leave what roundings of their own sizes leave of them.
    """

    def __init__(self, eps: float, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._eps = eps
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def about_the_mean(self, value: Tensor) -> Tensor:
        """Elements of rows, each off by a rounding of its row's mean magnitude."""
        size = value.abs().nan_to_num(0.0, 0.0).mean(-1, keepdim=True)
        return value + self._eps * self._signs(value) * size

    def _signs(self, value: Tensor) -> Tensor:
        found = self._generators.get(value.device)
        if found is None:
            found = torch.Generator(value.device).manual_seed(self._seed)
            self._generators[value.device] = found
        bits = torch.randint(0, 2, value.shape, device=value.device, generator=found)
        return bits.to(value.dtype) * 2 - 1  # of integers, 1 + eps * sign would be a float32

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        operation: Any = func
        if operation.is_view or operation._schema.is_mutable:
            return made
        if isinstance(made, Tensor) and made.is_floating_point():
            return made * (1 + self._eps * self._signs(made))
        return made


def copied(value: Tensor) -> Tensor:
    """A copy with the value's gradient: by an operation, which `Roundings` rounds."""
    return in_place_of(value, value.detach())


def in_place_of(value: Tensor, other: Tensor) -> Tensor:
    """A copy of another value, whose gradient goes to this one."""
    # Whether torch types apply() depends on its version.
    result: Tensor = cast(Any, _InPlaceOf).apply(value, other)
    return result


class _InPlaceOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, other: Tensor) -> Tensor:
        return other.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
