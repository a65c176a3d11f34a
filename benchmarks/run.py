# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: `python benchmarks/run.py [PART ...] [--csv FILE]`.

Parts (all that this machine can run, unless some are named):

    build                both  cold, from the cache, new shapes
    ceiling              GPU   the fastest plain kernels that read and write so many streams
    softmax              GPU   (49152, 256 ... 16384), percent of the ceiling
    layer_norm           GPU   the same with gamma and beta
    flagship             GPU   both chains beside torch eager and torch.compile
    softmax_backward     GPU   as softmax: dx, percent of the ceiling
    layer_norm_backward  GPU   as layer_norm: dx, dgamma, dbeta
    flagship_backward    GPU   both chains forward and backward, all gradients
    dispatch             GPU   the C++ entry points: compile time with nvcc, percent of the ceiling
    memory               GPU   what is held between forward and backward
    cpu                  CPU   both chains beside torch eager
    host                 both  host time of a call that hits its plan, and of forward and backward
"""

import sys
from pathlib import Path
from typing import Annotated

import backward
import cpu
import dispatch
import gpu
import host
import results
import torch
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

GPU_PARTS = {
    "ceiling": gpu.the_ceiling,
    "softmax": gpu.softmax,
    "layer_norm": gpu.layer_norm,
    "flagship": gpu.flagships,
    "softmax_backward": backward.softmax,
    "layer_norm_backward": backward.layer_norm,
    "flagship_backward": backward.flagships,
    "dispatch": dispatch.sweeps,
    "memory": backward.memory,
}
# Builds come first, while this process has none of their kernels.
PARTS = {"build": host.builds, **GPU_PARTS, "cpu": cpu.chains, "host": host.calls}
HONEST_BYTES_PER_SECOND = 4.1e12  # An H200 below this at 1 GiB is not at its best: void.


def main(
    parts: Annotated[list[str] | None, typer.Argument(help=" ".join(PARTS))] = None,
    csv: Annotated[Path | None, typer.Option(help="Where to write every row.")] = None,
) -> None:
    """Measures and prints."""
    console = Console(width=None if sys.stdout.isatty() else 120)  # A log need not wrap.
    if unknown := set(parts or ()) - set(PARTS):
        raise typer.BadParameter(f"{sorted(unknown)}; there are {', '.join(PARTS)}")
    runnable = [part for part in PARTS if torch.cuda.is_available() or part not in GPU_PARTS]
    chosen = [part for part in PARTS if part in (parts or runnable)]

    found: list[results.Result] = []
    failed = []
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with torch.no_grad(), Progress(*columns, console=console, transient=True) as progress:
        for part in chosen:
            task = progress.add_task(part, total=None)
            try:
                for result in PARTS[part]():
                    found.append(result)
                    progress.update(task, description=f"{part}: {result.case}, {result.by}")
            except Exception:  # Hours of the other parts shall not go with it.
                failed.append(part)
                console.print_exception()
            progress.remove_task(task)

    console.print(results.provenance())
    for part in chosen:
        if rows := [result for result in found if result.part == part]:
            console.print(results.table(rows))
    if torch.cuda.is_available() and "H200" in torch.cuda.get_device_name():
        from ceiling import bandwidth

        reached = bandwidth(2**29, torch.float16)
        verdict = "" if reached >= HONEST_BYTES_PER_SECOND else ": VOID, below 4.1"
        console.print(f"Ceiling at 1 GiB: {reached / 1e12:.2f} TB/s{verdict}")
    if csv and found:
        results.write(found, csv)
        console.print(f"Wrote {len(found)} rows to {csv}.")
    if failed:
        console.print(f"Failed: {', '.join(failed)}", style="red")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
