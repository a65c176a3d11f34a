# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: `python benchmarks/run.py [PART ...] [--csv FILE]`; README.md has the method.

Parts (all that this machine can run, unless some are named):

    build              both  an import; cold, from the cache, new shapes
    ceiling            GPU   the fastest plain kernels that read and write so many streams
    sweep              GPU   softmax, log-softmax and norms by columns, forward and backward:
                             percent of the ceiling, beside the peers
    beside             GPU   softmax and norms at shapes of training, forward and backward: every
                             peer and the ceiling in the same rounds
    few_rows           GPU   the same ops with 1 to 512 rows, beside torch
    causal             GPU   a causal softmax beside the same op unmasked
    traffic            GPU   pairs of declarations that move the same bytes
    map                GPU   a map by columns: percent of the ceiling; bias, GELU, dropout and
                             residual beside torch eager and torch.compile
    gemm               GPU   products with what follows them, by one kernel and by two, beside torch
                             eager, torch.compile and cuBLASLt; a feed-forward block forward and
                             backward
    scores             GPU   batched products with what follows them, scores of attention among
                             them, by one kernel and by two, beside torch eager and torch.compile
    grouped            GPU   products of groups of rows with SwiGLU, and whole experts, forward and
                             steps, beside torch's grouped_mm, eager and compiled, and QuACK
    dynamic_quantize   GPU   results of 8 bits whose scales the kernel finds: percent of the
                             ceiling, beside torch.compile
    quantized          GPU   results of 8 bits as FlashInfer has them, by scales that are given or
                             found: percent of the ceiling, beside FlashInfer
    rotary             GPU   rotations of queries and keys, with their norm and alone, forward,
                             backward and in place, beside torch eager and torch.compile
    functors           GPU   functors where models have them, forward: percent of the ceiling
    evoformer          GPU   AlphaFold's triangle attentions beside torch eager and torch.compile
    losses             GPU   cross entropy at sizes of language models, beside torch eager,
                             torch.compile and QuACK
    linear_losses      GPU   a linear layer and its cross entropy at sizes of language models: time
                             and peak memory of a step, beside torch, Liger and QuACK
    lse_and_sink       GPU   softmaxes that return their logsumexp or have a sink, beside torch
    flagship           GPU   both chains beside torch eager and torch.compile
    flagship_backward  GPU   both chains forward and backward, all gradients
    dispatch           GPU   the C++ entry points: compile time with nvcc, percent of the ceiling
    memory             GPU   what is held between forward and backward
    models             GPU   steps of training of four models, patched by fo.patch, beside torch
                             eager, sdpa and torch.compile: time, peak memory and losses
    sharded            GPUs  two GPUs, by NCCL: bandwidths of collectives, sharded columns beside
                             gathered ones, steps of the example's transformer on one GPU and on
                             two; bytes as the profiler counts them
    errors             both  max and RMS error, ours and the float32 chain's, against float64
    product_errors     GPU   the same of products with what follows them, by one kernel, by two and
                             by torch
    cpu                CPU   the ops by columns beside torch, both chains beside torch eager and
                             torch.compile; one thread and all
    host               both  host time of a call that hits its plan, and of forward and backward
    host_compiled      both  host time of a call in compiled code, beside an eager one
    functors_host      both  host time of the calls of `functors`
    lengths            both  kernels that random row lengths and shapes build, and the longest call
