# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Plots of a sweep: `python benchmarks/plots.py FILE.csv [FOLDER]`, one SVG an op and pass.

Transparent, in colours that show on white and on black alike; the same CSV gives the same bytes.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import typer
from cells import COLOURS, OURS, Cells
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from points import AWKWARD, DTYPES, OPS, PASSES
from sheet import read

STYLE: Any = {
    "svg.hashsalt": "fusedops",
    "svg.fonttype": "none",  # Text, which the reader's machine draws: a third of the size.
    "savefig.transparent": True,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#808890"
    ),
    "grid.color": "#80889050",
    "axes.grid": True,
    "legend.frameon": False,
}
CEILING = "#808890"
TICKS = (32, 128, 512, 2048, 8192, 32768, 131072)
PANELS = {
    "percent": "percent of the ceiling",
    "TB/s": "TB/s",
    "microseconds": "microseconds",
}


def draw(rows: Sequence[Cells], op: str, direction: str, dtype: str) -> Figure | None:
    """One op and pass against the columns, or None if nothing was measured."""
    chosen = [
        row
        for row in rows
        if row["part"] == "sweep"
        and (row["op"], row["pass"], row["dtype"]) == (op, direction, dtype)
        and row["microseconds"]
        and row["percent"]
    ]
    if not chosen:
        return None
    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(12, 3.6), layout="constrained")
    for axes, (field, label) in zip(panels, PANELS.items(), strict=True):
        _panel(axes, chosen, field)
        axes.set_title(label, loc="left", fontsize=9)
        axes.set_xlabel("columns")
    panels[0].set_ylim(0, 112)
    panels[1].set_ylim(bottom=0)
    panels[2].set_yscale("log")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle(f"{op.replace('_', ' ')}, {direction}, {dtype}", x=0.01, ha="left")
    return figure


def _panel(axes: Axes, rows: Sequence[Cells], field: str) -> None:
    ours = [row for row in rows if row["by"] == OURS and _columns(row) not in AWKWARD]
    ours.sort(key=_columns)
    axes.plot(
        [_columns(row) for row in ours],
        [_of_ceiling(row, field) for row in ours],
        color=CEILING,
        linestyle="--",
        linewidth=1,
        label="ceiling",
    )
    for by, colour in COLOURS.items():
        mine = sorted((row for row in rows if row["by"] == by), key=_columns)
        front: dict[str, Any] = {"zorder": 3} if by == OURS else {}
        # Lines join the powers of two: what lies between them is a matter of its own.
        for awkward in (False, True):
            some = [row for row in mine if (_columns(row) in AWKWARD) is awkward]
            if some:
                axes.plot(
                    [_columns(row) for row in some],
                    [float(row[field]) for row in some],
                    color=colour,
                    marker="x" if awkward else "o",
                    markersize=4 if awkward else 3,
                    linewidth=0 if awkward else (2 if by == OURS else 1.2),
                    label=None if awkward else by,
                    **front,
                )
    axes.set_xscale("log", base=2)
    axes.set_xticks(TICKS, [str(each) for each in TICKS])


def _columns(row: Cells) -> int:
    return int(row["columns"])


def _of_ceiling(row: Mapping[str, str], field: str) -> float:
    """What the ceiling reaches in the place of ours."""
    share = float(row["percent"]) / 100
    return {
        "percent": 100.0,
        "TB/s": float(row["TB/s"]) / share,
        "microseconds": float(row["microseconds"]) * share,
    }[field]


def main(
    path: Annotated[Path, typer.Argument(help="A CSV of run.py.")],
    folder: Annotated[
        Path | None, typer.Argument(help="Where plots go; plots/ beside the CSV.")
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = "float16",
) -> None:
    """Draws all that the CSV has."""
    mpl.use("svg")
    folder = folder or path.parent / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    rows = read(path)
    with mpl.rc_context(STYLE):
        for op, direction in itertools.product(OPS, PASSES):
            figure = draw(rows, op, direction, dtype)
            if figure is None:
                continue
            suffix = "" if dtype == "float16" else f"_{dtype}"
            out = folder / f"{op}_{direction}{suffix}.svg"
            figure.savefig(out, metadata={"Date": None, "Creator": None})
            pyplot.close(figure)
            typer.echo(out)


if __name__ == "__main__":
    typer.run(main)
