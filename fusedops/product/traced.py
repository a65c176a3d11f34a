# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A linear layer that one kernel may run as an operator of torch, where torch compiles.

- ``fusedops::linear(x, w, tensors, names, numbers, draw, op, dtype)`` gives the outputs; ``op`` is
  the text of the STORE's `Map` (`declare.text`), ``tensors`` and ``numbers`` are its operands,
  ``draw`` is that of ``fusedops::draw`` where dropouts act. Where no operand is a tensor, the list
  holds w, under that name.

When it runs it chooses by the sizes at hand as any call does, so a graph serves every batch, and
what `fusedops tune` finds later counts. What is known as code is compiled (types, functors, tuning
files) decides whether there is such an operator in a graph, or a product of torch's and
``fusedops::forward``: those where a gradient is wanted, in programs that torch.export makes, and
wherever one kernel is never chosen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, library

from fusedops.bind.bind import bind
from fusedops.declare.text import read
from fusedops.errors import UnsupportedError
from fusedops.generate.target import Target
from fusedops.product.factors import factor_dtype, wants_gradient
from fusedops.product.fused import HALVES
from fusedops.schedule import override
from fusedops.schedule.launch import VEHICLES
from fusedops.schedule.lookup import product_vehicles
from fusedops.torch_ops.distributed import is_distributed
from fusedops.torch_ops.lowering import enter, lower
from fusedops.torch_ops.stand_ins import stand_in
from fusedops.torch_ops.tracing import draw_for

if TYPE_CHECKING:
    from fusedops.product.single import SingleProduct

__all__ = ["call_operator", "made_by", "remember"]

#: The live layers by the text of their STORE.
_layers: weakref.WeakValueDictionary[str, SingleProduct] = weakref.WeakValueDictionary()

_make: Callable[..., SingleProduct]

_namespace: Any = library.Library("fusedops", "FRAGMENT")  # type: ignore[no-untyped-call]
_namespace.define(
    "linear(Tensor x, Tensor w, Tensor[] tensors, str[] names, float[] numbers, Tensor? draw, "
    "str op, ScalarType dtype) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
)
for _key in ("AutocastCPU", "AutocastCUDA"):
    _namespace.impl("linear", library.fallthrough_kernel, _key)


def made_by(make: Callable[..., SingleProduct]) -> None:
    """Say what makes a layer of a STORE, for a graph whose layer is no longer there."""
    global _make
    _make = make


def remember(layer: SingleProduct) -> None:
    """Let the operator find a layer by the text of its STORE."""
    _layers.setdefault(layer.epilogue.text, layer)


def call_operator(layer: SingleProduct, x: Tensor, w: Tensor, arguments: Mapping[str, Any]) -> Any:
    """Run a call as an operator; None where its graph is to have two kernels.

    Dynamo traces this, so it is plain, and looks at no sizes but those of a parameter.
    """
    if torch.compiler.is_exporting() or is_distributed(x):
        return None
    epilogue = layer.epilogue
    if epilogue.counted or arguments.get("out") is not None:
        return None
    draws = epilogue.dropouts > 0 and arguments.get("training", True)
    if not isinstance(draws, bool):
        return None
    tensors: list[Tensor] = []
    names: list[str] = []
    numbers: list[Any] = []
    reads = 0
    for key in epilogue.slots:
        value = arguments.get(key)
        if isinstance(value, Tensor) and key not in epilogue.probabilities:
            names.append(key)
            tensors.append(value)
            if value.dim() > 1:
                reads += 1
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers.append(value)
        else:
            return None
    for key in arguments:
        if key not in epilogue.slots and key not in ("dtype", "out", "training", "generator"):
            return None
    for one in (x, w, *tensors):
        if type(one) is not Tensor and type(one) is not torch.nn.Parameter:
            return None
    if wants_gradient((x, w, *tensors)):
        return None
    dtype = factor_dtype(x)
    if dtype not in HALVES or factor_dtype(w) != dtype:
        return None
    writes = len(epilogue.outputs) - 1
    # The sizes of a parameter are never dynamic.
    n, k = w.shape if type(w) is torch.nn.Parameter else (None, None)
    if not _may_be_one(epilogue.text, dtype, x.device, reads, writes, draws, n, k):
        return None
    if layer.alone(x, w, dict(arguments)):
        return None
    draw = draw_for(epilogue, x, arguments, arguments.get("generator")) if draws else None
    outputs = torch.ops.fusedops.linear(
        x if x.dtype == dtype else x.to(dtype),
        w if w.dtype == dtype else w.to(dtype),
        tensors or [w],
        names or ["w"],
        numbers,
        draw,
        epilogue.text,
        arguments.get("dtype") or dtype,
    )
    return outputs[0] if len(epilogue.outputs) == 1 else epilogue.result_type(*outputs)


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
    if target.arch != "sm_90" or target.gpu is None:
        return False
    forced = override.current().product
    if forced is not None:
        return forced.vehicle != VEHICLES[0]
    known: dict[str, Any] = {"store": store, "writes": writes, "draws": draws}
    known["dtype"] = str(dtype).removeprefix("torch.")
    if n is not None and k is not None:
        if n % 8 or k % 8:
            return False
        known |= {"columns": n, "depth": k}
    if not reads:  # an operand of several dimensions may have no more elements than a row
        known["reads"] = 0
    return product_vehicles(target.arch, target.gpu, **known) != {VEHICLES[0]}


# Dynamo asks as it compiles, as in torch_ops/tracing.py.
_may_be_one._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _arguments(
    op: Any, tensors: Sequence[Any], names: Sequence[str], numbers: Sequence[float]
) -> dict[str, Any]:
    """The operands of a call by name."""
    given = {name: one for name, one in zip(names, tensors, strict=True) if name in op.slots}
    rest = iter(numbers)
    return given | {name: next(rest) for name in op.slots if name not in given}


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
    layer = _layers.get(op)
    if layer is None:
        made = read(op)
        layer = _make((*made.load, *made.store))
    options: dict[str, Any] = {"dtype": dtype, "training": draw is not None}
    if draw is not None:
        options["generator"] = draw if draw.is_cuda else tuple(draw.tolist())
    with torch.no_grad():
        result = layer(x, w, **_arguments(layer.epilogue, tensors, names, numbers), **options)
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
    z = x.new_empty([*x.shape[:-1], w.shape[0]])
    known = [one if isinstance(one, (int, float)) else 0.5 for one in numbers]
    operands = _arguments(called, [stand_in(one, z) for one in tensors], names, known)
    bound = bind(called, stand_in(z, z), operands, {"dtype": dtype, "training": False})
    return [z.new_empty(z.shape, dtype=bound.output_dtype(name)) for name in bound.outputs]


def _refuse(name: str, cure: str) -> Callable[..., Any]:
    def refuse(*arguments: Any) -> Any:
        raise UnsupportedError(f"Linear: {name} {cure}")

    return refuse


_namespace.impl("linear", _run, "CompositeExplicitAutograd")
library.register_fake("fusedops::linear", _fake, lib=_namespace)
library.register_autograd(
    "fusedops::linear",
    _refuse(
        "this program was traced where no gradient was wanted, and one is asked for;",
        "trace it with tensors that require grad, and with grad mode on",
    ),
    lib=_namespace,
)
library.register_vmap(
    "fusedops::linear",
    _refuse("torch.func.vmap does not see into a fused kernel;", "use op.unfused under it"),
    lib=_namespace,
)
enter("linear", _run)
