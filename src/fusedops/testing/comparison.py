# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of a fused op compared with its unfused chain in float64, within a derived bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fusedops._runtime import Reason
from fusedops.bind.bind import Bound, floating
from fusedops.bind.generator import draw
from fusedops.errors import UnsupportedError
from fusedops.product.factors import of_eight_bits
from fusedops.product.grouped import GroupedLinear
from fusedops.product.linear import Linear
from fusedops.product.mlp import MLP
from fusedops.product.single import SingleProduct
from fusedops.reference.error_bound import Expected, expected
from fusedops.reference.product_bound import expected_product, gradients_of_factors
from fusedops.reference.unfused import gradients_of
from fusedops.row_op import RowOp
from fusedops.run.refusal import refuse
from fusedops.terminal import shown
from fusedops.testing.report import SEED, Compared, narrowed, same_bits, worst

__all__ = ["Case", "Comparison", "called", "compare", "compare_call", "compare_forward", "truth"]

#: The results of a call by name, outputs and gradients, and the upstream gradients.
Called: TypeAlias = tuple[dict[str, Tensor], dict[str, Tensor]]


class Case(NamedTuple):
    """One call that is compared."""

    name: str  # what a report calls it
    given: Mapping[str, Any]  # the inputs and the operands of the call by name
    seed: int = SEED  # what dropouts and upstream gradients are drawn from
    expanded: bool = False  # whether rows share the upstream gradients
    without: Sequence[str] = ()  # the tensors whose gradients are not asked for


