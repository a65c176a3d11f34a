# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Check a declaration: the fused op against its unfused chain, in double and in its own type."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops._runtime import Reason
from fusedops.bind.bind import Bound, floating
from fusedops.bind.generator import draw
from fusedops.product.mlp import MLP
from fusedops.product.single import SingleProduct
from fusedops.reference.error_bound import expected
from fusedops.reference.unfused import gradients_of
from fusedops.row_op import RowOp
from fusedops.run.refusal import refuse
from fusedops.terminal import shown
from fusedops.testing.pairs import check_pair
from fusedops.testing.products import check_product
from fusedops.testing.report import SEED, Compared, Report, cut, same_bits, worst


class _Case(NamedTuple):
    name: str
    x: Tensor
    operands: Mapping[str, Any]
    seed: int = SEED
    expanded: bool = False
    without: tuple[str, ...] = ()  # tensors whose gradients are not asked for


def check(
    op: RowOp | SingleProduct | MLP, x: Tensor, /, *further: Tensor, **arguments: Any
) -> Report:
    """Compare a fused op with its unfused chain: outputs, gradients, dropout and edge shapes.

    Whatever the declaration holds, functors of your own included. The truth is the unfused chain in
    double on the same inputs; the bound for each element is 0.51 ulp of its type and four times the
    error of the unfused chain in the compute type (docs/design.md). Compared are the call as given
    with random upstream gradients for every output that has one, another dropout mask, an x with
    gaps between its columns, upstream gradients that rows share, an odd number of columns, one row,
    one column, no rows; the gradient of x alone, and those of the operands alone; and that a second
    run gives the same bits. Much of that has to be built first: a check takes seconds on a CPU, and
    says on a terminal how far it is.

    Of an op with a matrix product the truth is that product, and the chain after it, in double; the
    bound is docs/gemm.md's.

    Args:
        op: The declaration.
        x: The input; a few rows will do.
        further: The other factors of an op with a product.
        arguments: Operands and options, as in a call; a generator is not used, and there is no
            ``out``.

    Returns:
        What was compared: print it for a line, its ``table()`` for the worst element of each
        comparison.

    Raises:
        AssertionError: Something is out of its bound; the report is the message, a table of what
            is out, and ``args[0]``.

    >>> import torch, fusedops as fo
    >>> from fusedops.testing import check
    >>> report = check(fo.Softmax(load=[fo.Scale("s")]), torch.randn(3, 8), s=torch.tensor(0.5))
    >>> report.passed
    True
    >>> print(report)  # doctest: +ELLIPSIS
    check of Softmax: ... comparisons within bounds, worst ... of its bound (...)
    """
    if not isinstance(op, RowOp | SingleProduct | MLP):
        raise TypeError(f"check: op must be a fused op, such as Softmax(), got {op!r}")
    if arguments.pop("out", None) is not None:
        raise TypeError("check: out= has no place here; leave it away")
    arguments.pop("generator", None)
    if isinstance(op, SingleProduct):
        return check_product(op, (x, *further), arguments)
    if isinstance(op, MLP):
        return check_pair(op, (x, *further), arguments)
    if further:
        raise TypeError(f"check: {op.name} takes one tensor by position, got {1 + len(further)}")
    op, x, arguments = op.over_rows(x, arguments)
    bound = op.bind(x, arguments)
    if x.device.type not in ("cpu", "cuda"):
        refuse(op, Reason.DEVICE, x, bound.operands, {})
    options = {
        "dim": bound.reduced,
        "dtype": bound.dtype,
        "training": arguments.get("training", True),
    }
    compared: list[Compared] = []
    cases = [*_cases(bound)]
    with torch.enable_grad(), shown(f"check {op.name}", len(cases)) as step:
        for case in cases:
            step(f"check {op.name}: {case.name}")
            compared += _compare(op, case, options)
            step(done=1)
    report = Report(op.declaration, tuple(compared))
    if not report.passed:
        raise AssertionError(report)
    return report


def _cases(bound: Bound) -> Iterator[_Case]:
    x, operands = bound.x.detach(), bound.operands
    last = bound.reduced[-1]
    rows = [dim for dim in range(x.dim()) if dim not in bound.reduced]
    yield _Case("as given", x, operands)
    others = tuple(name for name in floating(operands) if name not in bound.op.undifferentiated)
    if others and not bound.op.forward_only:
        yield _Case("x alone", x, operands, without=others)
        yield _Case("operands alone", x, operands, without=("x",))
    if bound.dropout_slots:
        yield _Case("another draw", x, operands, seed=SEED + 1)
    apart = torch.full((*x.shape, 2), torch.nan, dtype=x.dtype, device=x.device)[..., 0]
    yield _Case("columns apart", apart.copy_(x), operands)
    yield _Case("shared upstream", x, operands, expanded=True)
    if x.shape[last] > 1 and x.shape[last] % 2 == 0:
        yield _cut(bound, "odd columns", x, operands, {last: x.shape[last] - 1})
    if any(x.shape[dim] > 1 for dim in rows):
        yield _cut(bound, "one row", x, operands, dict.fromkeys(rows, 1))
    if bound.columns > 1:
        yield _cut(bound, "one column", x, operands, dict.fromkeys(bound.reduced, 1))
    if rows:
        yield _cut(bound, "no rows", x, operands, {rows[0]: 0})


