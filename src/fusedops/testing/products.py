# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Check an op with one product: outputs and gradients against double on the inputs as they are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fusedops.bind.bind import floating
from fusedops.bind.generator import draw
from fusedops.product.single import SingleProduct
from fusedops.reference.error_bound import Expected, expected
from fusedops.reference.product_bound import expected_product, gradients_of_factors
from fusedops.reference.unfused import gradients_of
from fusedops.terminal import shown
from fusedops.testing.report import SEED, Compared, Report, cut, same_bits, worst

__all__ = ["ProductCase", "ProductComparison", "check_product", "expected_of"]


@dataclasses.dataclass(frozen=True)
class ProductCase:
    """A call, and what it draws from."""

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
    pair = first.detach(), second.detach()
    cases = [*_cases(op, *pair, arguments)]
    with shown(f"check {op.name}", len(cases) + 1) as step:
        for case in cases:
            step(f"check {op.name}: {case.name}")
            with torch.enable_grad():
                compared += _compare(op, case, options)
            step(done=1)
        # Where no gradient is wanted one kernel may run both (fused.py).
        step(f"check {op.name}: no gradient")
        compared += ProductComparison(op, pair, arguments, options).again()
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
        call: What gives the outputs, by default the op itself.
    """

    def __init__(
        self,
        op: SingleProduct,
        factors: tuple[Tensor, Tensor],
        operands: Mapping[str, Any],
        options: Mapping[str, Any],
        call: Callable[..., Any] | None = None,
    ) -> None:
        self._op, self._options, self._call = op, options, call or op
        self._case = ProductCase("no gradient", factors, operands)

    def again(self) -> list[Compared]:
        """Run the call once more, and compare it with what it should be."""
        with torch.no_grad():
            result = self._call(*self._case.factors, **self._arguments())
            names = self._op.outputs
            found = dict(zip(names, [result] if len(names) == 1 else result, strict=True))
            streams = {name: found[name] for name in self._op.saves}
            want = expected_of(self._op, self._case, self._options, streams, {})
        return [worst(self._case.name, name, one, want[name]) for name, one in found.items()]

    def _arguments(self) -> dict[str, Any]:
        generator = torch.Generator(self._case.factors[0].device).manual_seed(self._case.seed)
        return {**self._case.operands, **self._options, "generator": generator}


def _cases(
    op: SingleProduct, first: Tensor, second: Tensor, operands: Mapping[str, Any]
) -> Iterator[ProductCase]:
    pair = first, second
    yield ProductCase("as given", pair, operands)
    others, able = tuple(floating(operands)), not op.epilogue.forward_only
    if able:
        yield ProductCase(f"{op.inputs[0]} alone", pair, operands, without=(op.inputs[1], *others))
        yield ProductCase(f"{op.inputs[1]} alone", pair, operands, without=(op.inputs[0], *others))
    if others and able:
        yield ProductCase("operands alone", pair, operands, without=op.inputs)
    if op.dropouts:
        yield ProductCase("another draw", pair, operands, seed=SEED + 1)
    apart = torch.full((*first.shape, 2), torch.nan, dtype=first.dtype, device=first.device)[..., 0]
    yield ProductCase("columns apart", (apart.copy_(first), second), operands)
    shape = op.shape(first, second)
    rows = len(shape) - 2
    for name, size in (("one row", 1), ("no rows", 0)):
        if first.dim() > 1 and first.shape[-2] > size:
            fewer = first.narrow(-2, first.shape[-2] - size, size)
            given = {key: cut(value, shape, {rows: size}) for key, value in operands.items()}
            yield ProductCase(name, (fewer, second), given)


def _compare(
    op: SingleProduct, case: ProductCase, options: Mapping[str, Any]
) -> Iterator[Compared]:
    found, streams, upstream = _call(op, case, options)
    want = expected_of(op, case, options, streams, upstream)
    for name, tensor in found.items():
        yield worst(case.name, name, tensor, want[name])
    for name, tensor in _call(op, case, options)[0].items():
        if not same_bits(tensor, found[name]):
            yield Compared(
                case.name, f"{name}, run again", tensor.numel(), None, 0.0, 0.0, math.inf
            )


def _call(
    op: SingleProduct, case: ProductCase, options: Mapping[str, Any]
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
    got = gradients_of(
        [outputs[name] for name in upstream], [*leaves.values()], [*upstream.values()]
    )
    found |= {f"gradient of {name}": one for name, one in zip(leaves, got, strict=True)}
    return found, streams, upstream


def expected_of(
    op: SingleProduct,
    case: ProductCase,
    options: Mapping[str, Any],
    streams: Mapping[str, Tensor],
    upstream: Mapping[str, Tensor],
    of_upstream: Mapping[str, Tensor] | None = None,
) -> dict[str, Expected]:
    """What outputs and gradients should be, by name; the arguments are those of `expected`.

    A generator among the options takes the place of that which the case's seed makes.
    """
    first, second = case.factors
    operand = op.that_adds(second, dict(case.operands)).has_added
    added = None if operand is None else case.operands[operand].detach()
    value, spread = expected_product(op.product, first, second, added)
    if added is not None and op.has_added is not None:  # else the STORE as declared adds it
        value = value + added.double()
    generator = torch.Generator(first.device).manual_seed(case.seed)
    where = first.device.type, first.device.index or 0
    drawn = draw(*where, generator, op.dropouts) if op.dropouts else None
    rounded = value.to(first.dtype)
    arguments = {**case.operands, "generator": drawn, **options}
    bound = op.epilogue.bind(rounded, arguments)._replace(x=value)
    found = expected(bound, streams, upstream, spread, of_upstream)
    of_product = found.pop("gradient of x", None)
    if of_product is not None:
        for key, one in zip(
            op.inputs, gradients_of_factors(op.product, first, second, of_product), strict=True
        ):
            found[f"gradient of {key}"] = one
    return found
