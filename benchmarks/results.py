# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a benchmark found: one row a measurement, as a table and as CSV."""

import dataclasses
import datetime
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from points import Point
from rich.table import Table

import fusedops


@dataclasses.dataclass(frozen=True)
class Result:
    """One measurement.

    Attributes:
        part: The part of the benchmark.
        case: What was computed.
        by: What computed it.
        seconds: Of one call; 0 where time is not what was measured.
        moved: The bytes that one call must move; 0 where that says nothing.
        ceiling: The seconds that the fastest plain kernel takes for these bytes; 0 where unknown.
        against: The seconds of what this is held against; 0 where there is nothing.
        target: The claim that the project makes for this row, such as ">= 95 %"; may be empty.
        met: Whether the claim holds; None where there is none.
        held: Bytes a row that are held beside inputs and outputs, if that was measured.
        beside: On a peer's row, the seconds that fusedops took beside it; 0 elsewhere.
        note: A peer's version, or why nothing was measured.
        point: The point of a sweep.
    """

    part: str
    case: str
    by: str
    seconds: float = 0.0
    moved: int = 0
    ceiling: float = 0.0
    against: float = 0.0
    target: str = ""
    met: bool | None = None
    held: float | None = None
    beside: float = 0.0
    note: str = ""
    point: Point | None = None

    @property
    def percent(self) -> float:
        """Of the ceiling."""
        return 100 * self.ceiling / self.seconds

    @property
    def ratio(self) -> float:
        """How many times as fast ours is as what it is held against, or as this peer."""
        return self.seconds / self.beside if self.beside else self.against / self.seconds

    def cells(self) -> dict[str, str]:
        """Every figure as text, those that say nothing empty."""
        point, timed = self.point, self.seconds > 0
        return {
            "part": self.part,
            "case": self.case,
            "by": self.by,
            "op": point.op if point else "",
            "pass": point.direction if point else "",
            "dtype": point.dtype if point else "",
            "rows": str(point.rows) if point else "",
            "columns": str(point.columns) if point else "",
            "microseconds": f"{self.seconds * 1e6:.2f}" if self.seconds else "",
            "TB/s": f"{self.moved / self.seconds / 1e12:.3g}" if self.moved and timed else "",
            "percent": f"{self.percent:.1f}" if self.ceiling and timed else "",
            "ratio": f"{self.ratio:.3f}" if (self.against or self.beside) and timed else "",
            "bytes a row": "" if self.held is None else f"{self.held:.2f}",
            "target": self.target,
            "met": {None: "", True: "yes", False: "no"}[self.met],
            "note": self.note,
        }


def table(rows: Sequence[Mapping[str, str]]) -> Table:
    """The rows of one part for people."""
    part = rows[0]["part"]
    hidden = {"part", "op", "pass", "dtype", "rows", "columns"}  # A case says them.
    columns = [name for name in rows[0] if name not in hidden and any(row[name] for row in rows)]
    shown = Table(*columns, title=part, title_justify="left")
    for row in rows:
        shown.add_row(*(row[name] for name in columns), style={"no": "red"}.get(row.get("met", "")))
    return shown


def provenance() -> dict[str, str]:
    """Device, driver, versions and date."""
    gpu = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if gpu else "",
        "driver": _driver() if gpu else "",
        "cpu": f"{_cpu()} x{torch.get_num_threads()}",
        "fusedops": fusedops.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.check_output(query, text=True).split("\n")[0]
    except OSError:
        return "unknown"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
