# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Maps, the op without a reduction: percent of the ceiling by columns, and a chain beside torch.

The chain is what follows a linear layer: bias, GELU, dropout, residual. Calls are queued, not
captured: a dropout that draws from torch's generator cannot be.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ceiling
import torch
from points import rows_of
from results import Result
from timing import queue_seconds, sets
from torch import Tensor
from torch.nn import functional
from training import step

import fusedops as fo

COLUMNS = (256, 1000, 1023, 1024, 4096, 8192, 16384, 30522, 50257, 65536)
CHAIN_COLUMNS = (1024, 16384)
DROPOUTS = (0.1, 0.0)
HALF = torch.float16

#: Percent of the ceiling from 256 columns on, and times torch.compile's speed, with dropout and
#: without.
PERCENT, WITH_DROPOUT, WITHOUT = 97.0, 3.0, 1.0


@fo.functor
def gelu(v: Tensor, b: Tensor) -> Tensor:
    """GELU of a linear layer's result and its bias."""
    return functional.gelu(v + b, approximate="tanh")


BIAS = fo.Map(load=[fo.Bias("b")])
CHAIN = fo.Map(load=[gelu("b"), fo.Dropout("p"), fo.Residual("r")])


def chain(x: Tensor, b: Tensor, r: Tensor, p: float) -> Tensor:
    """The chain in torch."""
    return functional.dropout(functional.gelu(x + b, approximate="tanh"), p) + r


def measured() -> Iterator[Result]:
    """Both passes of a bias by columns, then the chain forward and as whole steps."""
    for columns in COLUMNS:
        yield from _widths(columns)
    for columns in CHAIN_COLUMNS:
        for p in DROPOUTS:
            yield from _chains(columns, p)


def _made(columns: int, tensors: int) -> list[list[Tensor]]:
    """Sets of tensors that are gone round: x, and others of its size."""
    shape = rows_of(columns, "float16"), columns
    moved = tensors * shape[0] * columns * HALF.itemsize
    return [
        [torch.randn(shape, dtype=HALF, device="cuda") for _ in range(tensors - 1)]
        for _ in range(sets(moved))
    ]


def _widths(columns: int) -> Iterator[Result]:
    given = _made(columns, 2)
    b = torch.randn(columns, dtype=HALF, device="cuda")
    moved = 2 * given[0][0].nbytes
    best = moved / ceiling.bandwidth(given[0][0].numel(), HALF)

    def forward(x: Tensor) -> Callable[[], Any]:
        return lambda: BIAS(x, b=b)

    def backward(dy: Tensor) -> Callable[[], Any]:
        x, bias = torch.empty_like(dy).requires_grad_(), b.clone().requires_grad_()
        with torch.enable_grad():
            y = BIAS(x, b=bias)
        return lambda: torch.autograd.grad(y, (x, bias), dy, retain_graph=True)

    for name, make in (("forward", forward), ("backward", backward)):
        seconds = queue_seconds([make(x) for (x,) in given])
        percent = 100 * best / seconds
        yield Result(
            "map",
            f"bias, {columns} columns, {name}",
            "fusedops",
            seconds,
            moved,
            best,
            target=f">= {PERCENT:.0f} %" if name == "forward" else "",
            met=percent >= PERCENT if name == "forward" else None,
        )


def _chains(columns: int, p: float) -> Iterator[Result]:
    given = _made(columns, 3)
    b = torch.randn(columns, dtype=HALF, device="cuda")
    size = given[0][0].nbytes
    torch._dynamo.reset()
    ways: dict[str, Callable[..., Any]] = {
        "fusedops": lambda x, r: CHAIN(x, b=b, r=r, p=p),
        "torch.compile": functools.partial(_with, torch.compile(chain, dynamic=False), b, p),
        "torch eager": functools.partial(_with, chain, b, p),
    }
    # Forward: x and r read, y written. A step: dy and x read again, gradients of x and r written.
    for name, reads, writes in (("forward", 2, 1), ("forward and backward", 4, 3)):
        seconds = {}
        for by, call in ways.items():
            calls = [functools.partial(call, *tensors) for tensors in given]
            if name != "forward":
                calls = [_step(call, b, tensors) for tensors in given]
            seconds[by] = queue_seconds(calls)
        ours, moved = seconds["fusedops"], (reads + writes) * size
        best = moved / ceiling.bandwidth(given[0][0].numel(), HALF, 2, 1)
        times = WITH_DROPOUT if p else WITHOUT
        for by, taken in seconds.items():
            rival = by != "fusedops"
            held = rival and by == "torch.compile"
            yield Result(
                "map",
                f"bias, GELU, dropout {p}, residual, {columns} columns, {name}",
                by,
                taken,
                moved,
                best,
                beside=ours if rival else 0.0,
                target=f">= {times:.0f} x" if held else "",
                met=taken / ours >= times if held else None,
            )


def _with(call: Callable[..., Tensor], b: Tensor, p: float, x: Tensor, r: Tensor) -> Tensor:
    return call(x, b, r, p)


def _step(call: Callable[..., Any], b: Tensor, tensors: Sequence[Tensor]) -> Callable[[], Any]:
    inputs = [b.requires_grad_(), *(one.requires_grad_() for one in tensors)]
    return step(functools.partial(call, *tensors), inputs)
