# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What is elementwise before and after a reduction: the nodes that one kernel can compute with it.

A region is grown from the reduction, upwards through what it reads and downwards through what reads
it, as a chain (`segments`).
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from torch import fx

from fusedops.graph.nodes import (
    FLOATS,
    cast_of,
    dropout_of,
    example,
    same_shape,
    tensors_of,
    users_of,
)
from fusedops.graph.reductions import Reduction
from fusedops.graph.segments import (
    Place,
    Segment,
    ancestors,
    chain_down,
    is_own,
    odd_one,
    segment_of,
    why_not,
    with_sides,
)

__all__ = ["Region", "grow"]


@dataclasses.dataclass
class Region:
    """A reduction with what one kernel computes before and after it.

    Attributes:
        reduction: The reduction.
        x: The node that is the kernel's input.
        load, store: The segments before and after the reduction, in order.
        result: The node whose result is y.
        saved: The nodes before the reduction that are used outside of the region, too.
        stops: Why the region ends where it does, by the node that is outside.
    """

    reduction: Reduction
    x: fx.Node
    load: list[Segment]
    store: list[Segment]
    result: fx.Node
    saved: list[fx.Node]
    stops: dict[fx.Node, str]

    @property
    def nodes(self) -> list[fx.Node]:
        """All nodes that the kernel computes, in order of the chain."""
        before = [node for one in self.load for node in one.nodes]
        after = [node for one in self.store for node in one.nodes]
        return list(dict.fromkeys([*before, *self.reduction.nodes, *after]))

    @property
    def leaves(self) -> list[fx.Node]:
        """The nodes outside that the kernel reads, x first."""
        inside = {*self.nodes}
        own = [one for one in (self.reduction.gamma, self.reduction.beta) if one is not None]
        read = [one for node in self.nodes for one in tensors_of(node) if one not in inside]
        return list(dict.fromkeys([self.x, *own, *read]))


def grow(
    reduction: Reduction,
    place: Place,
    banned: Collection[fx.Node] = (),
    why: Mapping[fx.Node, str] = MappingProxyType({}),
) -> Region:
    """The largest region of a reduction, without the banned nodes; `why` has the known reasons."""
    stops = dict(why)
    out = {*banned}
    while True:
        x, load, saved, odd = _load(reduction, place, out, stops)
        if odd is None:
            break
        out.add(odd)
    used = {one: min(place.order[u] for u in _outside(one, load, reduction)) for one in saved}
    late = min(used.values(), default=None)
    before = {node for one in load for node in one.nodes} | {*reduction.nodes[:-1]}
    store, result = _store(reduction, place, out, stops, (late, before))
    region = Region(reduction, x, load, store, result, saved, stops)
    if late is not None and any(place.order[leaf] >= late for leaf in region.leaves):
        # It would be needed before the kernel can run: leave the first such value to its own node.
        early = min(used, key=used.__getitem__)
        stops[early] = "it is used before all that the kernel reads is there"
        return grow(reduction, place, {*out, early}, stops)
    return region


def _outside(node: fx.Node, load: Iterable[Segment], reduction: Reduction) -> list[fx.Node]:
    inside = {one for segment in load for one in segment.nodes} | {*reduction.nodes}
    return [user for user in users_of(node) if user not in inside]


def _load(
    reduction: Reduction, place: Place, out: Collection[fx.Node], stops: dict[fx.Node, str]
) -> tuple[fx.Node, list[Segment], list[fx.Node], fx.Node | None]:
    """x, the chain before the reduction, what it saves, and a node that must be left out if any."""
    source, order = reduction.source, place.order
    region: set[fx.Node] = set()
    saved: list[fx.Node] = []
    inner = {*reduction.nodes}
    heap, seen = [(-order[source], source)], {source}
    while heap:
        node = heapq.heappop(heap)[1]
        reason = why_not(node, source, reduction.node, place)
        users = [one for one in users_of(node) if one not in region and one not in inner]
        made = example(node)
        if not reason and node in out:
            reason = stops.get(node, "it is left out")
        if not reason and users and (made is None or made.dtype not in FLOATS):
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
            given = example(one)
            like = example(source)
            assert given is not None
            assert like is not None
            if one not in seen and same_shape(given.shape, like.shape):
                seen.add(one)
                heapq.heappush(heap, (-order[one], one))
    special = [one for one in region if one in saved or is_own(one) in ("dropout", "cast")]
    special.sort(key=order.__getitem__, reverse=True)
    odd = odd_one(special, [source] if source in region else [], region)
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
        is_own(one) for one in segment.nodes
    )


def _chain_up(
    reduction: Reduction, region: set[fx.Node], saved: list[fx.Node], order: dict[fx.Node, int]
) -> tuple[fx.Node | None, list[Segment]]:
    """x, and the segments of a region before a reduction."""
    segments: list[Segment] = []
    current, source = reduction.source, reduction.source
    while current in region:
        if current in saved:
            segments.append(Segment((), current, "save"))
        kind = is_own(current)
        if kind:
            entry = current.all_input_nodes[0]
            segments.append(Segment((current,), entry, kind))
            current = entry
            continue
        own = lambda one: one in saved or bool(is_own(one))  # noqa: E731
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
    """Which of the tensors that a segment reads is the value that comes in: the one farthest up."""
    like = example(source)
    assert like is not None

    def fits(node: fx.Node) -> bool:
        made = example(node)
        return made is not None and made.dtype in FLOATS and same_shape(made.shape, like.shape)

    def distance(node: fx.Node) -> int:
        """The most nodes between it and the end."""
        steps = [distance(user) for user in users_of(node) if user in nodes and user is not end]
        direct = [0] if end in node.users else []
        return 1 + max([*steps, *direct], default=-1)

    able = [one for one in edge if fits(one)]
    inside = [one for one in able if one in region]
    return max(inside or able, key=distance, default=None)


def _store(
    reduction: Reduction,
    place: Place,
    out: Collection[fx.Node],
    stops: dict[fx.Node, str],
    saving: tuple[int | None, set[fx.Node]],
) -> tuple[list[Segment], fx.Node]:
    """The chain after a reduction, and the node whose result is y."""
    late, before = saving
    start, order = reduction.node, place.order
    found = {start}
    heap = [(order[one], one) for one in users_of(start)]
    heapq.heapify(heap)
    seen = {*users_of(start)}
    while heap:
        node = heapq.heappop(heap)[1]
        reason = "" if node.op != "output" else "it is returned"
        reason = reason or why_not(node, start, start, place)
        if not reason and node in out:
            reason = stops.get(node, "it is left out")
        if not reason and late is not None:
            leaves = [one for one in tensors_of(node) if one not in found]
            if any(order[leaf] >= late or leaf in before for leaf in leaves):
                reason = "it reads a value that the kernel saves, or what is computed from one"
        if reason:
            if node.op != "output":
                stops[node] = reason
            continue
        found.add(node)
        for one in users_of(node):
            if one not in seen:
                seen.add(one)
                heapq.heappush(heap, (order[one], one))
    for end in sorted(found, key=order.__getitem__, reverse=True):
        inside = with_sides(ancestors(end, found), start, start, place, out)
        if any(user not in inside for one in inside - {end} for user in users_of(one)):
            continue
        made = example(end)
        if made is None or made.dtype not in FLOATS or not made.is_contiguous():
            continue
        special = [one for one in inside - {start} if is_own(one) in ("dropout", "cast")]
        special.sort(key=order.__getitem__, reverse=True)
        if odd_one([*special, start], [end], inside) is None:
            return chain_down(start, end, inside, order), end
    return [], start
