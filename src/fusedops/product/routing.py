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

from fusedops.product.routing_kernels import copied_tokens, routed, summed_choices
from fusedops.torch_ops.tracing import is_mapped, is_plain

#: So many elements torch sorts in one pass, whatever their bits (aten/src/ATen/native/cuda/Sort.h).
_SORTED_AT_ONCE = 4096

__all__ = ["Route", "check_experts", "combine", "dispatch", "route", "sum_of_choices"]


class Route(NamedTuple):
    """Where the rows of each expert come from."""

    order: Tensor  # for each row in the order of the experts, its number among (token, choice)
    place: Tensor  # for each number among (token, choice), its row
    #: Where each expert's rows begin, as int32, and then the number of all rows: those of no expert
    #: count as the last one's.
    offsets: Tensor

    @property
    def ends(self) -> Tensor:
        """Where each expert's rows end."""
        return self.offsets[1:]


def check_experts(index: Tensor, experts: int) -> None:
    """Raise IndexError for a number that is no expert's, where that is known at no cost."""
    known = type(index) is Tensor and index.device.type == "cpu" and index.numel() > 0
    if not known or not is_plain():
        return
    for one in index.aminmax():
        if not 0 <= int(one) <= experts:
            raise IndexError(
                f"Experts: top_k_index has {int(one)}, and the experts are 0 to {experts - 1}; "
                f"{experts} stands for none, with weight 0"
            )


def route(
    expert: Tensor, weight: Tensor, x: Tensor, experts: int, unfused: bool = False
) -> tuple[Route, Tensor, Tensor]:
    """Sort the choices of all tokens by expert, each expert's by token, and copy tokens to rows.

    Args:
        expert: The experts of each token, of shape (tokens, choices). A number that is no expert's
            puts a row behind all others (by torch's sort, one below 0 before all others).
        weight: The weight of each choice, of the same shape.
        x: The tokens, of shape (tokens, n).
        experts: How many there are.
        unfused: Whether torch's calls run, in the gradients too.

    Returns:
        The route; the weights in the order of the rows, below one another; and the rows, of shape
        (tokens * choices, n).
    """
    numbers, each = expert.reshape(-1), weight.reshape(-1, 1)
    found = None if unfused else routed(numbers, each, x, experts)
    if found is not None:
        order, place, offsets, sorted_weights, rows = found
        made = _Reorder.apply(each, order, place, [sorted_weights])
        return Route(order, place, offsets), made, _Dispatch.apply(x, order, place, [rows])
    at_once = not torch.compiler.is_compiling() and numbers.shape[0] <= _SORTED_AT_ONCE
    if not at_once or numbers.dtype not in (torch.int32, torch.int64):
        # Few bits are sorted in few passes.
        few = torch.int16 if experts < 2**15 else torch.int32
        numbers = numbers.clamp(-1, experts).to(few)
    ordered, order = torch.sort(numbers, stable=True)
    begins = torch.arange(experts + 1, dtype=numbers.dtype, device=order.device)
    offsets = torch.searchsorted(ordered, begins, out_int32=True)
    offsets[-1:].fill_(order.shape[0])
    at = torch.arange(order.shape[0], device=order.device)
    way = Route(order, torch.empty_like(order).scatter_(0, order, at), offsets)
    sorted_weights = _run(_Reorder, each, order, way.place, [])
    return way, sorted_weights, dispatch(x, way, unfused)


def dispatch(x: Tensor, way: Route, unfused: bool = False) -> Tensor:
    """Copy each token to its rows: (tokens, n) becomes (tokens * choices, n)."""
    return _run(_Dispatch, x, way.order, way.place, None if unfused else [])


def combine(rows: Tensor, way: Route, tokens: int, unfused: bool = False) -> Tensor:
    """Sum the rows of each token, in the order of its choices, in float32 at least."""
    return _run(_Combine, rows, way.order, way.place, tokens, unfused)


