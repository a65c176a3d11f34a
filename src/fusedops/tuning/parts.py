# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What there is to tune: of a row op, of matrix products, of an `MLP`, and of recorded calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops.bind.bind import floating
from fusedops.declare.text import read
from fusedops.prebuild.recording import Signature
from fusedops.product import MLP, Linear, Matmul
from fusedops.product.choice import bind_store, gradient_reads_product
from fusedops.product.epilogue import Epilogue
from fusedops.product.factors import factor_dtype
from fusedops.product.single import SingleProduct
from fusedops.tuning import product
from fusedops.tuning.problem import Problem


class Part(NamedTuple):
    """One thing that is tuned: a pass of a row op, or the implementation of a product."""

    name: str  # what to call it
    problem: Callable[..., Problem]  # gives the problem on a GPU, by keyword `device`
    any_rows: bool = False  # whether what is found does not depend on the number of rows


def of_mlp(
    op: MLP,
    factors: Sequence[Tensor],
    arguments: Mapping[str, Any],
    *,
    forward: bool = True,
    backward: bool = True,
) -> list[Part]:
    """The parts of a call of an `MLP`; the problem of one that no fused GEMM runs raises why.

    Factors may have no memory. `forward` tunes both layers where no gradient is wanted; `backward`
    what a call that wants all gradients runs otherwise: the first layer, which keeps its product,
    and the gradient between the products.

    Raises:
        TypeError, ValueError: The call does not fit.
    """
    x, w1, w2 = factors
    op.check(x, w1, w2)
    h = torch.empty((*x.shape[:-1], w1.shape[0]), dtype=factor_dtype(x), device=x.device)
    pairs, layers = ((x, w1), (h, w2)), []
    for layer, (first, w), own in zip(op.layers, pairs, op.shared(arguments), strict=True):
        adding = layer.that_adds(w, own)
        bound = bind_store(adding.epilogue, first, w, own)
        options = {key: one for key, one in own.items() if key not in adding.slots}
        call = functools.partial(
            product.of_product, adding, bound, {"x": first, "w": w}, options=options
        )
        layers.append((call, adding.epilogue, bound, options))
    found = []
    if forward:
        names = ("first layer", "second layer")
        found += [Part(name, call) for name, (call, *_) in zip(names, layers, strict=True)]
    if backward:
        call, epilogue, bound, options = layers[0]
        wanted = [k for k in floating(bound.operands) if k not in epilogue.undifferentiated]
        if not epilogue.forward_only and gradient_reads_product(epilogue, {"x", *wanted}):
            keeping = functools.partial(call, keeps=True)
            found.append(Part("first layer, keeping its product", keeping))
        dy = h.new_empty((*h.shape[:-1], w2.shape[0]))
        gradient = functools.partial(
            product.of_gradient, epilogue, bound, {"x": dy, "w": w2}, wanted, options=options
        )
        found.append(Part("gradient between the products", gradient))
    return found


def of_recorded(
    signatures: Iterable[Signature],
    *,
    training: bool = True,
    forward: bool = True,
    backward: bool = True,
) -> list[Part]:
    """The parts of recorded calls: matrix products, and gradients between two of them.

    `training` says whether dropouts drop, `forward` and `backward` which of both are tuned.

    Raises:
        TypeError, ValueError, UnsupportedError: A signature is that of a call that would raise so.
    """
    found = []
    for number, one in enumerate(signatures, 1):
        if one.factors and not one.of_loss and (backward if one.wanted else forward):
            found.append(_of_line(one, number, training))
    return found


def _of_line(one: Signature, number: int, training: bool) -> Part:
    chain = read(one.op)
    functors = (*chain.load, *chain.store)
    z, operands, given = one.read()
    options = {"training": training, **{k: v for k, v in given.items() if k == "dtype"}}
    factors = one.read_factors()
    if one.wanted:
        epilogue = Epilogue(MLP.__name__, functors)
        bound = epilogue.bind(z, {**operands, **options})
        call = epilogue, bound, factors, frozenset(one.wanted) - {"x"}
        gradient = functools.partial(product.of_gradient, *call, options=options)
        return Part(f"call {number}, gradient between products", gradient)
    op = (Linear if factors["w"].dim() == 2 else Matmul)(functors)
    bound = op.epilogue.bind(z, {**operands, **options})
    kept = _that_keeps_nothing(op)
    keeps = kept is not None
    layer = functools.partial(
        product.of_product, kept or op, bound, factors, options=options, keeps=keeps
    )
    return Part(f"call {number}, product", layer)


def _that_keeps_nothing(op: SingleProduct) -> SingleProduct | None:
    """The layer of which `op` is the variant that keeps its product; None if it is not one."""
    at = int(op.has_added is not None)
    if not any(one.saves for one in op.store[at : at + 1]):
        return None
    plain = type(op)([*op.store[:at], *op.store[at + 1 :]])
    return plain if plain.that_keeps() == op else None
