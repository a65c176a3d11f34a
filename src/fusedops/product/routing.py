# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens in the order of their experts, and back: what stands around grouped products.

Nothing waits for the device, and nothing is added by atomics: to sum a token's rows in their order
is the gradient of copying it to them, and the other way round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops.torch_ops.tracing import is_transformed

#: So many elements torch sorts in one pass, whatever their bits (aten/src/ATen/native/cuda/Sort.h).
_SORTED_AT_ONCE = 4096

__all__ = ["Route", "check_experts", "combine", "dispatch", "reorder", "route", "sum_of_choices"]


class Route(NamedTuple):
    """Where the rows of each expert come from.

    Attributes:
        order: For each row in the order of the experts, its number among (token, choice).
        token: Its token.
        offsets: Where each expert's rows begin, and where the last one's end; in grad mode the last
            one has all rows from there on, those of no expert among them.
    """

    order: Tensor
    token: Tensor
    offsets: Tensor

    @property
    def ends(self) -> Tensor:
        """Where each expert's rows end, in grad mode."""
        return self.offsets[1:]


def check_experts(index: Tensor, experts: int) -> None:
    """Raise IndexError for a number that is no expert's, where that is known at no cost."""
    plain = type(index) is Tensor and index.device.type == "cpu" and index.numel() > 0
    if not plain or torch.compiler.is_compiling() or is_transformed():
        return
    for one in index.aminmax():
        if not 0 <= int(one) <= experts:
            raise IndexError(
                f"Experts: top_k_index has {int(one)}, and the experts are 0 to {experts - 1}; "
                f"{experts} stands for none, with weight 0"
            )


def route(expert: Tensor, experts: int) -> Route:
    """Sort the choices of all tokens by expert, each expert's by token.

    Args:
        expert: The experts of each token, of shape (tokens, choices). A number that is no expert's
            puts a row behind all others.
        experts: How many there are.
    """
    numbers = expert.reshape(-1)
    at_once = not torch.compiler.is_compiling() and numbers.shape[0] <= _SORTED_AT_ONCE
    if not at_once or numbers.dtype not in (torch.int32, torch.int64):
        # Few bits are sorted in few passes.
        numbers = numbers.to(torch.int16 if experts < 2**15 else torch.int32)
    ordered, order = torch.sort(numbers, stable=True)
    begins = torch.arange(experts + 1, dtype=numbers.dtype, device=order.device)
    token = order // max(1, expert.shape[1])
    offsets = torch.searchsorted(ordered, begins, out_int32=True)
    if torch.is_grad_enabled():
        offsets[-1:].fill_(order.shape[0])
    return Route(order, token, offsets)


def dispatch(x: Tensor, way: Route) -> Tensor:
    """Copy each token to its rows: (tokens, n) becomes (tokens * choices, n)."""
    result: Tensor = _Dispatch.apply(x, way.token, way.order)
    return result


def reorder(each: Tensor, way: Route) -> Tensor:
    """One number for each of (token, choice), in the order of the rows, below one another."""
    result: Tensor = _Reorder.apply(each.reshape(-1, 1), way.order)
    return result


def combine(rows: Tensor, way: Route, tokens: int) -> Tensor:
    """Sum the rows of each token, in the order of its choices, in float32 at least."""
    result: Tensor = _Combine.apply(rows, way.token, way.order, tokens)
    return result


def sum_of_choices(rows: Tensor, tokens: int) -> Tensor:
    """Sum the rows of each token, which follow one another, in their order."""
    if rows.shape[0] == tokens:
        return rows
    return rows.view(tokens, -1, rows.shape[1]).sum(1)


class _Dispatch(torch.autograd.Function):
    """Row r is the row ``token[r]`` of x, each of which is copied equally often."""

    @staticmethod
    def forward(x: Tensor, token: Tensor, order: Tensor) -> Tensor:
        return x.index_select(0, token)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        x, token, order = inputs
        ctx.tokens = x.shape[0]
        if not torch.compiler.is_compiling():
            ctx.set_materialize_grads(False)
        ctx.save_for_backward(token, order)

    @staticmethod
    def backward(ctx: Any, rows: Tensor | None) -> tuple[Tensor | None, None, None]:
        if rows is None:  # they went into a product of tokens, which gives the tokens' gradient
            return None, None, None
        return _Combine.apply(rows, *ctx.saved_tensors, ctx.tokens), None, None


class _Combine(torch.autograd.Function):
    """The sum of the rows of each token over all choices; order[r] is the number of row r."""

    @staticmethod
    def forward(rows: Tensor, token: Tensor, order: Tensor, tokens: int) -> Tensor:
        if not rows.numel():
            return rows.new_zeros(tokens, rows.shape[1])
        numbers = torch.arange(order.shape[0], device=order.device)
        place = torch.empty_like(order).scatter_(0, order, numbers)
        # Faster than a bag of an embedding, though it is two kernels; the sum is in float32.
        return sum_of_choices(rows.index_select(0, place), tokens)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], inputs[2])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return _Dispatch.apply(dy, *ctx.saved_tensors), None, None, None


class _Reorder(torch.autograd.Function):
    """Row r is the row ``order[r]`` of each, all of which are copied once."""

    @staticmethod
    def forward(each: Tensor, order: Tensor) -> Tensor:
        return each.index_select(0, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, rows: Tensor) -> tuple[Tensor, None]:
        return _Restore.apply(rows, *ctx.saved_tensors), None


class _Restore(torch.autograd.Function):
    """Row ``order[r]`` is the row r of those given."""

    @staticmethod
    def forward(rows: Tensor, order: Tensor) -> Tensor:
        return torch.empty_like(rows).index_copy_(0, order, rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, each: Tensor) -> tuple[Tensor, None]:
        return _Reorder.apply(each, *ctx.saved_tensors), None
