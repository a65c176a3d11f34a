# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The operators of torch that stand for fused ops where torch traces: three for all declarations.

- ``fusedops::forward(x, tensors, names, numbers, counts, draw, op, dim, dtype, keep)`` gives the
  outputs and, with ``keep``, a row's statistics after them. Where no operand is a tensor, the list
  of tensors holds x, under that name, or nothing.
- ``fusedops::backward(...)`` gives the wanted gradients.
- A product of ``x`` (`product.torch_op`) has its second factor, of shape (..., N, K), as the first
  of the tensors, by the name "w". Its gradient is the ``backward`` of the `Map` that follows the
  product, and then the gradients of both factors.
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
from fusedops.declare.declaration import Declaration
from fusedops.declare.text import read
from fusedops.errors import UNFUSED, UnsupportedError
from fusedops.plan.saved_tensors import RESULT, reads_result
from fusedops.plan.shared_gradients import shared_gradients
from fusedops.reference.unfused import run
from fusedops.run.backward import Saved, run_backward
from fusedops.run.first_derivative import refuse_second
from fusedops.run.recipe import what_is_kept
from fusedops.torch_ops.calls import (
    FACTOR,
    BackwardCall,
    ForwardCall,
    Shapes,
    like,
    numbers_of,
    operands_of,
    pair_of,
    rows_of,
    schema,
)
from fusedops.torch_ops.fakes import fake_backward, fake_draw, fake_forward
from fusedops.torch_ops.kept_draws import keep_draws
from fusedops.torch_ops.known_calls import (
    draw_at_once,
    drawn_for,
    remember_backward,
    remember_forward,
    run_backward_at_once,
    run_forward_at_once,
)

if TYPE_CHECKING:
    from fusedops.run.runnable import Runnable

#: Where the operators are defined.
namespace: Any = library.Library("fusedops", "DEF")  # type: ignore[no-untyped-call]
# flexible_layout: strides of any kind are read as they are, so that no compiler need copy.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)


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
        if x.numel() == 0 and isinstance(called, Declaration):
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
    saved = Saved(called, frozenset(call.wanted), call.names, given, call.dtype, x_shape)
    arriving = [incoming.get(name) for name in called.outputs]
    with torch.no_grad():
        results = run_backward(saved, (kept, *tensors), arriving, shares=False)
    remember_backward(call, called, given)
    by_name = dict(zip(("x", *called.slots), results, strict=True))
    return [by_name[name].contiguous() for name in call.wanted]


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


def _nothing(bound: Bound) -> list[Tensor]:
    """The outputs of a call without elements; rows without columns have statistics."""
    known = run(bound) if bound.columns == 0 else {}
    own = {*bound.op.statistics, *bound.op.maxima, *bound.op.of_blocks}
    known = known or dict.fromkeys(bound.op.maxima, bound.x.new_zeros((), dtype=torch.float32))
    return [
        known[name]
        if name in known and name in own
        else bound.x.new_full(bound.output_shape(name), torch.nan, dtype=bound.output_dtype(name))
        for name in bound.outputs
    ]


# --------------------------------------------------------------------------------------- gradients


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    """Save what the backward pass reads: of a product its factors, and what follows it reads."""
    given = ForwardCall.of(inputs)
    ctx.set_materialize_grads(False)
    op, call = rows_of(given)
    # Tensors are saved apart, or not kept at all.
    ctx.call = call._replace(x=None, tensors=None, draw=None)  # type: ignore[arg-type]
    ctx.product = None if call is given else given.op
    ctx.given, ctx.drawn = given.names, call.draw is not None
    able = op.able
    made = (*op.outputs, KEPT) if call.keep else op.outputs
    constant = [one for name, one in zip(made, output, strict=True) if name not in able]
    if constant:
        ctx.mark_non_differentiable(*constant)
    if not call.keep:
        return
    needs = dict(zip(("x", *given.names), ctx.needs_input_grad, strict=False))
    factors: list[Tensor | None] = []
    if ctx.product is not None:
        w, of_x, of_w = given.tensors[0], needs["x"], needs[FACTOR]
        factors = [given.x if of_w else None, w if of_x else None]
        ctx.shapes, needs["x"] = (given.x.shape, w.shape), of_x or of_w
    known = {"x": call.x, **dict(zip(call.names, call.tensors, strict=True))}
    recipe = what_is_kept(op, [needs.get(name, False) for name in ("x", *op.slots)])
    if factors and recipe.x:  # a caller of its own, who did not ask for the text of a layer
        raise UnsupportedError(
            f"{op.name}: the gradient of this STORE reads the product, which was not saved; put "
            "fo.Save before its functors"
        )
    result = recipe.result and reads_result(op, call.dtype, call.x.dtype)
    names = [RESULT] if result else ["x"] if recipe.x else []
    for name, wanted in zip(op.slots, recipe.kept, strict=True):
        if wanted and name in known:
            names.append(name)
    others = {name: tensor for name, tensor in known.items() if name not in names}
    ctx.sizes = [size for tensor in others.values() for size in tensor.shape]
    ctx.described = [
        f"{name} {str(tensor.dtype).removeprefix('torch.')} {tensor.dim()}"
        for name, tensor in others.items()
    ]
    ctx.names = [*names, *(name for _, name in recipe.streams)]
    ctx.shared = _shared(op, recipe.wanted, known, call.dtype)
    ctx.wanted = [name for name in ("x", *op.slots) if name in recipe.wanted - {*ctx.shared}]
    known[RESULT] = output[0]
    kept = [known[name] for name in names] + [output[number] for number, _ in recipe.streams]
    draw = [] if call.draw is None else [call.draw]
    ctx.save_for_backward(*factors, output[-1], *draw, *kept)


