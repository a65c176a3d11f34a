# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The pass over a captured graph: each row reduction that pays becomes one call of an op.

`products` is the same for linear layers, with the functions of this module.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable
from typing import Any, Generic

import torch
from torch import fx

from fusedops.errors import FusedOpsError
from fusedops.graph.bytes_moved import Moved, moved, why_left
from fusedops.graph.chain import Declared, Op, declare
from fusedops.graph.nodes import example, name_of, read_as, tensor_of, transforms
from fusedops.graph.patterns import match
from fusedops.graph.reductions import Reduction, Refused, called
from fusedops.graph.region import Region, Root, grow
from fusedops.graph.segments import Place
from fusedops.product import Linear
from fusedops.row_op import RowOp


@dataclasses.dataclass(frozen=True)
class Found(Generic[Op]):
    """A reduction or linear layer of a graph: fused into which op, or left for which reason.

    Attributes:
        name: The name of its node.
        what: What it is: "softmax", "layer_norm", "linear", as the graph calls it.
        op: The declaration that it is fused into; None where it is left.
        nodes: The names of the nodes that are fused, in order of the chain.
        why: Why it is left; or where the chain ends, by the name of the node there.
        moved: The bytes before and after, by the byte model of row ops; None where it says nothing.
        drops: Whether the kernel draws a dropout mask, by this package's contract.
    """

    name: str
    what: str
    op: Op | None
    nodes: tuple[str, ...]
    why: dict[str, str]
    moved: Moved | None = None
    drops: bool = False


def rewrite(graph_module: fx.GraphModule) -> list[Found[RowOp]]:
    """Replace softmaxes, norms and losses of a graph by fused ops, in place; report on each."""
    return fuse_each(graph_module, lambda node: called(node) or match(node), _fuse)


def fuse_each(
    graph_module: fx.GraphModule,
    find: Callable[[fx.Node], Root | None],
    fuse: Callable[[fx.Graph, Root], Found[Op]],
) -> list[Found[Op]]:
    """Visit a graph's nodes, fuse each reduction or linear layer, and report on each.

    Args:
        graph_module: The graph, which is changed in place.
        find: Gives what a node calls, None if that is nothing to fuse, or raises `Refused`.
        fuse: Fuses it, says why it is left, or raises `Refused`.
    """
    graph = graph_module.graph
    transformed = bool([*transforms(graph)])
    found: list[Found[Op]] = []
    for node in list(graph.nodes):
        if node._erased or node.op not in ("call_function", "call_method"):
            continue
        what = name_of(node)
        try:
            root = find(node)
            if root is None:
                continue
            what = root.what
            if transformed:
                raise Refused(
                    "the graph holds a transform of torch.func, which sees into no kernel"
                )
            found.append(fuse(graph, root))
        except Refused as reason:
            found.append(Found(node.name, what, None, (), {node.name: str(reason)}))
    if any(one.op is not None for one in found):
        graph.lint()
        graph_module.recompile()
    return found


def _fuse(graph: fx.Graph, reduction: Reduction) -> Found[RowOp]:
    """Fuse one reduction with its pointwise neighbours, or say why it is left."""
    check_tensors(reduction.source, (reduction.source, reduction.gamma, reduction.beta))
    place = Place.of(graph)
    if len({place.barriers[node] for node in reduction.nodes}) > 1:
        raise Refused("something is written in place between its operations")
    name, what = reduction.node.name, reduction.what
    region, declared = largest(reduction, place, declare, lambda one: why_left(one, moved(one)))
    by = moved(region)
    stops = {node.name: why for node, why in region.stops.items()}
    if declared is None:
        return Found(name, what, None, (), {name: why_left(region, by), **stops}, by)
    op, dtype = declared.op, declared.dtype

    def fused(x: torch.Tensor, /, **arguments: Any) -> Any:
        if op.has_result:
            return op(x, **arguments)
        loss, *saved = _listed(op(x, **arguments))
        return (loss.to(dtype), *saved) if saved else loss.to(dtype)

    names = replace(graph, place, region, declared, call_of(op, fused, __name__), (region.x,))
    return Found(name, what, op, names, stops, by, op.dropouts > 0)