def _run(function: type[torch.autograd.Function], *given: Any) -> Tensor:
    """Its result; under vmap or jvp that of its torch calls, which they see into."""
    result: Tensor = function.forward(*given) if is_mapped(given[0]) else function.apply(*given)
    return result


def sum_of_choices(
    rows: Tensor, tokens: int, place: Tensor | None = None, unfused: bool = False
) -> Tensor:
    """Sum the rows of each token in the order of its choices.

    Args:
        rows: The rows.
        tokens: How many tokens there are.
        place: The row of each choice; None where the rows of a token follow one another.
        unfused: Whether torch sums.
    """
    if rows.shape[0] == tokens and place is None:
        return rows
    made = None if unfused else summed_choices(rows, place, tokens)
    if made is not None:
        return made
    if place is not None:  # faster than a bag of an embedding, though it is two kernels
        rows = rows.index_select(0, place)
    return rows.view(tokens, -1, rows.shape[1]).sum(1)


class _Dispatch(torch.autograd.Function):
    """Row r is a copy of the token of choice ``order[r]``; each is copied equally often.

    The rows are in `made` if a kernel has made them: they are no input, or autograd would take them
    for a view of one. It is None where torch copies, and sums for the gradient.
    """

    @staticmethod
    def forward(x: Tensor, order: Tensor, place: Tensor, made: list[Tensor] | None) -> Tensor:
        if made:
            return made.pop()
        rows = None if made is None else copied_tokens(x, place)
        if rows is not None:
            return rows
        choices = max(1, order.shape[0] // max(1, x.shape[0]))
        if is_mapped(x):  # copies first: their gradients are added up at once, not in x's dtype
            return x.unsqueeze(1).expand(-1, choices, -1).flatten(0, 1).index_select(0, order)
        return x.index_select(0, order // choices)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, list[Tensor] | None], output: Tensor
    ) -> None:
        x, order, place, made = inputs
        ctx.tokens, ctx.unfused = x.shape[0], made is None
        if not torch.compiler.is_compiling():
            ctx.set_materialize_grads(False)
        ctx.save_for_backward(order, place)

    @staticmethod
    def backward(ctx: Any, rows: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        if rows is None:  # they went into a product of tokens, which gives the tokens' gradient
            return None, None, None, None
        found = _run(_Combine, rows, *ctx.saved_tensors, ctx.tokens, ctx.unfused)
        return found, None, None, None


class _Combine(torch.autograd.Function):
    """The sum of the rows of each token over all choices; place[i] is the row of choice i."""

    @staticmethod
    def forward(rows: Tensor, order: Tensor, place: Tensor, tokens: int, unfused: bool) -> Tensor:
        if not rows.numel():
            return rows.new_zeros(tokens, rows.shape[1])
        return sum_of_choices(rows, tokens, place, unfused)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int, bool], output: Tensor
    ) -> None:
        ctx.unfused = inputs[4]
        ctx.save_for_backward(inputs[1], inputs[2])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        made: list[Tensor] | None = None if ctx.unfused else []
        return _run(_Dispatch, dy, *ctx.saved_tensors, made), None, None, None, None


class _Reorder(torch.autograd.Function):
    """Row r is the row ``order[r]`` of each, all of which are copied once; ``place`` is back.

    The result is in `made` if a kernel has made it, as the rows of `_Dispatch`.
    """

    @staticmethod
    def forward(each: Tensor, order: Tensor, place: Tensor, made: list[Tensor]) -> Tensor:
        return made.pop() if made else each.index_select(0, order)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, list[Tensor]], output: Tensor
    ) -> None:
        ctx.save_for_backward(inputs[1], inputs[2])

    @staticmethod
    def backward(ctx: Any, rows: Tensor) -> tuple[Tensor, None, None, None]:
        order, place = ctx.saved_tensors
        return _run(_Reorder, rows, place, order, []), None, None, None
