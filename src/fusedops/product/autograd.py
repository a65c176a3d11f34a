# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A linear layer whose input is not kept for the gradient of its weight: it is made again.

Of ``z = x @ w1.T``, ``h = epilogue(z)`` and ``y = h @ w2.T`` autograd sees one function, y of all
that is given, which keeps z. So its backward pass has the product ``dh = dy @ w2`` and all that
follows of it, and may run both by one kernel (`product_backward`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from fusedops.jit import env
from fusedops.product.factors import as_factor, linear, multiply, rows_of
from fusedops.product.product_backward import ProductBackward
from fusedops.product.recorded import record_gradient
from fusedops.product.torch_op import read_by_gradient
from fusedops.run.first_derivative import only_once

if TYPE_CHECKING:
    from fusedops.product.epilogue import Epilogue


def factor_gradients(
    dz: Tensor, x: Tensor | None, w: Tensor | None, shapes: tuple[Sequence[int], Sequence[int]]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of x and w, each None unless the other one is given.

    x has shape (..., M, K), and w (N, K) or (..., N, K); `shapes` are those of both.
    """
    x_shape, w_shape = shapes
    dx = None if w is None else multiply(dz, w)
    dw = None
    if len(w_shape) > 2:  # many products, for which one of the factors may have been expanded
        dx = None if dx is None else dx.sum_to_size(x_shape)
        dw = None if x is None else multiply(dz.mT, x).sum_to_size(w_shape)
    elif x is not None:
        dw = _of_weight(dz, x)
    return dx, dw


#: The gradients between two products: of dy, w2, z as "x" and the other tensors by name, and the
#: names that are wanted, in whose order they come.
Between: TypeAlias = "Callable[[Tensor, Tensor, dict[str, Tensor], list[str]], Sequence[Tensor]]"

#: The name of the weight among those wanted, which no operand has.
W2 = "w2"


def linear_recomputed(
    name: str,
    between: Between,
    factors: tuple[Tensor, Tensor],
    made_of: Mapping[str, Tensor],
    h: Tensor,
    w2: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """``h @ w2.T``, plus a bias, where h need not be kept.

    Args:
        name: The name of the op in error messages.
        between: What gives the gradients between the products.
        factors: x and w1, of which z was made, in the dtype of the product.
        made_of: z, as "x", and the other tensors that h was made of, by name.
        h: The input of the layer. Like z it was made without gradients.
        w2: The weight, of shape (N, H).
        bias: Of shape (N,), or None.
    """
    if w2.dtype is not h.dtype:
        w2 = as_factor(w2, h.dtype)
    if bias is not None and bias.dtype is not h.dtype:
        bias = as_factor(bias, h.dtype)
    apply: Any = _LinearRecomputed.apply
    result: Tensor
    result, _ = apply((name, between, [*made_of]), h, w2, bias, *factors, *made_of.values())
    return result


def why_kept(
    epilogue: Epilogue, wanted: tuple[str, ...], operands: Mapping[str, Any], size: int | None
) -> str | None:
    """Why h is kept, in place of being made again; None where it is not. Dynamo traces this.

    It is made again where that takes one tensor less: the gradient reads z in any case, and what
    else h follows from is read as well, or is smaller than h.

    `wanted` are operands, and "x" for z; `size` is the number of h's elements, None if that is not
    known.
    """
    read = read_by_gradient(epilogue.text, wanted)
    if "x" not in read:
        return "the gradient of its hidden functors does not read the product, so h is kept"
    for key in epilogue.slots:
        one = operands.get(key)
        if isinstance(one, Tensor) and key not in read:
            as_large = one.dim() > 1 if size is None else one.numel() >= size
            if as_large:
                return f"h follows from {key!r}, which no gradient reads, so h is kept"
    return None


class _LinearRecomputed(torch.autograd.Function):
    """The layer as a function of w2, the bias, and all that made h."""

    @staticmethod
    def forward(
        ctx: Any,
        noted: tuple[str, Between, list[str]],
        h: Tensor,
        w2: Tensor,
        bias: Tensor | None,
        x: Tensor,
        w1: Tensor,
        z: Tensor,
        *others: Tensor,
    ) -> tuple[Tensor, Tensor]:
        of_x, of_w1 = ctx.needs_input_grad[4:6]
        ctx.noted, ctx.shapes = noted, (x.shape, w1.shape)
        ctx.set_materialize_grads(False)
        # As an output, so that autograd knows z to be a function of x and w1, which may not be
        # kept: the gradients made of it are not to be differentiated again (`only_once`).
        z = z.detach()
        ctx.save_for_backward(w2, x if of_w1 else None, w1 if of_x else None, z, *others)
        return linear(h, w2, bias), z

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: a checkpoint hands them out a single time
        w2, x, w1, *tensors = saved
        name, between, names = ctx.noted
        of_w2, of_bias, of_x, of_w1, _, *of_tensors = ctx.needs_input_grad[2:]
        wanted = [W2] * of_w2 + ["x"] * (of_x or of_w1)
        wanted += itertools.compress(names[1:], of_tensors)
        with torch.no_grad():
            made = between(dy, w2, dict(zip(names, tensors, strict=True)), wanted) if wanted else ()
            found = dict(zip(wanted, made, strict=True))
            dw2, dz = found.pop(W2, None), found.pop("x", None)
            dbias = rows_of(dy).sum(0) if of_bias else None
            dx = dw1 = None
            if dz is not None:
                given = x if of_w1 else None, w1 if of_x else None
                dx, dw1 = factor_gradients(dz, *given, ctx.shapes)
        results: Sequence[Any] = [dw2, dbias, dx, dw1, None, *map(found.get, names[1:])]
        if torch.is_grad_enabled():
            results = only_once(name, results, (*saved, dy))
        return (None, None, *results)


def between_products(
    epilogue: Epilogue,
    gradient: Callable[[frozenset[str]], ProductBackward],
    others: Mapping[str, Any],
    dy: Tensor,
    w2: Tensor,
    tensors: dict[str, Tensor],
    wanted: list[str],
) -> list[Tensor]:
    """The gradients between two products, by one kernel or by two, as is faster.

    Args:
        epilogue: What made h. It has a single output, and what it draws from is given.
        gradient: Its gradient together with the product, by the operands whose gradients are
            wanted.
        others: Its operands and options that are no tensors.
        dy: The gradient of y, of shape (..., N).
        w2: The weight, of shape (N, H).
        tensors: z, as "x", and all other tensors by name.
        wanted: The names of what is wanted: `W2`, "x", operands.
    """
    arguments = {**tensors, **others}
    z = arguments.pop("x")
    operands = frozenset(wanted) - {W2, "x"}
    by_one = gradient(operands)
    if env.record_file() is not None:
        record_gradient(epilogue, operands, dy, w2, z, arguments)
    found = by_one(dy, w2, z, arguments)
    if found is not None:
        dz, h, *values = found
        of_names = {"x": dz, **dict(zip(by_one.names, values, strict=True))}
        if W2 in wanted:
            of_names[W2] = _of_weight(dy, h)
        return [of_names[key] for key in wanted]
    of_names = {}
    with torch.enable_grad():
        leaves: dict[str, Tensor] = {}
        for key in wanted:
            if key != W2:
                leaves[key] = tensors[key].detach().requires_grad_()
        given = {"x": z, **arguments, **leaves}
        h = epilogue(given.pop("x"), **given)
    edge = get_gradient_edge(h) if leaves else None
    if W2 in wanted:
        of_names[W2] = _of_weight(dy, h.detach())
    del h  # before its gradient is made
    if edge is not None:
        made = torch.autograd.grad(edge, [*leaves.values()], dy @ w2)
        of_names.update(zip(leaves, made, strict=True))
    return [*map(of_names.__getitem__, wanted)]


def _of_weight(dy: Tensor, x: Tensor) -> Tensor:
    """The gradient of w in ``y = x @ w.T``."""
    return rows_of(dy).mT @ rows_of(x)
