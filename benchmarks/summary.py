# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a CSV says of the targets: cells met, the worst shortfalls, what peers do better."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import targets
from cells import GRIDS, OURS, Cells, cells, missing
from points import DTYPES, PASSES
from rich.console import Console
from rich.table import Table
from sheet import read

WORST = 12


def show(path: Path, console: Console) -> None:
    """Prints counts, what is missing and the worst."""
    rows = read(path)
    found = cells(rows)
    counts = Table("targets", "met", "of", "share")
    for group in [*dict.fromkeys(cell.group for cell in found), "all"]:
        mine = [cell for cell in found if group in ("all", cell.group)]
        met = sum(cell.met for cell in mine)
        share = f"{met / len(mine):.1%}" if mine else ""
        counts.add_row(group, str(met), str(len(mine)), share)
    console.print(counts)
    absent = missing(rows)
    if absent:
        console.print(f"Not measured: {len(absent)} points of the sweep, such as {absent[0]}.")
    of_peers = {*GRIDS.values()}
    others = {cell.group for cell in found} - of_peers
    for title, of, beyond in (
        (
            f"More than {targets.SHORTFALL:.0f} points or percent short of its target",
            others,
            targets.SHORTFALL,
        ),
        ("Slower than a peer", of_peers, 0.0),
        ("Short of its target by less", others, 0.0),
    ):
        short = [cell for cell in found if cell.group in of and cell.short > beyond]
        found = [cell for cell in found if cell not in short]
        short.sort(key=lambda cell: -cell.short)
        console.print(f"{title}: {len(short)}")
        for cell in short[:WORST]:
            console.print(f"  {cell.name}: {cell.said}", highlight=False)


def grid(rows: Sequence[Cells], console: Console) -> None:
    """A sweep in little: columns down, ops across; percent, or else the worst ratio."""
    for direction, dtype in itertools.product(PASSES, DTYPES):
        mine = [row for row in rows if row["pass"] == direction and row["dtype"] == dtype]
        if mine:
            console.print(_grid(f"{direction} {dtype}", mine))
    for row in rows:
        if row["note"].startswith("failed") or not row["op"]:
            console.print(f"{row['case']}, {row['by']}: {row['note']}", highlight=False)


def _grid(title: str, rows: Sequence[Cells]) -> Table:
    shapes = sorted({(int(row["rows"]), int(row["columns"])) for row in rows}, key=_by_columns)
    ops = list(dict.fromkeys(row["op"] for row in rows))
    shown = Table("rows", "columns", *ops, title=title, title_justify="left")
    for many, columns in shapes:
        here = [row for row in rows if (row["rows"], row["columns"]) == (str(many), str(columns))]
        shown.add_row(str(many), str(columns), *(_said(here, op) for op in ops))
    return shown


def _by_columns(shape: tuple[int, int]) -> tuple[int, int]:
    return shape[1], shape[0]


def _said(rows: Sequence[Cells], op: str) -> str:
    ours = [row for row in rows if row["op"] == op and row["by"] == OURS]
    peers = [float(row["ratio"]) for row in rows if row["op"] == op and row["ratio"]]
    if not ours:
        return ""
    text = f"{ours[0]['percent'] or ours[0]['microseconds'] or '-'}"
    text += "!" if ours[0]["met"] == "no" else ""
    return text + (f" ({min(peers):.2f} x)" if peers else "")
