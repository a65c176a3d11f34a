# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The pass over a captured graph for linear layers: each that pays becomes one call of a `Linear`.

It runs behind the pass for row ops, so what a softmax or a norm has taken is not there any more.
What pays, in "auto", is one kernel for a product and its STORE: where it is chosen for the sizes
that the graph was captured with (docs/gemm.md), and no gradient reads the product. For one that
does, as a GELU's, the kernel has to write the product too, and what it saves shrinks to the read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusedops.errors import FusedOpsError
from fusedops.generate.target import Target
from fusedops.graph.nodes import barriers, example, hint, read_as, transforms
from fusedops.graph.product_region import (
    DeclaredProduct,
    Product,
    ProductRegion,
    declare,
    grow,
    product_of,
)
from fusedops.graph.reductions import Refused
from fusedops.graph.rewrite import check_tensors, put_in_place
from fusedops.graph.segments import Place
from fusedops.product import Linear
from fusedops.product.choice import (
    able,
    chosen_for,
    gradient_reads_product,
    product_call,
    why_never,
)
from fusedops.product.torch_op import call_in_graph

__all__ = ["PRODUCTS", "FoundProduct", "check_option", "rewrite_products"]

#: What the backend's option may be.
PRODUCTS = ("auto", "off", "always")


@dataclasses.dataclass(frozen=True)
class FoundProduct:
    """A linear layer of a graph, and what became of it.

    Attributes:
        name: The name of its node.
        op: The declaration that it is fused into; None where it is left.
        nodes: The names of the nodes that are fused, in order.
        why: Why it is left; or where the chain ends, by the name of the node there.
        drops: Whether the kernel draws a dropout mask, by this package's contract.
    """

    name: str
    op: Linear | None
    nodes: tuple[str, ...]
    why: dict[str, str]
    drops: bool = False


def check_option(products: Any) -> str:
    """Raise ValueError unless it is a value of the backend's option "products"."""
    if products not in PRODUCTS:
        raise ValueError(
            f"backend 'fusedops': options['products'] must be one of "
            f"{', '.join(map(repr, PRODUCTS))}, got {products!r}"
        )
    return str(products)


def rewrite_products(graph_module: fx.GraphModule, products: str = "auto") -> list[FoundProduct]:
    """Put fused linear layers into a graph, in place, and say what was found.

    Args:
        graph_module: The graph, whose row ops are fused already.
        products: "auto" for what one kernel runs and pays, "always" for whatever can be declared.
    """
    if products == "off":
        return []
    graph = graph_module.graph
    transformed = bool([*transforms(graph)])
    found: list[FoundProduct] = []
    for node in list(graph.nodes):
        if node._erased:
            continue
        try:
            product = product_of(node)
            if product is None:
                continue
            if transformed:
                raise Refused(
                    "the graph holds a transform of torch.func, which sees into no kernel"
                )
            found.append(_one(graph, product, products == "always"))
        except Refused as reason:
            found.append(FoundProduct(node.name, None, (), {node.name: str(reason)}))
    if any(one.op is not None for one in found):
        graph.lint()
        graph_module.recompile()
    return found


