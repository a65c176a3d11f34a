# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Differentiate a fused op: run its forward pass, and save what the backward pass reads.

Only tensors that exist anyway (inputs, saved streams, y) and a few numbers a row are saved for the
backward pass; `saved_tensors` decides which inputs. Tensors that the backward pass does not read
are passed to it as a pair of dtype and shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.bind.bind import bind
from fusedops.bind.generator import draw_for_call
from fusedops.bind.operands import check_layouts
from fusedops.bind.scalars import check_pair, drops, read_ints
from fusedops.errors import UnsupportedError
from fusedops.jit.lock import guard
from fusedops.plan.saved_tensors import RESULT, reads_result
from fusedops.reference.unfused import run
from fusedops.run.backward import ProductInput, Saved, gradients_once
from fusedops.run.contiguous import known_to_merge, note_that_merges, reduces_several, run_on_copies
from fusedops.run.recipe import Recipe, recipe_of

if TYPE_CHECKING:
    from fusedops.run.runnable import Runnable

_WORD = 1 << 63


def differentiate(op: Runnable, options: dict[str, Any] | None, x: Tensor, *values: Any) -> Any:
    """Run a call that needs gradients, and record it for autograd.

    `options` is None if the call has none. Values are the operands in the order of `op.slots`, None
    for one that the call lacks. The result is that of the call: y, or a named tuple of all outputs.

    Raises:
        TypeError, ValueError: An argument does not fit.
        UnsupportedError: out= is given, or a functor has no derivative.
    """
    if options and options.get("out") is not None:
        raise UnsupportedError(
            f"{op.name}: out= does not go with gradients; leave it away, or call the op under "
            "torch.no_grad()"
        )
    if x.numel() == 0:  # there is nothing to fuse
        op.check_differentiable()
        return op.wrap(run(bind(op, x, named(op, values), options or {})))
    if options and reduces_several(op, options) and not known_to_merge(op, options, x, values):
        with guard:
            from fusedops.plan.placing import columns_apart  # the first call imports what plans

        bound = bind(op, x, named(op, values), options)
        if columns_apart(bound):
            return run_on_copies(op, bound)
        note_that_merges(op, options, x, values)
    apply: Any = _Differentiated.apply
    try:
        result = apply(op, options, None, x, *values)
    except RuntimeError:  # torch's, of tensors that have no shape
        check_layouts(op.name, {"x": x, **named(op, values)})
        raise
    return result[0] if len(op.outputs) == 1 else op.result_type._make(result)


def differentiate_product(
    op: Runnable, options: dict[str, Any] | None, product: ProductInput, *factors_and_values: Any
) -> tuple[Tensor, ...]:
    """Run a call that needs gradients, whose x is a product, and record it for autograd.

    The gradient of `op`, which runs after the product, does not read the product. Both factors come
    first, then operands as for `differentiate`. Returns the outputs in order.
    """
    apply: Any = _Differentiated.apply
    outputs: tuple[Tensor, ...] = apply(op, options, product, *factors_and_values)
    return outputs


class _Differentiated(torch.autograd.Function):
    """The autograd function of one call.

    Its inputs are the op, the options, None, x and the operands; or, in the place of None and x,
    the `ProductInput` that x is, and its factors.
    """

    @staticmethod
    def forward(
        ctx: Any,
        op: Runnable,
        options: dict[str, Any] | None,
        product: ProductInput | None,
        x: Tensor,
        *values: Any,
    ) -> tuple[Tensor, ...]:
        needs = ctx.needs_input_grad[3:]
        if product is None:
            recipe = recipe_of(op, needs)
            arguments, noted = note_arguments(op, options, x, values, recipe)
            *outputs, kept = op.trained(x, **arguments)
            return save_for_gradients(ctx, op, recipe, noted, x, outputs, (kept,))
        w, *operands = values
        of_x, of_w, *of_values = needs
        recipe = recipe_of(op, (of_x or of_w, *of_values))
        assert not recipe.x, "the product is not there to be read"
        ctx.shapes = x.shape, w.shape
        z = without_memory(x, product.shape)
        arguments, noted = note_arguments(op, options, z, operands, recipe)
        made = product.run(x, w, arguments)
        further = x if of_w else None, w if of_x else None, no_statistics(z)
        return save_for_gradients(ctx, op, recipe, noted, z, made, further, product)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Any, ...]:
        saved: Saved = ctx.saved
        tensors = ctx.saved_tensors  # once: a checkpoint hands them out a single time
        if saved.product is None:
            return (None, None, None, *gradients_once(saved, tensors, incoming))
        x, w, *tensors = tensors
        dz, *of_values = gradients_once(saved, tensors, incoming)
        dx, dw = saved.product.gradients(dz, x, w, ctx.shapes)
        return (None, None, None, dx, dw, *of_values)


