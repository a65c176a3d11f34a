# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A linear layer of a graph with what is elementwise after it: the nodes of one STORE.

A region is grown downwards from the product. A value on its way that is used elsewhere as well is
saved by the kernel, if all that the kernel reads is there before that use; else the chain ends
before it or there.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Collection, Mapping
from types import MappingProxyType

import torch
from torch import fx
from torch.nn import functional

from fusedops.functors import Bias, Functor
from fusedops.graph.chain import Chains
from fusedops.graph.nodes import FLOATS, arguments, example, same_shape, tensors_of, users_of
from fusedops.graph.reductions import Refused
from fusedops.graph.segments import (
    Place,
    Segment,
    ancestors,
    chain_down,
    is_own,
    odd_one,
    why_not,
    with_sides,
)
from fusedops.product import Linear
from fusedops.row_op import RowOp

__all__ = ["DeclaredProduct", "Product", "ProductRegion", "declare", "grow", "product_of"]

#: The layers by the text of their STORE: a graph names one by it, and may outlive the region.
_layers: dict[str, Linear] = {}


@dataclasses.dataclass(frozen=True)
class Product:
    """A linear layer.

    Attributes:
        node: The node whose result it is.
        x: The factor of shape (..., K).
        w: The factor of shape (N, K).
        bias: What is added, of shape (N,), or None.
    """

    node: fx.Node
    x: fx.Node
    w: fx.Node
    bias: fx.Node | None


@dataclasses.dataclass
class ProductRegion:
    """A product with what one kernel computes after it.

    Attributes:
        product: The product.
        nodes: All nodes that the kernel computes, in order, the product first.
        store: The segments after the product, in order; none where nothing joins.
        result: The node whose result is y.
        saved: The other nodes whose results are used outside.
        stops: Why the region ends where it does, by the node that is outside.
    """

    product: Product
    nodes: list[fx.Node]
    store: list[Segment]
    result: fx.Node
    saved: list[fx.Node]
    stops: dict[fx.Node, str]


@dataclasses.dataclass
class DeclaredProduct:
    """A declaration and its call.

    Attributes:
        op: The op.
        operands: What the call passes, by name: nodes, or numbers.
        outputs: The node of each further output, in the op's order.
        dtype: The dtype of y.
        steps: The functors after a bias that torch's product adds by itself.
    """

    op: Linear
    operands: dict[str, fx.Node | float]
    outputs: list[fx.Node]
    dtype: torch.dtype
    steps: tuple[Functor, ...]

    @property
    def works(self) -> bool:
        """Whether a step is more than a factor, a summand or a dtype, all of them numbers."""
        return any(
            not one.is_affine
            or any(isinstance(self.operands[o.name], fx.Node) for o in one.operands())
            for one in self.steps
        )


def product_of(node: fx.Node) -> Product | None:
    """The linear layer that a node calls; None if it calls none.

    Raises:
        Refused: It is one for which there is no op.
    """
    if node.op != "call_function" or node.target is not functional.linear:
        return None
    given = arguments(node, "input weight bias")
    x, w, bias = given.get("input"), given.get("weight"), given.get("bias")
    made, of_x, of_w = example(node), example(x), example(w)
    if made is None or of_x is None or of_w is None:
        return None
    if any(one.dtype not in FLOATS for one in (made, of_x, of_w)):
        raise Refused(f"it is computed in {made.dtype}, not in a float's dtype")
    if of_w.dim() != 2 or of_x.dim() == 0:
        raise Refused("its weight is no matrix")
    if made.dim() > 6:
        raise Refused("x has more than six dimensions")
    if bias is not None:
        of_bias = example(bias)
        if of_bias is None or not same_shape(of_bias.shape, of_w.shape[:1]):
            raise Refused("its bias is no vector")
    assert isinstance(x, fx.Node)
    assert isinstance(w, fx.Node)
    return Product(node, x, w, bias)


