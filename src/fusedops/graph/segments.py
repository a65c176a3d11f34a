# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of a chain in a graph: which nodes a kernel may compute, and the functors made of them.

A declaration is a chain, so a node that is a functor of its own (a dropout, a cast that rounds, a
value that is saved) must be passed by everything that goes on: what runs beside it stays outside.

For other nodes a Python function is written that calls what they call, and `fusedops.functor` reads
it, so that the derivative is left to the functor's own trace. Equal nodes give equal text, so that
a class is made once in a process, and a graph that is compiled again names the same class.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from fusedops.functors import Functor, functor
from fusedops.graph.nodes import (
    CASTS,
    barriers,
    cast_of,
    dropout_of,
    example,
    first_of,
    is_double,
    is_elementwise,
    is_pointwise,
    name_of,
    number,
    same_shape,
    tensor_of,
    tensors_of,
    widens,
)


@dataclasses.dataclass(frozen=True)
class Place:
    """Node order and in-place writes of a graph, as regions need them."""

    order: dict[fx.Node, int]  # the number of each node
    barriers: dict[fx.Node, int]  # how many nodes before each node write to memory

    @classmethod
    def of(cls, graph: fx.Graph) -> Place:
        """Read the order and the writes of a graph as it is now."""
        return cls({node: count for count, node in enumerate(graph.nodes)}, barriers(graph))


@dataclasses.dataclass(frozen=True)
class Segment:
    """A run of pointwise nodes that become one functor, or a single dropout, cast or save."""

    nodes: tuple[fx.Node, ...]  # the nodes, in order; the last one's result goes on
    entry: fx.Node  # the node whose result comes in
    kind: str  # "pointwise", "dropout", "cast" or "save"


def why_not(node: fx.Node, like: fx.Node, centre: fx.Node, place: Place) -> str:
    """Why a node cannot be computed in the kernel of another; empty if it can.

    `like` is a node whose result has the shape of what the kernel computes, `centre` the kernel's
    reduction or product.
    """
    made, shape = example(node), example(like)
    if made is None or shape is None or node.op not in ("call_function", "call_method"):
        return "it is an input"
    known_kind = is_pointwise(node) or cast_of(node) or dropout_of(node)
    if not known_kind:
        return "no functor can hold it" if is_elementwise(node) else "not elementwise"
    if not same_shape(made.shape, shape.shape):
        return "its shape is not that of what it would be fused with"
    if place.barriers[node] != place.barriers[centre]:
        return "something is written in place between it and what it would be fused with"
    if made.dtype is not torch.bool and is_double(node) != is_double(centre):
        return "it is computed in another precision"
    for one in tensors_of(node):
        given = example(one)
        if given is None or given.device != made.device:
            return "it reads a tensor of another device"
        if given.dtype is torch.float64 and given.dim() and not is_double(centre):
            return "it reads a tensor in double"
    return ""


def own_kind(node: fx.Node) -> str:
    """The kind of functor that a node becomes alone, "dropout" or "cast"; empty for others."""
    drop, cast = dropout_of(node), cast_of(node)
    if drop is not None:
        return "dropout" if drop[1] else ""
    if cast is not None:
        return "" if widens(node) else "cast"
    return ""


def ancestors(node: fx.Node, region: Collection[fx.Node]) -> set[fx.Node]:
    """The nodes of a region on which a node of it depends, itself included."""
    found, todo = set(), [node]
    while todo:
        one = todo.pop()
        if one in region and one not in found:
            found.add(one)
            todo += tensors_of(one)
    return found


def parallel_node(
    special: list[fx.Node], ends: list[fx.Node], region: set[fx.Node]
) -> fx.Node | None:
    """A dropout, cast or save that runs in parallel to the chain, and must stay outside."""
    after = {one for end in ends for one in ancestors(end, region)}
    for node in special:
        if node not in after:
            return node
        before = ancestors(node, region)
        beside = after - before
        if any(one in before and one is not node for n in beside for one in tensors_of(n)):
            return node
        after = before
    return None


def segment_of(
    end: fx.Node, region: Collection[fx.Node], own: Callable[[fx.Node], bool]
) -> tuple[set[fx.Node], list[fx.Node]]:
    """The pointwise nodes between two special ones, with the tensors that they read."""
    nodes, edge, todo = set(), [], [end]
    while todo:
        node = todo.pop()
        if node in nodes:
            continue
        nodes.add(node)
        for one in tensors_of(node):
            if one in region and not own(one):
                todo.append(one)
            elif one not in edge:
                edge.append(one)
    return nodes, edge


