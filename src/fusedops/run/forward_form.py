# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Argument templates of forward kernels: generated once for a pattern, filled in for each call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.bind.geometry import Geometry, Placed
from fusedops.bind.shard_offset import first_rows
from fusedops.generate.arguments import MANY_ROWS, ArgumentWriter, Recipe
from fusedops.generate.views import Number, View
from fusedops.run.kernel_members import forward_members
from fusedops.run.placing import DrawnRows, first_query, queries, row_maps
from fusedops.run.symbolic import Opening, form_of, types_of
from fusedops.schedule import Schedule

if TYPE_CHECKING:
    from fusedops.generate.source import Member

__all__ = ["Call", "written"]


class Call(NamedTuple):
    """A forward call that is placed and scheduled.

    Attributes:
        bound: The call.
        geometry: Its rows and columns.
        operands, outputs: Its views by name.
        maps: The maps from a row to the numbers that functors read, as placed.
        drawn: As `placing.row_numbers` has them.
        tile: The schedule; None on a CPU.
    """

    bound: Bound
    geometry: Geometry
    operands: Mapping[str, View | Number]
    outputs: Mapping[str, View]
    maps: Sequence[Placed | None]
    drawn: DrawnRows
    tile: Schedule | None

    @property
    def views(self) -> list[View]:
        """All views, those of the operands first."""
        return [one for one in self.operands.values() if type(one) is View] + [
            *self.outputs.values()
        ]


class Form(NamedTuple):
    """A generated argument with the numbers of its calls left open."""

    members: tuple[Member, ...]
    words: int
    recipe: Recipe
    patches: list[tuple[int, int, int]]


#: The members of an argument, the number of its words, these words, and its relocations.
Written = tuple[tuple["Member", ...], int, bytes, list[tuple[int, int, int]]]


def written(call: Call) -> Written:
    """The argument of a call's kernel."""
    views = call.views
    told, form = _form_key(call, views), None
    if told is not None:
        form = form_of(call.bound.op.forms, told[0], lambda: _form(call))
    if told is None or form is None:
        members, write = _members(call)
        return members, len(write.words), write.pack(), write.patches
    geometry, tile = call.geometry, call.tile
    distance = 0 if tile is None else tile.launch.prefetch_distance
    numbers = [geometry.rows, geometry.columns, *geometry.sizes, distance]
    words = form.recipe.fill(numbers + told[1])
    return form.members, form.words, words, form.patches


def _form_key(call: Call, views: Sequence[View]) -> tuple[tuple[object, ...], list[int]] | None:
    """The key of a call's form, and its strides; None if the kernel's source needs a size.

    The key is everything that the source depends on, which excludes sizes and strides.
    """
    bound, tile, op = call.bound, call.tile, call.bound.op
    if (tile is not None and tile.chunks > 1) or call.geometry.rows >= MANY_ROWS:
        return None
    if bound.whole is not None or bound.tables or op.causal or op.positions:
        return None
    typed = types_of(views, call.maps)
    if typed is None:
        return None
    types, strides = typed
    key = (
        types,
        len(call.geometry.sizes),
        None if tile is None else tile.launch.prefetch == "never",
        bound.keep,
        bound.compute,
        (bound.x.dim(), bound.reduced) if any(call.drawn) else None,  # draws that rows share
        isinstance(bound.generator, Tensor),
        tuple(bound.dropout_slots.items()),
        tuple([type(value) for value in bound.operands.values()]),
    )
    return key, strides


def _form(call: Call) -> Form:
    opening = Opening()
    geometry, tile = opening.geometry(call.geometry), call.tile
    distance = opening.number()
    if tile is not None:
        launch = tile.launch._replace(prefetch_distance=distance)
        tile = dataclasses.replace(tile, launch=launch)
    made = Call(
        call.bound,
        geometry,
        {
            k: opening.view(one) if isinstance(one, View) else one
            for k, one in call.operands.items()
        },
        {k: opening.view(one) for k, one in call.outputs.items()},
        [None if place is None else opening.place(place) for place in call.maps],
        call.drawn,
        tile,
    )
    members, write = _members(made)
    return Form(members, len(write.words), write.recipe(), write.patches)


def _members(call: Call) -> tuple[tuple[Member, ...], ArgumentWriter]:
    bound, geometry = call.bound, call.geometry
    write = ArgumentWriter(
        compute="double" if bound.compute is torch.float64 else "float",
        sizes=geometry.sizes,
        columns=geometry.columns,
        queries=queries(bound),
        first_query=first_query(bound),
        operands=call.operands,
        outputs=call.outputs,
        maps=row_maps(bound, call.maps, call.drawn),
        tables=bound.tables,
        first_rows=first_rows(bound.whole, call.drawn),
        slots=bound.op.slots,
        drawn_in_memory=isinstance(bound.generator, Tensor),
    )
    return forward_members(bound, write, geometry, call.tile), write