"""

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import alphafold
import beside
import causal
import ceiling
import cpu
import dispatch
import dynamic_quantize
import errors
import flagships
import functors
import gemm
import grouped
import host
import host_compiled
import lengths
import linear_losses
import losses
import lse_and_sink
import maps
import memory
import models
import points
import product_errors
import quantized
import results
import rotary
import scores
import sharded
import summary
import sweep
import torch
import traffic
import typer
import warm
from cells import GRIDS
from peers import PEERS
from points import Selection
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from sheet import Sheet

Part = Callable[[Selection], Iterator[results.Result] | Iterator[errors.Errors]]


def whole(part: Callable[[], Iterator[results.Result]]) -> Part:
    """A part of which nothing can be selected."""
    return lambda chosen: part()


GPU_PARTS: dict[str, Part] = {
    "ceiling": whole(ceiling.measured),
    "sweep": sweep.sweep,
    "beside": beside.measured,
    "few_rows": sweep.few_rows,
    "causal": causal.squares,
    "traffic": traffic.pairs,
    "map": whole(maps.measured),
    "gemm": gemm.measured,
    "scores": scores.measured,
    "grouped": grouped.measured,
    "dynamic_quantize": whole(dynamic_quantize.measured),
    "quantized": quantized.measured,
    "rotary": whole(rotary.measured),
    "functors": functors.measured,
    "evoformer": whole(alphafold.measured),
    "losses": losses.measured,
    "linear_losses": linear_losses.measured,
    "lse_and_sink": lse_and_sink.measured,
    "flagship": whole(flagships.forward),
    "flagship_backward": whole(flagships.steps),
    "dispatch": dispatch.sweeps,
    "memory": whole(memory.held),
    "models": models.measured,
    "product_errors": product_errors.measured,
    "sharded": whole(sharded.measured),
}
# Builds come first, while this process has none of their kernels.
PARTS: dict[str, Part] = {
    "build": whole(host.builds),
    **GPU_PARTS,
    "errors": errors.table,
    "cpu": cpu.measured,
    "host": whole(host.calls),
    "host_compiled": whole(host_compiled.calls),
    "functors_host": whole(functors.host_calls),
    "lengths": whole(lengths.measured),
}
#: Parts whose rows are errors, and the tables that are printed of them.
DIGESTS = {"errors": errors.digest, "product_errors": product_errors.digest}
HONEST_BYTES_PER_SECOND = 4.1e12  # An H200 below this at 1 GiB is not at its best: void.


def names(text: str | None, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    """The words of a list with commas; all that are known if there is none."""
    chosen = known if text is None else tuple(word.strip() for word in text.split(",") if word)
    if unknown := set(chosen) - set(known):
        raise typer.BadParameter(f"{option}: {sorted(unknown)}; there are {', '.join(known)}")
    return chosen


def numbers(text: str | None, option: str) -> tuple[int, ...]:
    """The numbers of a list with commas."""
    try:
        return tuple(sorted(int(word) for word in (text or "").split(",") if word))
    except ValueError:
        raise typer.BadParameter(f"{option}: not numbers: {text}") from None


def main(
    parts: Annotated[list[str] | None, typer.Argument(help=" ".join(PARTS))] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            help="Where every row goes. A row replaces the one of the same part, case and `by` "
            "that the file has, all others stay: several runs fill one file. Rows of `errors` go "
            "to errors-FILE beside it."
        ),
    ] = None,
    op: Annotated[
        str | None, typer.Option(help=f"For sweeps and errors: of {','.join(points.OPS)}.")
    ] = None,
    direction: Annotated[
        str | None, typer.Option("--pass", help=f"Likewise: of {','.join(points.PASSES)}.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help=f"Likewise: of {','.join(points.DTYPES)}.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="For sweeps and errors: numbers.")] = None,
    rows: Annotated[str | None, typer.Option(help="For few_rows: numbers.")] = None,
    peers: Annotated[
        str | None, typer.Option(help=f"Of {','.join(PEERS)}: all, unless some are named.")
    ] = None,
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Only fusedops.")] = False,
    model: Annotated[
        str | None,
        typer.Option(help=f"For models: of {','.join(map(models.short, models.MODELS))}."),
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="For models: only the ways by torch.compile.")
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(help="For models: a folder for pages that say where each step's time goes."),
    ] = None,
    oneflow: Annotated[
        Path | None,
        typer.Option(help="For dispatch: OneFlow's source, with oneflow/core/cuda/softmax.cuh."),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            "--warm", help="First build what sweeps and traffic call, in so many processes."
        ),
    ] = 0,
    show: Annotated[
        Path | None, typer.Option("--summary", help="Measure nothing: what this CSV says.")
    ] = None,
) -> None:
    """Measures and prints."""
    console = Console(width=None if sys.stdout.isatty() else 120)  # A log need not wrap.
    if show:
        summary.show(show, console)
        return
    if unknown := set(parts or ()) - set(PARTS):
        raise typer.BadParameter(f"{sorted(unknown)}; there are {', '.join(PARTS)}")
    # What training has after its first thousands of calls, and nothing is built while others run.
    os.environ.setdefault("FUSEDOPS_AUTOGRAD", "cpp")
    selection = Selection(
        ops=names(op, points.OPS, "--op"),
        passes=names(direction, points.PASSES, "--pass"),
        dtypes=names(dtype, tuple(points.DTYPES), "--dtype") if dtype else None,
        columns=numbers(columns, "--columns"),
        rows=numbers(rows, "--rows") or points.FEW_ROWS,
        peers=() if no_peers else names(peers, tuple(PEERS), "--peers"),
        models=names(model, tuple(map(models.short, models.MODELS)), "--model"),
        compiled=compiled,
        profile=profile,
        oneflow=oneflow,
    )
    runnable = [part for part in PARTS if torch.cuda.is_available() or part not in GPU_PARTS]
    chosen = [part for part in PARTS if part in (parts or runnable)]
    if processes and torch.cuda.is_available():
        console.print(warm.build(selection, chosen, processes))

    found, failed = measure(chosen, selection, csv, console)
    console.print(results.provenance())
    for part in chosen:
        if part in GRIDS:
            summary.grid(found[part], console)
        elif part in DIGESTS:
            console.print(DIGESTS[part](found[part]))
        elif found[part]:
            console.print(results.table(found[part]))
        if csv:
            console.print(f"Wrote {len(found[part])} rows to {sheet(csv, part).path}.")
    check_ceiling(console)
    if failed:
        console.print(f"Failed: {', '.join(failed)}", style="red")
        raise typer.Exit(1)


def measure(
    chosen: list[str], selection: Selection, csv: Path | None, console: Console
) -> tuple[dict[str, list[dict[str, str]]], list[str]]:
    """Every row of these parts as text, saved as it comes, and the parts that broke off."""
    found: dict[str, list[dict[str, str]]] = {part: [] for part in chosen}
    failed = []
    origin = results.provenance()
    shown = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with torch.no_grad(), Progress(*shown, console=console, transient=True) as progress:
        for part in chosen:
            task = progress.add_task(part, total=None)
            book = sheet(csv, part) if csv else None
            try:
                told = functools.partial(_tell, progress, task, part)
                for result in PARTS[part](dataclasses.replace(selection, told=told)):
                    row = result.cells()
                    found[part].append(row)
                    if book:
                        book.add(row | origin)
                    progress.update(task, description=f"{part}: {row['case']}, {row['by']}")
            except Exception:  # Hours of the other parts shall not go with it.
                failed.append(part)
                console.print_exception()
            finally:
                if book:
                    book.save()
            progress.remove_task(task)
    return found, failed


def _tell(progress: Progress, task: TaskID, part: str, said: str) -> None:
    progress.update(task, description=f"{part}: {said}")


def sheet(csv: Path, part: str) -> Sheet:
    """Where the rows of a part go."""
    if part in DIGESTS:
        name = csv.name if csv.name.startswith("errors-") else f"errors-{csv.name}"
        return Sheet(csv.with_name(name), errors.KEY)
    return Sheet(csv)


def check_ceiling(console: Console) -> None:
    """Says whether an H200 was at its best."""
    if not (torch.cuda.is_available() and "H200" in torch.cuda.get_device_name()):
        return
    reached = ceiling.bandwidth(2**29, torch.float16)
    verdict = "" if reached >= HONEST_BYTES_PER_SECOND else ": VOID, below 4.1"
    console.print(f"Ceiling at 1 GiB: {reached / 1e12:.2f} TB/s{verdict}")


if __name__ == "__main__":
    typer.run(main)