def _cut(
    bound: Bound, name: str, x: Tensor, operands: Mapping[str, Any], sizes: Mapping[int, int]
) -> _Case:
    """Cut some dimensions of x to these sizes, and those of the operands with them."""
    given = {
        key: value if key in bound.tables else cut(value, x.shape, sizes)
        for key, value in operands.items()
    }
    for key, one in bound.op.tables.items():
        dim = -1 if one.dim is None else one.dim % x.dim()
        if dim in sizes and given[key].shape[1] == x.shape[dim]:
            given[key] = given[key][:, x.shape[dim] - sizes[dim] :]
    return _Case(name, cut(x, x.shape, sizes), given)


class Comparison:
    """A call and what its outputs and gradients should be, compared with any number of runs."""

    def __init__(self, op: RowOp, x: Tensor, /, **arguments: Any) -> None:
        bound = op.bind(x, {k: v for k, v in arguments.items() if k != "generator"})
        training = arguments.get("training", True)
        options = {"dim": bound.reduced, "dtype": bound.dtype, "training": training}
        self._first = _Runs(op, _Case("as given", x.detach(), bound.operands), options)

    def again(self) -> list[Compared]:
        """Run the call once more, and compare it with what it should be.

        Outputs and the gradient of x are compared with those of the first run as well, to the bit:
        nothing that may change between two runs changes these.
        """
        first = self._first
        found = first.run()
        compared = list(first.judged(found))
        fixed = {*first.op.outputs, "gradient of x"}
        return compared + list(first.changed({k: v for k, v in found.items() if k in fixed}))


class _Runs:
    """The first run of a case, what it should have been, and more runs of it."""

    def __init__(self, op: RowOp, case: _Case, options: Mapping[str, Any]) -> None:
        self.op, self.case, self.options = op, case, options
        outputs, gradients, upstream = _call(op, case, options)
        device, dropouts = case.x.device, op.dropouts
        generator = torch.Generator(device).manual_seed(case.seed)
        drawn = draw(device.type, device.index or 0, generator, dropouts) if dropouts else None
        bound = op.bind(case.x, {**case.operands, **options, "generator": drawn})
        streams = {name: outputs[name].detach() for name in op.saves}
        self.want = expected(bound, streams, upstream)
        self.found = {**outputs, **gradients}

    def run(self) -> dict[str, Tensor]:
        outputs, gradients, _ = _call(self.op, self.case, self.options)
        return {**outputs, **gradients}

    def judged(self, found: Mapping[str, Tensor]) -> Iterator[Compared]:
        for name, tensor in found.items():
            yield worst(self.case.name, name, tensor.detach(), self.want[name])

    def changed(self, found: Mapping[str, Tensor]) -> Iterator[Compared]:
        """What has other bits than in the first run."""
        for name, tensor in found.items():
            if not same_bits(tensor, self.found[name]):
                what = f"{name}, run again"
                yield Compared(self.case.name, what, tensor.numel(), None, 0.0, 0.0, math.inf)


def _compare(op: RowOp, case: _Case, options: Mapping[str, Any]) -> Iterator[Compared]:
    runs = _Runs(op, case, options)
    again = runs.run()
    yield from runs.judged(runs.found)
    yield from runs.changed(again)


def _call(
    op: RowOp, case: _Case, options: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Outputs, gradients and the upstream gradients they are of; the latter random, from a seed."""
    given = {"x": case.x, **case.operands}
    leaves = {
        name: given[name].detach().requires_grad_(not op.forward_only)
        for name in floating(given)
        if name not in case.without and name not in op.undifferentiated
    }
    given |= leaves
    x = given.pop("x")
    generator = torch.Generator(case.x.device).manual_seed(case.seed)
    result = op(x, **given, **options, generator=generator)
    outputs = dict(zip(op.outputs, [result] if len(op.outputs) == 1 else result, strict=True))
    if op.forward_only:
        return outputs, {}, {}
    upstream = {name: _upstream(outputs[name], case, options["dim"]) for name in op.able}
    # An operand of comparisons alone has no gradient.
    found = gradients_of(
        [outputs[name] for name in upstream], [*leaves.values()], [*upstream.values()]
    )
    gradients = {f"gradient of {name}": one for name, one in zip(leaves, found, strict=True)}
    return outputs, gradients, upstream


def _upstream(output: Tensor, case: _Case, reduced: tuple[int, ...]) -> Tensor:
    generator = torch.Generator(output.device).manual_seed(case.seed + 2)
    shape = list(output.shape)
    if case.expanded:
        shape = [size if dim in reduced else 1 for dim, size in enumerate(shape)]
    values = torch.randn(shape, device=output.device, generator=generator)
    return values.to(output.dtype).expand(output.shape)
