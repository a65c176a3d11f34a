# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The CPU: every op by columns beside torch's own, and both flagship chains beside torch.

One thread is timed by its processor time, which does not count what other processes take; all
threads by the clock on the wall. Of each the least of several samples counts, taken in turn.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from points import DTYPES, Point, Selection
from results import Result
from timing import Call, least_seconds
from torch import Tensor
from torch.nn import functional
from training import inputs_of, step

import fusedops as fo
from fusedops import flagship
from fusedops.flagship import Case

COLUMNS = (16, 49, 64, 128, 512, 4096, 50257)
TYPES = ("float32", "bfloat16")
ELEMENTS = 1 << 19  # Enough that a call's own time counts little.
RETAINED = 31 << 20  # Bytes; glibc learns up to 32 MiB.
EPS = 1e-5


class Chain(NamedTuple):
    """One of the two chains, and how many times as fast as eager a step shall be: by dropout."""

    make: Callable[..., Case]
    shape: tuple[int, ...]
    targets: dict[float, float]


CHAINS = (
    Chain(flagship.attention, (2, 8, 256, 512), {0.1: 3.5, 0.0: 1.6}),
    Chain(flagship.add_norm, (2048, 1024), {0.1: 3.5, 0.0: 1.3}),
)


def measured(chosen: Selection) -> Iterator[Result]:
    """All of it, on one thread and on all."""
    most = torch.get_num_threads()
    # The C library gives freed memory back until it has seen a block of that size freed; then calls
    # would be measured that wait for new pages.
    torch.empty(RETAINED, dtype=torch.uint8).fill_(0)
    try:
        for threads in dict.fromkeys((1, most)):
            torch.set_num_threads(threads)
            yield from _ops(chosen, threads)
            yield from _chains(chosen, threads)
    finally:
        torch.set_num_threads(most)


def _ops(chosen: Selection, threads: int) -> Iterator[Result]:
    columns, dtypes = chosen.columns or COLUMNS, chosen.dtypes or TYPES
    for op, dtype, cols in itertools.product(chosen.ops, dtypes, columns):
        rows = max(1, ELEMENTS // cols)
        x = torch.randn(rows, cols, dtype=DTYPES[dtype])
        gradient = torch.randn_like(x)
        calls = _op(op), functools.partial(_torch, op)
        for direction in chosen.passes:
            point = Point(op, direction, dtype, rows, cols)
            one = _forward if direction == "forward" else _backward
            ours, theirs = _seconds([one(call, x, gradient) for call in calls], threads)
            name = f"{point.case}, {_threads(threads)}"
            met = theirs >= ours
            claim = {"against": theirs, "target": ">= 1 x torch", "met": met}
            yield Result("cpu", name, "fusedops", ours, point.moved, point=point, **claim)
            yield Result("cpu", name, "torch", theirs, point.moved, beside=ours, point=point)


def _op(name: str) -> Callable[[Tensor], Tensor]:
    ops: dict[str, Any] = {
        "softmax": fo.Softmax(),
        "log_softmax": fo.LogSoftmax(),
        "layer_norm": fo.LayerNorm(eps=EPS),
        "rms_norm": fo.RMSNorm(eps=EPS),
    }
    return ops[name]


def _torch(name: str, x: Tensor) -> Tensor:
    if name == "layer_norm":
        return functional.layer_norm(x, x.shape[-1:], eps=EPS)
    if name == "rms_norm":
        return functional.rms_norm(x, x.shape[-1:], eps=EPS)
    return (torch.softmax if name == "softmax" else torch.log_softmax)(x, -1)


def _forward(call: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> Call:
    del gradient
    return lambda: call(x)


def _backward(call: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> Call:
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        y = call(leaf)
    return lambda: torch.autograd.grad(y, leaf, gradient, retain_graph=True)


def _chains(chosen: Selection, threads: int) -> Iterator[Result]:
    for chain, dtype in itertools.product(CHAINS, chosen.dtypes or TYPES):
        for p, target in chain.targets.items():
            case = chain.make(chain.shape, p=p, dtype=DTYPES[dtype], device="cpu")
            compiled = torch.compile(case.chain, dynamic=False)
            makes = {
                "fusedops": case.fused,
                "torch eager": case.unfused,
                "torch.compile": functools.partial(compiled, case.x, **case.operands),
            }
            for direction in ("forward", "step"):
                calls = list(makes.values())
                if direction == "step":
                    calls = [step(call, inputs_of(case)) for call in calls]
                seconds = dict(zip(makes, _seconds(calls, threads), strict=True))
                torch._dynamo.reset()
                name = f"{case.title}, p = {p}, {dtype}, {direction}, {_threads(threads)}"
                yield from _beside(name, seconds, case.bytes, target, direction)


def _beside(
    name: str, seconds: dict[str, float], moved: int, target: float, direction: str
) -> Iterator[Result]:
    """A row for each; a step has a claim against eager, both against torch.compile."""
    ours, eager = seconds["fusedops"], seconds["torch eager"]
    moved = moved if direction == "forward" else 0
    of_step = direction == "step"
    claim = {"target": f">= {target} x eager", "met": eager / ours >= target} if of_step else {}
    yield Result("cpu", name, "fusedops", ours, moved, against=eager, **claim)
    yield Result("cpu", name, "torch eager", eager, moved, beside=ours)
    compiled = seconds["torch.compile"]
    claim = {"target": "<= 1 x fusedops", "met": compiled >= ours}
    yield Result("cpu", name, "torch.compile", compiled, moved, beside=ours, **claim)


def _seconds(calls: list[Call], threads: int) -> list[float]:
    return least_seconds(calls, time.thread_time if threads == 1 else time.perf_counter)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
