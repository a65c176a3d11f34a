# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Variable lengths: the kernels that random row lengths and shapes need, and the longest call.

A call with a new shape is planned in Python; what is timed is what that takes the host. So Python's
garbage is collected between calls, as `timeit` does, and how long a collection of everything takes
has a row of its own. Memory of the GPU is reserved before. On a CPU, where a call also computes,
only small ones are timed: the time of the calling thread, less that of the same call made again.
"""

import contextlib
import gc
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from host import devices, dtype_of
from results import Result

from fusedops.flagship import ADD_NORM, ATTENTION
from fusedops.generate.variant import _kernels
from fusedops.plan.forward import HOST_INLINE

COUNT = 1000  # Of lengths, and of shapes.
LONGEST = 4096
SIZES = (1, 2, 3, 5, 8, 16)
FEW_ROWS = 8  # So many that share an operand have a backward kernel of their own.
MOST_KERNELS = {"cuda": 40, "cpu": 6}  # Of an op and a pass, and of few rows in a backward pass.
MOST_SECONDS = 1e-3  # Of a call that builds nothing, on the host.
COLLECTED = 100  # Shapes between two garbage collections.
RESERVED = 1 << 30  # Bytes of the GPU, more than the largest call needs.

Shape = tuple[int, ...]


def measured() -> Iterator[Result]:
    """Forward and backward, with dropout: lengths first, then shapes of one to four dimensions."""
    for device in devices():
        for name, lead, make in (
            ("attention softmax", (2, 2, 8), _attention),
            ("residual LayerNorm", (16,), _add_norm),
        ):
            yield from _op(name, lead, make, device)


def _op(
    name: str, lead: Shape, make: Callable[[Shape, torch.device], Any], device: torch.device
) -> Iterator[Result]:
    draw = random.Random(0)
    shapes = [(*lead, draw.randint(1, LONGEST)) for _ in range(COUNT)]
    for _ in range(COUNT):
        rows = [draw.choice(SIZES) for _ in range(draw.randint(0, 3))]
        shapes.append((*rows, draw.randint(1, LONGEST)))
    counts: Counter[str] = Counter()
    seconds: dict[str, list[float]] = {"forward": [], "backward": []}
    pauses = []
    if device.type == "cuda":
        _reserve(device)
    for number, shape in enumerate(shapes):
        if number % COLLECTED == 0:
            begin = time.perf_counter()
            gc.collect()
            pauses.append(time.perf_counter() - begin)
        op, x, operands = make(shape, device)
        known = set(_kernels)
        with _no_garbage_collection():
            took = _host_seconds(op, x, operands)
        new = [str(key[3]) for key in _kernels if key not in known]
        if not new and (x.is_cuda or x.numel() <= HOST_INLINE):
            for direction, one in zip(seconds, took, strict=True):
                seconds[direction].append(one)
        few = math.prod(shape[:-1]) <= FEW_ROWS
        counts.update(f"{one}, few rows" if one == "gradient" and few else one for one in new)
    most = MOST_KERNELS[device.type]
    for entry, count in sorted(counts.items()):
        yield Result(
            "lengths",
            f"{name} on {device}: kernels, {entry}",
            "fusedops",
            target=f"<= {most} kernels",
            met=count <= most,
            note=f"{count} kernels for {COUNT} lengths and {COUNT} shapes",
        )
    for direction, taken in seconds.items():
        taken.sort()
        longest = taken[-1]
        yield Result(
            "lengths",
            f"{name} on {device}: longest call, {direction}",
            "fusedops",
            seconds=longest,
            target=f"<= {MOST_SECONDS * 1e3:g} ms",
            met=longest <= MOST_SECONDS,
            note=f"of {len(taken)} new shapes, median {taken[len(taken) // 2] * 1e6:.0f} us, 99 in "
            f"100 below {taken[len(taken) * 99 // 100] * 1e6:.0f} us; without garbage collection",
        )
    yield Result(
        "lengths",
        f"{name} on {device}: longest garbage collection",
        "fusedops",
        seconds=max(pauses),
        note=f"of all of the process's objects, every {COLLECTED} shapes; median "
        f"{sorted(pauses)[len(pauses) // 2] * 1e3:.0f} ms; no part of the calls above",
    )


def _host_seconds(op: Any, x: torch.Tensor, operands: dict[str, Any]) -> tuple[float, float]:
    """Forward and backward of one call, the first with its shape."""
    leaves = [one for one in (x, *operands.values()) if _wants(one)]
    # The backward pass of a call on a GPU is run by another thread.
    now = time.perf_counter if x.is_cuda else time.thread_time

    def forward() -> tuple[torch.Tensor, float]:
        with torch.enable_grad():
            begin = now()
            y = op(x, **operands)
            took = now() - begin
        return (y if isinstance(y, torch.Tensor) else y[0]), took

    def backward() -> float:
        begin = now()
        torch.autograd.grad(y, leaves, upstream, retain_graph=True)
        return now() - begin

    y, planned = forward()
    upstream = torch.ones_like(y)
    planned_backward = backward()
    if x.is_cuda:
        return planned, planned_backward
    return max(0.0, planned - forward()[1]), max(0.0, planned_backward - backward())


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _reserve(device: torch.device) -> None:
    """Have torch's allocator hold memory for tensors of all sizes: cudaMalloc is not our time."""
    large = torch.empty(RESERVED, dtype=torch.uint8, device=device)
    small = [torch.empty(1 << 20, dtype=torch.uint8, device=device) for _ in range(64)]
    del large, small


def _wants(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _randn(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype_of(device), device=device).requires_grad_()


def _attention(shape: Shape, device: torch.device) -> Any:
    """Scores with a bias that the batch shares, and a padding mask for each of the batch."""
    *rows, columns = shape
    bias = (1, *rows[1:], columns) if rows else shape
    mask = (rows[0], *[1] * (len(rows) - 1), columns) if rows else shape
    padding = torch.zeros(mask, dtype=torch.bool, device=device)
    given = {"scale": 0.125, "pair_bias": _randn(*bias, device=device), "padding": padding}
    return ATTENTION, _randn(*shape, device=device), {**given, "p": 0.1}


def _add_norm(shape: Shape, device: torch.device) -> Any:
    vectors = {name: _randn(shape[-1], device=device) for name in ("bias", "gamma", "beta")}
    residual = _randn(*shape, device=device)
    return ADD_NORM, _randn(*shape, device=device), {**vectors, "p": 0.1, "residual": residual}
