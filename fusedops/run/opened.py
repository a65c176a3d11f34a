# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Symbols in the place of the numbers of a call, and what is told of a view but for its strides."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from fusedops.bind.geometry import Geometry, Placed
from fusedops.generate.recipe import Symbol
from fusedops.generate.views import View

__all__ = ["Opening", "strides", "types_of"]


class Opening:
    """Puts the next symbol in the place of each number that it comes to."""

    def __init__(self) -> None:
        self._symbols: Iterator[Any] = map(Symbol, itertools.count())

    def number(self) -> Any:
        """The next symbol."""
        return next(self._symbols)

    def geometry(self, geometry: Geometry) -> Geometry:
        """With the numbers of rows and columns open, then the sizes of the row dimensions."""
        rows, columns, *sizes = [self.number() for _ in (0, 0, *geometry.sizes)]
        return geometry._replace(rows=rows, columns=columns, sizes=tuple(sizes))

    def place(self, place: Placed) -> Placed:
        """With the strides of the rows open."""
        return place._replace(row_strides=tuple([self.number() for _ in place.row_strides]))

    def view(self, view: View) -> View:
        """With the strides of the rows open."""
        return view._replace(placed=self.place(view.placed))


def types_of(views: Iterable[View]) -> tuple[object, ...] | None:
    """All that members and patches follow from of these views; None if numbers are among that."""
    found: list[object] = []
    for storage, (_, step, repeats), width, patch, shared in views:
        if repeats != 1 or not 0 <= step <= 1:
            return None
        found += (storage, step, width, patch, shared)
    return tuple(found)


def strides(views: Iterable[View], maps: Iterable[Placed | None]) -> list[int]:
    """The strides of the rows, in order."""
    found: list[int] = []
    for view in views:
        found += view.placed.row_strides
    for place in maps:
        if place is not None:
            found += place.row_strides
    return found
