# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A linear layer whose input is not kept for the gradient of its weight: it is made again.

The layer is a function of z, of which its input h was made: so its backward pass has the product
``dh = dy @ w`` and all that follows of it, and may run both by one kernel (`hidden_gradient`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional

from fusedops.jit import env
from fusedops.product.epilogue import Epilogue
from fusedops.product.hidden_gradient import HiddenGradient
from fusedops.product.recorded import record_gradient
from fusedops.run.first_derivative import only_once

__all__ = ["hidden_and_product", "linear_of_remade"]


def hidden_and_product(
    run: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], x: Tensor, w: Tensor
) -> tuple[Tensor, Tensor]:
    """``z = x @ w.T``, and what an epilogue makes of it, to which no gradient goes back from here.

    Args:
        run: What computes both.
        x: Of shape (..., K), in the dtype of the product.
        w: Of shape (H, K), likewise.
    """
    apply: Any = _Product.apply
    z, h = apply(run, x, w)
    return z, h


def linear_of_remade(
    epilogue: Epilogue,
    gradient: Callable[[frozenset[str]], HiddenGradient],
    z: Tensor,
    arguments: Mapping[str, Any],
    h: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """``h @ w.T``, plus a bias, where ``h = epilogue(z, **arguments)`` need not be kept.

    Args:
        epilogue: What made h. It has a single output, and what it draws from is given.
        gradient: Its gradient together with the product, by the operands whose gradients are
            wanted.
        z: What it made h of.
        arguments: Its operands and options.
        h: The input of the layer, which has no gradient of its own.
        w: The weight, of shape (N, H).
        bias: Of shape (N,), or None.
    """
    w = w.to(h.dtype)  # as autocast would
    bias = None if bias is None else bias.to(h.dtype)
    tensors = {key: one for key, one in arguments.items() if isinstance(one, Tensor)}
    others = {key: one for key, one in arguments.items() if key not in tensors}
    made_by = epilogue, gradient, others, [*tensors]
    apply: Any = _OfRemade.apply
    result: Tensor = apply(made_by, h, w, bias, z, *tensors.values())
    return result


class _Product(torch.autograd.Function):
    """The product as a function of its factors."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        z, h = run(x, w)
        _, of_x, of_w = ctx.needs_input_grad
        ctx.save_for_backward(x if of_w else None, w if of_x else None)
        ctx.mark_non_differentiable(h)
        ctx.set_materialize_grads(False)  # or zeros of h's size would be made for it
        return z, h

    @staticmethod
    def backward(ctx: Any, dz: Tensor, _: None) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        dx = None if w is None else dz @ w
        return None, dx, None if x is None else _of_weight(dz, x)


class _OfRemade(torch.autograd.Function):
    """The layer as a function of w, the bias, and all that made h."""

    @staticmethod
    def forward(
        ctx: Any,
        made_by: tuple[Epilogue, Any, Mapping[str, Any], list[str]],
        h: Tensor,
        w: Tensor,
        bias: Tensor | None,
        z: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.made_by = made_by
        ctx.save_for_backward(w, z, *tensors)
        return functional.linear(h, w, bias)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: a checkpoint hands them out a single time
        with torch.no_grad():
            results = _backward(ctx.made_by, saved, ctx.needs_input_grad[2:], incoming)
        name = ctx.made_by[0].name
        return (None, None, *only_once(name, results, (*saved, incoming)))


def _backward(
    made_by: tuple[Epilogue, Any, Mapping[str, Any], list[str]],
    saved: Sequence[Tensor],
    needs: Sequence[bool],
    dy: Tensor,
) -> list[Any]:
    """The gradients of w, of the bias, of z and of the tensors, as far as they are needed."""
    epilogue, gradient, others, names = made_by
    w, z, *tensors = saved
    of_w, of_bias, of_z, *of_tensors = needs
    dbias = dy.reshape(-1, dy.shape[-1]).sum(0) if of_bias else None
    arguments = {**dict(zip(names, tensors, strict=True)), **others}
    wanted = [name for name, need in zip(names, of_tensors, strict=True) if need]
    by_one = gradient(frozenset(wanted))
    if env.record_file() is not None:
        record_gradient(epilogue, frozenset(wanted), dy, w, z, arguments)
    if (found := by_one(dy, w, z, arguments)) is not None:
        dz, h, *values = found
        of_names = dict(zip(by_one.names, values, strict=True))
        dw = _of_weight(dy, h) if of_w else None
        return [dw, dbias, dz if of_z else None, *[of_names.get(name) for name in names]]
    with torch.enable_grad():
        leaves = {name: arguments[name].detach().requires_grad_() for name in wanted}
        source = z.detach().requires_grad_(of_z)
        h = epilogue(source, **{**arguments, **leaves})
    edge = get_gradient_edge(h)
    dw = _of_weight(dy, h.detach()) if of_w else None
    del h  # before its gradient is made
    roots = [source] * of_z + [*leaves.values()]
    made = iter(torch.autograd.grad(edge, roots, dy @ w))
    dz = next(made) if of_z else None
    return [dw, dbias, dz, *[next(made) if need else None for need in of_tensors]]


def _of_weight(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of w in ``y = x @ w.T``."""
    return dy.reshape(-1, dy.shape[-1]).mT @ x.reshape(-1, x.shape[-1])