class Comparison:
    """A call and what its results should be, compared with any number of runs.

    Args:
        name: What reports call it.
        run: Runs the call, and returns its results by name.
        want: What the results of a run should be; some follow from others, as outputs from a saved
            stream.
        fixed: The results that have the same bits in each run, from the first one.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[], Mapping[str, Tensor]],
        want: Callable[[Mapping[str, Tensor]], Mapping[str, Expected]],
        fixed: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.name, self.run, self.want, self._fixed = name, run, want, fixed or {}

    def again(self) -> list[Compared]:
        """Run the call once more, and compare it with what it should be."""
        found = self.run()
        want = self.want(found)
        compared = [worst(self.name, key, one, want[key]) for key, one in found.items()]
        return [*compared, *_changed(self.name, found, self._fixed)]


def compare_call(op: RowOp, x: Tensor, /, **arguments: Any) -> Comparison:
    """Compare outputs and gradients of a call of a row op.

    Outputs and the gradient of x keep their bits: nothing that may change between two runs, a
    launch configuration for instance, changes these.
    """
    bound = op.bind(x, {k: v for k, v in arguments.items() if k != "generator"})
    options = {"dim": bound.reduced, "dtype": bound.dtype}
    options["training"] = arguments.get("training", True)
    case = Case("as given", {"x": x.detach(), **bound.operands})
    first, upstream = called(op, case, options)
    want = truth(op, case, options, first, upstream)
    fixed = {key: one for key, one in first.items() if key in (*op.outputs, "gradient of x")}
    return Comparison(case.name, lambda: called(op, case, options)[0], lambda found: want, fixed)


def compare_forward(
    op: SingleProduct,
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    call: Callable[..., Any] | None = None,
) -> Comparison:
    """Compare the outputs of a call of a product that wants no gradient.

    `call` gives the outputs; by default it is the op itself.
    """
    case = Case("no gradient", given)

    def run() -> Mapping[str, Tensor]:
        with torch.no_grad():
            return called(op, case, options, call)[0]

    def want(found: Mapping[str, Tensor]) -> Mapping[str, Expected]:
        with torch.no_grad():
            return truth(op, case, options, found, {})

    return Comparison(case.name, run, want)


def compare(
    op: RowOp | SingleProduct, factors: Sequence[Any], arguments: dict[str, Any]
) -> list[Compared]:
    """Compare the calls that `check` derives from one: other draws, layouts, shapes and gradients.

    Raises:
        TypeError, ValueError: An argument does not fit.
    """
    for chain in _chains(op):
        if chain.packed > 1:
            raise UnsupportedError(
                f"{op.name}: check compares no y of 4 bits, whose rows cannot be odd; check the op "
                "with torch.float8_e4m3fn in its place"
            )
    options = {"training": arguments.get("training", True), "dtype": arguments.get("dtype")}
    further = None
    if isinstance(op, RowOp):
        if len(factors) > 1:
            raise TypeError(f"check: {op.name} takes one tensor by position, got {len(factors)}")
        op, x, arguments = op.over_rows(factors[0], arguments)
        bound = op.bind(x, arguments)
        if x.device.type not in ("cpu", "cuda"):
            refuse(op, Reason.DEVICE, x, bound.operands, {})
        options |= {"dim": bound.reduced, "dtype": bound.dtype}
        cases = [*_cases(op, {"x": bound.x.detach(), **bound.operands}, bound)]
    else:
        first, second = (*factors, None, None)[:2]
        if isinstance(op, GroupedLinear):
            op, (first, second), arguments = op.over_groups(first, second, arguments)
        if isinstance(op, Linear):
            op, arguments = op.with_rows(arguments)
        op.check(first, second)
        operands = {key: one for key, one in arguments.items() if key not in options}
        pair = (first.detach(), second.detach())
        cases = [*_cases(op, {**dict(zip(op.inputs, pair, strict=True)), **operands})]
        further = compare_forward(op, cases[0].given, options)
    compared: list[Compared] = []
    with shown(f"check {op.name}", len(cases) + (further is not None)) as step:
        for case in cases:
            step(f"check {op.name}: {case.name}")
            with torch.enable_grad():
                found, upstream = called(op, case, options)
                want = truth(op, case, options, found, upstream)
                compared += [worst(case.name, key, one, want[key]) for key, one in found.items()]
                compared += _changed(case.name, called(op, case, options)[0], found)
            step(done=1)
        if further is not None:  # one kernel may run product and STORE then
            step(f"check {op.name}: {further.name}")
            compared += further.again()
    return compared


def _cases(
    op: RowOp | SingleProduct, given: Mapping[str, Any], bound: Bound | None = None
) -> Iterator[Case]:
    """The calls to compare, derived from one; `bound` is given for a row op."""
    inputs, chain, x = _inputs(op), _chains(op)[0], given["x"]
    yield Case("as given", given)
    unable = chain.undifferentiated
    if isinstance(op, SingleProduct):
        unable |= op.undifferentiated
    names = [k for k in floating(given) if k in inputs or k not in unable]
    if not chain.forward_only:
        for name in inputs:
            if others := tuple(one for one in names if one != name):
                yield Case(f"{name} alone", given, without=others)
        if len(names) > len(inputs):
            yield Case("operands alone", given, without=inputs)
    if op.dropouts if bound is None else bound.dropout_slots:
        yield Case("another draw", given, seed=SEED + 1)
    apart = torch.full((*x.shape, 2), torch.nan, dtype=x.dtype, device=x.device)[..., 0]
    yield Case("columns apart", {**given, "x": apart.copy_(x)})
    narrower: dict[str, Mapping[int, int]] = {}
    if bound is None:
        assert isinstance(op, SingleProduct)
        shape = op.shape(*(given[name] for name in inputs))
        rows = [len(shape) - 2] if x.dim() > 1 else []
    else:
        shape, last = tuple(x.shape), bound.reduced[-1]
        rows = [dim for dim in range(x.dim()) if dim not in bound.reduced]
        yield Case("shared upstream", given, expanded=True)
        paired = chain.pair is not None  # then a row has the columns that its tables have
        if shape[last] > 1 and shape[last] % 2 == 0 and not paired:
            narrower["odd columns"] = {last: shape[last] - 1}
    if any(shape[dim] > 1 for dim in rows):
        narrower["one row"] = dict.fromkeys(rows, 1)
    if bound is not None and bound.columns > 1 and chain.pair is None:
        narrower["one column"] = dict.fromkeys(bound.reduced, 1)
    if rows:
        narrower["no rows"] = {rows[0]: 0}
    for name, sizes in narrower.items():
        whole = inputs[1:]
        if isinstance(op, Linear) and op.scales is not None:
            whole += op.scales.names[1:]
        made = narrowed(given, shape, sizes, chain.tables, whole)
        for key in chain.row_roles if bound is not None else ():
            if made[key].is_floating_point():
                continue  # no target
            columns = max(1, made["x"].shape[bound.reduced[-1]])  # type: ignore[union-attr]
            made[key] = torch.where(made[key] >= columns, made[key] % columns, made[key])
        yield Case(name, made)


def called(
    op: RowOp | SingleProduct | MLP,
    case: Case,
    options: Mapping[str, Any],
    call: Callable[..., Any] | None = None,
) -> Called:
    """Run a call; return outputs and gradients by name, and the random upstream gradients.

    In `torch.no_grad` there are outputs alone. `call` gives them, by default the op itself.
    """
    chains = _chains(op)
    given = {k: v.detach() if isinstance(v, Tensor) else v for k, v in case.given.items()}
    leaves: dict[str, Tensor] = {}
    if torch.is_grad_enabled() and not any(one.forward_only for one in chains):
        fixed = frozenset(case.without).union(*(one.undifferentiated for one in chains))
        if isinstance(op, SingleProduct):
            fixed |= op.undifferentiated
        for name in floating(given):
            if name not in fixed and not of_eight_bits(given[name]):
                leaves[name] = given[name].detach().requires_grad_()
    given |= leaves
    factors = [given.pop(name) for name in _inputs(op)]
    generator = torch.Generator(factors[0].device).manual_seed(case.seed)
    result = (call or op)(*factors, **{**given, "generator": generator, **options})
    outputs = dict(zip(op.outputs, [result] if len(op.outputs) == 1 else result, strict=True))
    found = {name: one.detach() for name, one in outputs.items()}
    if not leaves:
        return found, {}
    able = [name for name in outputs if name in chains[-1].able]
    upstream = {name: _upstream(outputs[name], case, options) for name in able}
    # An operand of comparisons alone has no gradient.
    made = gradients_of([outputs[name] for name in able], [*leaves.values()], [*upstream.values()])
    found |= {f"gradient of {name}": one for name, one in zip(leaves, made, strict=True)}
    return found, upstream


def _upstream(output: Tensor, case: Case, options: Mapping[str, Any]) -> Tensor:
    generator = torch.Generator(output.device).manual_seed(case.seed + 2)
    shape = list(output.shape)
    if case.expanded:
        shape = [size if dim in options["dim"] else 1 for dim, size in enumerate(shape)]
    values = torch.randn(shape, device=output.device, generator=generator)
    return values.to(output.dtype).expand(output.shape)


def truth(
    op: RowOp | SingleProduct,
    case: Case,
    options: Mapping[str, Any],
    found: Mapping[str, Tensor],
    upstream: Mapping[str, Tensor],
    of_upstream: Mapping[str, Tensor] | None = None,
) -> dict[str, Expected]:
    """The outputs and gradients in float64, with their error bounds, by name.

    A generator among the options takes the place of that of the case's seed. `found` is what the
    call gave, of which the saved streams are read; `of_upstream` is the error of each upstream
    gradient, if they are results themselves.
    """
    (chain,), given = _chains(op), {**case.given}
    factors = [given.pop(name) for name in _inputs(op)]
    device = factors[0].device
    generator = torch.Generator(device).manual_seed(case.seed)
    where = device.type, device.index or 0
    drawn = draw(*where, generator, op.dropouts) if op.dropouts else None
    arguments = {**given, "generator": drawn, **options}
    streams = {name: found[name] for name in chain.saves}
    if isinstance(op, RowOp):
        return expected(op.bind(factors[0], arguments), streams, upstream)
    first, second = factors
    operand = op.that_adds(second, given).has_added
    added = None if operand is None else given[operand].detach()
    eight_bits = of_eight_bits(first)
    dtype = torch.bfloat16 if eight_bits else first.dtype
    scaled = isinstance(op, Linear) and op.scales is not None
    if isinstance(op, Linear) and op.scales is not None:
        of_x, of_w, arguments = op.scales.taken(arguments)
        first, second = op.scales.dequantised(first, second, of_x, of_w, torch.float64)
    value, spread = expected_product(op.product, first, second, added, eight_bits, scaled)
    if added is not None and op.has_added is not None:  # else the STORE as declared adds it
        value = value + added.double()
    bound = chain.bind(value.to(dtype), arguments)._replace(x=value)
    results = expected(bound, streams, upstream, spread, of_upstream)
    of_z = results.pop("gradient of x", None)
    if of_z is not None:
        made = gradients_of_factors(op.product, first, second, of_z)
        results |= {f"gradient of {k}": one for k, one in zip(op.inputs, made, strict=True)}
    return results


def _changed(
    name: str, found: Mapping[str, Tensor], before: Mapping[str, Tensor]
) -> Iterator[Compared]:
    """The results whose bits differ from those of an earlier run."""
    for key, one in before.items():
        if not same_bits(one, found[key]):
            yield Compared(name, f"{key}, run again", one.numel(), None, 0.0, 0.0, math.inf)


def _inputs(op: RowOp | SingleProduct | MLP) -> tuple[str, ...]:
    """The names of the tensors that a call takes by position."""
    return ("x",) if isinstance(op, RowOp) else op.inputs


def _chains(op: RowOp | SingleProduct | MLP) -> tuple[RowOp, ...]:
    """The row ops whose functors a call runs; the last one gives the outputs."""
    return (op,) if isinstance(op, RowOp) else op.epilogues