def _shared(
    op: Runnable, wanted: frozenset[str], known: Mapping[str, Tensor], dtype: torch.dtype
) -> dict[str, str]:
    """`shared_gradients` where sizes may be symbols and tensors may be distributed."""
    if not op.sharing_gradients:
        return {}
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    def described(one: Tensor) -> tuple[torch.dtype, bool]:
        sizes = zip(one.shape, x.shape, strict=False)
        same = one.dim() == x.dim() and _placed(one) == _placed(x)
        return one.dtype, same and all(statically_known_true(a == b) for a, b in sizes)

    x = known["x"]
    arguments = {name: described(one) for name, one in known.items()}
    return shared_gradients(op, wanted, arguments, None if _placed(x) is not None else dtype)


def _placed(tensor: Tensor) -> Any:
    """How a distributed tensor lies on its ranks; None for any other."""
    return getattr(tensor, "placements", None)


def _differentiate(ctx: Any, incoming: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """The gradients of x, or of the factors that make it, and of the operands."""
    call: ForwardCall = ctx.call
    op: Runnable = read(call.op)
    given: Sequence[str] = ctx.given
    if not call.keep:
        raise UnsupportedError(
            f"{op.name}: this program was traced where no gradient was wanted, and one is asked "
            "for; trace it with tensors that require grad, and with grad mode on"
        )
    tensors, factors = [*ctx.saved_tensors], []
    if ctx.product is not None:
        factors, tensors = tensors[:2], tensors[2:]
    kept = tensors.pop(0)
    draw = tensors.pop(0) if ctx.drawn else None
    arriving = {
        name: gradient
        for name, gradient in zip(op.outputs, incoming, strict=False)
        if gradient is not None
    }
    noted = kept, tensors, ctx.names, ctx.sizes, ctx.described, call.numbers, call.counts or []
    rest = draw, call.op, call.dim, call.dtype, ctx.wanted, call.part_of
    results = torch.ops.fusedops.backward(list(arriving.values()), list(arriving), *noted, *rest)
    found: dict[str, Tensor | None] = dict(zip(ctx.wanted, results, strict=True))
    for name, whose in ctx.shared.items():
        found[name] = found["x"] if whose == "x" else arriving.get("y")
    x = found.pop("x", None)
    if factors and x is not None:
        x, found[FACTOR] = read(ctx.product).factor_gradients(x, *factors, ctx.shapes)
    operands = [found.get(name) for name in given]
    # An empty list counts as one of tensors.
    lists: list[Any] = [
        [] if one is not None and not one else None for one in (given, call.numbers, call.counts)
    ]
    # torch leaves out last arguments that have their default, and older releases count.
    return (x, operands, *lists, *[None] * 9)[: len(ctx.needs_input_grad)]


# -------------------------------------------------------------------------------------- definition

# torch looks up which module this file is, for its messages. That goes through all modules there
# are, 16000 calls, unless inspect knows the answer, which it keeps here.
inspect.modulesbyfile.setdefault(__file__, __name__)


def define(
    name: str,
    arguments: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    results: str = "Tensor[]",
    title: str | None = None,
    tags: Sequence[torch.Tag] = _TAGS,
) -> None:
    """Define an operator of torch, which keeps dtypes under autocast and refuses vmap.

    Args:
        name: Its name in ``torch.ops.fusedops``.
        arguments: Its arguments in torch's language.
        run: What it runs on tensors with memory.
        fake: What it gives where only dtypes and shapes are known.
        results: Its results in torch's language.
        title: The name of the op in errors; that of the op whose text is its first string if None.
        tags: What torch may take it to be.
    """

    def refuse_vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        raise UnsupportedError(
            f"{_title(title, given)}: torch.func.vmap does not see into a fused kernel; give the "
            "op one more dimension, since all before the reduced one are rows, or under it use "
            f"{UNFUSED}"
        )

    namespace.define(f"{name}({arguments}) -> {results}", tags=tags)
    for key in ("AutocastCPU", "AutocastCUDA"):
        namespace.impl(name, library.fallthrough_kernel, key)
    namespace.impl(name, run, "CompositeExplicitAutograd")
    library.register_fake(f"fusedops::{name}", fake, lib=namespace)
    library.register_vmap(f"fusedops::{name}", refuse_vmap, lib=namespace)


def define_forward(name: str, run: Callable[..., list[Tensor]], *, more: str = "") -> None:
    """Define an operator with the arguments, results and gradients of ``forward``.

    Args:
        name: Its name.
        run: What it runs on tensors with memory.
        more: Further arguments after those of ``forward``, which have defaults.
    """
    define(name, schema(ForwardCall) + more, run, fake_forward)
    keep_draws(namespace, name)
    library.register_autograd(
        f"fusedops::{name}", _differentiate, setup_context=_set_up, lib=namespace
    )


def define_gradient(
    name: str,
    arguments: str,
    run: Callable[..., list[Tensor]],
    fake: Callable[..., list[Tensor]],
    title: str | None = None,
) -> None:
    """Define an operator whose results are gradients, which have none; arguments as of `define`."""

    def set_up(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        ctx.name = _title(title, inputs)

    define(name, arguments, run, fake, title=title)
    library.register_autograd(
        f"fusedops::{name}", refuse_second, setup_context=set_up, lib=namespace
    )


def _title(title: str | None, given: Sequence[Any]) -> str:
    return title or str(read(next(one for one in given if isinstance(one, str))).name)


define_forward("forward", run_forward)
define_gradient("backward", schema(BackwardCall), _backward, fake_backward)
define(
    "draw",
    "Tensor room, int count",
    draw_at_once,
    fake_draw,
    results="Tensor",
    title="dropout",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded),
)
