# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Write the rows of a tuning file of the package: tune points of the sweep on this machine's GPU.

    python benchmarks/tune.py --op layer_norm --dtype float16 --columns 3000 --pass forward

The file is that of the GPU's architecture, src/fusedops/schedule/tuning/sm_NN.json, made from the
nearest older one's where there is none. Each candidate is compared with float64 before it is timed.
A row goes before all others and holds for kernels with just the features of the point; rows that
say the same of several points can be merged by hand, and `tests/test_tuning_file.py` says whether
each of them still decides something.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import points
import torch
import typer
from plain import PLAIN
from points import DTYPES, Point, Selection
from results import provenance
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from run import names, numbers

from fusedops.bind.bind import Bound
from fusedops.generate.target import Target
from fusedops.schedule import lookup
from fusedops.schedule.tuning_file import KINDS, text_of
from fusedops.tuning import tuner
from fusedops.tuning.problem import of_pass
from fusedops.tuning.search import Tried


def call(point: Point) -> Bound:
    """The checked call of a point, on tensors without memory."""
    plain, dtype = PLAIN[point.op], DTYPES[point.dtype]
    x = torch.empty(point.rows, point.columns, dtype=dtype, device="meta")
    vector = torch.empty(point.columns, dtype=dtype, device="meta")
    bound: Bound = plain.op.bind(x, dict.fromkeys(plain.parameters, vector))
    return bound


def content_of(target: Target, file: Path) -> dict[str, Any]:
    """The content of the file of an architecture; of the nearest older one's where it has none."""
    assert target.gpu is not None
    if file.exists():
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found
    older = lookup.FOLDER / lookup.builtin(target.arch).where
    kinds = json.loads(older.read_text(encoding="utf-8"))
    made = tuner.empty(target.arch, target.gpu)
    for row in (row for kind in KINDS for row in kinds[kind]):
        if size := row["set"].get("prefetch_bytes"):  # in proportion to the L2 cache, as in lookups
            row["set"]["prefetch_bytes"] = size * target.gpu.l2_bytes // kinds["device"]["l2_bytes"]
    return {**made, **{kind: kinds[kind] for kind in KINDS}}


def tuned(point: Point, device: torch.device, console: Console) -> tuner.Tuned:
    """What tuning a point finds; shows how far it is."""
    shown = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*shown, console=console, transient=True) as progress:
        task = progress.add_task(point.case, total=None)

        def done(tried: Tried) -> None:
            progress.update(task, description=f"{point.case}: {tried.step}")

        case = f"{point.op} {point.dtype} {point.columns}"
        return tuner.tune(of_pass(call(point), point.direction, device, {}), done, case)


def main(
    op: Annotated[str | None, typer.Option(help=f"Of {','.join(points.OPS)}.")] = None,
    direction: Annotated[
        str | None, typer.Option("--pass", help=f"Of {','.join(points.PASSES)}.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help=f"Of {','.join(DTYPES)}.")] = None,
    columns: Annotated[str | None, typer.Option(help="Numbers with commas between.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="The file; by default that of the architecture.")
    ] = None,
) -> None:
    """Tunes points, and writes the file after each."""
    console = Console()
    device = torch.device("cuda", torch.cuda.current_device())
    target = Target.of(device)
    file = output or lookup.FOLDER / f"{target.arch}.json"
    lookup.use_tuned(lambda arch, name: None)  # what this machine has tuned is no part of it
    content = content_of(target, file)
    measured = {k: v for k, v in provenance().items() if k in ("device", "driver", "fusedops")}
    selection = Selection(
        ops=names(op, points.OPS, "--op"),
        passes=names(direction, points.PASSES, "--pass"),
        dtypes=names(dtype, tuple(DTYPES), "--dtype") if dtype else None,
        columns=numbers(columns, "--columns"),
    )
    for point in (point for of_shape in selection.sweep() for point in of_shape):
        found = tuned(point, device, console)
        content = tuner.put(content, found, measured)
        file.write_text(text_of(content), encoding="utf-8")
        before, after = found.percent_before, found.percent_after
        changed = tuner.difference(found.outcome)
        console.print(f"{point.case}: {before:.1f} -> {after:.1f} %; {changed}")


if __name__ == "__main__":
    typer.run(main)
