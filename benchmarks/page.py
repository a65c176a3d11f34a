# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""All targets as a page of tables: `python benchmarks/page.py FILE.csv OUT.md`."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from cells import OURS, Cell, Cells, alone, beside_peers, cells
from points import COLUMNS, DTYPES, FEW_ROWS, FEW_ROWS_COLUMNS, OPS, PASSES, Point, rows_of
from sheet import read


def page(rows: Sequence[Cells]) -> str:
    """All targets as Markdown: what is not met is bold."""
    lines = ["# Targets and what was measured", "", _count(cells(rows)), ""]
    lines += ["Percent of the ceiling; bold is below its target, empty has none or was not run."]
    for direction in PASSES:
        names = [f"{op} {dtype}" for op in OPS for dtype in DTYPES]
        lines += ["", f"## {direction.capitalize()}", "", _line(["columns", *names])]
        lines += [_line(["---"] * (1 + len(names)))]
        for columns in COLUMNS:
            figures = [
                _figure(rows, op, direction, dtype, columns) for op in OPS for dtype in DTYPES
            ]
            lines.append(_line([str(columns), *figures]))
    lines += ["", "## Other targets", "", _line(["", "measured, target", "met"])]
    lines.append(_line(["---"] * 3))
    for cell in alone(rows):
        lines.append(_line([f"{cell.group}: {cell.name}", cell.said, "yes" if cell.met else "no"]))
    for part, title in (("sweep", "Beside the best peer"), ("few_rows", "Few rows")):
        lines += ["", f"## {title}", "", "Times as fast as the fastest peer; bold is below 0.97."]
        lines += ["", *_peers(rows, part)]
    return "\n".join(lines) + "\n"


def _count(found: Sequence[Cell]) -> str:
    met = sum(cell.met for cell in found)
    return f"{met} of {len(found)} targets are met."


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _figure(rows: Sequence[Cells], op: str, direction: str, dtype: str, columns: int) -> str:
    case = Point(op, direction, dtype, rows_of(columns, dtype), columns).case
    for row in rows:
        if row["part"] == "sweep" and row["case"] == case and row["by"] == OURS:
            figure = row["percent"] or row["note"]
            target = row["target"].strip(">=% ")
            return (f"**{figure}**" if row["met"] == "no" else figure) + (
                f" ({target})" if target else ""
            )
    return ""


def _peers(rows: Sequence[Cells], part: str) -> Iterator[str]:
    names = [f"{op} {direction}" for op in OPS for direction in PASSES]
    yield _line(["rows", "columns", *names])
    yield _line(["---"] * (2 + len(names)))
    best = {
        cell.name: f"{cell.said}" if cell.met else f"**{cell.said}**"
        for cell in beside_peers([row for row in rows if row["part"] == part])
    }
    shapes = (
        [(rows_of(columns, "float16"), columns) for columns in COLUMNS]
        if part == "sweep"
        else list(itertools.product(FEW_ROWS, FEW_ROWS_COLUMNS))
    )
    for many, columns in shapes:
        figures = [
            best.get(Point(op, direction, "float16", many, columns).case, "")
            for op in OPS
            for direction in PASSES
        ]
        if any(figures):
            yield _line([str(many), str(columns), *figures])


def main(
    path: Annotated[Path, typer.Argument(help="A CSV of run.py.")],
    out: Annotated[Path, typer.Argument(help="The page.")],
) -> None:
    """Writes the page of targets."""
    out.write_text(page(read(path)), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
