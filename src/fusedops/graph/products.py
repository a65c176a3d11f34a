# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The pass over a captured graph for linear layers: each that pays becomes one call of a `Linear`.

It runs behind the pass for row ops, so what a softmax or a norm has taken is not there any more.
What pays, in "auto", is one kernel for a product and its STORE: where it is chosen for the sizes
that the graph was captured with (docs/explanation/products.md), and no gradient reads the product.
For one that does, as a GELU's, the kernel has to write the product too, and what it saves shrinks
to the read.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from fusedops.errors import FusedOpsError
from fusedops.functors import Functor
from fusedops.generate.target import Target
from fusedops.graph.chain import Declared, declare_layer
from fusedops.graph.nodes import example, hint, tensor_of
from fusedops.graph.reductions import Product, Refused, product_of
from fusedops.graph.region import Region
from fusedops.graph.rewrite import Found, call_of, check_tensors, fuse_each, largest, replace
from fusedops.graph.segments import Place
from fusedops.product import Linear
from fusedops.product.choice import (
    able,
    chosen_for,
    features_of_sizes,
    gradient_reads_product,
    why_never,
)
from fusedops.product.torch_op import call_in_graph

#: What the backend's option may be.
PRODUCTS = ("auto", "off", "always")


def check_option(products: Any) -> str:
    """Raise ValueError unless it is a value of the backend's option "products"."""
    if products not in PRODUCTS:
        raise ValueError(
            f"backend 'fusedops': options['products'] must be one of "
            f"{', '.join(map(repr, PRODUCTS))}, got {products!r}"
        )
    return str(products)


def rewrite_products(graph_module: fx.GraphModule, products: str = "auto") -> list[Found[Linear]]:
    """Replace linear layers of a graph by fused ones, in place; report on each layer.

    Row ops are fused already. `products` is "auto" for what one kernel runs and pays, "always" for
    whatever can be declared.
    """
    if products == "off":
        return []
    always = products == "always"
    return fuse_each(graph_module, product_of, lambda graph, one: _fuse(graph, one, always))


def _fuse(graph: fx.Graph, product: Product, always: bool) -> Found[Linear]:
    """Fuse one linear layer with its pointwise epilogue, or say why it is left."""
    check_tensors(product.source, (product.source, product.w, product.bias))
    target = None if always else _target(product)
    place = Place.of(graph)
    region, declared = largest(product, place, declare_layer)
    assert declared is not None
    stops = {node.name: _short(why) for node, why in region.stops.items()}
    if not _steps(declared):
        if stops:
            ends = "; ".join(dict.fromkeys(stops.values()))
            raise Refused(f"nothing after it can join: {ends}")
        raise Refused("torch's product has all of it")
    why = "" if target is None else _why_it_does_not_pay(region, declared, target)
    if why:
        raise Refused(why)
    op = declared.op

    def fused(x: torch.Tensor, w: torch.Tensor, /, **arguments: Any) -> Any:
        return call_in_graph(op, x, w, arguments)

    factors = (product.source, product.w)
    names = replace(graph, place, region, declared, call_of(op, fused, __name__), factors)
    return Found(product.node.name, product.what, op, names, stops, drops=op.dropouts > 0)


def _target(product: Product) -> Target:
    """The GPU that a linear layer runs on; raises Refused where no kernel would run it there."""
    made = tensor_of(product.node)
    try:
        target = Target.of(made.device)
    except FusedOpsError as error:  # the GPU is older than all that kernels are built for
        raise Refused(_short(error)) from error
    never = why_never(made.dtype, target)
    if never:
        raise Refused(never)
    return target


def _short(error: object) -> str:
    """An error's message without its cure, which addresses authors of declarations."""
    return str(error).split(";")[0]


def _steps(declared: Declared[Linear]) -> tuple[Functor, ...]:
    """The functors of the epilogue, less a bias that torch's GEMM adds."""
    steps = declared.op.store
    added = steps[0].adds if steps else None
    first = None if added is None else example(declared.operands[added])
    return steps[1:] if first is not None and first.dim() == 1 else steps


def _why_it_does_not_pay(
    region: Region[Product], declared: Declared[Linear], target: Target
) -> str:
    """Why a region is left, in "auto"; empty where one kernel runs it and is faster."""
    operands = declared.operands
    if not any(
        not one.is_affine or any(isinstance(operands[o.name], fx.Node) for o in one.operands())
        for one in _steps(declared)
    ):
        return "no more than a bias, numbers and a dtype follow it"
    epilogue = declared.op.epilogue
    if not able(epilogue):
        return "amax and 8-bit outputs are not supported in the epilogue of a GEMM"
    if gradient_reads_product(epilogue, _wanted(region, declared)):
        return "its gradient reads the product, which one kernel would have to write as well"
    product = region.root
    x, w = tensor_of(product.source), tensor_of(product.w)
    if not (x.is_contiguous() and w.is_contiguous()):
        return "its factors are not contiguous, and one kernel reads them by bulk copies"
    rows = math.prod(map(hint, x.shape[:-1]))
    sizes = (rows, hint(w.shape[0]), hint(w.shape[1]), 1)
    given = {name: _as_captured(one) for name, one in operands.items()}
    # By the one of it that a call asks for.
    epilogue = declared.op.that_adds(_as_captured(product.w), given).epilogue
    dtype = tensor_of(product.node).dtype
    choice = chosen_for(features_of_sizes(epilogue, sizes, dtype, given, target), target)
    return "" if choice.tiling is not None else choice.why


def _wanted(region: Region[Product], declared: Declared[Linear]) -> set[str]:
    """The epilogue's operands that require grad, and "x" if the GEMM's result does."""
    results = [example(one) for one in (region.result, *declared.outputs)]
    if not any(one is not None and one.requires_grad for one in results):
        return set()
    given = {**declared.operands, "x": region.root.node}
    tensors = {name: example(one) for name, one in given.items()}
    return {name for name, one in tensors.items() if one is not None and one.requires_grad}


def _as_captured(value: fx.Node | float) -> Any:
    """A meta tensor of the sizes that an operand was captured with; numbers as they are."""
    given = example(value)
    if given is None:
        return value
    return torch.empty([*map(hint, given.shape)], dtype=given.dtype, device="meta")
