# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Check a declaration: the fused op against its unfused chain, in double and in its own type."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops._runtime import Reason
from fusedops.bind.bind import Bound, floating
from fusedops.bind.generator import draw
from fusedops.bind.tables import tables_of
from fusedops.reference.error_bound import Expected, expected
from fusedops.row_op import RowOp
from fusedops.run.refusal import refuse

_SEED = 20


@dataclasses.dataclass(frozen=True)
class Compared:
    """One comparison.

    Attributes:
        case: Which inputs.
        what: An output, a gradient, or a property.
        elements: How many there are.
        at: The index of the worst of them; None if there are none.
        got, wanted: What it is, and what it should be.
        share: Of its bound; beyond 1 it is wrong.
    """

    case: str
    what: str
    elements: int
    at: tuple[int, ...] | None
    got: float
    wanted: float
    share: float


@dataclasses.dataclass(frozen=True)
class Report:
    """What `check` compared; prints as a table with the worst element of each comparison."""

    declaration: str
    compared: tuple[Compared, ...]

    @property
    def worst(self) -> Compared:
        """The comparison that is nearest to its bound, or farthest beyond it."""
        return max(self.compared, key=lambda one: one.share)

    @property
    def passed(self) -> bool:
        """Whether every element is within its bound."""
        return self.worst.share <= 1

    def __str__(self) -> str:
        head = ("case", "what", "elements", "worst at", "got", "wanted", "of its bound")
        rows = [head]
        for one in self.compared:
            at = "" if one.at is None else str(list(one.at))
            numbers = ("", "") if one.at is None else (f"{one.got:.9g}", f"{one.wanted:.9g}")
            share = f"{one.share:.3g}" + (" OUT" if one.share > 1 else "")
            rows.append((one.case, one.what, str(one.elements), at, *numbers, share))
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        out = sum(one.share > 1 for one in self.compared)
        verdict = f"{out} of {len(self.compared)} are out" if out else "all within the bound"
        return "\n".join([self.declaration, *lines, verdict])


class _Case(NamedTuple):
    name: str
    x: Tensor
    operands: Mapping[str, Any]
    seed: int = _SEED
    expanded: bool = False
    without: tuple[str, ...] = ()  # tensors whose gradients are not asked for


def check(op: RowOp, x: Tensor, /, **arguments: Any) -> Report:
    """Compare a fused op with its unfused chain: outputs, gradients, dropout and edge shapes.

    Whatever the declaration holds, functors of your own included. The truth is the unfused chain in
    double on the same inputs; the bound for each element is 0.51 ulp of its type and four times the
    error of the unfused chain in the compute type (docs/design.md). Compared are the call as given
    with random upstream gradients for every output that has one, another dropout mask, an x with
    gaps between its columns, upstream gradients that rows share, an odd number of columns, one row,
    one column, no rows; the gradient of x alone, and those of the operands alone; and that a second
    run gives the same bits. Much of that has to be built first: a check takes seconds on a CPU.

    Args:
        op: The declaration.
        x: The input; a few rows will do.
        arguments: Operands and options, as in a call; a generator is not used, and there is no
            ``out``.

    Returns:
        What was compared, with the worst elements: print it.

    Raises:
        AssertionError: Something is out of its bound; the report is the message, and ``args[0]``.

    >>> import torch, fusedops as fo
    >>> from fusedops.testing import check
    >>> report = check(fo.Softmax(load=[fo.Scale("s")]), torch.randn(3, 8), s=torch.tensor(0.5))
    >>> report.passed
    True
    """
    if not isinstance(op, RowOp):
        raise TypeError(f"check: op must be a fused op, such as Softmax(), got {op!r}")
    if arguments.pop("out", None) is not None:
        raise TypeError("check: out= has no place here; leave it away")
    arguments.pop("generator", None)
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
    with torch.enable_grad():
        for case in _cases(bound):
            compared += _compare(op, case, options)
    report = Report(op.declaration, tuple(compared))
    if not report.passed:
        raise AssertionError(report)
    return report


def _cases(bound: Bound) -> Iterator[_Case]:
    x, operands = bound.x.detach(), bound.operands
    last = bound.reduced[-1]
    rows = [dim for dim in range(x.dim()) if dim not in bound.reduced]
    yield _Case("as given", x, operands)
    others = tuple(floating(operands))
    if others and not bound.op.forward_only:
        yield _Case("x alone", x, operands, without=others)
        yield _Case("operands alone", x, operands, without=("x",))
    if bound.dropout_slots:
        yield _Case("another draw", x, operands, seed=_SEED + 1)
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

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        for dim, size in sizes.items():
            own = dim - x.dim()
            if -own <= value.dim() and value.shape[own] == x.shape[dim]:
                value = value.narrow(own, value.shape[own] - size, size)  # the end: misaligned
        return value

    given = {k: v if k in bound.tables else cut(v) for k, v in operands.items()}
    for key, one in tables_of((*bound.load, *bound.store)).items():
        dim = -1 if one.dim is None else one.dim % x.dim()
        if dim in sizes and given[key].shape[1] == x.shape[dim]:
            given[key] = given[key][:, x.shape[dim] - sizes[dim] :]
    return _Case(name, cut(x), given)


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
            yield _worst(self.case.name, name, tensor.detach(), self.want[name])

    def changed(self, found: Mapping[str, Tensor]) -> Iterator[Compared]:
        """What has other bits than in the first run."""
        for name, tensor in found.items():
            if not _same(tensor, self.found[name]):
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
        if name not in case.without
    }
    given |= leaves
    x = given.pop("x")
    generator = torch.Generator(case.x.device).manual_seed(case.seed)
    result = op(x, **given, **options, generator=generator)
    outputs = dict(zip(op.outputs, [result] if len(op.outputs) == 1 else result, strict=True))
    if op.forward_only:
        return outputs, {}, {}
    upstream = {name: _upstream(outputs[name], case, options["dim"]) for name in ("y", *op.joining)}
    found = torch.autograd.grad(
        [outputs[name] for name in upstream],
        list(leaves.values()),
        list(upstream.values()),
        materialize_grads=True,  # an operand of comparisons alone has no gradient
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


def _worst(case: str, what: str, got: Tensor, want: Expected) -> Compared:
    value, allowed = want.value, want.allowed(got.dtype)
    if not got.numel() or got.shape != value.shape:
        of_shape = 0.0 if got.shape == value.shape else math.inf
        return Compared(case, what, got.numel(), None, 0.0, 0.0, of_shape)
    exact = got.double()
    share = (exact - value).abs() / allowed
    # A bound of 0 (a row of zeros) allows exactly what it says.
    share = torch.where((exact == value) | (exact.isnan() & value.isnan()), 0, share)
    # The dtype may end below the truth: half an ulp beyond its last number.
    info = torch.finfo(got.dtype)
    beyond = value.abs() + allowed >= info.max * (1 + info.eps / 4)
    overflow = exact.isinf() & value.isfinite() & (exact.sign() == value.sign())
    share = torch.where(overflow & beyond, 0, share).nan_to_num(math.inf, math.inf)
    flat = int(share.argmax())
    at = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape))
    return Compared(
        case, what, got.numel(), at, exact[at].item(), value[at].item(), share[at].item()
    )


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two results have the same bits."""
    bits = [tensor.detach().contiguous().flatten().view(torch.uint8) for tensor in (a, b)]
    return torch.equal(*bits)
