# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A product that one kernel may run as an operator of torch, where torch compiles.

The operator is ``fusedops::forward``, of the text of a `Linear` or a `Matmul`. When it runs it
chooses by the sizes at hand as any call does, so a graph serves every batch, and what `fusedops
tune` finds later counts. What is known as code is compiled (types, functors, tuning files) decides
whether there is such an operator in a graph, or a product of torch's and ``fusedops::forward`` of a
`Map`: those in programs that torch.export makes, and wherever one kernel is never chosen. Its
gradient is ``fusedops::backward`` of the STORE, then products. A layer whose gradient reads the
product is called as one that saves it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.declare.text import read
from fusedops.generate.target import Target
from fusedops.plan.saved_tensors import needed
from fusedops.product.choice import why_never
from fusedops.product.declaration import TAKEN
from fusedops.product.factors import MULTIPLIED, factor_dtype, read_dtype, wants_gradient
from fusedops.run.autograd import no_statistics
from fusedops.schedule import override
from fusedops.schedule.launch import IMPLEMENTATIONS
from fusedops.schedule.lookup import product_implementations
from fusedops.torch_ops.calls import FACTOR, ForwardCall
from fusedops.torch_ops.tracing import draw_for, is_distributed, is_exporting

if TYPE_CHECKING:
    from typing import Protocol

    from fusedops.product.epilogue import Epilogue

    class Layer(Protocol):
        """The part of a layer that this module reads; `Linear` has it."""

        text: str
        epilogue: Epilogue

        def __call__(self, first: Tensor, second: Tensor, /, **arguments: Any) -> Any: ...
        @staticmethod
        def turned(second: Tensor) -> Tensor: ...
        def alone(self, first: Tensor, arguments: dict[str, Any]) -> bool: ...
        def that_keeps(self) -> Layer: ...
        def that_adds(self, second: Tensor, arguments: dict[str, Any]) -> Layer: ...


__all__ = [
    "AsOperator",
    "are_plain",
    "call_in_graph",
    "call_operator",
    "operands_listed",
    "read_by_gradient",
]

_PLAIN = (Tensor, torch.nn.Parameter)