def _listed(results: Any) -> Any:
    return (results,) if isinstance(results, torch.Tensor) else results


def largest(
    root: Root,
    place: Place,
    declare: Callable[[Region[Root]], Declared[Op]],
    left: Callable[[Region[Root]], str] = lambda region: "",
) -> tuple[Region[Root], Declared[Op] | None]:
    """The largest region that can be declared, with its declaration; None if it does not pay.

    `declare` gives the declaration of a region, `left` why a region is left: an empty text for one
    that is to be declared.
    """
    banned: set[fx.Node] = set()
    known: dict[fx.Node, str] = {}
    while True:
        region = grow(root, place, banned, known)
        if left(region):
            return region, None
        try:
            return region, declare(region)
        except FusedOpsError as error:  # no functor can hold a node: leave the segments out
            more = {one.nodes[-1] for one in (*region.load, *region.store) if one.nodes} - banned
            if not more:
                raise Refused(str(error)) from error
            banned |= more
            known.update(dict.fromkeys(more, str(error)))


def check_tensors(x: fx.Node, read: Iterable[fx.Node | None]) -> None:
    """Raise Refused unless x is on a supported device and all inputs are plain tensors."""
    source = tensor_of(x)
    if source.device.type not in ("cpu", "cuda"):
        raise Refused(f"no kernel runs on {source.device.type}")
    for one in read:
        given = example(one)
        if given is not None and type(given).__name__ not in ("FakeTensor", "Tensor", "Parameter"):
            raise Refused(f"it is of a {type(given).__name__}, not of plain tensors")


def replace(
    graph: fx.Graph,
    place: Place,
    region: Region[Root],
    declared: Declared[Op],
    call: Callable[..., Any],
    factors: tuple[fx.Node, ...],
) -> tuple[str, ...]:
    """Put a call into a graph in place of a region's nodes; the names of these.

    `call` calls the op, with `factors` by position.
    """
    result = example(region.result)
    if result is None or not result.is_contiguous():
        raise Refused("its result is not contiguous, as a kernel's is")
    options: dict[str, Any] = {"dtype": read_as(region.result) or declared.dtype}
    if declared.dim is not None:
        options["dim"] = declared.dim if len(declared.dim) > 1 else declared.dim[0]
    nodes, inside = region.nodes, {*region.nodes}
    names = tuple(node.name for node in nodes)
    old = [region.result, *declared.outputs]
    outside = [u for one in old[1:] for u in one.users if u not in inside]
    at = min([old[0], *outside], key=place.order.__getitem__)
    with graph.inserting_before(at):
        made = graph.call_function(call, factors, {**declared.operands, **options})
        results = [made]
        if len(old) > 1:
            results = [graph.call_function(operator.getitem, (made, k)) for k in range(len(old))]
    for new, one in zip(results, old, strict=True):
        new.meta.update(one.meta)
        new.meta.pop("stack_trace", None)
        if one is old[0]:
            _set_dtype(new, options["dtype"])
        one.replace_all_uses_with(new, delete_user_cb=lambda user: user not in inside)
    for node in sorted(inside, key=place.order.__getitem__, reverse=True):
        graph.erase_node(node)
    return names


def _set_dtype(node: fx.Node, dtype: torch.dtype) -> None:
    """Let the example of a node's result have a dtype."""
    made = example(node)
    if made is not None and made.dtype is not dtype:
        at = "example_value" if "example_value" in node.meta else "val"
        node.meta[at] = made.to(dtype)


def call_of(op: RowOp | Linear, call: Callable[..., Any], module: str) -> Callable[..., Any]:
    """A function that calls an op, with a name for its node; it keeps the op alive."""
    call.__name__ = call.__qualname__ = f"fused_{op.name.lower()}"
    call.__module__ = module
    call.op = op  # type: ignore[attr-defined]
    return call
