# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Regions of a captured graph: a reduction or linear layer with the nodes that one kernel computes.

A region is grown from its root as a chain (`segments`): upwards through what a reduction reads, and
downwards through what reads the result.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from torch import fx

from fusedops.functors.operands import FLOATING
from fusedops.graph.nodes import (
    cast_of,
    dropout_of,
    example,
    same_shape,
    tensor_of,
    tensors_of,
)
from fusedops.graph.reductions import Product, Reduction
from fusedops.graph.segments import (
    Place,
    Segment,
    ancestors,
    chain_down,
    own_kind,
    parallel_node,
    segment_of,
    why_not,
    with_sides,
)
from fusedops.row_op import RowOp

#: What a region is grown from.
Root = TypeVar("Root", bound=Reduction | Product)


@dataclasses.dataclass
class Region(Generic[Root]):
    """A softmax, norm or linear layer with its pointwise neighbours, as one kernel has them."""

    root: Root  # the reduction or the linear layer
    x: fx.Node  # the node that is the kernel's input
    #: The segments before and after the root, in order. A linear layer has no load.
    load: list[Segment]
    store: list[Segment]
    result: fx.Node  # the node whose result is y
    #: The other nodes that are used outside of the region, too: before a reduction, or after a
    #: linear layer.
    saved: list[fx.Node]
    stops: dict[fx.Node, str]  # why the region ends where it does, by the node that is outside

    @property
    def nodes(self) -> list[fx.Node]:
        """All nodes that the kernel computes, in order of the chain."""
        before = [node for one in self.load for node in one.nodes]
        after = [node for one in self.store for node in one.nodes]
        return list(dict.fromkeys([*before, *self.root.nodes, *after]))

    @property
    def leaves(self) -> list[fx.Node]:
        """The nodes outside that the kernel of a reduction reads, x first."""
        inside, own = {*self.nodes}, []
        if isinstance(self.root, Reduction):
            given = (self.root.gamma, self.root.beta, self.root.target)
            own = [one for one in given if one is not None]
        read = [one for node in self.nodes for one in tensors_of(node) if one not in inside]
        return list(dict.fromkeys([self.x, *own, *read]))


def grow(
    root: Root,
    place: Place,
    banned: Collection[fx.Node] = (),
    why: Mapping[fx.Node, str] = MappingProxyType({}),
) -> Region[Root]:
    """The largest region around a root, without the banned nodes; `why` has the known reasons."""
    stops = dict(why)
    out = {*banned}
    core: Reduction | Product = root
    if isinstance(core, Product):
        store, result, saved = _store(core.node, place, out, stops, saves=True)
        return Region(root, core.source, [], store, result, saved, stops)
    while True:
        x, load, saved, odd = _load(core, place, out, stops)
        if odd is None:
            break
        out.add(odd)
    inside = {node for one in load for node in one.nodes} | {*core.nodes}
    used = {one: min(place.order[u] for u in one.users if u not in inside) for one in saved}
    late = min(used.values(), default=math.inf)
    store, result = [], core.node
    if core.has_result:
        store, result, _ = _store(
            core.node, place, out, stops, late=late, before=inside - {core.node}
        )
    region = Region(root, x, load, store, result, saved, stops)
    if any(place.order[leaf] >= late for leaf in region.leaves):
        # It would be needed before the kernel can run: leave the first such value to its own node.
        early = min(used, key=used.__getitem__)
        stops[early] = "it is used before all that the kernel reads is there"
        return grow(root, place, {*out, early}, stops)
    return region


def _load(
    reduction: Reduction, place: Place, out: Collection[fx.Node], stops: dict[fx.Node, str]
) -> tuple[fx.Node, list[Segment], list[fx.Node], fx.Node | None]:
    """Grow the LOAD: its input x, its segments, saved nodes, and a node to leave out, or None."""
    source, order = reduction.source, place.order
    region: set[fx.Node] = set()
    saved: list[fx.Node] = []
    inner = {*reduction.nodes}
    heap, seen = [(-order[source], source)], {source}
    while heap:
        node = heapq.heappop(heap)[1]
        reason = why_not(node, source, reduction.node, place)
        users = [one for one in node.users if one not in region and one not in inner]
        made = example(node)
        if not reason and node in out:
            reason = stops.get(node, "it is left out")
        if not reason and users and (made is None or made.dtype not in FLOATING):
            reason = "its truth values are used elsewhere"
        if not reason and users and not made.is_contiguous():  # type: ignore[union-attr]
            reason = "it is used elsewhere, and what a kernel saves is contiguous"
        if reason:
            if reason != "it is an input":
                stops[node] = reason
            continue
        region.add(node)
        if users:
            saved.append(node)
        for one in tensors_of(node):
            if one not in seen and same_shape(tensor_of(one).shape, tensor_of(source).shape):
                seen.add(one)
                heapq.heappush(heap, (-order[one], one))
    special = [one for one in region if one in saved or own_kind(one) in ("dropout", "cast")]
    special.sort(key=order.__getitem__, reverse=True)
    odd = parallel_node(special, [source] if source in region else [], region)
    if odd is not None:
        stops[odd] = "it runs beside another step that a chain would have to pass"
        return source, [], [], odd
    x, chain = _chain_up(reduction, region, saved, order)
    if x is None:
        odd = max(region, key=order.__getitem__)
        stops[odd] = "it broadcasts what it reads to a larger shape"
        return source, [], [], odd
    first = chain[0] if chain else None
    if first is not None and first.nodes[-1:] and first.nodes[-1] in saved and _is_idle(first):
        odd = first.nodes[-1]
        stops[odd] = "it is its input, unchanged"
        return source, [], [], odd
    return x, chain, saved, None


