# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The targets of a CSV one by one: what was measured, and how far it is from what was promised."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import targets
from points import COLUMNS, DTYPES, OPS, PASSES, Point, rows_of

Cells = Mapping[str, str]

OURS = "fusedops"
#: Parts whose points have peers.
GRIDS = ("sweep", "few_rows")
#: Parts each row of which has a target of its own.
ALONE = ("causal", "flagship")


class Cell(NamedTuple):
    """One target: which, what was measured, and how far it is from what was promised.

    Attributes:
        group: Cells that are counted together.
        name: What was measured.
        short: Points of the ceiling that are missing, or percent of a peer's speed; 0 if met.
        met: Whether it was.
        said: The figure as people read it.
    """

    group: str
    name: str
    short: float
    met: bool
    said: str


def cells(rows: Sequence[Cells]) -> list[Cell]:
    """Every target that was measured."""
    return [*of_ceiling(rows), *alone(rows), *beside_peers(rows)]


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


def of_ceiling(rows: Sequence[Cells]) -> Iterator[Cell]:
    for row in rows:
        wanted = row["part"] == "sweep" and row["by"] == OURS and row["target"]
        if wanted:
            target = float(row["target"].strip(">=% "))
            reached = float(row["percent"] or 0)
            met = row["met"] == "yes"
            said = f"{reached:.1f} % of {target:.0f}" if reached else row["note"]
            yield Cell("ceiling", row["case"], 0.0 if met else target - reached, met, said)


def alone(rows: Sequence[Cells]) -> Iterator[Cell]:
    for row in rows:
        if row["part"] in ALONE and row["by"] == OURS and row["target"]:
            met = row["met"] == "yes"
            figure = float(row["percent"] or 0)
            if figure:
                short, said = float(row["target"].strip(">=% ")) - figure, f"{figure:.1f} %"
            else:  # The ratio is that of the speeds, the target one of times.
                share = 1 / float(row["ratio"]) if row["ratio"] else 1.0
                short, said = 100 * (share - targets.CAUSAL), f"{share:.2f} of the time"
            short = 0.0 if met else short
            yield Cell(row["part"], row["case"], short, met, f"{said}, {row['target']}")


def beside_peers(rows: Sequence[Cells]) -> Iterator[Cell]:
    """A point is one cell: the best peer counts."""
    best: dict[tuple[str, str], Cells] = {}
    for row in rows:
        if row["part"] in GRIDS and row["by"] != OURS and row["ratio"]:
            key = row["part"], row["case"]
            if key not in best or float(row["ratio"]) < float(best[key]["ratio"]):
                best[key] = row
    for (part, case), row in best.items():
        ratio, met = float(row["ratio"]), row["met"] == "yes"
        short = 0.0 if met else 100 * (1 - ratio)
        group = "best peer" if part == "sweep" else "few rows"
        yield Cell(group, case, short, met, f"{ratio:.3f} x {row['by']}")