def _one(graph: fx.Graph, product: Product, always: bool) -> FoundProduct:
    """Fuse one linear layer with what is after it, or say why not."""
    node = product.node
    check_tensors(product.x, (product.x, product.w, product.bias))
    made = example(node)
    assert made is not None
    target = None
    if not always:
        try:
            target = Target.of(made.device)
        except FusedOpsError as error:  # the GPU is older than all that kernels are built for
            raise Refused(_short(error)) from error
        never = why_never(made.dtype, target)
        if never:
            raise Refused(never)
    order = {one: count for count, one in enumerate(graph.nodes)}
    place = Place(order, barriers(graph))
    banned: set[fx.Node] = set()
    known: dict[fx.Node, str] = {}
    while True:
        region = grow(product, place, banned, known)
        stops = {one.name: why for one, why in region.stops.items()}
        try:
            declared = declare(region)
            break
        except FusedOpsError as error:  # no functor can hold a node: leave the segments out
            more = {one.nodes[-1] for one in region.store if one.nodes} - banned
            if not more:
                raise Refused(_short(error)) from error
            banned |= more
            known.update(dict.fromkeys(more, _short(error)))
    if not declared.steps:
        why = "torch's product has all of it"
        if stops:
            why = f"nothing after it can join: {'; '.join(dict.fromkeys(stops.values()))}"
        return FoundProduct(node.name, None, (), {node.name: why})
    lower = read_as(region.result)
    if lower is not None:
        declared = dataclasses.replace(declared, dtype=lower)
    if target is not None:
        why = _why_it_does_not_pay(region, declared, target)
        if why:
            return FoundProduct(node.name, None, (), {node.name: why})
    names = tuple(one.name for one in region.nodes)
    call = (
        _caller(declared.op),
        (product.x, product.w),
        {**declared.operands, "dtype": declared.dtype},
    )
    old = [region.result, *declared.outputs]
    put_in_place(graph, region.nodes, old, call, declared.dtype, order)
    return FoundProduct(node.name, declared.op, names, stops, declared.op.dropouts > 0)


def _why_it_does_not_pay(region: ProductRegion, declared: DeclaredProduct, target: Target) -> str:
    """Why a region is left, in "auto"; empty where one kernel runs it and is faster."""
    if not declared.works:
        return "no more than a bias, numbers and a dtype follow it"
    epilogue = declared.op.epilogue
    if not able(epilogue):
        return "amax and 8-bit outputs are not supported in the epilogue of a GEMM"
    if gradient_reads_product(epilogue, _wanted(region, declared)):
        return "its gradient reads the product, which one kernel would have to write as well"
    product = region.product
    x, w = example(product.x), example(product.w)
    assert x is not None
    assert w is not None
    if not (x.is_contiguous() and w.is_contiguous()):
        return "its factors are not contiguous, and one kernel reads them by bulk copies"
    made = example(product.node)
    assert made is not None
    rows = math.prod(map(hint, x.shape[:-1]))
    sizes = (rows, hint(w.shape[0]), hint(w.shape[1]), 1)
    operands = {name: _as_captured(one) for name, one in declared.operands.items()}
    # By the one of it that a call asks for.
    epilogue = declared.op.that_adds(_as_captured(product.w), operands).epilogue
    writes = len(epilogue.outputs) - 1
    call = product_call(epilogue, epilogue.text, sizes, made.dtype, operands, 0, writes)
    choice = chosen_for(call, target)
    return "" if choice.tiling is not None else choice.why


def _short(error: FusedOpsError) -> str:
    """What is wrong, without the cure, which is for those who write declarations."""
    return str(error).split(";")[0]


def _wanted(region: ProductRegion, declared: DeclaredProduct) -> set[str]:
    """The operands of a STORE that have a gradient, and "x" if the product has."""
    results = [example(one) for one in (region.result, *declared.outputs)]
    if not any(one is not None and one.requires_grad for one in results):
        return set()
    given = {**declared.operands, "x": region.product.node}
    tensors = {name: example(one) for name, one in given.items()}
    return {name for name, one in tensors.items() if one is not None and one.requires_grad}


def _as_captured(value: fx.Node | float) -> Any:
    """An operand of the sizes that the graph was captured with, without memory."""
    given = example(value)
    if given is None:
        return value
    return torch.empty([*map(hint, given.shape)], dtype=given.dtype, device="meta")


def _caller(op: Linear) -> Callable[..., Any]:
    """A function that calls a layer, for a node to have a name; it keeps the layer alive."""

    def fused(x: torch.Tensor, w: torch.Tensor, /, **arguments: Any) -> Any:
        return call_in_graph(op, x, w, arguments)

    fused.__name__ = fused.__qualname__ = "fused_linear"
    fused.__module__ = __name__
    fused.op = op  # type: ignore[attr-defined]
    return fused
