# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The kernel of a backward pass whatever the sizes of a call: generated once, filled in for each.

A form is all that types depend on. The walk that generates a kernel is made with symbols in the
place of a call's numbers (`generate.recipe`), by the same code that makes it with numbers: where
that code has to know one, as it does for a mask made from indices, the call has no form.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from fusedops.bind.geometry import Geometry, Placed, Sharing
from fusedops.generate.arguments import MANY_ROWS, ArgumentWriter, Recipe, known
from fusedops.generate.views import View
from fusedops.run.backward_cut import Cut
from fusedops.run.gradient_targets import GradientTargets
from fusedops.run.operand_gradients import Occurrence
from fusedops.run.placing import DrawnRows
from fusedops.run.second_stage import Argument, argument_of
from fusedops.run.symbolic import Opening, form_of, types_of
from fusedops.schedule import Schedule
from fusedops.schedule.row_partition import Slices

if TYPE_CHECKING:
    from fusedops.bind.bind import Bound
    from fusedops.declare.declaration import Declaration
    from fusedops.generate.source import Member, Members
    from fusedops.generate.variant import Variant
    from fusedops.run.wanted_gradients import WantedGradients

__all__ = ["first_kernel"]

#: A kernel of a call: its variant, argument words and relocations.
First = tuple["Variant", bytes, list[tuple[int, int, int]]]

#: Variants, by what they depend on beside the members of their argument (`Backward.variant`).
Variants: TypeAlias = "dict[tuple[object, ...], Variant]"


class Call(Protocol):
    """A backward call that is placed, scheduled and cut: `Backward`, where all of this is told."""

    bound: Bound
    op: Declaration
    gradient: WantedGradients
    tile: Schedule | None
    few: bool
    cut: Cut
    geometry: Geometry
    slices: Slices
    sharing: dict[Occurrence, Sharing]
    views: dict[Any, View]
    maps: tuple[Placed | None, ...]
    drawn: DrawnRows
    outputs: list[tuple[torch.dtype, Sequence[int]]]
    targets: GradientTargets

    def members(self) -> tuple[Members, ArgumentWriter]: ...
    def variant(self, members: Members, words: int, known: Variants) -> Variant: ...


class Form(NamedTuple):
    """A generated kernel with the numbers of its calls left open.

    Attributes:
        members: The members of its argument.
        words: The number of its words.
        recipe: Its words.
        patches: The relocations of that.
        outputs: Dtype and shape of each workspace.
        parts_of: The source of the pointer of the workspace that each gradient with partial sums
            has.
        in_shared: As in `GradientTargets`.
        sums: The argument of a second kernel, if it leaves partial sums.
        variants: The kernels that calls with it have (`Backward.variant`).
    """

    members: tuple[Member, ...]
    words: int
    recipe: Recipe
    patches: list[tuple[int, int, int]]
    outputs: list[tuple[torch.dtype, tuple[Any, ...]]]
    parts_of: dict[Occurrence, tuple[int, int]]
    in_shared: int
    sums: Argument | None
    variants: Variants


def first_kernel(call: Call) -> tuple[First, Form | None]:
    """The first kernel of a backward call, whose targets are told what workspaces it has.

    And its form, if it has one.
    """
    told, form = _form_key(call), None
    if told is not None:
        form = form_of(call.gradient.forms, told[0], lambda: _form(call))
    if told is None or form is None:
        members, write = call.members()
        variant = call.variant(members, len(write.words), {})
        return (variant, write.pack(), write.patches), None
    numbers = _numbers(call, told[1])
    for dtype, shape in form.outputs:
        call.outputs.append((dtype, known(shape, numbers)))
    for one, patch in form.parts_of.items():
        call.targets.parts_of[one] = patch, call.outputs[patch[1]][1][0]
    call.targets.in_shared = form.in_shared
    variant = call.variant(form.members, form.words, form.variants)
    return (variant, form.recipe.fill(numbers), form.patches), form


def _form_key(call: Call) -> tuple[tuple[object, ...], list[int]] | None:
    """The key of a call's form, and its strides; None if the kernel's source needs a size.

    The key is everything that the source depends on, which excludes sizes and strides.
    """
    bound, geometry, op = call.bound, call.geometry, call.op
    if call.cut.told is None or geometry.rows >= MANY_ROWS or bound.op is not op:
        return None
    if bound.whole is not None or bound.tables or op.causal or op.positions:
        return None
    typed = types_of([*call.views.values()], call.maps)
    if typed is None:
        return None
    views, strides = typed
    key = (
        len(geometry.sizes),
        call.targets.numbers.pack,
        bound.x.dtype,
        bound.compute,
        (bound.x.dim(), bound.reduced) if any(call.drawn) else None,  # draws that rows share
        isinstance(bound.generator, Tensor),
        tuple(bound.dropout_slots.items()),
        tuple([type(value) for value in bound.operands.values()]),
        views,
        call.cut.told,
    )
    return key, strides


def _numbers(call: Call, strides: list[int]) -> list[int]:
    """The numbers of a call, in the order in which `_with_symbols` leaves them open."""
    geometry, tile, of_blocks = call.geometry, call.tile, call.targets.numbers
    distance = 0 if tile is None else tile.launch.prefetch_distance
    numbers = [geometry.rows, geometry.columns, *geometry.sizes, distance]
    numbers += (of_blocks.blocks, of_blocks.of_one, *call.slices)
    numbers += [share.group for share in call.sharing.values()]
    return numbers + strides


def _with_symbols(call: Call) -> Call:
    """The call with a symbol in the place of each of its numbers."""
    opening = Opening()
    new = opening.number
    made = copy.copy(call)
    made.geometry = opening.geometry(call.geometry)
    distance = new()
    if call.tile is not None:
        launch = call.tile.launch._replace(prefetch_distance=distance)
        made.tile = dataclasses.replace(call.tile, launch=launch)
    numbers = call.targets.numbers._replace(blocks=new(), of_one=new())
    made.slices = Slices(*[new() for _ in call.slices])
    made.sharing = {k: share._replace(group=new()) for k, share in call.sharing.items()}
    made.views = {k: opening.view(view) for k, view in call.views.items()}
    made.maps = tuple([None if place is None else opening.place(place) for place in call.maps])
    made.outputs = call.outputs.copy()
    made.targets = GradientTargets(
        made.bound,
        made.geometry,
        made.tile,
        made.slices,
        made.sharing,
        made.views,
        made.outputs,
        call.targets.partial,
        call.few,
        numbers,
    )
    return made


def _form(call: Call) -> Form:
    made = _with_symbols(call)
    members, write = made.members()
    parts_of = made.targets.parts_of
    return Form(
        tuple(members),
        len(write.words),
        write.recipe(),
        write.patches,
        [(dtype, tuple(shape)) for dtype, shape in made.outputs[len(call.outputs) :]],
        {one: patch for one, (patch, _) in parts_of.items()},
        made.targets.in_shared,
        argument_of(made.views, parts_of, {}, write.compute) if parts_of else None,
        {},
    )
