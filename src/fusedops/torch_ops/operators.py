# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The operators of torch that stand for fused ops where torch traces: three for all declarations.

- ``fusedops::forward(x, tensors, names, numbers, counts, draw, op, dim, dtype, keep)`` gives the
  outputs and, with ``keep``, a row's statistics after them. Where no operand is a tensor, the list
  of tensors holds x, under that name, or nothing.
- ``fusedops::backward(...)`` gives the wanted gradients.
- ``part_of`` of both is None, or holds the sizes of the tensor of which x is a part and then the
  index of x's first element in it.
- ``fusedops::draw(room, count)`` gives the seed and offset that dropouts start from, two int64 on
  the device of ``room``. That is a ``torch.empty`` of the caller's and says which draw this is: to
  AOTAutograd two calls with equal arguments are one, whatever their tags, but no two empty tensors
  are equal.

All are functional: nothing is written, no output is an input. The declaration is a string
(`declare.text`), so an exported program holds all that it takes to run it. Random numbers come
from ``draw`` alone, which torch knows to be random: an eager checkpoint repeats it from the same
state, and a graph keeps its two numbers for the backward pass (`kept_draws`). Whoever runs forward
again with the same draw gets the same mask.

Under autocast they keep the dtypes that they are given. vmap, second and forward-mode derivatives
raise `UnsupportedError`; ``op.unfused`` has them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, library

from fusedops.bind.bind import KEPT, Bound, bind
from fusedops.declare.text import read
from fusedops.errors import UNFUSED, UnsupportedError
from fusedops.plan.saved_tensors import RESULT, is_exact
from fusedops.reference.unfused import run
from fusedops.run.autograd import Recipe, run_backward, what_is_kept
from fusedops.run.first_derivative import refuse_second
from fusedops.torch_ops.calls import (
    BackwardCall,
    ForwardCall,
    Shapes,
    like,
    numbers_of,
    operands_of,
    pair_of,
    schema,
)
from fusedops.torch_ops.fakes import fake_backward, fake_draw, fake_forward
from fusedops.torch_ops.kept_draws import keep_draws
from fusedops.torch_ops.known_calls import (
    draw_at_once,
    remember_backward,
    remember_forward,
    run_backward_at_once,
    run_forward_at_once,
)

if TYPE_CHECKING:
    from fusedops.run.runnable import Runnable

__all__ = [
    "arguments_of",
    "define_forward",
    "drawn_for",
    "gradients",
    "note_saved",
    "run_forward",
]

_namespace: Any = library.Library("fusedops", "DEF")  # type: ignore[no-untyped-call]
# flexible_layout: strides of any kind are read as they are, so that no compiler need copy.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)

_namespace.define(f"backward({schema(BackwardCall)}) -> Tensor[]", tags=_TAGS)
_namespace.define(
    "draw(Tensor room, int count) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded),
)

for _key in ("AutocastCPU", "AutocastCUDA"):
    for _name in ("backward", "draw"):
        _namespace.impl(_name, library.fallthrough_kernel, _key)


# ------------------------------------------------------------------------------------------- run


def run_forward(*arguments: Any) -> list[Tensor]:
    """Run ``forward`` on tensors with memory."""
    at_once = run_forward_at_once(*arguments)
    if at_once is not None:
        return [*at_once]
    call = ForwardCall(*arguments)
    called = call.called
    x, operands, options = arguments_of(called, call)
    with torch.no_grad():
        if x.numel() == 0:
            del options["training"], options["generator"]
            return _nothing(bind(called, x, operands, options)._replace(keep=call.keep))
        dispatcher = called.trained if call.keep else called.direct
        outputs = [*dispatcher(x, **operands, **options)]
    remember_forward(call, called, options)
    return outputs


def arguments_of(op: Runnable, call: ForwardCall) -> tuple[Tensor, dict[str, Any], dict[str, Any]]:
    """The arguments of the op in a call of the operator: x, operands, options."""
    x, *tensors = _memory((call.x, *call.tensors), call.dim)
    operands = operands_of(op, tensors, call.names, call.numbers, call.counts or ())
    return (
        x,
        operands,
        {
            "dim": tuple(call.dim),
            "dtype": call.dtype,
            "part_of": pair_of(call.part_of),
            "training": call.draw is not None,
            "generator": drawn_for(call.draw),
        },
    )


