# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""All targets as a page of tables: `python benchmarks/page.py FILE.csv ... OUT.md`."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import targets
import typer
from cells import OURS, Cell, Cells, beside_peers, cells, of_ceiling
from points import COLUMNS, DTYPES, FEW_ROWS, FEW_ROWS_COLUMNS, OPS, PASSES, Point, rows_of
from sheet import read

#: Cells that have tables of their own: the ceiling's, and those beside peers.
SHOWN = ("ceiling", "best peer", "few rows")


def page(rows: Sequence[Cells]) -> str:
    """All targets as Markdown: what is not met is bold, or in a table of its own."""
    found = cells(rows)
    lines = ["# Targets and what was measured", "", f"{_met(found)} targets are met.{_where(rows)}"]
    lines += ["", *_groups(found)]
    lines += ["", "Percent of the ceiling (its target); bold is below that, empty was not run."]
    for direction in PASSES:
        lines += ["", f"## {direction.capitalize()}", "", *_sweep(rows, direction)]
    below = f"Times as fast as the fastest peer; bold is below {targets.BESIDE_PEERS:g}"
    few = [
        f", norms of {m} x {n} below {times:g} beside torch.compile"
        for (m, n), times in targets.FEW_ROWS.items()
    ]
    for part, title, besides in (
        ("sweep", "Beside the best peer", ""),
        ("few_rows", "Few rows", "".join(few)),
    ):
        lines += ["", f"## {title}", "", f"{below}{besides}.", "", *_peers(rows, part)]
    others = [cell for cell in found if cell.group not in SHOWN]
    lines += ["", "## Other targets", "", *_others(others)]
    lines += ["", "## Other targets that are missed", "", *_missed(others)]
    return "\n".join(lines) + "\n"


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _table(*head: str) -> list[str]:
    """The first two lines of one."""
    return [_line(head), _line(["---"] * len(head))]


def _met(mine: Sequence[Cell]) -> str:
    return f"{sum(cell.met for cell in mine)} of {len(mine)}"


def _where(rows: Sequence[Cells]) -> str:
    """The GPUs, and of parts that have none the CPUs."""
    machines = dict.fromkeys(row.get("device") or row.get("cpu") for row in rows)
    named = " and ".join(filter(None, machines))
    return f" Measured on {named}." if named else ""


def _groups(found: Sequence[Cell]) -> Iterator[str]:
    yield from _table("targets", "met")
    for group in dict.fromkeys(cell.group for cell in found):
        yield _line([group, _met([cell for cell in found if cell.group == group])])


def _sweep(rows: Sequence[Cells], direction: str) -> Iterator[str]:
    kinds = list(itertools.product(OPS, DTYPES))
    yield from _table("columns", *(f"{op} {dtype}" for op, dtype in kinds))
    ours = {row["case"]: row for row in rows if row["part"] == "sweep" and row["by"] == OURS}
    promised = {cell.name: cell for cell in of_ceiling(rows)}
    for columns in COLUMNS:
        cases = [
            Point(op, direction, dtype, rows_of(columns, dtype), columns).case
            for op, dtype in kinds
        ]
        figures = [_figure(ours.get(case), promised.get(case)) for case in cases]
        yield _line([str(columns), *figures])


def _figure(row: Cells | None, cell: Cell | None) -> str:
    figure = (row["percent"] or row["note"]) if row else ""
    if cell is None:
        return figure
    return f"{figure if cell.met else f'**{figure}**'} ({cell.target.strip('>=% ')})"


def _peers(rows: Sequence[Cells], part: str) -> Iterator[str]:
    kinds = list(itertools.product(OPS, PASSES))
    yield from _table("rows", "columns", *(f"{op} {direction}" for op, direction in kinds))
    best = {
        cell.name: cell.said if cell.met else f"**{cell.said}**"
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
            for op, direction in kinds
        ]
        if any(figures):
            yield _line([str(many), str(columns), *figures])


def _others(found: Sequence[Cell]) -> Iterator[str]:
    """A line for each target: in how many cells it is met, and the one that is worst."""
    yield from _table("", "target", "met", "the worst of them")
    for group, target in dict.fromkeys((cell.group, cell.target) for cell in found):
        mine = [cell for cell in found if (cell.group, cell.target) == (group, target)]
        worst = max(mine, key=lambda cell: cell.short)
        yield _line([group, target, _met(mine), f"{worst.said} ({worst.name})"])


def _missed(found: Sequence[Cell]) -> Iterator[str]:
    yield from _table("", "target", "where", "measured")
    for cell in found:
        if not cell.met:
            yield _line([cell.group, cell.target, cell.name, cell.said])


def main(
    paths: Annotated[list[Path], typer.Argument(help="CSVs of run.py.")],
    out: Annotated[Path, typer.Argument(help="The page.")],
) -> None:
    """Writes the page of targets."""
    out.write_text(page([row for path in paths for row in read(path)]), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
