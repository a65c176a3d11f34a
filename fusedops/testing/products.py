# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Check an op with one product: outputs and gradients against double on the inputs as they are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fusedops.bind.bind import floating
from fusedops.bind.generator import draw
from fusedops.product.linear import Linear
from fusedops.product.mlp import MLP
from fusedops.product.single import SingleProduct
from fusedops.reference.error_bound import Expected, expected
from fusedops.reference.product_bound import expected_product, gradients_of_factors
from fusedops.testing.report import SEED, Compared, Report, cut, same_bits, worst

__all__ = ["ProductComparison", "check_pair", "check_product"]


@dataclasses.dataclass(frozen=True)
class _Case:
    name: str
    factors: tuple[Tensor, Tensor]
    operands: Mapping[str, Any]
    seed: int = SEED
    without: tuple[str, ...] = ()  # tensors whose gradients are not asked for


def check_product(op: SingleProduct, factors: tuple[Any, ...], arguments: dict[str, Any]) -> Report:
    """Compare a call with the product and the chain in double; as `check`.

    Raises:
        AssertionError: Something is out of its bound.
        TypeError, ValueError: An argument does not fit.
    """
    first, second = (*factors, None, None)[:2]
    training = arguments.pop("training", True)
    dtype = arguments.pop("dtype", None)
    op.check(first, second)
    options = {"training": training, "dtype": dtype}
    compared: list[Compared] = []
    with torch.enable_grad():
        for case in _cases(op, first.detach(), second.detach(), arguments):
            compared += _compare(op, case, options)
    # Where no gradient is wanted one kernel may run both (fused.py).
    alone = ProductComparison(op, (first.detach(), second.detach()), arguments, options)
    compared += alone.again()
    report = Report(op.declaration, tuple(compared))
    if not report.passed:
        raise AssertionError(report)
    return report


def check_pair(op: MLP, factors: tuple[Any, ...], arguments: dict[str, Any]) -> Report:
    """Compare an op of two products with its layers to the bit, and check each of the layers.

    Raises:
        AssertionError: Something differs, or is out of its bound.
        TypeError, ValueError: An argument does not fit.
    """
    x, w1, w2 = (*factors, None, None, None)[:3]
    op.check(x, w1, w2)
    layers = Linear(op.hidden), Linear(op.store)
    given = [{k: v for k, v in arguments.items() if k in one.slots} for one in layers]
    options = {"training": arguments.get("training", True)}
    dtype = {"dtype": arguments.get("dtype")}

    def by_layers(x: Tensor, w1: Tensor, w2: Tensor, **all_of: Any) -> Any:
        first, second = ({k: all_of[k] for k in one} for one in given)
        return layers[1](layers[0](x, w1, **first, **options), w2, **second, **options, **dtype)

    def whole(*factors: Tensor, **all_of: Any) -> Any:
        return op(*factors, **all_of, **options, **dtype)

    operands = {k: v for k, v in arguments.items() if k in op.slots}
    tensors = {**dict(zip(op.inputs, (x, w1, w2), strict=True)), **operands}
    able = not any(one.epilogue.forward_only for one in layers)
    compared, results = [], []
    with torch.enable_grad():
        for call in (whole, by_layers):
            leaves = {k: tensors[k].detach().requires_grad_(able) for k in floating(tensors)}
            all_of = {**tensors, **leaves}
            torch.manual_seed(SEED)
            given_first = [all_of.pop(key) for key in op.inputs]
            made = call(*given_first, **all_of)
            outputs = dict(zip(op.outputs, [made] if len(op.outputs) == 1 else made, strict=True))
            found = {name: one.detach() for name, one in outputs.items()}
            if able:
                source = torch.Generator(x.device).manual_seed(SEED + 2)
                random = [
                    torch.randn(one.shape, device=x.device, generator=source).to(one.dtype)
                    for one in outputs.values()
                ]
                got = torch.autograd.grad([*outputs.values()], [*leaves.values()], random)
                found |= {f"gradient of {name}": g for name, g in zip(leaves, got, strict=True)}
            results.append(found)
        for name, tensor in results[0].items():
            share = 0.0 if same_bits(tensor, results[1][name]) else math.inf
            compared.append(Compared("as layers", name, tensor.numel(), None, 0.0, 0.0, share))
    with torch.no_grad():
        hidden = layers[0](x, w1, **given[0], training=False)
    inputs: tuple[Any, ...] = (("first", (x, w1), {}), ("second", (hidden, w2), dtype))
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


