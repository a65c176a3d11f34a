# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Check an op with two products: against its layers, and its gradients against double.

What stands between its products in a backward pass is checked by itself as well.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedops.bind.bind import floating
from fusedops.product.autograd import W2, Between
from fusedops.product.epilogue import Epilogue
from fusedops.product.linear import Linear
from fusedops.product.mlp import MLP
from fusedops.product.product_backward import chosen
from fusedops.reference.error_bound import Expected, expected
from fusedops.reference.product_bound import expected_product
from fusedops.reference.unfused import gradients_of
from fusedops.terminal import shown
from fusedops.testing.products import ProductCase, check_product, expected_of
from fusedops.testing.report import SEED, Compared, Report, same_bits, worst

__all__ = ["GradientComparison", "check_pair"]


class GradientComparison:
    """The gradients between two products, compared with any number of runs.

    Args:
        epilogue: What made h of z.
        between: What gives the gradients.
        others: The operands and options of the epilogue that are no tensors.
        dy: The gradient of y, of shape (..., N).
        w2: The weight, of shape (N, H).
        tensors: z, as "x", and the other tensors that h was made of, by name.
        wanted: The names whose gradients are wanted: `W2`, "x" for z, operands.
    """

    def __init__(
        self,
        epilogue: Epilogue,
        between: Between,
        others: Mapping[str, Any],
        dy: Tensor,
        w2: Tensor,
        tensors: Mapping[str, Tensor],
        wanted: Sequence[str],
    ) -> None:
        self._between, self._call = between, (dy, w2, {**tensors}, [*wanted])
        own = {**{key: one for key, one in tensors.items() if key != "x"}, **others}
        z = tensors["x"]
        with torch.no_grad():
            h = epilogue(z, **own)
        dh, spread = expected_product(torch.matmul, dy, w2)
        found = expected(epilogue.bind(z, own), {}, {"y": dh}, of_upstream={"y": spread})
        rows = [one.reshape(-1, one.shape[-1]) for one in (dy, h)]
        dw2, off = expected_product(torch.matmul, rows[0].mT, rows[1])
        found[f"gradient of {W2}"] = Expected(dw2, torch.zeros_like(dw2), off)
        self._want = {key: found[f"gradient of {key}"] for key in wanted}

    def again(self) -> list[Compared]:
        """Run the call once more, and compare it with what it should be."""
        with torch.no_grad():
            made = self._between(*self._call)
        found = zip(self._want.items(), made, strict=True)
        return [
            worst("between products", f"gradient of {'z' if key == 'x' else key}", one, want)
            for (key, want), one in found
        ]


def check_pair(op: MLP, factors: tuple[Any, ...], arguments: dict[str, Any]) -> Report:
    """Compare an op of two products with its layers to the bit, and check each of the layers.

    Gradients are also held to the bound in double. Where one kernel multiplies and goes back
    through the hidden chain, those that come of it are held to that alone.

    Raises:
        AssertionError: Something differs, or is out of its bound.
        TypeError, ValueError: An argument does not fit.
    """
    x, w1, w2 = (*factors, None, None, None)[:3]
    op.check(x, w1, w2)
    layers = Linear(op.hidden), Linear(op.store)
    given = [{k: v for k, v in arguments.items() if k in one.slots} for one in layers]
    options: dict[str, Any] = {"training": arguments.get("training", True)}
    dtype = {"dtype": arguments.get("dtype")}
    # The dropouts of the first layer come first.
    draws = [{"generator": (SEED, 0)}, {"generator": (SEED, layers[0].dropouts)}]

    def by_layers(x: Tensor, w1: Tensor, w2: Tensor, **all_of: Any) -> Any:
        first, second = ({k: all_of[k] for k in one} for one in given)
        h = layers[0](x, w1, **first, **options, **draws[0])
        return layers[1](h, w2, **second, **options, **draws[1], **dtype)

    def whole(*factors: Tensor, **all_of: Any) -> Any:
        return op(*factors, **all_of, **options, **draws[0], **dtype)

    operands = {k: v for k, v in arguments.items() if k in op.slots}
    tensors = {**dict(zip(op.inputs, (x, w1, w2), strict=True)), **operands}
    able = not any(one.epilogue.forward_only for one in layers)
    compared: list[Compared] = []
    with torch.enable_grad(), shown(f"check {op.name}: beside its layers"):
        found, upstream = _run(whole, op, tensors, able)
        other, _ = _run(by_layers, op, tensors, able)
    hidden = {"gradient of x", "gradient of w1", *(f"gradient of {name}" for name in given[0])}
    with torch.no_grad():
        h = layers[0](x, w1, **given[0], **options, **draws[0])
    dy = h.new_empty(*h.shape[:-1], w2.shape[0])
    epilogue = op.layers[0].that_adds(w1, given[0]).epilogue
    fused = chosen(epilogue, dy, w2, given[0]).tiling is not None
    for name, tensor in found.items():
        if fused and name in hidden:
            continue
        share = 0.0 if same_bits(tensor, other[name]) else math.inf
        compared.append(Compared("as layers", name, tensor.numel(), None, 0.0, 0.0, share))
    if able:
        second = ProductCase("second", (h, w2), given[1])
        streams = {name: found[name] for name in layers[1].epilogue.saves}
        wanted = expected_of(layers[1], second, {**options, **dtype, **draws[1]}, streams, upstream)
        of_h = wanted["gradient of x"]
        first = ProductCase("first", (x, w1), given[0])
        wanted = expected_of(
            layers[0],
            first,
            {**options, **draws[0]},
            {},
            {"y": of_h.value},
            {"y": of_h.allowed(h.dtype)},
        )
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
        try:
            report = check_product(layer, pair, {**own, **options, **more})
        except AssertionError as error:
            report = error.args[0]
        compared += [dataclasses.replace(c, case=f"{which}: {c.case}") for c in report.compared]
    report = Report(op.declaration, tuple(compared))
    if not report.passed:
        raise AssertionError(report)
    return report


def _run(
    call: Callable[..., Any], op: MLP, tensors: Mapping[str, Any], able: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs and gradients of a call by name, and the random gradients that arrive at it."""
    leaves = {k: tensors[k].detach().requires_grad_(able) for k in floating(tensors)}
    all_of = {**tensors, **leaves}
    factors = [all_of.pop(key) for key in op.inputs]
    made = call(*factors, **all_of)
    outputs = dict(zip(op.outputs, [made] if len(op.outputs) == 1 else made, strict=True))
    found = {name: one.detach() for name, one in outputs.items()}
    if not able:
        return found, {}
    source = torch.Generator(factors[0].device).manual_seed(SEED + 2)
    upstream = {
        name: torch.randn(one.shape, device=one.device, generator=source).to(one.dtype)
        for name, one in outputs.items()
    }
    got = gradients_of([*outputs.values()], [*leaves.values()], [*upstream.values()])
    found |= {f"gradient of {name}": one for name, one in zip(leaves, got, strict=True)}
    return found, upstream
