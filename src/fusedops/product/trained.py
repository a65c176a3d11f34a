# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of a call whose product and STORE were one kernel.

It is that of two kernels: one goes back through the STORE, then there are two products. It does not
read the product: a layer whose gradient would saves the product as a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.product.batched import multiply
from fusedops.product.factors import rows_of, without_memory
from fusedops.run.autograd import gradients_once, note_arguments, recipe_of, save

if TYPE_CHECKING:
    from fusedops.product.epilogue import Epilogue

__all__ = ["Run", "factor_gradients", "train"]

#: Runs product and STORE without gradients: (x, w, arguments) to the outputs.
Run = Callable[[Tensor, Tensor, Mapping[str, Any]], Sequence[Tensor]]


def train(
    epilogue: Epilogue,
    run: Run,
    shape: Sequence[int],
    options: dict[str, Any] | None,
    x: Tensor,
    w: Tensor,
    values: Sequence[Any],
) -> tuple[Tensor, ...]:
    """Run a call that wants gradients, and record it for autograd.

    Args:
        epilogue: What runs after the product, whose gradient does not read the product.
        run: What runs both.
        shape: The product's shape.
        options: The options of the call by name, or None if there are none.
        x: The factor of shape (..., K).
        w: The factor of shape (N, K), or (..., N, K) of many products.
        values: The operands in the order of `epilogue.slots`, None for one that the call lacks.

    Returns:
        The outputs, in order.
    """
    apply: Any = _Trained.apply
    outputs: tuple[Tensor, ...] = apply(epilogue, run, shape, options, x, w, *values)
    return outputs


def factor_gradients(
    dz: Tensor, x: Tensor | None, w: Tensor | None, shapes: tuple[Sequence[int], Sequence[int]]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of x and w, each None unless the other one is given.

    Args:
        dz: The gradient of the product.
        x: The factor of shape (..., M, K), if the gradient of w is wanted.
        w: The factor of shape (N, K), or (..., N, K), if that of x is.
        shapes: Of both.
    """
    x_shape, w_shape = shapes
    dx = None if w is None else multiply(dz, w)
    dw = None
    if len(w_shape) > 2:  # many products, for which one of the factors may have been expanded
        dx = None if dx is None else dx.sum_to_size(x_shape)
        dw = None if x is None else multiply(dz.mT, x).sum_to_size(w_shape)
    elif x is not None:
        dw = rows_of(dz).mT @ rows_of(x)
    return dx, dw


class _Trained(torch.autograd.Function):
    """The autograd function of one call."""

    @staticmethod
    def forward(
        ctx: Any,
        epilogue: Epilogue,
        run: Run,
        shape: Sequence[int],
        options: dict[str, Any] | None,
        x: Tensor,
        w: Tensor,
        *values: Any,
    ) -> tuple[Tensor, ...]:
        of_x, of_w, *of_values = ctx.needs_input_grad[4:]
        needs = (False, False, of_x or of_w, *of_values)
        recipe = recipe_of(epilogue, needs)
        assert not recipe.x, "the product is not there to be read"
        ctx.shapes = x.shape, w.shape
        z = without_memory(x, shape)
        arguments, noted = note_arguments(epilogue, options, z, values, recipe)
        outputs = run(x, w, arguments)
        statistics = z.new_empty((*shape[:-1], 0), dtype=torch.float32)  # a Map has none
        further = [x if of_w else None, w if of_x else None, statistics]
        return save(ctx, epilogue, recipe, noted, z, outputs, further)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Any, ...]:
        x, w, *saved = ctx.saved_tensors
        dz, *of_values = gradients_once(ctx.call, saved, incoming)
        dx, dw = factor_gradients(dz, x, w, ctx.shapes)
        return (None, None, None, None, dx, dw, *of_values)
