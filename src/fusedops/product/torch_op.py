# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A product that one kernel may run as an operator of torch, where torch compiles.

- ``fusedops::linear(x, w, tensors, names, numbers, draw, op, dtype)`` gives the outputs; ``op`` is
  the text of the STORE's `Map` (`declare.text`), ``tensors`` and ``numbers`` are its operands, and
  its dropouts start from ``draw``. Where no operand is a tensor, the list holds w, under that name.
  w has shape (N, K), or (..., N, K) of many products, as a `Matmul` is given it turned.

When it runs it chooses by the sizes at hand as any call does, so a graph serves every batch, and
what `fusedops tune` finds later counts. What is known as code is compiled (types, functors, tuning
files) decides whether there is such an operator in a graph, or a product of torch's and
``fusedops::forward``: those in programs that torch.export makes, and wherever one kernel is never
chosen. Its gradient is ``fusedops::backward`` of the STORE, then products. A layer whose gradient
reads the product is called as one that saves it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, library

from fusedops.bind.bind import bind
from fusedops.declare.text import read
from fusedops.errors import UNFUSED, UnsupportedError
from fusedops.generate.target import Target
from fusedops.product.autograd import factor_gradients
from fusedops.product.factors import (
    HALVES,
    factor_dtype,
    product_sizes,
    wants_gradient,
    without_memory,
)
from fusedops.product.torch_op_arguments import (
    are_plain,
    exports,
    operands_by_name,
    operands_listed,
    read_by_gradient,
)
from fusedops.run.autograd import what_is_kept
from fusedops.schedule import override
from fusedops.schedule.architectures import PRODUCT_KERNELS
from fusedops.schedule.launch import IMPLEMENTATIONS
from fusedops.schedule.lookup import product_implementations
from fusedops.torch_ops.fakes import stand_in
from fusedops.torch_ops.kept_draws import keep_draws
from fusedops.torch_ops.lowering import enter, lower
from fusedops.torch_ops.operators import drawn_for, gradients, note_saved
from fusedops.torch_ops.tracing import draw_for, is_distributed

if TYPE_CHECKING:
    from typing import Protocol

    from fusedops.product.epilogue import Epilogue

    class Layer(Protocol):
        """The part of a layer that this module reads; `Linear` has it."""

        epilogue: Epilogue

        def __call__(self, first: Tensor, second: Tensor, /, **arguments: Any) -> Any: ...
        @staticmethod
        def turned(second: Tensor) -> Tensor: ...
        def alone(self, first: Tensor, arguments: dict[str, Any]) -> bool: ...
        def that_keeps(self) -> Layer: ...
        def that_adds(self, second: Tensor, arguments: dict[str, Any]) -> Layer: ...


__all__ = ["call_in_graph", "call_operator", "made_by", "remember"]

#: The live layers by the text of their STORE, and whether they multiply many matrices.
_layers: weakref.WeakValueDictionary[tuple[str, bool], Layer] = weakref.WeakValueDictionary()

_PLAIN = (Tensor, torch.nn.Parameter)

#: What makes them, by the latter.
_make: dict[bool, Callable[..., Layer]] = {}

_namespace: Any = library.Library("fusedops", "FRAGMENT")  # type: ignore[no-untyped-call]
_namespace.define(
    "linear(Tensor x, Tensor w, Tensor[] tensors, str[] names, float[] numbers, Tensor? draw, "
    "str op, ScalarType dtype) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
)
for _key in ("AutocastCPU", "AutocastCUDA"):
    _namespace.impl("linear", library.fallthrough_kernel, _key)


def made_by(make: Callable[..., Layer], *, many: bool) -> None:
    """Say what makes a layer of a STORE, for a graph whose layer is no longer there."""
    _make[many] = make


def remember(layer: Layer) -> None:
    """Let the operator find a layer by the text of its STORE."""
    _layers.setdefault((layer.epilogue.text, type(layer) is _make.get(True)), layer)


def call_in_graph(layer: Layer, x: Tensor, w: Tensor, arguments: Mapping[str, Any]) -> Any:
    """Run a call that a backend has put into a graph, whose tensors it knows to be plain ones.

    Where the next compiler traces it, they are a tracer's, and the call is an operator or two.
    """
    if type(x) not in _PLAIN or torch._C._len_torch_dispatch_stack():
        adds = layer.that_adds(w, dict(arguments))
        outputs = call_operator(adds, x, w, arguments, of_tracer=True)
        if outputs is not None:
            return outputs
    return layer(x, w, **arguments)