def _is_idle(segment: Segment) -> bool:
    """Whether a segment only passes its input on: a dropout without effect, say."""
    made, given = example(segment.nodes[-1]), example(segment.entry)
    if made is None or given is None or made.dtype is not given.dtype:
        return False
    return all(cast_of(one) or dropout_of(one) for one in segment.nodes) and not any(
        own_kind(one) for one in segment.nodes
    )


def _chain_up(
    reduction: Reduction, region: set[fx.Node], saved: list[fx.Node], order: dict[fx.Node, int]
) -> tuple[fx.Node | None, list[Segment]]:
    """The LOAD as segments, from its input x to the reduction; x is None if it is no chain."""
    segments: list[Segment] = []
    current, source = reduction.source, reduction.source
    while current in region:
        if current in saved:
            segments.append(Segment((), current, "save"))
        kind = own_kind(current)
        if kind:
            entry = current.all_input_nodes[0]
            segments.append(Segment((current,), entry, kind))
            current = entry
            continue
        own = lambda one: one in saved or bool(own_kind(one))  # noqa: E731
        nodes, edge = segment_of(current, region, own)
        found = _entry(current, nodes, edge, region, source)
        if found is None:
            return None, []
        ordered = tuple(sorted(nodes, key=order.__getitem__))
        segments.append(Segment(ordered, found, "pointwise"))
        current = found
    return current, segments[::-1]


def _entry(
    end: fx.Node,
    nodes: Collection[fx.Node],
    edge: list[fx.Node],
    region: Collection[fx.Node],
    source: fx.Node,
) -> fx.Node | None:
    """The tensor that carries the value into a segment, among all that the segment reads."""
    like = tensor_of(source)

    def fits(node: fx.Node) -> bool:
        made = example(node)
        return made is not None and made.dtype in FLOATING and same_shape(made.shape, like.shape)

    def distance(node: fx.Node) -> int:
        """The longest path from a node to the end of the segment."""
        steps = [distance(user) for user in node.users if user in nodes and user is not end]
        direct = [0] if end in node.users else []
        return 1 + max([*steps, *direct], default=-1)

    able = [one for one in edge if fits(one)]
    inside = [one for one in able if one in region]
    return max(inside or able, key=distance, default=None)


def _store(
    start: fx.Node,
    place: Place,
    out: Collection[fx.Node],
    stops: dict[fx.Node, str],
    saves: bool = False,
    late: float = math.inf,
    before: Collection[fx.Node] = (),
) -> tuple[list[Segment], fx.Node, list[fx.Node]]:
    """Grow the STORE: its segments, the node that becomes y, and the nodes that are saved.

    Nodes of `out` are left out. `stops` takes why the chain ends, by the node that is outside. A
    value on the way that is used outside is saved if `saves` says so; else the chain ends there.
    `late` is the number of the first node that uses what the chain before the root saves, `before`
    are the other nodes of the kernel, up to the root.
    """
    order = place.order
    found = _joining(start, place, out, stops, saves, late, before)
    for end in sorted(found - {start}, key=order.__getitem__, reverse=True):
        inside = with_sides(ancestors(end, found), start, start, place, out)
        outside = {
            one: [user for user in one.users if user not in inside] for one in inside - {end}
        }
        saved = sorted((one for one in outside if outside[one]), key=order.__getitem__)
        if (saved and not saves) or not all(_is_stored(one) for one in (end, *saved)):
            continue
        first = min((order[user] for one in saved for user in outside[one]), default=math.inf)
        leaves = {one for node in inside for one in tensors_of(node)} - inside
        if any(order[leaf] >= first for leaf in leaves):
            continue  # it would be needed before the kernel can run
        special = [one for one in inside - {start} if one in saved or own_kind(one)]
        special.sort(key=order.__getitem__, reverse=True)
        if parallel_node([*special, start], [end], inside) is None:
            return chain_down(start, end, inside, order, saved), end, saved
    return [], start, []


def _joining(
    start: fx.Node,
    place: Place,
    out: Collection[fx.Node],
    stops: dict[fx.Node, str],
    saves: bool,
    late: float,
    before: Collection[fx.Node],
) -> set[fx.Node]:
    """All nodes after the root that one kernel may compute with it.

    What is computed from a value that something outside reads must not be read: so what is found is
    near the root, not all of a residual stream. The arguments are those of `_store`.
    """
    order = place.order
    found, due = {start}, {start: late}
    heap = [(order[one], one) for one in start.users]
    heapq.heapify(heap)
    seen = {*start.users}
    while heap:
        node = heapq.heappop(heap)[1]
        given = [one for one in node.all_input_nodes if one in found]
        reason = "it is returned" if node.op == "output" else why_not(node, start, start, place)
        if isinstance(getattr(node.target, "op", None), RowOp):
            reason = "a row op reads it, which has what is elementwise before it"
        if not reason and node in out:
            reason = stops.get(node, "it is left out")
        if not reason:
            first = min(due[up] for one in given for up in ancestors(one, found))
            leaves = [one for one in tensors_of(node) if one not in found]
            if any(order[one] >= first or one in before for one in leaves):
                reason = "it reads a value that the kernel saves, or what is computed from one"
                if saves:
                    reason = "it reads what is computed from a value that would have to be saved"
        if reason:
            if node.op != "output":
                stops[node] = reason
            if saves:
                for one in given:
                    due[one] = min(due[one], order[node])
            continue
        found.add(node)
        due[node] = math.inf
        for one in node.users:
            if one not in seen:
                seen.add(one)
                heapq.heappush(heap, (order[one], one))
    return found


def _is_stored(node: fx.Node) -> bool:
    """Whether a kernel can write the result of a node as it is."""
    made = example(node)
    return made is not None and made.dtype in FLOATING and made.is_contiguous()