def with_sides(
    inside: set[fx.Node],
    start: fx.Node,
    centre: fx.Node,
    place: Place,
    out: Collection[fx.Node],
) -> set[fx.Node]:
    """Add side inputs of full size that no other node reads, as the activation of a gate."""
    todo = [one for node in inside - {start} for one in tensors_of(node)]
    while todo:
        node = todo.pop()
        if node in inside or node in out or own_kind(node) or {*node.users} - inside:
            continue
        if not why_not(node, start, centre, place):
            inside = inside | {node}
            todo += tensors_of(node)
    return inside


def chain_down(
    start: fx.Node,
    end: fx.Node,
    inside: Collection[fx.Node],
    order: dict[fx.Node, int],
    saved: Collection[fx.Node] = (),
) -> list[Segment]:
    """The STORE as segments, from the root to its last node."""

    def is_edge(node: fx.Node) -> bool:
        return node in saved or bool(own_kind(node))

    segments: list[Segment] = []
    current, rest = end, {*inside} - {start}
    while True:
        if current in saved:
            segments.append(Segment((), current, "save"))
        if current is start:
            return segments[::-1]
        kind = own_kind(current)
        if kind:
            entry = current.all_input_nodes[0]
            segments.append(Segment((current,), entry, kind))
        else:
            nodes, edge = segment_of(current, rest, is_edge)
            entry = next(one for one in edge if one in inside)
            ordered = tuple(sorted(nodes, key=order.__getitem__))
            segments.append(Segment(ordered, entry, "pointwise"))
        current = entry


#: The classes by the text of their functions, which live as long as the process, as kernels do.
_made: dict[str, Any] = {}

#: The text of each class's function, for people to read.
_SOURCES: dict[type[Functor], str] = {}

_SYMBOLS = {
    **{"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"},
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    **{"and_": "&", "or_": "|", "xor": "^"},
}


def source_of(declared: Functor) -> str | None:
    """The generated Python source of a functor; None for functors from elsewhere."""
    return _SOURCES.get(type(declared))


def generated(
    nodes: Sequence[fx.Node], entry: fx.Node, operands: Mapping[fx.Node, str], label: str
) -> Functor:
    """Generate a functor that computes a sequence of pointwise nodes.

    It gives the last one's result; the result of `entry` is the value. `operands` has the names of
    the other tensors that the nodes read, `label` what the function is called.

    Raises:
        UnsupportedError: No functor can hold an operation.
    """
    names: dict[fx.Node, str] = {entry: "x"}
    parameters, integers = [], []
    lines = []
    for count, (node, _) in enumerate(operands.items()):
        names[node] = parameter = _letter(count)
        parameters.append(parameter)
        if tensor_of(node).dtype is torch.bool:
            integers.append(parameter)
            names[node] = f"({parameter} != 0)"
    for count, node in enumerate(nodes):
        text = _call(node, names)
        if text in names.values():  # a conversion that rounds nothing
            names[node] = text
            continue
        last = node is nodes[-1]
        name = f"t{count}"
        lines.append(f"    return {text}" if last else f"    {name} = {text}")
        names[node] = name
    if not lines or not lines[-1].startswith("    return"):
        lines.append(f"    return {names[nodes[-1]]}")
    head = f"def {label}({', '.join(['x', *parameters])}):"
    body = "\n".join([head, *lines, ""])
    mark = f"@fo.functor(integers={integers!r})" if integers else "@fo.functor"
    text = f"{mark}\n{body}".rstrip()
    kind = _made.get(text)
    if kind is None:
        space: dict[str, Any] = {
            "torch": torch,
            "inf": torch.inf,
            "nan": torch.nan,
            "_operator": operator,
        }
        exec(body, space)
        function = space[label]
        function.__module__ = "fusedops.graph.segments"
        kind = _made[text] = functor(integers=integers)(function)
        _SOURCES[kind] = text
    made: Functor = kind(*operands.values())
    return made


def _letter(count: int) -> str:
    return "abcdefghijklmnopqrsuvw"[count] if count < 22 else f"a{count}"


def _call(node: fx.Node, names: Mapping[fx.Node, str]) -> str:
    """The expression of one node."""

    def of(one: Any) -> str:
        if isinstance(one, fx.Node):
            return names[one] if one in names else repr(number(one))
        return repr(one)

    name = name_of(node)
    if name in (*CASTS, "dropout"):
        return of(first_of(node))
    given = [of(one) for one in node.args]
    named = [f"{key}={of(one)}" for key, one in node.kwargs.items()]
    if node.op == "call_method":
        return f"{given[0]}.{name}({', '.join([*given[1:], *named])})"
    plain = getattr(node.target, "__module__", "") == "_operator"
    if plain and name == "neg":
        return f"-{given[0]}"
    if plain and name in _SYMBOLS and len(given) == 2:
        return f"{given[0]} {_SYMBOLS[name]} {given[1]}"
    target: Any = node.target
    place = fx.node._get_qualified_name(target).replace("torch._C._nn.", "torch.nn.functional.")
    return f"{place}({', '.join([*given, *named])})"