def _backward(*arguments: Any) -> list[Tensor]:
    at_once = run_backward_at_once(*arguments)
    if at_once is not None:
        return [*at_once]
    call = BackwardCall(*arguments)
    called: Runnable = read(call.op)
    shapes = Shapes.of(call).local
    incoming = dict(zip(call.outputs, _memory(call.upstream), strict=True))
    kept, *tensors = _memory((call.kept, *call.tensors))
    known = dict(zip(call.names, tensors, strict=True))
    x_shape = known["x"].shape if "x" in known else shapes["x"][1]
    if x_shape.numel() == 0:
        _check_nothing(called, call, incoming, x_shape)
        found = like(call.wanted, known, shapes)
        return [kept.new_zeros(shape, dtype=one) for one, shape in found]
    present = [*known, *shapes]
    given: dict[str, Any] = {**shapes, **numbers_of(called, present, call.numbers, call.counts)}
    given.update(dim=list(call.dim), training=call.draw is not None, generator=drawn_for(call.draw))
    given["part_of"] = pair_of(call.part_of)
    recorded = (called, frozenset(call.wanted), list(call.names), given, call.dtype, x_shape)
    arriving = [incoming.get(name) for name in called.outputs]
    with torch.no_grad():
        results = run_backward(recorded, (kept, *tensors), arriving)
    remember_backward(call, called, given)
    by_name = dict(zip(("x", *called.slots), results, strict=True))
    return [by_name[name].contiguous() for name in call.wanted]


_namespace.impl("backward", _backward, "CompositeExplicitAutograd")
_namespace.impl("draw", draw_at_once, "CompositeExplicitAutograd")


def _memory(tensors: Sequence[Tensor], dim: Sequence[int] = ()) -> list[Tensor]:
    """The tensors without classes of Python's; rows of several dimensions as one."""
    kinds = (Tensor, torch.nn.Parameter)
    plain = [t if type(t) in kinds else t.as_subclass(Tensor) for t in tensors]
    return [t.contiguous() for t in plain] if len(dim) > 1 else plain


def _check_nothing(
    op: Runnable, call: BackwardCall, incoming: Mapping[str, Tensor], x_shape: Sequence[int]
) -> None:
    """Refuse what is not zero among the gradients of a call without elements.

    Rows without columns have statistics, which know the operator's own operands; only an eager call
    has autograd at hand for them.
    """
    given = [one for name, one in incoming.items() if name in op.statistics]
    if {*op.row_operands} & {*call.wanted} and any(bool(one.any()) for one in given):
        raise UnsupportedError(
            f"{op.name}: x of shape {tuple(x_shape)} has rows without columns, of which "
            f"{', '.join(op.row_operands)} has a gradient in eager calls alone; leave out the op "
            "where there are no columns, or call it outside of torch.compile"
        )


def drawn_for(draw: Tensor | None) -> Any:
    """What `generator` is given: numbers on a CPU, where they are at hand."""
    if draw is None or draw.device.type != "cpu":
        return draw
    seed, offset = draw.tolist()
    return seed, offset


def _nothing(bound: Bound) -> list[Tensor]:
    """The outputs of a call without elements; rows without columns have statistics."""
    known = run(bound) if bound.columns == 0 else {}
    own = {*bound.op.statistics, *bound.op.maxima}
    known = known or dict.fromkeys(bound.op.maxima, bound.x.new_zeros((), dtype=torch.float32))
    return [
        known[name]
        if name in known and name in own
        else bound.x.new_full(bound.output_shape(name), torch.nan, dtype=bound.output_dtype(name))
        for name in bound.outputs
    ]


# torch looks up which module this file is, for its messages. That goes through all modules there
# are, 16000 calls, unless inspect knows the answer, which it keeps here.
inspect.modulesbyfile.setdefault(__file__, __name__)
for _name, _fake in (("backward", fake_backward), ("draw", fake_draw)):
    library.register_fake(f"fusedops::{_name}", _fake, lib=_namespace)


# --------------------------------------------------------------------------------------- gradients


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    call = ForwardCall.of(inputs)
    ctx.set_materialize_grads(False)
    op: Runnable = read(call.op)
    # Tensors are saved apart, or not kept at all.
    ctx.call = call._replace(x=None, tensors=None, draw=None)  # type: ignore[arg-type]
    ctx.drawn = call.draw is not None
    able = op.able
    made = (*op.outputs, KEPT) if call.keep else op.outputs
    constant = [one for name, one in zip(made, output, strict=True) if name not in able]
    if constant:
        ctx.mark_non_differentiable(*constant)
    if not call.keep:
        return
    inputs_by_name = {"x": call.x, **dict(zip(call.names, call.tensors, strict=True))}
    needs = dict(zip(inputs_by_name, ctx.needs_input_grad, strict=False))
    recipe = what_is_kept(op, [needs.get(name, False) for name in ("x", *op.slots)])
    result = recipe.result and is_exact(call.dtype, call.x.dtype)
    kept = note_saved(ctx, op, recipe, inputs_by_name, output, result=result)
    draw = [] if call.draw is None else [call.draw]
    ctx.save_for_backward(output[-1], *draw, *kept)


