# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""An `MLP` compared with its two layers to the bit, and its gradients with float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedops.product.autograd import W2, Between
from fusedops.product.epilogue import Epilogue
from fusedops.product.linear import Linear
from fusedops.product.mlp import MLP
from fusedops.product.product_backward import chosen
from fusedops.reference.error_bound import Expected, expected
from fusedops.reference.product_bound import expected_product
from fusedops.terminal import shown
from fusedops.testing.comparison import Case, Comparison, called, compare, truth
from fusedops.testing.report import SEED, Compared, same_bits, worst


def compare_backward(
    epilogue: Epilogue,
    between: Between,
    others: Mapping[str, Any],
    dy: Tensor,
    w2: Tensor,
    tensors: Mapping[str, Tensor],
    wanted: Sequence[str],
) -> Comparison:
    """Compare the gradients between the two products of an `MLP`.

    `between` gives the gradients. dy has shape (..., N), w2 (N, H); the other arguments are those
    of `product.autograd.between_products`.
    """
    own = {**{key: one for key, one in tensors.items() if key != "x"}, **others}
    z = tensors["x"]
    with torch.no_grad():
        h = epilogue(z, **own)
    dh, spread = expected_product(torch.matmul, dy, w2)
    of_key = expected(epilogue.bind(z, own), {}, {"y": dh}, of_upstream={"y": spread})
    rows = [one.reshape(-1, one.shape[-1]) for one in (dy, h)]
    dw2, off = expected_product(torch.matmul, rows[0].mT, rows[1])
    of_key[f"gradient of {W2}"] = Expected(dw2, torch.zeros_like(dw2), off)
    names = [f"gradient of {'z' if key == 'x' else key}" for key in wanted]
    want = {name: of_key[f"gradient of {key}"] for name, key in zip(names, wanted, strict=True)}

    def run() -> dict[str, Tensor]:
        with torch.no_grad():
            made = between(dy, w2, {**tensors}, [*wanted])
        return dict(zip(names, made, strict=True))

    return Comparison("between products", run, lambda found: want)


def compare_layers(op: MLP, factors: Sequence[Any], arguments: Mapping[str, Any]) -> list[Compared]:
    """Compare an `MLP` with two `Linear` calls to the bit, and check each of the layers.

    Gradients are also held to the bound in double. Where one kernel multiplies and goes back
    through the hidden chain, those that come of it are held to that alone.

    Raises:
        TypeError, ValueError: An argument does not fit.
    """
    x, w1, w2 = (*factors, None, None, None)[:3]
    op.check(x, w1, w2)
    layers = Linear(op.hidden), Linear(op.store)
    given = [{k: v for k, v in arguments.items() if k in one.slots} for one in layers]
    training = {"training": arguments.get("training", True)}
    dtype = {"dtype": arguments.get("dtype")}
    options: tuple[dict[str, Any], dict[str, Any]] = (
        {**training, "generator": (SEED, 0)},  # the dropouts of the first layer come first
        {**training, **dtype, "generator": (SEED, layers[0].dropouts)},
    )

    def by_layers(x: Tensor, w1: Tensor, w2: Tensor, **all_of: Any) -> Any:
        first, second = ({k: all_of[k] for k in one} for one in given)
        h = layers[0](x, w1, **first, **options[0])
        return layers[1](h, w2, **second, **options[1])

    tensors = dict(zip(op.inputs, (x, w1, w2), strict=True))
    operands = {k: v for k, v in arguments.items() if k in op.slots}
    case = Case("as layers", {**tensors, **operands})
    compared: list[Compared] = []
    with torch.enable_grad(), shown(f"check {op.name}: beside its layers"):
        found, upstream = called(op, case, {**options[0], **dtype})
        other, _ = called(op, case, {}, by_layers)
    with torch.no_grad():
        h = layers[0](x, w1, **given[0], **options[0])
    hidden = {"gradient of x", "gradient of w1", *(f"gradient of {name}" for name in given[0])}
    dy = h.new_empty(*h.shape[:-1], w2.shape[0])
    epilogue = op.layers[0].that_adds(w1, given[0]).epilogue
    fused = chosen(epilogue, dy, w2, given[0]).tiling is not None
    for name, tensor in found.items():
        if not (fused and name in hidden):
            share = 0.0 if same_bits(tensor, other[name]) else math.inf
            compared.append(Compared(case.name, name, tensor.numel(), None, 0.0, 0.0, share))
    if upstream:
        second = Case("second", {"x": h, "w": w2, **given[1]})
        of_h = truth(layers[1], second, options[1], found, upstream)["gradient of x"]
        first = Case("first", {"x": x, "w": w1, **given[0]})
        error = {"y": of_h.allowed(h.dtype)}
        wanted = truth(layers[0], first, options[0], {}, {"y": of_h.value}, error)
        wanted["gradient of w1"] = wanted.pop("gradient of w")
        both = {f"gradient of {name}" for name in {*given[0]} & {*given[1]}}
        compared += [
            worst("in double", name, found[name], wanted[name])
            for name in found
            if name in hidden - both
        ]
    with torch.no_grad():
        h = layers[0](x, w1, **given[0], training=False)
    inputs: tuple[Any, ...] = (("first", (x, w1), {}), ("second", (h, w2), dtype))
    for layer, own, (which, pair, more) in zip(layers, given, inputs, strict=True):
        of_layer = compare(layer, pair, {**own, **training, **more})
        compared += [dataclasses.replace(c, case=f"{which}: {c.case}") for c in of_layer]
    return compared
