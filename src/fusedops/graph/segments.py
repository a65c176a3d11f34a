# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of a chain in a graph: which nodes a kernel may compute, and in which functors.

A declaration is a chain, so a node that is a functor of its own (a dropout, a cast that rounds, a
value that is saved) must be passed by everything that goes on: what runs beside it stays outside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

import torch
from torch import fx

from fusedops.graph.nodes import example, same_shape, tensors_of
from fusedops.graph.pointwise import (
    cast_of,
    dropout_of,
    is_double,
    is_elementwise,
    is_pointwise,
    widens,
)

__all__ = [
    "Place",
    "Segment",
    "ancestors",
    "chain_down",
    "is_own",
    "odd_one",
    "segment_of",
    "why_not",
    "with_sides",
]


@dataclasses.dataclass(frozen=True)
class Place:
    """Facts of a graph that regions ask for.

    Attributes:
        order: The number of each node.
        barriers: How many nodes before each node write to memory.
    """

    order: dict[fx.Node, int]
    barriers: dict[fx.Node, int]


@dataclasses.dataclass(frozen=True)
class Segment:
    """A part of a chain: elementwise nodes, or one node that is a functor of its own.

    Attributes:
        nodes: The nodes, in order; the last one's result goes on.
        entry: The node whose result comes in.
        kind: "pointwise", "dropout", "cast" or "save".
    """

    nodes: tuple[fx.Node, ...]
    entry: fx.Node
    kind: str


def why_not(node: fx.Node, like: fx.Node, centre: fx.Node, place: Place) -> str:
    """Why a node cannot be computed in the kernel of another; empty if it can.

    Args:
        node: The node.
        like: One whose result has the shape of what the kernel computes.
        centre: The reduction or product of the kernel.
        place: Facts of the graph.
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


def is_own(node: fx.Node) -> str:
    """The kind of the functor that a node is by itself; empty for what a segment holds."""
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


def odd_one(special: list[fx.Node], ends: list[fx.Node], region: set[fx.Node]) -> fx.Node | None:
    """A special node that what goes on does not all pass; special ones latest first."""
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
    """The elementwise nodes up to the next that are functors of their own, and what they read."""
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
    """The nodes, and those of x's shape that only these read, such as the activation of a gate."""
    todo = [one for node in inside - {start} for one in tensors_of(node)]
    while todo:
        node = todo.pop()
        if node in inside or node in out or is_own(node) or {*node.users} - inside:
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
    """The segments of the nodes inside from one, which is not among them, to the last."""

    def is_edge(node: fx.Node) -> bool:
        return node in saved or bool(is_own(node))

    segments: list[Segment] = []
    current, rest = end, {*inside} - {start}
    while True:
        if current in saved:
            segments.append(Segment((), current, "save"))
        if current is start:
            return segments[::-1]
        kind = is_own(current)
        if kind:
            entry = current.all_input_nodes[0]
            segments.append(Segment((current,), entry, kind))
        else:
            nodes, edge = segment_of(current, rest, is_edge)
            entry = next(one for one in edge if one in inside)
            ordered = tuple(sorted(nodes, key=order.__getitem__))
            segments.append(Segment(ordered, entry, "pointwise"))
        current = entry