def note_saved(
    ctx: Any,
    op: Runnable,
    recipe: Recipe,
    inputs: Mapping[str, Tensor],
    output: Sequence[Tensor],
    *,
    result: bool = False,
) -> list[Tensor]:
    """The tensors of a call that its backward pass reads; names and all else go to `ctx`.

    Args:
        ctx: That of autograd.
        op: What is called.
        recipe: What is saved.
        inputs: x, or one that has its dtype and shape, and the tensors among operands, by name.
        output: What the call gave.
        result: Whether y is read in place of x.
    """
    names = [RESULT] if result else ["x"] if recipe.x else []
    for name, wanted in zip(op.slots, recipe.kept, strict=True):
        if wanted and name in inputs:
            names.append(name)
    known = {RESULT: output[0], **inputs}
    others = {name: t for name, t in inputs.items() if name not in names}
    ctx.sizes = [size for tensor in others.values() for size in tensor.shape]
    ctx.described = [
        f"{name} {str(tensor.dtype).removeprefix('torch.')} {tensor.dim()}"
        for name, tensor in others.items()
    ]
    ctx.names = [*names, *(name for _, name in recipe.streams)]
    ctx.wanted = [name for name in ("x", *op.slots) if name in recipe.wanted]
    return [known[name] for name in names] + [output[number] for number, _ in recipe.streams]


def _differentiate(ctx: Any, incoming: Sequence[Tensor | None]) -> tuple[Any, ...]:
    call: ForwardCall = ctx.call
    op: Runnable = read(call.op)
    if not call.keep:
        raise UnsupportedError(
            f"{op.name}: this program was traced where no gradient was wanted, and one is asked "
            "for; trace it with tensors that require grad, and with grad mode on"
        )
    kept, *tensors = ctx.saved_tensors
    draw = tensors.pop(0) if ctx.drawn else None
    numbers = call.numbers, call.counts or []
    rest = draw, call.op, call.dim, call.dtype, ctx.wanted, call.part_of
    found = gradients(ctx, op, incoming, kept, tensors, *numbers, *rest)
    x = found.pop("x", None)
    operands = [found.get(name) for name in call.names]
    # An empty list counts as one of tensors.
    given = (call.names, call.numbers, call.counts)
    lists: list[Any] = [[] if one is not None and not one else None for one in given]
    # torch leaves out last arguments that have their default, and older releases count.
    return (x, operands, *lists, *[None] * 9)[: len(ctx.needs_input_grad)]


def gradients(
    ctx: Any,
    op: Runnable,
    incoming: Sequence[Tensor | None],
    kept: Tensor,
    tensors: Sequence[Tensor],
    *rest: Any,
) -> dict[str, Tensor]:
    """The wanted gradients by name, from what `note_saved` noted.

    `kept` are a row's statistics, `tensors` what was saved, and `rest` are the arguments of
    ``fusedops::backward`` from ``numbers`` on.
    """
    arriving = {
        name: gradient
        for name, gradient in zip(op.outputs, incoming, strict=False)
        if gradient is not None
    }
    noted = ctx.names, ctx.sizes, ctx.described
    results = torch.ops.fusedops.backward(
        list(arriving.values()), list(arriving), kept, tensors, *noted, *rest
    )
    return dict(zip(ctx.wanted, results, strict=True))


def _refuse_vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
    """Raise UnsupportedError under vmap."""
    texts = [one for one in arguments if isinstance(one, str)]
    name = read(texts[0]).name if texts else "dropout"
    raise UnsupportedError(
        f"{name}: torch.func.vmap does not see into a fused kernel; give the op one more "
        f"dimension, since all before the reduced one are rows, or under it use {UNFUSED}"
    )


def _set_up_once(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.name = read(BackwardCall(*inputs).op).name


def define_forward(
    namespace: Any, name: str, run: Callable[..., list[Tensor]], *, more: str = ""
) -> None:
    """Define an operator with the arguments, results and gradients of ``forward``.

    Args:
        namespace: The library of torch's that it is defined in.
        name: Its name.
        run: What it runs on tensors with memory.
        more: Further arguments after those of ``forward``, which have defaults.
    """
    namespace.define(f"{name}({schema(ForwardCall)}{more}) -> Tensor[]", tags=_TAGS)
    for key in ("AutocastCPU", "AutocastCUDA"):
        namespace.impl(name, library.fallthrough_kernel, key)
    namespace.impl(name, run, "CompositeExplicitAutograd")
    known = f"fusedops::{name}"
    library.register_fake(known, fake_forward, lib=namespace)
    keep_draws(namespace, name)
    library.register_autograd(known, _differentiate, setup_context=_set_up, lib=namespace)
    library.register_vmap(known, _refuse_vmap, lib=namespace)


define_forward(_namespace, "forward", run_forward)
library.register_autograd(
    "fusedops::backward", refuse_second, setup_context=_set_up_once, lib=_namespace
)
for _name in ("backward", "draw"):
    library.register_vmap(f"fusedops::{_name}", _refuse_vmap, lib=_namespace)