class ProductComparison:
    """The outputs of a call that wants no gradient, compared with any number of runs.

    Args:
        op: The declaration.
        factors: The factors of the product.
        operands: The operands by name.
        options: The options of the call.
    """

    def __init__(
        self,
        op: SingleProduct,
        factors: tuple[Tensor, Tensor],
        operands: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self._op, self._options = op, options
        self._case = _Case("no gradient", factors, operands)

    def again(self) -> list[Compared]:
        """Run the call once more, and compare it with what it should be."""
        with torch.no_grad():
            result = self._op(*self._case.factors, **self._arguments())
            names = self._op.outputs
            found = dict(zip(names, [result] if len(names) == 1 else result, strict=True))
            streams = {name: found[name] for name in self._op.saves}
            want = _expected(self._op, self._case, self._options, streams, {})
        return [worst(self._case.name, name, one, want[name]) for name, one in found.items()]

    def _arguments(self) -> dict[str, Any]:
        generator = torch.Generator(self._case.factors[0].device).manual_seed(self._case.seed)
        return {**self._case.operands, **self._options, "generator": generator}


def _cases(
    op: SingleProduct, first: Tensor, second: Tensor, operands: Mapping[str, Any]
) -> Iterator[_Case]:
    pair = first, second
    yield _Case("as given", pair, operands)
    others, able = tuple(floating(operands)), not op.epilogue.forward_only
    if able:
        yield _Case(f"{op.inputs[0]} alone", pair, operands, without=(op.inputs[1], *others))
        yield _Case(f"{op.inputs[1]} alone", pair, operands, without=(op.inputs[0], *others))
    if others and able:
        yield _Case("operands alone", pair, operands, without=op.inputs)
    if op.dropouts:
        yield _Case("another draw", pair, operands, seed=SEED + 1)
    apart = torch.full((*first.shape, 2), torch.nan, dtype=first.dtype, device=first.device)[..., 0]
    yield _Case("columns apart", (apart.copy_(first), second), operands)
    shape = op.shape(first, second)
    rows = len(shape) - 2
    for name, size in (("one row", 1), ("no rows", 0)):
        if first.dim() > 1 and first.shape[-2] > size:
            fewer = first.narrow(-2, first.shape[-2] - size, size)
            given = {key: cut(value, shape, {rows: size}) for key, value in operands.items()}
            yield _Case(name, (fewer, second), given)


def _compare(op: SingleProduct, case: _Case, options: Mapping[str, Any]) -> Iterator[Compared]:
    found, streams, upstream = _call(op, case, options)
    want = _expected(op, case, options, streams, upstream)
    for name, tensor in found.items():
        yield worst(case.name, name, tensor, want[name])
    for name, tensor in _call(op, case, options)[0].items():
        if not same_bits(tensor, found[name]):
            yield Compared(
                case.name, f"{name}, run again", tensor.numel(), None, 0.0, 0.0, math.inf
            )


def _call(
    op: SingleProduct, case: _Case, options: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Outputs and gradients by name, the saved streams, and the upstream gradients."""
    given = {**dict(zip(op.inputs, case.factors, strict=True)), **case.operands}
    leaves = {
        key: given[key].detach().requires_grad_(not op.epilogue.forward_only)
        for key in floating(given)
        if key not in case.without and key not in op.epilogue.undifferentiated
    }
    given |= leaves
    factors = [given.pop(key) for key in op.inputs]
    device = case.factors[0].device
    given["generator"] = torch.Generator(device).manual_seed(case.seed)
    result = op(*factors, **given, **options)
    outputs = dict(zip(op.outputs, [result] if len(op.outputs) == 1 else result, strict=True))
    found = {name: one.detach() for name, one in outputs.items()}
    streams = {name: found[name] for name in op.saves}
    if op.epilogue.forward_only:
        return found, streams, {}
    source = torch.Generator(device).manual_seed(case.seed + 2)
    upstream = {
        name: torch.randn(one.shape, device=device, generator=source).to(one.dtype)
        for name, one in outputs.items()
        if name in op.epilogue.able
    }
    arriving = [
        (outputs[name], one) for name, one in upstream.items() if outputs[name].requires_grad
    ]
    got = torch.autograd.grad(
        [one for one, _ in arriving],
        list(leaves.values()),
        [one for _, one in arriving],
        materialize_grads=True,
    )
    found |= {f"gradient of {name}": one for name, one in zip(leaves, got, strict=True)}
    return found, streams, upstream


def _expected(
    op: SingleProduct,
    case: _Case,
    options: Mapping[str, Any],
    streams: Mapping[str, Tensor],
    upstream: Mapping[str, Tensor],
) -> dict[str, Expected]:
    first, second = case.factors
    value, spread = expected_product(op.product, first, second)
    generator = torch.Generator(first.device).manual_seed(case.seed)
    where = first.device.type, first.device.index or 0
    drawn = draw(*where, generator, op.dropouts) if op.dropouts else None
    rounded = value.to(first.dtype)
    arguments = {**case.operands, **options, "generator": drawn}
    bound = op.epilogue.bind(rounded, arguments)._replace(x=value)
    found = expected(bound, streams, upstream, spread)
    of_product = found.pop("gradient of x", None)
    if of_product is not None:
        for key, one in zip(
            op.inputs, gradients_of_factors(op.product, first, second, of_product), strict=True
        ):
            found[f"gradient of {key}"] = one
    return found