class AsOperator:
    """A layer as the operator of torch calls it: all tensors but x by name, a tuple of outputs.

    With `keep` row statistics follow the outputs, none as a `Map` has them.
    """

    def __init__(self, layer: Layer, keep: bool = False) -> None:
        self._layer, self._keep = layer, keep

    def __call__(self, x: Tensor, **arguments: Any) -> tuple[Tensor, ...]:
        """Run a call of x, the factor `FACTOR`, operands and options."""
        layer = self._layer
        second = layer.turned(arguments.pop(FACTOR))
        del arguments["dim"], arguments["part_of"]  # a row of a product is its last dimension
        found = layer(x, second, **arguments)
        outputs = (found,) if isinstance(found, Tensor) else tuple(found)
        return (*outputs, no_statistics(outputs[0])) if self._keep else outputs

    def of_lists(self, names: tuple[str, ...], x: Tensor, /, *values: Sequence[Any]) -> Any:
        """As `_runtime.Dispatcher.of_lists`, also where no tensor needs a gradient in grad mode."""
        arguments = dict(zip(names, itertools.chain(*values), strict=True))
        if torch._C._len_torch_dispatch_stack() or wants_gradient((x, *arguments.values())):
            return NotImplemented
        return self(x, **arguments)


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

    The layer is one that runs calls (`SingleProduct.that_adds`). With `of_tracer` the tensors are a
    tracer's that stand for plain ones. With `keeps` outputs are a list, the product in the second
    place; without gradients.
    """
    if is_exporting() or is_distributed(x):
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
    dtype = read_dtype(x)
    if dtype not in MULTIPLIED or read_dtype(w) != dtype:
        return None
    text, store, writes = layer.text, epilogue.text, len(epilogue.outputs) - 1
    if keeps:
        text, store = _that_keeps(text)
        writes += 1
    # The sizes of a parameter are never dynamic.
    n, k = None, None
    if w.dim() == 2 and (of_tracer or type(w) is torch.nn.Parameter):
        n, k = w.shape
    if of_tracer and not (type(n) is int and type(k) is int):
        n, k = None, None
    if not _may_be_one(store, dtype, x.device, reads, writes, draws, n, k):
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
        saves = "x" in read_by_gradient(store, tuple(wanted))
        if saves:
            text, _ = _that_keeps(text)
    draw = draw_for(epilogue, x, arguments, arguments.get("generator")) if draws else None
    rank = w.dim() if x.dim() < w.dim() != 2 else x.dim()
    call = ForwardCall(
        x if x.dtype == dtype else x.to(dtype),
        [w if w.dtype == dtype else w.to(dtype), *tensors],
        [FACTOR, *names],
        numbers,
        None,
        draw,
        text,
        (rank - 1,),
        arguments.get("dtype") or factor_dtype(x),
        bool(wanted),
    )
    outputs = torch.ops.fusedops.forward(*call)
    if wanted:
        outputs = outputs[:-1]
    if keeps:
        return outputs
    if saves:
        outputs = [outputs[0], *outputs[2:]]
    return outputs[0] if len(epilogue.outputs) == 1 else epilogue.result_type(*outputs)


def operands_listed(
    epilogue: Epilogue, arguments: Mapping[str, Any]
) -> tuple[list[Tensor], list[str], list[Any], bool] | None:
    """The operands of a call: tensors, their names, numbers; and whether it may draw.

    None where an operator takes no such call. Dynamo traces this, so it is plain.
    """
    if epilogue.counted or arguments.get("out") is not None:
        return None
    # A branch, since an integer of an object may be a symbol to Dynamo, where shapes are dynamic.
    draws = arguments.get("training", True) if epilogue.dropouts else False
    if not isinstance(draws, bool):
        return None
    tensors: list[Tensor] = []
    names: list[str] = []
    numbers: list[Any] = []
    for key in epilogue.slots:
        value = arguments.get(key)
        if isinstance(value, Tensor) and key not in epilogue.probabilities:
            names.append(key)
            tensors.append(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers.append(value)
        else:
            return None
    for key in arguments:
        if key not in epilogue.slots and key not in TAKEN:
            return None
    return tensors, names, numbers, draws


def are_plain(tensors: Iterable[Tensor]) -> bool:
    """True if no tensor is a subclass of torch.Tensor other than Parameter."""
    for one in tensors:
        if type(one) is not Tensor and type(one) is not torch.nn.Parameter:
            return False
    return True


def read_by_gradient(op: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """What the gradients of these names read, of a chain that is given as text.

    That are names of operands, and "x" for the product, by which that is named among `wanted`, too.
    """
    return _read_by_gradient(op, wanted)


@functools.lru_cache(maxsize=1024)  # eager calls ask it, too
def _read_by_gradient(op: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
    if not wanted:
        return ()
    reads = needed(read(op), wanted)
    return (*["x"] * reads.x, *sorted(reads.operands))


# Dynamo asks as it compiles, as in torch_ops/tracing.py.
read_by_gradient._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _that_keeps(text: str) -> tuple[str, str]:
    """The text of the layer that has the product as an output, its second; and of its `Map`."""
    keeping: Layer = read(text).that_keeps()
    return keeping.text, keeping.epilogue.text


_that_keeps._dynamo_marked_constant = True  # type: ignore[attr-defined]


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
    if why_never(dtype, target) or target.gpu is None:
        return False
    forced = override.current().product
    if forced is not None:
        return forced.implementation != IMPLEMENTATIONS[0]
    known: dict[str, Any] = {"store": store, "writes": writes, "draws": draws, "grouped": False}
    known |= {"ragged_depth": False, "row_sums": False}
    known["dtype"] = str(dtype).removeprefix("torch.")
    if n is not None and k is not None:
        if n % 8 or k % 8:
            return False
        known |= {"columns": n, "depth": k}
    if not reads:  # an operand of several dimensions may have no more elements than a row
        known["reads"] = 0
    return product_implementations(target.arch, target.gpu, **known) != {IMPLEMENTATIONS[0]}


_may_be_one._dynamo_marked_constant = True  # type: ignore[attr-defined]
