# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops demo`: declare, build, check and time both flagship ops against torch.

May import: fusedops, errors, flagship.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fusedops as fo
from fusedops import flagship
from fusedops.errors import counted
from fusedops.flagship import Case

__all__ = ["pick_device", "run"]

#: The probability of the dropouts of what is built and timed.
P = 0.1


def pick_device(name: str | None) -> torch.device:
    """The device of that name, or the GPU if there is one, else the CPU.

    Raises:
        RuntimeError: There is no such device.
    """
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type not in ("cpu", "cuda"):
        raise RuntimeError(f"device must be cpu or cuda, got {name}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RuntimeError(
            f"torch finds {counted(torch.cuda.device_count(), 'CUDA device')}, got {name}"
        )
    return device


def run(device: torch.device, console: Console) -> None:
    """Shows both flagship ops: their chains, builds, errors and times.

    Args:
        device: Where to run. Sizes are a training step's on a GPU, small ones on a CPU.
        console: Where to print.
    """
    if device.type == "cuda":
        where, dtype = torch.cuda.get_device_name(device), torch.float16
        scores, tokens = (8, 16, 1024, 1024), (49152, 1024)
    else:
        where, dtype = f"CPU, {counted(torch.get_num_threads(), 'thread')}", torch.float32
        scores, tokens = (2, 8, 512, 512), (4096, 1024)
    size: dict[str, Any] = {"p": P, "dtype": dtype, "device": device}
    cases = [flagship.attention(scores, **size), flagship.add_norm(tokens, **size)]
    console.print(f"fusedops {fo.__version__}, torch {torch.__version__}, on {where}\n")
    for case in cases:
        console.print(f"[bold]{case.title}[/bold], {case.x.dtype}")
        console.print(f"  LOAD   x → {' → '.join(map(repr, case.op.load))}")
        console.print(f"  STORE  {' → '.join(map(repr, case.op.store))} → y\n")
    console.print(builds(cases), errors(cases), times(cases))
    console.print(
        "Builds: the first call, nothing in the cache.\n"
        "Errors: the largest difference from float64, same inputs, nothing dropped.\n"
        f"Times: medians of whole calls, forward passes with dropout {P}.\n"
        "torch is the same chain as one writes it, in eager calls.",
        style="dim",
    )


def builds(cases: list[Case]) -> Table:
    """The first call of each op, with an empty cache."""
    table = Table("build", "seconds", "for")
    with (
        tempfile.TemporaryDirectory(prefix="fusedops-demo-") as folder,
        patch.dict(os.environ, FUSEDOPS_CACHE_DIR=folder),
    ):
        for case in cases:
            begin = time.perf_counter()
            case.fused()
            seconds = time.perf_counter() - begin
            table.add_row(
                case.name, f"{seconds:.2f}", case.op.explain(case.x, **case.operands).arch
            )
    return table


def errors(cases: list[Case]) -> Table:
    """Both results against the same declaration in float64."""
    table = Table("largest error", "fused", "torch")
    for case in cases:
        same: dict[str, Any] = {**case.operands, "p": 0.0}
        # The other operands keep their dtype, so a saved stream is rounded as it is saved.
        exact = first(case.op.unfused(case.x.double(), **same))
        found = (first(call(case.x, **same)) for call in (case.op, case.chain))
        table.add_row(case.name, *(f"{(got - exact).abs().max().item():.1e}" for got in found))
    return table


def first(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The op's result without its saved streams."""
    return result if isinstance(result, Tensor) else result[0]


def times(cases: list[Case]) -> Table:
    """Both chains on the clock: forward passes, since nothing asks for a gradient."""
    # The timer imports torch's builder of extensions, which warns where there is nvcc and no GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    from torch.utils.benchmark import Timer

    table = Table("time", "fused", "torch", "speed-up")
    for case in cases:
        fused, chain = (
            Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
            .blocked_autorange(min_run_time=1.0)
            .median
            for call in (case.fused, case.unfused)
        )
        table.add_row(
            case.name, f"{fused * 1e3:.3f} ms", f"{chain * 1e3:.3f} ms", f"{chain / fused:.1f}x"
        )
    return table