def grow(
    product: Product,
    place: Place,
    banned: Collection[fx.Node] = (),
    why: Mapping[fx.Node, str] = MappingProxyType({}),
) -> ProductRegion:
    """The largest region of a product, without the banned nodes; `why` has the known reasons."""
    start, order = product.node, place.order
    stops = dict(why)
    found = _joining(start, place, banned, stops)
    for end in sorted(found - {start}, key=order.__getitem__, reverse=True):
        inside = with_sides(ancestors(end, found), start, start, place, banned)
        outside = {
            one: [user for user in users_of(one) if user not in inside] for one in inside - {end}
        }
        saved = sorted((one for one in outside if outside[one]), key=order.__getitem__)
        if not all(_is_stored(one) for one in (end, *saved)):
            continue
        late = min((order[user] for one in saved for user in outside[one]), default=math.inf)
        leaves = {one for node in inside for one in tensors_of(node)} - inside
        if any(order[leaf] >= late for leaf in leaves):
            continue  # it would be needed before the kernel can run
        special = [one for one in inside - {start} if one in saved or is_own(one)]
        special.sort(key=order.__getitem__, reverse=True)
        if odd_one([*special, start], [end], inside) is None:
            store = chain_down(start, end, inside, order, saved)
            nodes = sorted(inside, key=order.__getitem__)
            return ProductRegion(product, nodes, store, end, saved, stops)
    return ProductRegion(product, [start], [], start, [], stops)


def _joining(
    start: fx.Node, place: Place, banned: Collection[fx.Node], stops: dict[fx.Node, str]
) -> set[fx.Node]:
    """The product, and all nodes after it that a kernel may compute with it, for some of its ends.

    What is computed from a value that something outside reads must not be read: so what is found is
    near the product, not all of a residual stream.
    """
    order = place.order
    found, due = {start}, {start: math.inf}
    heap = [(order[one], one) for one in users_of(start)]
    heapq.heapify(heap)
    seen = {*users_of(start)}
    while heap:
        node = heapq.heappop(heap)[1]
        before = [one for one in node.all_input_nodes if one in found]
        reason = "it is returned" if node.op == "output" else why_not(node, start, start, place)
        if isinstance(getattr(node.target, "op", None), RowOp):
            reason = "a row op reads it, which has what is elementwise before it"
        if not reason and node in banned:
            reason = stops.get(node, "it is left out")
        if not reason:
            late = min(due[up] for one in before for up in ancestors(one, found))
            if any(order[one] >= late for one in tensors_of(node) if one not in found):
                reason = "it reads what is computed from a value that would have to be saved"
        if reason:
            if node.op != "output":
                stops[node] = reason
            for one in before:
                due[one] = min(due[one], order[node])
            continue
        found.add(node)
        due[node] = math.inf
        for one in users_of(node):
            if one not in seen:
                seen.add(one)
                heapq.heappush(heap, (order[one], one))
    return found


def _is_stored(node: fx.Node) -> bool:
    """Whether a kernel can write the result of a node as it is."""
    made = example(node)
    return made is not None and made.dtype in FLOATS and made.is_contiguous()


def declare(region: ProductRegion) -> DeclaredProduct:
    """The declaration of a region.

    Raises:
        UnsupportedError: A functor cannot hold one of its nodes.
    """
    chains, bias = Chains("Linear"), region.product.bias
    store: list[Functor] = [] if bias is None else [Bias(chains.name("bias", bias))]
    store += chains.side(region.store, before=False)
    op = Linear(store)
    op = _layers.setdefault(op.epilogue.text, op)
    made = example(region.result)
    assert made is not None
    given = {name: chains.operands[name] for name in op.slots}
    steps = op.store
    added = steps[0].adds if steps else None
    if added is not None:
        first = example(given[added])
        steps = steps[1:] if first is not None and first.dim() == 1 else steps
    return DeclaredProduct(op, given, chains.saved, made.dtype, steps)
