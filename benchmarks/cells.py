# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The targets of a CSV one by one: what was measured, and how far it is from what was promised.

What `targets` has is judged here, so that rows of before a target was set are judged as well. A row
of another part has its own target and verdict.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import targets
from points import COLUMNS, DTYPES, OPS, PASSES, Point, rows_of

Cells = Mapping[str, str]

OURS = "fusedops"
#: In plots and pictures, by who was measured.
COLOURS = {
    OURS: "#e0552b",
    "torch eager": "#8a8f98",
    "torch.compile": "#3f8fd9",
    "torch.compile, max-autotune": "#28a5a5",
    "Liger": "#a66fd0",
    "Liger, CuTe DSL": "#c9a0e8",
    "QuACK": "#4fa34a",
    "QuACK, tuned": "#96c96f",
    "cuDNN": "#b58b22",
    "FlashInfer": "#d9668f",
}
#: Parts whose points have peers, and what their targets beside these are counted as.
GRIDS = {"sweep": "best peer", "few_rows": "few rows", "beside": "shapes of training"}
#: Those beside whom pages and pictures show single ops.
PEERS = ("torch eager", "torch.compile", "Liger")

#: By the unit of a row's own target: the column that has the figure, times what, and its format.
FIGURES = {
    "%": ("percent", 1.0, ".1f"),
    "x": ("ratio", 1.0, ".3f"),
    "of the time unmasked": ("ratio", 1.0, ".3f"),
    "s": ("microseconds", 1e-6, ".4g"),
    "ms": ("microseconds", 1e-3, ".4g"),
    "bytes a row": ("bytes a row", 1.0, "g"),
    "kernels": ("note", 1.0, "g"),
    "points": ("note", 1.0, ".1f"),
}


class Cell(NamedTuple):
    """One target: which, what was measured, and how far it is from what was promised.

    Attributes:
        group: Cells that are counted together.
        name: What was measured.
        target: What was promised.
        short: Points of the ceiling that are missing, or percent of what was promised; below 0,
            what is beyond it.
        met: Whether it was.
        said: The figure as people read it.
    """

    group: str
    name: str
    target: str
    short: float
    met: bool
    said: str


def of_case(rows: Sequence[Cells], part: str, case: str) -> dict[str, Cells]:
    """The rows of one case, by who was measured."""
    return {row["by"]: row for row in rows if (row["part"], row["case"]) == (part, case)}


def cells(rows: Sequence[Cells]) -> list[Cell]:
    """Every target that was measured."""
    return [*of_ceiling(rows), *beside_peers(rows), *of_products(rows), *of_their_own(rows)]


def missing(rows: Sequence[Cells]) -> list[str]:
    """The points of the sweep that have a target and no row."""
    have = {row["case"] for row in rows if row["part"] == "sweep" and row["by"] == OURS}
    return [point.case for point in promised() if point.case not in have]


def promised() -> Iterator[Point]:
    """The points of the sweep that have a target."""
    for op, direction, dtype, columns in itertools.product(OPS, PASSES, DTYPES, COLUMNS):
        point = Point(op, direction, dtype, rows_of(columns, dtype), columns)
        if targets.percent(point) is not None:
            yield point


def point_of(row: Cells) -> Point:
    """The point of a row that has one."""
    shape = int(row["rows"]), int(row["columns"])
    return Point(row["op"], row["pass"], row["dtype"], *shape)


def of_ceiling(rows: Sequence[Cells]) -> Iterator[Cell]:
    for row in rows:
        if row["part"] != "sweep" or row["by"] != OURS:
            continue
        target = targets.percent(point_of(row))
        if target is None:
            continue
        wanted, reached = f">= {target:.0f} %", float(row["percent"] or 0)
        # A row's own verdict is of the figure before it was rounded.
        met = row["met"] == "yes" if row["target"] == wanted else reached >= target
        said = f"{reached:.1f} % of {target:.0f}" if reached else row["note"]
        yield Cell("ceiling", row["case"], wanted, target - reached, met, said)


def beside_peers(rows: Sequence[Cells]) -> Iterator[Cell]:
    """A point is one cell: the peer counts beside which it is farthest from its target."""
    worst: dict[tuple[str, str], Cell] = {}
    for row in rows:
        if row["part"] in GRIDS and row["by"] != OURS and row["ratio"]:
            ratio, target = float(row["ratio"]), targets.beside(point_of(row), row["by"])
            short, said = 100 * (1 - ratio / target), f"{ratio:.3f} x {row['by']}"
            cell = Cell(
                GRIDS[row["part"]], row["case"], f">= {target:g} x", short, ratio >= target, said
            )
            key = cell.group, cell.name
            if key not in worst or short > worst[key].short:
                worst[key] = cell
    yield from worst.values()


def of_products(rows: Sequence[Cells]) -> Iterator[Cell]:
    """A case is one cell of each target; without a figure of ours it is not met."""
    for target, (case, ways) in itertools.product(targets.PRODUCTS, _products(rows).items()):
        rivals = [by for by in target.beside if ways.get(by)]
        if rivals and target.covers(case):
            best = min(rivals, key=ways.__getitem__)
            ratio = ways[best] / ways[OURS] if ways.get(OURS) else 0.0
            short, said = 100 * (1 - ratio / target.times), f"{ratio:.3f} x"
            said += f" {best}" if len(target.beside) > 1 else ""
            said = said if ratio else "not measured"
            yield Cell("products", case, str(target), short, ratio >= target.times, said)


def _products(rows: Sequence[Cells]) -> dict[str, dict[str, float]]:
    """By case and way how long it takes; 0 if that was not measured."""
    cases: dict[str, dict[str, float]] = {}
    chosen: dict[str, str] = {}
    for row in rows:
        if row["part"] == "gemm":
            cases.setdefault(row["case"], {})[row["by"]] = float(row["microseconds"] or 0)
            if row["by"] == OURS and row["note"].startswith("by "):
                chosen[row["case"]] = row["note"].removeprefix("by ")
    # What is chosen has both names; a row of another run may lie there.
    for case, implementation in chosen.items():
        cases[case][f"{OURS}, {implementation}"] = cases[case][OURS]
    return cases


def of_their_own(rows: Sequence[Cells]) -> Iterator[Cell]:
    """Rows of other parts, each with a target of its own."""
    for row in rows:
        if row["target"] and row["part"] not in GRIDS:
            name, target = row["case"], row["target"]
            if row["by"] != OURS and target.endswith(" x"):
                target += f" {row['by']}"
            elif row["by"] != OURS:
                name += f", {row['by']}"
            yield Cell(row["part"], name, target, *_reached(row))


def _reached(row: Cells) -> tuple[float, bool, str]:
    """How far a row is from its own target, its verdict, and what was measured."""
    bound, limit, unit = row["target"].split(" ", 2)
    column, times, form = FIGURES["x" if unit.startswith("x ") else unit]
    met = row["met"] == "yes"
    try:
        figure = times * float(row[column].partition(" ")[0])
    except ValueError:  # There is none: the row says why.
        return 100.0, met, row["note"]
    if bound == ">=":
        missing = float(limit) - figure
    else:
        # Ratios are of speeds; what has a bound above is the time.
        figure = 1 / figure if column == "ratio" else abs(figure)
        missing = figure - float(limit)
    short = missing if unit == "%" else 100 * missing / float(limit)
    return short, met, f"{figure:{form}} {unit}"
