# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the profiler counts in one kernel of each schedule: `python benchmarks/counters.py OUT.md`.

Runs itself under Nsight Compute (`ncu`, of the CUDA toolkit), which sets the base clocks: times are
longer than those of the benchmarks.
"""

import contextlib
import csv
import io
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from torch import Tensor

import fusedops as fo
from fusedops.testing import force_schedule, last_schedule

STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"  # warps, each cycle
METRICS = {
    "us": "gpu__time_duration.sum",
    "DRAM %": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "MB": "dram__bytes.sum",
    "registers": "launch__registers_per_thread",
    "threads": "launch__block_size",
    "blocks": "launch__grid_size",
    "warps %": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "instructions a cycle": "sm__inst_executed.avg.per_cycle_active",
    "waits for memory": STALLED.format("long_scoreboard"),
    "for shared memory": STALLED.format("short_scoreboard"),
    "for a barrier": STALLED.format("barrier"),
    "spilled": "smsp__sass_inst_executed_op_local.sum",
}
SCALES = {"us": 1e-3, "MB": 1e-6}
ELEMENTS, MOST_ROWS, FEWEST_ROWS = 200_000_000, 49152, 64

SOFTMAX = fo.Softmax()
NORM = fo.LayerNorm(store=[fo.Affine("gamma", "beta")])


class Case(NamedTuple):
    """One call; `schedule` is forced, if any."""

    op: fo.RowOp
    backward: bool
    columns: int
    schedule: str | None = None


CASES = (
    *(Case(SOFTMAX, False, columns) for columns in (64, 1024, 16384, 50257, 131072)),
    Case(SOFTMAX, False, 32768, "shared"),
    Case(SOFTMAX, False, 131072, "streaming"),
    *(Case(NORM, False, columns) for columns in (64, 1024, 16384, 131072)),
    *(Case(SOFTMAX, True, columns) for columns in (1024, 16384, 131072)),
    Case(SOFTMAX, True, 16384, "streaming"),
    *(Case(NORM, True, columns) for columns in (1024, 16384, 131072)),
    Case(NORM, True, 16384, "streaming"),
)


def prepared(case: Case) -> Callable[[], object]:
    """The call, on memory of its own."""
    rows = max(FEWEST_ROWS, min(MOST_ROWS, ELEMENTS // case.columns))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.float16)

    x = normal(rows, case.columns)
    given = {operand.name: normal(case.columns) for operand in case.op.operands}
    if not case.backward:
        y = torch.empty_like(x)
        return torch.no_grad()(lambda: case.op(x, out=y, **given))
    inputs = [x.requires_grad_(), *(value.requires_grad_() for value in given.values())]
    y = case.op(x, **given)
    dy = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True)


def run() -> None:
    """Under the profiler: each case warm, then once while it looks."""
    for number, case in enumerate(CASES):
        forced = force_schedule(case.schedule) if case.schedule else contextlib.nullcontext()
        with forced:
            call = prepared(case)
            call()
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
        print(f"CASE {number} {last_schedule()}", flush=True)


def kernels(text: str) -> Iterator[tuple[int, str, dict[str, str]]]:
    """The number of the case, its schedule, and what was counted, kernel by kernel.

    The profiler prints where a case's kernels end only in the log; launches are in order.
    """
    lines = text.splitlines()
    table = "\n".join(line for line in lines if line.startswith('"'))
    found: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(io.StringIO(table)):
        found.setdefault(row["ID"], {})[row["Metric Name"]] = row["Metric Value"]
    schedules = [line.split()[2] for line in lines if line.startswith("CASE")]
    launches = iter(found.values())
    for number, (case, schedule) in enumerate(zip(CASES, schedules, strict=True)):
        several = case.backward and bool(case.op.operands)  # the second adds up parts
        for _ in range(1 + several):
            yield number, schedule, next(launches)


def page(text: str) -> str:
    """The table as Markdown."""
    heads = ["op", "columns", "schedule", "kernel", *METRICS]
    lines = [_line(heads), _line(["---"] * len(heads))]
    before = -1
    for number, schedule, counted in kernels(text):
        case = CASES[number]
        kernel = "sums" if number == before else "backward" if case.backward else "forward"
        how = f"{schedule}, forced" if case.schedule else schedule
        figures = [_figure(name, counted[metric]) for name, metric in METRICS.items()]
        lines.append(_line([case.op.name, str(case.columns), how, kernel, *figures]))
        before = number
    title = f"# What Nsight Compute counts, float16, {torch.cuda.get_device_name()}"
    return "\n".join([title, "", *lines]) + "\n"


def _figure(name: str, value: str) -> str:
    number = float(value.replace(",", "")) * SCALES.get(name, 1)
    return f"{number:.0f}" if number >= 100 or number == int(number) else f"{number:.1f}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(
    out: Annotated[Path, typer.Argument(help="Where the page goes; 'run' is for the profiler.")],
) -> None:
    """Profiles and writes."""
    if str(out) == "run":
        return run()
    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    command = [ncu, "--profile-from-start", "off", "--csv", "--metrics", ",".join(METRICS.values())]
    done = subprocess.run(
        [*command, sys.executable, __file__, "run"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    out.write_text(page(done.stdout), "utf-8")


if __name__ == "__main__":
    typer.run(main)
