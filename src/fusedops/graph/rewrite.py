# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The pass over a captured graph: each region that pays becomes one call of an op."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from fusedops.errors import FusedOpsError
from fusedops.graph.bytes_moved import Moved, moved, why_left
from fusedops.graph.chain import Declared, declare
from fusedops.graph.nodes import barriers, example, name_of, read_as, transforms
from fusedops.graph.reductions import Reduction, Refused, called
from fusedops.graph.region import Region, grow
from fusedops.graph.segments import Place
from fusedops.graph.spelled import spelled
from fusedops.row_op import RowOp

__all__ = ["Found", "check_tensors", "put_in_place", "rewrite"]


@dataclasses.dataclass(frozen=True)
class Found:
    """A row reduction of a graph, and what became of it.

    Attributes:
        name: The name of its node.
        what: The reduction: "softmax", "layer_norm", as the graph calls it.
        op: The declaration that it is fused into; None where it is left.
        nodes: The names of the nodes that are fused, in order of the chain.
        why: Why it is left; or where the chain ends, by the name of the node there.
        moved: The bytes before and after, by the byte model; None where there is no region.
        drops: Whether the kernel draws a dropout mask, by this package's contract.
    """

    name: str
    what: str
    op: RowOp | None
    nodes: tuple[str, ...]
    why: dict[str, str]
    moved: Moved | None
    drops: bool = False


def rewrite(graph_module: fx.GraphModule) -> list[Found]:
    """Put fused ops into a graph, in place, and say what was found."""
    graph = graph_module.graph
    kinds = sorted({*transforms(graph)})
    found: list[Found] = []
    for node in list(graph.nodes):
        if node.op not in ("call_function", "call_method") or node.graph is not graph:
            continue
        what = name_of(node)
        if node._erased:
            continue
        try:
            reduction = called(node) or spelled(node)
            if reduction is None:
                continue
            if reduction.inner:
                what = f"{reduction.kind}, spelled out"
            if kinds:
                raise Refused(
                    "the graph holds a transform of torch.func, which sees into no kernel"
                )
            found.append(_one(graph, reduction, what))
        except Refused as reason:
            found.append(Found(node.name, what, None, (), {node.name: str(reason)}, None))
    if any(one.op is not None for one in found):
        graph.lint()
        graph_module.recompile()
    return found


def _one(graph: fx.Graph, reduction: Reduction, what: str) -> Found:
    """Fuse one reduction with what is around it, or say why not."""
    check_tensors(reduction.source, (reduction.source, reduction.gamma, reduction.beta))
    order = {node: count for count, node in enumerate(graph.nodes)}
    place = Place(order, barriers(graph))
    if len({place.barriers[node] for node in reduction.nodes}) > 1:
        raise Refused("something is written in place between its operations")
    banned: set[fx.Node] = set()
    known: dict[fx.Node, str] = {}
    while True:
        region = grow(reduction, place, banned, known)
        stops = {node.name: why for node, why in region.stops.items()}
        by = moved(region)
        if why := why_left(region, by):
            return Found(
                reduction.node.name, what, None, (), {reduction.node.name: why, **stops}, by
            )
        try:
            declared = declare(region)
            break
        except FusedOpsError as error:  # no functor can hold a node: leave the segments out
            more = {one.nodes[-1] for one in (*region.load, *region.store) if one.nodes} - banned
            if not more:
                raise Refused(str(error)) from error
            banned |= more
            known.update(dict.fromkeys(more, str(error)))
    made = example(region.result)
    if made is None or not made.is_contiguous():
        raise Refused("its result is not contiguous, as a kernel's is")
    lower = read_as(region.result)
    if lower is not None:
        declared = dataclasses.replace(declared, dtype=lower)
    names = tuple(node.name for node in region.nodes)
    _insert(graph, region, declared, order)
    return Found(reduction.node.name, what, declared.op, names, stops, by, declared.op.dropouts > 0)


def check_tensors(x: fx.Node, read: Iterable[fx.Node | None]) -> None:
    """Raise Refused unless kernels run where x is, and what is read is plain tensors."""
    source = example(x)
    assert source is not None
    if source.device.type not in ("cpu", "cuda"):
        raise Refused(f"no kernel runs on {source.device.type}")
    for one in read:
        given = example(one)
        if given is not None and type(given).__name__ not in ("FakeTensor", "Tensor", "Parameter"):
            raise Refused(f"it is of a {type(given).__name__}, not of plain tensors")


def _insert(graph: fx.Graph, region: Region, declared: Declared, order: dict[fx.Node, int]) -> None:
    """Put the call into the graph, in place of the region's nodes."""
    options: dict[str, Any] = {"dtype": declared.dtype}
    if declared.dim is not None:
        options["dim"] = declared.dim if len(declared.dim) > 1 else declared.dim[0]
    call = (caller(declared.op), (region.x,), {**declared.operands, **options})
    old = [region.result, *declared.outputs]
    put_in_place(graph, region.nodes, old, call, declared.dtype, order)


def put_in_place(
    graph: fx.Graph,
    nodes: Iterable[fx.Node],
    old: Sequence[fx.Node],
    call: tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]],
    dtype: torch.dtype,
    order: Mapping[fx.Node, int],
) -> None:
    """Put a call into a graph in place of nodes.

    Args:
        graph: The graph.
        nodes: What the call computes.
        old: Those of them whose results it gives, in the order of its outputs.
        call: What is called, with what by position and by name.
        dtype: The dtype of its first output.
        order: The number of each node.
    """
    inside = {*nodes}
    outside = [u for one in old[1:] for u in one.users if u not in inside]
    at = min([old[0], *outside], key=order.__getitem__)
    with graph.inserting_before(at):
        made = graph.call_function(call[0], call[1], dict(call[2]))
        results = [made]
        if len(old) > 1:
            results = [graph.call_function(operator.getitem, (made, k)) for k in range(len(old))]
    for new, one in zip(results, old, strict=True):
        new.meta.update(one.meta)
        new.meta.pop("stack_trace", None)
        if one is old[0]:
            _set_dtype(new, dtype)
        one.replace_all_uses_with(new, delete_user_cb=lambda user: user not in inside)
    for node in sorted(inside, key=order.__getitem__, reverse=True):
        graph.erase_node(node)


def _set_dtype(node: fx.Node, dtype: torch.dtype) -> None:
    """Let the example of a node's result have a dtype."""
    made = example(node)
    if made is not None and made.dtype is not dtype:
        at = "example_value" if "example_value" in node.meta else "val"
        node.meta[at] = made.to(dtype)


def caller(op: RowOp) -> Callable[..., Any]:
    """A function that calls an op, for a node to have a name; it keeps the op alive."""

    def fused(x: torch.Tensor, /, **arguments: Any) -> Any:
        return op(x, **arguments)

    fused.__name__ = fused.__qualname__ = f"fused_{op.name.lower()}"
    fused.__module__ = __name__
    fused.op = op  # type: ignore[attr-defined]
    return fused
