# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Queries and keys normed and rotated: percent of the ceiling, beside torch eager and compiled.

Both are slices of a packed projection in bfloat16, 32 and 8 heads of 8 sequences of 4096 positions;
tables have one number for each pair, in torch's way one for each column. A backward pass is that
alone, of what the forward pass kept, with the gradient of the norm's weight.
"""

from collections.abc import Callable, Iterator
from typing import Any

import ceiling
import torch
from results import Result
from timing import queue_seconds
from torch import Tensor
from torch.nn import functional

import fusedops as fo

COLUMNS = (64, 128, 256)
BATCH, POSITIONS, HEADS, KEYS = 8, 4096, 32, 8
HALF, EPS = torch.bfloat16, 1e-6
#: Percent of the ceiling: forward, backward, and without a norm; times torch.compile's speed.
FORWARD, BACKWARD, ALONE, TIMES = 95.0, 85.0, 97.0, 2.0


def ops(interleaved: bool) -> dict[str, Any]:
    """The norm with a rotation, and the rotation alone."""
    rotate = fo.Rotate("cos", "sin", interleaved)
    norm = fo.RMSNorm(store=[fo.Affine("g", None), rotate], eps=EPS)
    return {"RMSNorm and Rotate": norm, "Rotate": fo.Map(load=[rotate])}


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotation of halves as models write it."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, g: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same of both in torch, with a norm before it or without."""
    if g is not None:
        q, k = (functional.rms_norm(x, g.shape, g, EPS) for x in (q, k))
    return turned(q, cos, sin), turned(k, cos, sin)


def measured() -> Iterator[Result]:
    """All lengths of rows, both layouts of pairs, and torch with one of them."""
    for columns in COLUMNS:
        packed = torch.randn(BATCH, POSITIONS, HEADS + 2 * KEYS, columns, dtype=HALF, device="cuda")
        for interleaved in (False, True):
            for name, op in ops(interleaved).items():
                case = f"{name}, {'neighbours' if interleaved else 'halves'}, {columns} columns"
                yield from _case(case, op, packed, compared=not interleaved)


def _case(case: str, op: Any, packed: Tensor, compared: bool) -> Iterator[Result]:
    normed = "g" in op.slots
    columns = packed.shape[-1]
    angle = torch.arange(POSITIONS, device="cuda")[:, None, None] * torch.rand(
        columns // 2, device="cuda"
    )
    tables = {"cos": angle.cos().to(HALF), "sin": angle.sin().to(HALF)}
    whole = [one.repeat(1, 1, 2) for one in tables.values()]
    g = torch.randn(columns, dtype=HALF, device="cuda") if normed else None
    parts = packed[:, :, :HEADS], packed[:, :, HEADS : HEADS + KEYS]
    operands = tables if g is None else {**tables, "g": g}

    def ours(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return op(q, **operands), op(k, **operands)

    def plain(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return both(q, k, *whole, g)

    ways: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {"fusedops": ours}
    if compared:
        torch._dynamo.reset()
        ways |= {"torch.compile": torch.compile(plain, dynamic=False), "torch eager": plain}
    size = sum(one.numel() for one in parts) * HALF.itemsize
    seconds = {by: queue_seconds([lambda way=way: way(*parts)]) for by, way in ways.items()}
    yield from _rows(f"{case}, forward", seconds, size, 1, FORWARD if normed else ALONE)
    with torch.no_grad():
        inside = queue_seconds([lambda: [op(one, **operands, out=one) for one in parts]])
    yield from _rows(f"{case}, in place", {"fusedops": inside}, size, 1, 0.0)
    leaves = [one.detach().contiguous().requires_grad_() for one in parts]
    upstream = [torch.randn_like(one) for one in leaves]
    inputs = leaves if g is None else [*leaves, g.requires_grad_()]
    seconds = {}
    for by, way in ways.items():
        with torch.enable_grad():
            y = way(*leaves)
        seconds[by] = queue_seconds(
            [lambda y=y: torch.autograd.grad(y, inputs, upstream, retain_graph=True)]
        )
    reads = 2 if normed else 1
    yield from _rows(f"{case}, backward", seconds, size, reads, BACKWARD if normed else 0.0)


def _rows(
    case: str, seconds: dict[str, float], size: int, reads: int, least: float
) -> Iterator[Result]:
    best = ceiling.of_bytes(size, reads, 1)
    ours = seconds["fusedops"]
    for by, taken in seconds.items():
        rival = by != "fusedops"
        target, met = "", None
        if not rival and least:
            target, met = f">= {least:.0f} %", 100 * best / taken >= least
        if by == "torch.compile" and case.endswith("forward"):
            target, met = f">= {TIMES:.0f} x", taken / ours >= TIMES
        moved = (reads + 1) * size
        beside = ours if rival else 0.0
        yield Result("rotary", case, by, taken, moved, best, target=target, met=met, beside=beside)
