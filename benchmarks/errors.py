# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How far results are from the truth: ours, and those of torch in float32 rounded to the dtype.

The truth is torch in float64 from the same inputs, which are those of the dtype. On a GPU if there
is one, else on the CPU. The residual LayerNorm normalizes the stream that it hands on in the dtype;
its inputs are multiples of STEP, so that no stream is rounded and only errors count.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from plain import PLAIN
from points import DTYPES, OPS, Selection
from rich.table import Table
from torch import Tensor

from fusedops import flagship

KEY = ("device", "op", "pass", "what", "dtype", "columns", "by")
COLUMNS = (32, 257, 1024, 4096, 16384, 50257, 131072)
ELEMENTS = 2**22  # At most; of a GPU's, on a CPU a sixteenth.
MOST_ROWS = 1024
HEADS = 2
STEP = 1 / 16  # Sums of three normal values are less than 16: eight bits, as bfloat16 has.

Tensors = dict[str, Tensor]
Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Errors:
    """How far one result is from the truth.

    Attributes:
        op, direction: Of what.
        what: Which result: y, stream, or the input whose gradient it is.
        dtype, rows, columns: The inputs'.
        by: Who computed it.
        ulp: The largest and the root mean square error in units of the last place of the true value
            in the dtype.
        share: The same as shares of the largest true value of the row.
    """

    op: str
    direction: str
    what: str
    dtype: str
    rows: int
    columns: int
    by: str
    ulp: tuple[float, float]
    share: tuple[float, float]

    def cells(self) -> dict[str, str]:
        """Every figure as text."""
        return {
            "part": "errors",
            "case": f"{self.op} {self.direction} {self.dtype} ({self.rows}, {self.columns})",
            "op": self.op,
            "pass": self.direction,
            "what": self.what,
            "dtype": self.dtype,
            "rows": str(self.rows),
            "columns": str(self.columns),
            "by": self.by,
            "max ulp": f"{self.ulp[0]:.4g}",
            "rms ulp": f"{self.ulp[1]:.4g}",
            "max of the row's largest": f"{self.share[0]:.3g}",
            "rms of the row's largest": f"{self.share[1]:.3g}",
        }


def table(chosen: Selection) -> Iterator[Errors]:
    """Every op and both chains, without dropout."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for dtype, columns in itertools.product(chosen.dtypes or DTYPES, chosen.columns or COLUMNS):
        elements = ELEMENTS if device.type == "cuda" else ELEMENTS // 16
        rows = max(4, min(MOST_ROWS, elements // columns))
        rows -= rows % HEADS
        for op in chosen.ops:
            yield from _plain(op, chosen.passes, dtype, (rows, columns), device)
        if chosen.ops != OPS:  # Some ops were named, and the chains are none of them.
            continue
        kind: dict[str, Any] = {"p": 0.0, "dtype": DTYPES[dtype], "device": device}
        for case in (
            flagship.attention((1, HEADS, rows // HEADS, columns), **kind),
            flagship.add_norm((rows, columns), **kind),
        ):
            yield from _flagship(case, chosen.passes, dtype)


def _plain(
    op: str, passes: Sequence[str], dtype: str, shape: tuple[int, int], device: torch.device
) -> Iterator[Errors]:
    plain = PLAIN[op]
    shapes = {"x": shape, **dict.fromkeys(plain.parameters, shape[1:])}
    inputs = {
        name: torch.randn(size, device=device).to(DTYPES[dtype]) for name, size in shapes.items()
    }

    def call(function: Function, inputs: Tensors) -> Tensors:
        return {"y": function(*inputs.values())}

    chain, fused = (functools.partial(call, each) for each in (plain.torch, plain.fused))
    yield from _compare(op, passes, dtype, inputs, chain, fused)


def _flagship(case: flagship.Case, passes: Sequence[str], dtype: str) -> Iterator[Errors]:
    inputs = {"x": case.x} | {
        name: value
        for name, value in case.operands.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    rest = {name: value for name, value in case.operands.items() if name not in inputs}
    if case.op is flagship.ADD_NORM:
        inputs = {name: (value / STEP).round() * STEP for name, value in inputs.items()}

    def call(function: Function, inputs: Tensors) -> Tensors:
        x, *names = inputs
        result = function(inputs[x], **{name: inputs[name] for name in names}, **rest)
        outputs = (result,) if isinstance(result, Tensor) else result
        return dict(zip(("y", "stream"), outputs, strict=False))

    chain, fused = (functools.partial(call, each) for each in (case.chain, case.op))
    yield from _compare(case.name, passes, dtype, inputs, chain, fused)


def digest(rows: Sequence[Mapping[str, str]]) -> Table:
    """The worst of all columns in ulp: largest, and root mean square."""
    worst: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("op", "pass", "what", "dtype"))
        pair = worst.setdefault(key, {}).setdefault(row["by"], [0.0, 0.0])
        pair[:] = map(max, pair, (float(row["max ulp"]), float(row["rms ulp"])))
    shown = Table("op", "pass", "what", "dtype", "fusedops", "float32 chain", title="errors, ulp")
    for key, by in worst.items():
        shown.add_row(*key, *(", ".join(f"{each:.3g}" for each in pair) for pair in by.values()))
    return shown


def _compare(
    op: str,
    passes: Sequence[str],
    dtype: str,
    inputs: Tensors,
    chain: Callable[[Tensors], Tensors],
    fused: Callable[[Tensors], Tensors],
) -> Iterator[Errors]:
    kind = DTYPES[dtype]
    shape = inputs["x"].shape
    upstream = [torch.randn(shape, device=inputs["x"].device).to(kind) for _ in range(2)]
    for direction in passes:
        run = _forward if direction == "forward" else functools.partial(_backward, upstream)
        truth = run(chain, {name: value.double() for name, value in inputs.items()})
        rivals = {
            "fusedops": run(fused, inputs),
            "float32 chain": run(chain, {name: value.float() for name, value in inputs.items()}),
        }
        for by, results in rivals.items():
            for what, result in results.items():
                found = errors_of(result.to(kind), truth[what], kind)
                rows = shape.numel() // shape[-1]
                yield Errors(op, direction, what, dtype, rows, shape[-1], by, *found)


@torch.no_grad()
def _forward(call: Callable[[Tensors], Tensors], inputs: Tensors) -> Tensors:
    return call(inputs)


@torch.enable_grad()
def _backward(
    upstream: Sequence[Tensor], call: Callable[[Tensors], Tensors], inputs: Tensors
) -> Tensors:
    leaves = {name: value.detach().requires_grad_() for name, value in inputs.items()}
    outputs = list(call(leaves).values())
    given = [dy.to(y.dtype) for dy, y in zip(upstream, outputs, strict=False)]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), given)
    return {f"d{name}": value for name, value in zip(leaves, gradients, strict=True)}


def errors_of(
    result: Tensor, truth: Tensor, dtype: torch.dtype
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The largest and the root mean square error: in ulp of the dtype, and as shares of a row."""
    error = (result.double() - truth).abs()
    largest = truth.abs().amax(-1, keepdim=True)
    share = torch.where(error == 0, 0.0, error / largest)  # A row of zeros that is right.
    return _max_and_rms(error / _ulp(truth, dtype)), _max_and_rms(share)


def _max_and_rms(values: Tensor) -> tuple[float, float]:
    return values.max().item(), values.square().mean().sqrt().item()


def _ulp(truth: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance of the dtype's values around a number; of its least normal one, below that."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(truth.abs().clamp_min(info.tiny))
    return torch.ldexp(torch.full_like(truth, info.eps), exponent - 1)
