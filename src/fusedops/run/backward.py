# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Run the backward pass of one call from what its forward pass saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fusedops.bind.bind import KEPT
from fusedops.plan.saved_tensors import RESULT, into_name, joining_name
from fusedops.plan.shared_gradients import shared_gradients
from fusedops.run.first_derivative import only_once
from fusedops.run.recipe import gradient_key, new_gradient
from fusedops.run.table_gradients import of_table

if TYPE_CHECKING:
    from fusedops.run.gradient import Gradient
    from fusedops.run.runnable import Runnable


class ProductInput(NamedTuple):
    """A product that is the x of a call, where one kernel makes it and runs the call."""

    #: Runs such a call without gradients: of the factors and of arguments by name it gives the
    #: outputs, in order.
    run: Callable[[Tensor, Tensor, Mapping[str, Any]], Sequence[Tensor]]
    shape: Sequence[int]  # the product's shape
    #: The gradients of both factors: of that of the product, the first factor if the second's
    #: gradient is wanted, the second if the first's is, and the shapes of both.
    gradients: Callable[..., tuple[Tensor | None, Tensor | None]]


class Saved(NamedTuple):
    """What a backward pass knows of the forward pass, besides the tensors that were saved."""

    op: Runnable
    wanted: frozenset[str]  # the names whose gradients are wanted, "x" among them
    names: Sequence[str]  # the names of the saved tensors after the row statistics
    given: dict[str, Any]  # the other arguments of the backward call, by keyword
    dtype: torch.dtype  # the dtype of y
    shape: Any  # the shape of x
    #: What x is the product of, if it is one whose factors were saved in its place.
    product: ProductInput | None = None


def gradients_once(
    saved: Saved, tensors: Sequence[Tensor], incoming: Sequence[Tensor | None]
) -> Sequence[Any]:
    """`run_backward`, where torch may be making the graph of a second derivative as well."""
    in_place = saved.op.in_place
    if not torch.is_grad_enabled():
        return run_backward(saved, tensors, incoming, in_place)
    with torch.no_grad():
        results = run_backward(saved, tensors, incoming, in_place)
    return only_once(saved.op.name, results, (*tensors, *incoming))


def run_backward(
    saved: Saved,
    tensors: Sequence[Tensor],
    incoming: Sequence[Tensor | None],
    in_place: bool = False,
    shares: bool = True,
    into: Mapping[str, Tensor] | None = None,
) -> tuple[Any, ...]:
    """Run the backward pass of one call.

    Args:
        saved: What the forward pass noted of itself.
        tensors: The row statistics, then the saved tensors in the order of their names.
        incoming: The gradients of the op's outputs, in order, None where there is none.
        in_place: Whether the gradient of x may be written to x's memory.
        shares: Whether one tensor may be the gradient of several inputs, or that of y as well
            (`shared_gradients`).
        into: Tensors that the gradients of these names, "x" for that of x, are written to.

    Returns:
        The gradients of x and of the operands in the order of `op.slots`, each in the shape and
        dtype of its tensor; None where none is wanted, or it has been written elsewhere.

    Raises:
        UnsupportedError: A gradient that comes in, or a saved tensor, is not plain and dense.
    """
    op, wanted, names, given, dtype, shape, _ = saved
    kept, *tensors = tensors
    if not kept.is_contiguous() or kept.data_ptr() % 16:  # a hook brought it back from elsewhere
        kept = kept.contiguous().clone()
    arguments = {KEPT: kept, **given}
    arguments.update(zip(names, tensors, strict=True))
    first = int(op.has_result)
    dy = incoming[0] if first else None
    joining = []
    if len(incoming) > first:
        for name, gradient in zip(op.outputs[first:], incoming[first:], strict=True):
            if gradient is not None:
                joining.append(name)
                arguments[joining_name(name)] = gradient
    source: Runnable = op.differentiated
    if op.quantized is not None:  # no gradient arrives at a y of 8 bits
        given_x, dy = arguments["x"], None
        dtype = given_x[0] if isinstance(given_x, tuple) else given_x.dtype
    if source is not op:
        gone = op.undifferentiated
        arguments = {name: one for name, one in arguments.items() if name not in gone}
    if not first:  # it is not read, but says dtype and shape
        dy = torch.empty((), dtype=dtype, device=kept.device).expand(shape)
    elif dy is None:
        dy = torch.zeros((), dtype=dtype, device=kept.device).expand(shape)
    from_result = RESULT in arguments
    in_place = in_place and _may_be_written(arguments["x"])
    shared: dict[str, str] = {}
    if shares and not in_place and source.sharing_gradients:
        of_y = incoming[0] if first else None
        arriving = None if of_y is None else of_y.dtype
        shared = shared_gradients(source, wanted, arguments, arriving)
        wanted = wanted.difference(shared)
    to = [*into] if into else []
    key: tuple[object, ...] = (wanted, from_result, *joining)
    if in_place or into:
        key = gradient_key(wanted, from_result, joining, in_place, to)
    gradient_op: Gradient | None = source.gradients.get(key)
    if gradient_op is None:
        gradient_op = new_gradient(source, wanted, joining, from_result, in_place, to)
    if into:
        arguments.update((into_name(name), into[name]) for name in gradient_op.into)
    results = gradient_op(dy, **arguments)
    if gradient_op.in_place:
        x = arguments["x"]
        torch.autograd.graph.increment_version(x)
        found = _summed(gradient_op, results[: len(gradient_op.names)], arguments, len(shape))
        return (x.detach(), *[found.get(name) for name in op.slots])
    if gradient_op.loose:
        found = _summed(gradient_op, results, arguments, len(shape))
        found.update((name, found["x"] if like == "x" else dy) for name, like in shared.items())
        return (found.get("x"), *[found.get(name) for name in op.slots])
    made = [*results, None]
    if source is op and not shared:
        return tuple(map(made.__getitem__, gradient_op.picks))
    order = ("x", *op.slots)
    picks = dict.fromkeys(order, -1)
    picks.update(zip(("x", *source.slots), gradient_op.picks, strict=True))
    for name, like in shared.items():
        picks[name] = picks["x"] if like == "x" else len(made)
    return tuple(map([*made, dy, None].__getitem__, map(picks.__getitem__, order)))


def _summed(
    gradient: Gradient, results: Sequence[Tensor], arguments: dict[str, Any], rank: int
) -> dict[str, Tensor]:
    """Sum gradients that came in x's shape, from several functors or by an index, by the name.

    `rank` is the number of x's dimensions.
    """
    found: dict[str, Tensor] = {}
    targets: dict[str, torch.dtype] = {}
    for place, (name, result) in enumerate(zip(gradient.names, results, strict=True)):
        value = arguments[name]
        dtype, shape = value if isinstance(value, tuple) else (value.dtype, value.shape)
        if (lookup := gradient.lookups.get(place)) is not None:
            result = of_table(result, arguments[lookup.indices], lookup, shape, rank)
        if result.shape != shape:
            result = result.sum_to_size(shape)
        found[name] = found[name] + result if name in found else result
        targets[name] = dtype
    return {name: result.to(targets[name]) for name, result in found.items()}


def _may_be_written(x: Any) -> bool:
    """Whether each element of x has memory of its own, so that its gradient has room there."""
    if not isinstance(x, Tensor):
        return False
    steps = sorted((step, size) for step, size in zip(x.stride(), x.shape, strict=True) if size > 1)
    room = 1
    for step, size in steps:
        if step < room:
            return False
        room = step * size
    return True