def call_operator(
    layer: Layer,
    x: Tensor,
    w: Tensor,
    arguments: Mapping[str, Any],
    of_tracer: bool = False,
    keeps: bool = False,
) -> Any:
    """Run a call as an operator; None where its graph is to have two kernels.

    Dynamo traces this, so it is plain, and looks at no sizes but those of a parameter.

    Args:
        layer: The layer, one that runs calls (`SingleProduct.that_adds`).
        x: The left factor.
        w: The right one.
        arguments: Operands and options.
        of_tracer: Whether the tensors are those of a tracer that stand for plain ones.
        keeps: Whether the outputs are given as a list, the product among them in the second place;
            without gradients.
    """
    if exports() or is_distributed(x):
        return None
    epilogue = layer.epilogue
    listed = operands_listed(epilogue, arguments)
    if listed is None:
        return None
    tensors, names, numbers, draws = listed
    if not of_tracer and not are_plain((x, w, *tensors)):
        return None
    reads = 0
    for one in tensors:
        if one.dim() > 1:
            reads += 1
    dtype = factor_dtype(x)
    if dtype not in HALVES or factor_dtype(w) != dtype:
        return None
    text, writes = epilogue.text, len(epilogue.outputs) - 1
    if keeps:
        text, writes = _text_that_keeps(text, w.dim() > 2), writes + 1
    # The sizes of a parameter are never dynamic.
    n, k = None, None
    if w.dim() == 2 and (of_tracer or type(w) is torch.nn.Parameter):
        n, k = w.shape
    if of_tracer and not (type(n) is int and type(k) is int):
        n, k = None, None
    if not _may_be_one(text, dtype, x.device, reads, writes, draws, n, k):
        return None
    if layer.alone(x, dict(arguments)):
        return None
    saves = False
    wanted = ["x"] if wants_gradient((x, w)) else []
    for key, one in zip(names, tensors, strict=True):
        if wants_gradient((one,)):
            wanted.append(key)
    if wanted:
        epilogue.check_differentiable()
        text = _text_to_train(text, tuple(wanted), w.dim() > 2)
        saves = text != epilogue.text
    draw = draw_for(epilogue, x, arguments, arguments.get("generator")) if draws else None
    outputs = torch.ops.fusedops.linear(
        x if x.dtype == dtype else x.to(dtype),
        w if w.dtype == dtype else w.to(dtype),
        tensors or [w],
        names or ["w"],
        numbers,
        draw,
        text,
        arguments.get("dtype") or dtype,
    )
    if keeps:
        return outputs
    if saves:
        outputs = [outputs[0], *outputs[2:]]
    return outputs[0] if len(epilogue.outputs) == 1 else epilogue.result_type(*outputs)


def _text_that_keeps(text: str, many: bool) -> str:
    """The text of the layer that has the product as an output, its second."""
    return _layer(text, many).that_keeps().epilogue.text


_text_that_keeps._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _text_to_train(text: str, wanted: tuple[str, ...], many: bool) -> str:
    """The text of the layer that is called where these names have a gradient."""
    if "x" not in read_by_gradient(text, wanted):
        return text
    return _text_that_keeps(text, many)


_text_to_train._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _may_be_one(
    store: str,
    dtype: torch.dtype,
    device: torch.device,
    reads: int,
    writes: int,
    draws: bool,
    n: int | None = None,
    k: int | None = None,
) -> bool:
    """Whether one kernel may be chosen for some sizes; `n` and `k` are those of w, if known."""
    if device.type != "cuda":
        return False
    target = Target.of(device)
    if target.arch not in PRODUCT_KERNELS or target.gpu is None:
        return False
    forced = override.current().product
    if forced is not None:
        return forced.implementation != IMPLEMENTATIONS[0]
    known: dict[str, Any] = {"store": store, "writes": writes, "draws": draws}
    known["dtype"] = str(dtype).removeprefix("torch.")
    if n is not None and k is not None:
        if n % 8 or k % 8:
            return False
        known |= {"columns": n, "depth": k}
    if not reads:  # an operand of several dimensions may have no more elements than a row
        known["reads"] = 0
    return product_implementations(target.arch, target.gpu, **known) != {IMPLEMENTATIONS[0]}


_may_be_one._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _layer(text: str, many: bool) -> Layer:
    """The layer of a STORE."""
    layer = _layers.get((text, many))
    if layer is None:
        made = read(text)
        layer = _make[many]((*made.load, *made.store))
    return layer