def without_memory(x: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor in the place of a product that need not be there: of its shape, dtype and device."""
    dtype = torch.bfloat16 if x.dtype.itemsize == 1 else x.dtype  # of factors of 8 bits
    return x.new_empty((1,) * len(shape), dtype=dtype).expand(tuple(shape))


def no_statistics(y: Tensor) -> Tensor:
    """The row statistics that a backward pass is given of an op that keeps none, such as a Map."""
    dtype = torch.float64 if y.dtype is torch.float64 else torch.float32
    return y.new_empty((*y.shape[:-1], 0), dtype=dtype)


def note_arguments(
    op: Runnable, options: dict[str, Any] | None, x: Tensor, values: Sequence[Any], recipe: Recipe
) -> tuple[dict[str, Any], tuple[dict[str, Any], list[str], list[Tensor]]]:
    """The arguments of a forward call, drawn numbers among them, and what is noted of them.

    x may be a tensor that has the input's dtype, shape and device. Values are the operands in the
    order of `op.slots`, None for one that the call lacks. Returns the arguments by name; and those
    that the backward call takes as they are, then names and tensors of what is saved.
    """
    arguments: dict[str, Any] = {}
    given: dict[str, Any] = {}
    names: list[str] = []
    tensors: list[Tensor] = []
    odd = False
    for name, value, keep in zip(op.slots, values, recipe.kept, strict=True):
        if value is None:
            given[name] = None
            continue
        arguments[name] = value
        if not isinstance(value, Tensor):
            given[name] = value
            odd = odd or not _is_plain(value)
        elif keep:
            names.append(name)
            tensors.append(value)
        else:
            given[name] = (value.dtype, value.shape)
    if options:
        arguments.update(options)
        given.update(options_of(op, options, x))
    if odd:
        plain = bind(op, x, named(op, values), options or {}).operands
        given.update((k, v) for k, v in plain.items() if not isinstance(v, Tensor))
    if op.dropouts:
        generator = drawn_for(op, x, arguments)
        arguments["generator"] = generator
        if isinstance(generator, Tensor):
            names.append("generator")
            tensors.append(generator)
        else:
            given["generator"] = generator
    return arguments, (given, names, tensors)


def drawn_for(op: Runnable, x: Tensor, arguments: Mapping[str, Any]) -> Any:
    """What the forward and the backward call take for generator=, drawn if a dropout acts.

    `arguments` are those of the forward call by name.
    """
    generator = arguments.get("generator")
    if isinstance(generator, tuple):
        return check_pair(op.name, generator)  # in plain types, to be read again
    if isinstance(generator, Tensor) or not drops(op, arguments):
        return generator
    return draw_for_call(x, op.dropouts, generator, op.name)


def save_for_gradients(
    ctx: Any,
    op: Runnable,
    recipe: Recipe,
    noted: tuple[dict[str, Any], list[str], list[Tensor]],
    x: Tensor,
    outputs: Sequence[Tensor],
    further: Sequence[Tensor | None],
    product: ProductInput | None = None,
) -> tuple[Tensor, ...]:
    """Save what the backward pass reads, after `further`; `noted` is that of `note_arguments`."""
    given, names, tensors = noted
    if recipe.result and reads_result(op, outputs[0].dtype, x.dtype):
        names.append(RESULT)
        tensors.append(outputs[0])
        given["x"] = (x.dtype, x.shape)
    elif recipe.x:
        names.append("x")
        tensors.append(x)
    else:
        given["x"] = (x.dtype, x.shape)
    for number, name in recipe.streams:
        names.append(name)
        tensors.append(outputs[number])
    ctx.save_for_backward(*further, *tensors)
    # The class's own constructor is Python, which takes three times as long.
    fields = op, recipe.wanted, names, given, outputs[0].dtype, x.shape, product
    ctx.saved = tuple.__new__(Saved, fields)
    ctx.set_materialize_grads(False)
    if len(op.outputs) > len(op.able):
        made = zip(op.outputs, outputs, strict=True)
        ctx.mark_non_differentiable(*[one for name, one in made if name not in op.able])
    return tuple(outputs)


def _is_plain(value: Any) -> bool:
    """Whether the runtime takes a number as it is: a float, or an int of 64 bits."""
    return type(value) is float or (type(value) is int and -_WORD <= value < _WORD)


def options_of(op: Runnable, options: Mapping[str, Any], x: Tensor) -> Iterator[tuple[str, Any]]:
    """The options that the backward call takes as well, as pairs of name and plain value."""
    if "training" in options:
        yield "training", options["training"]
    if (part_of := options.get("part_of")) is not None:
        yield "part_of", tuple(read_ints(op.name, "part_of", one) for one in part_of)
    shape, dim = options.get("normalized_shape"), options.get("dim")
    if shape is not None:
        count = len(read_ints(op.name, "normalized_shape", shape))
        yield "dim", tuple(range(x.dim() - count, x.dim()))
    elif dim is not None:
        yield "dim", read_ints(op.name, "dim", dim)  # plain, and no list that may change later


def named(op: Runnable, values: Sequence[Any]) -> dict[str, Any]:
    """The operands of a call by name; `values` are in the order of `op.slots`."""
    return {name: value for name, value in zip(op.slots, values, strict=True) if value is not None}
