# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Products with what follows them: torch's product and one kernel, beside torch's own ways.

The sizes and the two STOREs are those of docs/gemm.md. Then a feed-forward block, forward and
backward. Calls are queued, not captured: a dropout that draws from torch's generator cannot be.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from maps import HALF, gelu
from results import Result
from timing import queue_seconds, sets
from torch import Tensor
from torch.nn import functional
from training import step

import fusedops as fo

SIZES = (
    (16384, 1024, 1024),
    (16384, 4096, 1024),
    (16384, 1024, 4096),
    (8192, 12288, 4096),
    (4096, 4096, 4096),
    (512, 4096, 4096),
    (10007, 3000, 1000),
)
#: Rows, and the sizes outside and inside of the feed-forward block.
BLOCK = (16384, 1024, 4096)
P = 0.1

ACTIVATED = fo.Linear(store=[gelu("b")])
JOINED = fo.Linear(store=[fo.Bias("b"), fo.Dropout("p"), fo.Residual("r", save="stream")])
MLP = fo.MLP(
    hidden=[gelu("b1")],
    store=[fo.Bias("b2"), fo.Dropout("p"), fo.Residual("r")],
)
LAYERS = fo.Linear(MLP.hidden), fo.Linear(MLP.store)


def activated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Bias and GELU in torch."""
    return functional.gelu(functional.linear(x, w, b), approximate="tanh")


def joined(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """Bias, dropout and residual in torch."""
    return functional.dropout(functional.linear(x, w, b), P) + r


def block(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """The feed-forward block in torch."""
    return joined(activated(x, w1, b1), w2, b2, x)


def measured(device: str = "cuda") -> Iterator[Result]:
    """Both STOREs at every size, then whole steps of the block."""
    for size in SIZES:
        yield from _stores(size, device)
    yield from _steps(BLOCK, device)


def _randn(*shape: int, device: str, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, dtype=HALF, device=device) * scale


def _stores(size: tuple[int, int, int], device: str) -> Iterator[Result]:
    m, n, k = size
    w, b = _randn(n, k, device=device, scale=k**-0.5), _randn(n, device=device)
    moved = 2 * (m * k + n * k + m * n)
    given = [
        (_randn(m, k, device=device), _randn(m, n, device=device))
        for _ in range(sets(moved + 2 * m * n))
    ]
    product = queue_seconds([functools.partial(functional.linear, x, w) for x, _ in given])
    torch._dynamo.reset()
    stores: dict[str, dict[str, Callable[..., Any]]] = {
        "bias, GELU": {
            "fusedops": lambda x, r: ACTIVATED(x, w, b=b),
            "torch.compile": _each(torch.compile(activated, dynamic=False), w, b),
            "torch eager": _each(activated, w, b),
            "cuBLASLt's epilogue": lambda x, r: torch._addmm_activation(b, x, w.T, use_gelu=True),
        },
        "bias, dropout, residual": {
            "fusedops": lambda x, r: JOINED(x, w, b=b, p=P, r=r),
            "torch.compile": _with(torch.compile(joined, dynamic=False), w, b),
            "torch eager": _with(joined, w, b),
        },
    }
    for name, ways in stores.items():
        extra = 2 * m * n if "residual" in name else 0
        case = f"{name}, {m} x {n} x {k}, forward"
        calls = {
            by: [functools.partial(call, *pair) for pair in given] for by, call in ways.items()
        }
        yield from _compared(case, calls, moved + extra, product)


def _each(call: Callable[..., Any], w: Tensor, b: Tensor) -> Callable[..., Any]:
    return lambda x, r: call(x, w, b)


def _with(call: Callable[..., Any], w: Tensor, b: Tensor) -> Callable[..., Any]:
    return lambda x, r: call(x, w, b, r)


def _steps(size: tuple[int, int, int], device: str) -> Iterator[Result]:
    rows, outer, inner = size
    weights = [
        _randn(inner, outer, device=device, scale=outer**-0.5).requires_grad_(),
        _randn(inner, device=device).requires_grad_(),
        _randn(outer, inner, device=device, scale=inner**-0.5).requires_grad_(),
        _randn(outer, device=device).requires_grad_(),
    ]
    x = _randn(rows, outer, device=device).requires_grad_()

    def fused(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Any:
        return MLP(x, w1, w2, b1=b1, b2=b2, p=P, r=x)

    def by_layers(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Any:
        return LAYERS[1](LAYERS[0](x, w1, b1=b1), w2, b2=b2, p=P, r=x)

    torch._dynamo.reset()
    ways: dict[str, Callable[..., Any]] = {
        "fusedops": fused,
        "fusedops, two layers": by_layers,
        "torch.compile": torch.compile(block, dynamic=False),
        "torch eager": block,
    }
    inputs = [x, *weights]
    calls: dict[str, Sequence[Callable[[], Any]]] = {
        by: [step(functools.partial(call, *inputs), inputs)] for by, call in ways.items()
    }
    case = f"block {outer} -> {inner} -> {outer}, {rows} rows, forward and backward"
    yield from _compared(case, calls, 0, 0.0)


def _compared(
    case: str, calls: dict[str, Sequence[Callable[[], Any]]], moved: int, product: float
) -> Iterator[Result]:
    seconds = {by: queue_seconds(each) for by, each in calls.items()}
    for by, taken in seconds.items():
        ours = by == "fusedops"
        yield Result(
            "gemm",
            case,
            by,
            taken,
            moved,
            against=product,
            beside=0.0 if ours else seconds["fusedops"],
        )
