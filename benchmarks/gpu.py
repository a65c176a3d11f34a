# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Device time on a GPU: sweeps over the columns, and the flagship chains. fp16 throughout."""

from collections.abc import Callable, Iterator

import ceiling
import torch
from results import Result
from timing import Call, graph_seconds, queue_seconds, sets
from torch import Tensor
from torch.nn import functional

import fusedops as fo
from fusedops import flagship
from fusedops.flagship import Case

ROWS = 49152
COLUMNS = (256, 512, 1024, 2048, 4096, 8192, 16384)
SWEEP_TARGET = 95.0  # Percent of the ceiling.
HALF = torch.float16


def the_ceiling() -> Iterator[Result]:
    """The ceiling itself, at 1 GB a stream and at the size of each sweep's point."""
    for elements in [2**29, *(ROWS * columns for columns in COLUMNS)]:
        for reads, writes in ((1, 1), (2, 1), (2, 2)):
            moved = elements * HALF.itemsize * (reads + writes)
            yield Result(
                "ceiling",
                f"{elements * HALF.itemsize / 2**20:.0f} MiB a stream",
                f"{reads} read, {writes} written",
                ceiling.seconds(elements, HALF, reads, writes),
                moved,
            )


def softmax() -> Iterator[Result]:
    """Plain softmax over the columns."""
    op = fo.Softmax()
    yield from _sweep(
        "softmax",
        lambda columns: (),
        lambda x, y: op(x, out=y),
        lambda x, y: torch.softmax(x, -1),
    )


def layer_norm() -> Iterator[Result]:
    """LayerNorm with gamma and beta over the columns."""
    op = fo.LayerNorm(store=[fo.Affine("gamma", "beta")])
    yield from _sweep(
        "layer_norm",
        lambda columns: torch.randn(2, columns, dtype=HALF, device="cuda").unbind(),
        lambda x, y, gamma, beta: op(x, gamma=gamma, beta=beta, out=y),
        lambda x, y, gamma, beta: functional.layer_norm(x, x.shape[-1:], gamma, beta),
    )


def _sweep(
    part: str,
    parameters: Callable[[int], tuple[Tensor, ...]],
    fused: Callable[..., object],
    eager: Callable[..., object],
) -> Iterator[Result]:
    for columns in COLUMNS:
        elements = ROWS * columns
        moved = 2 * elements * HALF.itemsize
        best = ceiling.seconds(elements, HALF)
        extra = parameters(columns)
        pairs = [
            (
                torch.randn(ROWS, columns, device="cuda").to(HALF),
                torch.empty(ROWS, columns, dtype=HALF, device="cuda"),
            )
            for _ in range(sets(moved))
        ]
        baseline = graph_seconds(_bind(eager, pairs, extra))
        seconds = graph_seconds(_bind(fused, pairs, extra))
        yield from beside_eager(part, columns, seconds, moved, best, baseline, SWEEP_TARGET)
        del pairs
        torch.cuda.empty_cache()


def beside_eager(
    part: str,
    columns: int,
    seconds: float,
    moved: int,
    best: float,
    baseline: float,
    target: float | None,
) -> Iterator[Result]:
    """One point of a sweep: ours, held to `target` percent of the ceiling, and eager torch."""
    case = f"({ROWS}, {columns})"
    yield Result(
        part,
        case,
        "fusedops",
        seconds,
        moved,
        best,
        baseline,
        f">= {target:.0f} %" if target else "",
        100 * best / seconds >= target if target else None,
    )
    yield Result(part, case, "torch eager", baseline, moved, best)


def _bind(
    call: Callable[..., object], pairs: list[tuple[Tensor, Tensor]], extra: tuple[Tensor, ...]
) -> list[Call]:
    return [lambda x=x, y=y: call(x, y, *extra) for x, y in pairs]


def flagships() -> Iterator[Result]:
    """Both flagship chains with dropout and without, beside torch eager and torch.compile.

    All are queued, not captured: a dropout that draws from torch's generator cannot be.
    """
    for make, shape, streams, target in (
        (flagship.attention, (8, 16, 1024, 1024), (1, 1), 4.0),
        (flagship.add_norm, (ROWS, 1024), (2, 2), 1.6),
    ):
        for p in (0.1, 0.0):
            cases = [make(shape, p=p, dtype=HALF, device="cuda")]
            cases += [
                make(shape, p=p, dtype=HALF, device="cuda") for _ in range(sets(cases[0].bytes) - 1)
            ]
            yield from _flagship(cases, streams, p, target if p else None)
            del cases
            torch.cuda.empty_cache()


def _flagship(
    cases: list[Case], streams: tuple[int, int], p: float, target: float | None
) -> Iterator[Result]:
    case = cases[0]
    # The chain's bytes at the rate of the copy with its large streams.
    best = case.bytes / ceiling.bandwidth(case.x.numel(), HALF, *streams)
    torch._dynamo.reset()
    compiled = torch.compile(case.chain, dynamic=False)
    eager_seconds = queue_seconds([each.unfused for each in cases])
    compiled_seconds = queue_seconds(
        [lambda each=each: compiled(each.x, **each.operands) for each in cases]
    )
    seconds = queue_seconds([each.fused for each in cases])
    name = f"{case.title}, p = {p}"
    yield Result(
        "flagship",
        name,
        "fusedops",
        seconds,
        case.bytes,
        best,
        compiled_seconds,
        f">= {target} x compiled" if target else "",
        compiled_seconds / seconds >= target if target else None,
    )
    yield Result("flagship", name, "torch eager", eager_seconds, case.bytes, best)
    yield Result("flagship", name, "torch.compile", compiled_seconds, case.bytes, best)
