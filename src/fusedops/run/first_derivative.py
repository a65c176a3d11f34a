# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A fused op has a first derivative only: gradients that refuse to be differentiated again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from fusedops.errors import UNFUSED, UnsupportedError


def only_once(name: str, results: Sequence[Any], of: Sequence[Tensor | None]) -> Sequence[Any]:
    """Gradients that raise UnsupportedError where torch differentiates them again.

    The graph that torch makes of a backward pass may never be used, so what is refused is its use.

    Results were computed of `of`, without a graph.
    """
    if not torch.is_grad_enabled():
        return results
    tensors = [result for result in results if isinstance(result, Tensor)]
    roots = [one for one in of if isinstance(one, Tensor)]
    apply: Any = _Once.apply
    once = iter(apply(name, len(tensors), *tensors, *roots))
    return [next(once) if isinstance(one, Tensor) else one for one in results]


def refuse_second(ctx: Any, *incoming: Any) -> NoReturn:
    """Raise UnsupportedError for a second derivative."""
    raise UnsupportedError(
        f"{ctx.name}: a fused op has a first derivative only, and a second was asked for; "
        f"for it use {UNFUSED}"
    )


class _Once(torch.autograd.Function):
    """Passes gradients through, and raises UnsupportedError if they are differentiated again."""

    @staticmethod
    def forward(ctx: Any, name: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.name = name
        return tuple(tensor.detach() for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> Any:
        refuse_second(ctx)