def _run(
    x: Tensor,
    w: Tensor,
    tensors: Sequence[Tensor],
    names: Sequence[str],
    numbers: Sequence[float],
    draw: Tensor | None,
    op: str,
    dtype: torch.dtype,
) -> list[Tensor]:
    layer = _layer(op, w.dim() > 2)
    given = operands_by_name(layer.epilogue, tensors, names, numbers)
    if draw is not None:
        given["generator"] = drawn_for(draw)
    with torch.no_grad():
        result = layer(x, layer.turned(w), **given, training=draw is not None, dtype=dtype)
    return [result] if isinstance(result, Tensor) else [*result]


def _fake(
    x: Tensor,
    w: Tensor,
    tensors: Sequence[Tensor],
    names: Sequence[str],
    numbers: Sequence[Any],
    draw: Tensor | None,
    op: str,
    dtype: torch.dtype,
) -> list[Tensor]:
    lower()
    called = read(op)
    z = x.new_empty(product_sizes(x, w)[0])
    known = [one if isinstance(one, (int, float)) else 0.5 for one in numbers]
    operands = operands_by_name(called, [stand_in(one, z) for one in tensors], names, known)
    bound = bind(called, stand_in(z, z), operands, {"dtype": dtype, "training": False})
    return [z.new_empty(z.shape, dtype=bound.output_dtype(name)) for name in bound.outputs]


def _set_up(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, w, tensors, names, numbers, draw, text, dtype = inputs
    ctx.set_materialize_grads(False)
    op = read(text)
    needs = dict(zip(("x", "w", *names), ctx.needs_input_grad, strict=False))
    of_x, of_w = needs["x"], needs["w"]
    operands = [needs.get(name, False) for name in op.slots]
    recipe = what_is_kept(op, [of_x or of_w, *operands])
    ctx.call, ctx.lists = (text, dtype), (names, numbers)
    ctx.refused = recipe.x  # a caller of its own, who did not ask `call_operator`
    if recipe.x:
        return
    ctx.shapes = x.shape, w.shape
    z = without_memory(x, product_sizes(x, w)[0])
    given = dict(zip(names, tensors, strict=True))
    inputs_by_name = {"x": z, **{name: given[name] for name in op.slots if name in given}}
    kept = note_saved(ctx, op, recipe, inputs_by_name, output)
    statistics = z.new_empty([*z.shape[:-1], 0], dtype=torch.float32)  # a Map has none
    ctx.save_for_backward(x if of_w else None, w if of_x else None, draw, statistics, *kept)


def _differentiate(ctx: Any, incoming: Sequence[Tensor | None]) -> tuple[Any, ...]:
    text, dtype = ctx.call
    op = read(text)
    if ctx.refused:
        raise UnsupportedError(
            "fusedops.linear: the gradient of this STORE reads the product, which was not saved; "
            "put fo.Save before its functors"
        )
    x, w, draw, statistics, *tensors = ctx.saved_tensors
    names, numbers = ctx.lists
    dim = [statistics.dim() - 1]
    rest = draw, text, dim, dtype, ctx.wanted, None
    found = gradients(ctx, op, incoming, statistics, tensors, numbers, [], *rest)
    dz = found.pop("x", None)
    dx = dw = None
    if dz is not None:
        dx, dw = factor_gradients(dz, x, w, ctx.shapes)
    # An empty list counts as one of tensors.
    lists: list[Any] = [None if one else [] for one in (names, numbers)]
    return (dx, dw, [found.get(name) for name in names], *lists, None, None, None)


def _refuse(name: str, cure: str) -> Callable[..., Any]:
    def refuse(*arguments: Any) -> Any:
        raise UnsupportedError(f"fusedops.linear: {name} {cure}")

    return refuse


_namespace.impl("linear", _run, "CompositeExplicitAutograd")
library.register_fake("fusedops::linear", _fake, lib=_namespace)
keep_draws(_namespace, "linear")
library.register_autograd("fusedops::linear", _differentiate, setup_context=_set_up, lib=_namespace)
library.register_vmap(
    "fusedops::linear",
    _refuse("torch.func.vmap does not see into a fused kernel;", f"under it use {UNFUSED}"),
    lib=_namespace,
)


def _entry(*arguments: Any) -> Any:
    """What Inductor's code calls: without torch's dispatcher, unless a mode of torch's is on."""
    if torch._C._len_torch_dispatch_stack():  # as where new code runs for the first time
        return torch.ops.fusedops.linear.default(*arguments)
    return _run(*arguments)


enter("linear", _entry)
