# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Symbolic sizes and strides of a call, and the argument templates that are built with them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from fusedops import _runtime
from fusedops.bind.geometry import Geometry, Placed
from fusedops.generate.arguments import Symbol
from fusedops.generate.views import View
from fusedops.plan.planned import Call
from fusedops.schedule.row_partition import Slices

__all__ = ["Opening", "form_of", "numbers_of", "types_of", "with_symbols"]

#: The most forms that are remembered in one place.
MOST = 1024

#: In the place of a form: its key has come once; there is none.
_MET, _NONE = object(), object()

Form = TypeVar("Form")


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


def numbers_of(call: Call, strides: list[int]) -> list[int]:
    """The numbers of a call, in the order in which `with_symbols` leaves them open."""
    geometry, tile, sums = call.geometry, call.tile, call.sums
    distance = 0 if tile is None else tile.launch.prefetch_distance
    numbers = [geometry.rows, geometry.columns, *geometry.sizes, distance]
    if sums is not None:
        numbers += (sums.blocks, sums.of_one, *sums.slices)
        numbers += [share.group for share in call.sharing.values()]
    return numbers + strides


def with_symbols(call: Call) -> Call:
    """The call with a symbol in the place of each of its numbers."""
    opening, tile, sums = Opening(), call.tile, call.sums
    new = opening.number
    geometry, distance = opening.geometry(call.geometry), new()
    if tile is not None:
        launch = tile.launch._replace(prefetch_distance=distance)
        tile = dataclasses.replace(tile, launch=launch)
    if sums is not None:
        slices = sums.slices
        sums = sums._replace(blocks=new(), of_one=new(), slices=Slices(*[new() for _ in slices]))
    return call._replace(
        geometry=geometry,
        tile=tile,
        sums=sums,
        sharing={use: share._replace(group=new()) for use, share in call.sharing.items()},
        views={key: opening.view(view) for key, view in call.views.items()},
        maps=tuple([None if place is None else opening.place(place) for place in call.maps]),
    )


def form_of(forms: dict[Any, Any], key: object, make: Callable[[], Form]) -> Form | None:
    """The form that is known by a key; None where a functor has to know a number, or at first.

    A kernel that turns out not to be loaded is seldom described again: a form is made when its key
    comes for the second time.

    `forms` is what is known, of `MOST` keys at most. `make` makes a form; TypeError of a symbol
    that was not only moved says that there is none.
    """
    form = forms.get(key)
    if form is None:
        if len(forms) >= MOST:
            forms.clear()
        forms[key] = _MET
        return None
    if form is _MET:
        form = _NONE
        with contextlib.suppress(TypeError):
            form = make()
        forms[key] = form
    return None if form is _NONE else cast("Form", form)


def types_of(
    views: Sequence[View], maps: Sequence[Placed | None]
) -> tuple[bytes, list[int]] | None:
    """All that members and patches follow from of these views; None if numbers are among that.

    With it the strides of the rows come, of the views and then of the maps, in the order in which
    an `Opening` comes to them. In C++ (csrc/geometry.cpp), as places are.
    """
    return _runtime.types(views, maps)
