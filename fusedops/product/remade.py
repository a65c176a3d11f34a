# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A linear layer whose input is not kept for the gradient of its weight: it is made again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fusedops.product.epilogue import Epilogue

__all__ = ["linear_of_remade"]


def linear_of_remade(
    epilogue: Epilogue,
    z: Tensor,
    arguments: Mapping[str, Any],
    h: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """``h @ w.T``, plus a bias, where ``h = epilogue(z, **arguments)`` need not be kept.

    Args:
        epilogue: What made h. It has a single output, and what it draws from is given.
        z: What it made h of.
        arguments: Its operands and options.
        h: The input of the layer.
        w: The weight, of shape (N, H).
        bias: Of shape (N,), or None.
    """
    w = w.to(h.dtype)  # as autocast would
    bias = None if bias is None else bias.to(h.dtype)
    tensors = {key: one for key, one in arguments.items() if isinstance(one, Tensor)}
    others = {key: one for key, one in arguments.items() if key not in tensors}
    apply: Any = _OfRemade.apply
    result: Tensor = apply(epilogue, others, [*tensors], h, w, bias, z, *tensors.values())
    return result


class _OfRemade(torch.autograd.Function):
    """The layer as a function of h, w and the bias; all that made h has its gradients by h."""

    @staticmethod
    def forward(
        ctx: Any,
        epilogue: Epilogue,
        others: Mapping[str, Any],
        names: list[str],
        h: Tensor,
        w: Tensor,
        bias: Tensor | None,
        z: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.made_by = epilogue, others, names
        ctx.save_for_backward(w, z, *tensors)
        return functional.linear(h, w, bias)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Any, ...]:
        epilogue, others, names = ctx.made_by
        w, z, *tensors = ctx.saved_tensors
        of_h, of_w, of_bias = ctx.needs_input_grad[3:6]
        rows = incoming.reshape(-1, incoming.shape[-1])
        dw = None
        if of_w:
            h = epilogue(z, **dict(zip(names, tensors, strict=True)), **others)
            dw = rows.mT @ h.reshape(-1, h.shape[-1])
            del h  # before its gradient is made
        dh = incoming @ w if of_h else None
        dbias = rows.sum(0) if of_bias else None
        return (None, None, None, dh, dw, dbias, None, *[None] * len(tensors))
