# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops demo`: both flagship ops from declaration to result, beside the torch chains.

May import: jit, bind, reference, fusedops, flagship.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor
from torch.utils.benchmark import Timer

import fusedops as fo
from fusedops import flagship, jit
from fusedops.bind.generator import draw
from fusedops.flagship import Case
from fusedops.reference.dropout_mask import keep_mask, keep_scale

__all__ = ["pick_device", "run"]

SEED = 1  # Of the dropout mask that fused, torch and float64 share.


def pick_device(name: str | None) -> torch.device:
    """The device of that name, or the GPU if there is one, else the CPU.

    Raises:
        RuntimeError: There is no such device.
    """
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type not in ("cpu", "cuda"):
        raise RuntimeError(f"device must be cpu or cuda, got {name}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RuntimeError(f"torch finds {torch.cuda.device_count()} CUDA devices, got {name}")
    return device


def run(device: torch.device, console: Console) -> None:
    """Shows both flagship ops: their chains, builds, errors and times.

    Args:
        device: Where to run. Sizes are a training step's on a GPU, small ones on a CPU.
        console: Where to print.
    """
    if device.type == "cuda":
        size: dict[str, Any] = {"p": 0.1, "dtype": torch.float16, "device": device}
        cases = [
            flagship.attention((8, 16, 1024, 1024), **size),
            flagship.add_norm((49152, 1024), **size),
        ]
        where = torch.cuda.get_device_name(device)
    else:
        size = {"p": 0.1, "dtype": torch.float32, "device": device}
        cases = [
            flagship.attention((2, 8, 512, 512), **size),
            flagship.add_norm((4096, 1024), **size),
        ]
        where = f"CPU, {torch.get_num_threads()} threads"
    console.print(f"fusedops {fo.__version__}, torch {torch.__version__}, on {where}\n")

    for case in cases:
        console.print(f"[bold]{case.title}[/bold], {case.x.dtype}")
        console.print(f"  LOAD   x → {' → '.join(map(repr, case.op.load))}")
        console.print(f"  STORE  {' → '.join(map(repr, case.op.store))} → y\n")

    console.print(builds(cases, console))
    console.print(errors(cases))
    console.print(times(cases))
    console.print(
        "Errors: the largest difference from float64, same inputs and same dropout mask. "
        "Times: medians; torch is the same chain as one writes it, with its own dropout.",
        style="dim",
    )


def builds(cases: list[Case], console: Console) -> Table:
    """Builds each op in an empty cache, then takes it from there."""
    table = Table("build", "cold", "from the cache", "by")
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with empty_cache() as folder, Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            progress.update(task, description=f"building {case.title}")
            built = first_build(case, folder)
            progress.advance(task)
            table.add_row(
                case.name, f"{built.cold:.2f} s", f"{built.cached * 1e3:.1f} ms", built.compiler
            )
    return table


@dataclasses.dataclass(frozen=True)
class Build:
    """How long the first call of a case took, in seconds."""

    cold: float  # All of it: generating, compiling, loading, planning, running.
    cached: float  # The part that compiling was, when its result is already on disk.
    compiler: str


def first_build(case: Case, folder: Path) -> Build:
    """Makes the first call of a case in this process, with `folder` as a cache that lacks it."""
    known = set(folder.glob("*/meta.json"))
    begin = time.perf_counter()
    case.fused()
    cold = time.perf_counter() - begin
    (meta_file,) = set(folder.glob("*/meta.json")) - known
    meta = json.loads(meta_file.read_text(encoding="utf-8"))
    # Asks for the same variant once more, as another process would.
    (source,) = meta_file.parent.glob("kernel.c*[pu]")
    cached = jit.build(
        source.read_text(encoding="utf-8"),
        name=meta["name"],
        arch=meta["arch"],
        declaration=meta["declaration"],
    )
    compiler = f"{meta['compiler']['name']} {meta['compiler']['version'].split()[0]}"
    return Build(cold, cached.seconds, f"{compiler} for {meta['arch']}")


@contextmanager
def empty_cache() -> Iterator[Path]:
    """Points the cache at an empty folder for a while, so that a build is cold."""
    before = os.environ.get("FUSEDOPS_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="fusedops-demo-") as folder:
        os.environ["FUSEDOPS_CACHE_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["FUSEDOPS_CACHE_DIR"]
            else:
                os.environ["FUSEDOPS_CACHE_DIR"] = before


def errors(cases: list[Case]) -> Table:
    """Both results against the same declaration in float64."""
    table = Table("largest error", "fused", "torch")
    for case in cases:
        fused = first(case.fused(generator=seeded(case)))
        chain = first(case.unfused(dropout=same_dropout(case)))
        # The other operands keep their dtype, so a saved stream is rounded as it is saved.
        reference = first(case.op.unfused(case.x.double(), **case.operands, generator=seeded(case)))
        table.add_row(
            case.name,
            *(f"{(got - reference).abs().max().item():.1e}" for got in (fused, chain)),
        )
    return table


def seeded(case: Case) -> torch.Generator:
    """A generator that draws the same mask each time."""
    return torch.Generator(case.x.device).manual_seed(SEED)


def same_dropout(case: Case) -> Callable[[Tensor, float], Tensor]:
    """Dropout for the torch chain with the mask that the fused op draws."""
    device, shape = case.x.device, case.x.shape
    drawn = draw(device.type, device.index or 0, seeded(case), 1)
    assert drawn is not None  # no graph is captured here
    seed, offset = drawn

    def dropout(value: Tensor, p: float) -> Tensor:
        kept = keep_mask(shape, [len(shape) - 1], seed=seed, offset=offset, p=p, device=device)
        return value * kept * keep_scale(p)

    return dropout


def first(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The op's own output, without what it saved."""
    return result if isinstance(result, Tensor) else result[0]


def times(cases: list[Case]) -> Table:
    """Both chains on the clock."""
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
