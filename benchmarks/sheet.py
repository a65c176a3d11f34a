# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A CSV of results that several runs fill: a row replaces the one of the same key."""

import csv
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

KEY = ("part", "case", "by")
SAVE_SECONDS = 5.0  # A run that is cut off has lost no more.

Cells = dict[str, str]


class Sheet:
    """The rows of a file, and where they go.

    Attributes:
        rows: By key, in the order in which the keys first came.
    """

    def __init__(self, path: Path, key: Sequence[str] = KEY) -> None:
        self.path, self.key = path, key
        self.rows: dict[tuple[str, ...], Cells] = {}
        self._saved = time.monotonic()
        if path.exists():
            for row in read(path):
                self._put(row)

    def add(self, cells: Mapping[str, str]) -> None:
        """Puts in one row; saves all now and then."""
        self._put(dict(cells))
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Writes the whole file, or leaves it as it was."""
        names = list(dict.fromkeys(name for row in self.rows.values() for name in row))
        draft = self.path.with_name(self.path.name + ".part")
        with draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows.values())
        draft.replace(self.path)
        self._saved = time.monotonic()

    def _put(self, row: Cells) -> None:
        self.rows[tuple(row[name] for name in self.key)] = row


def read(path: Path) -> list[Cells]:
    """The rows of a file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
