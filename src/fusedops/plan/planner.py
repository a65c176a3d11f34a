# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Plan a pass of a call: place its tensors, choose the schedule, generate the kernels.

This is the one way to a plan, for forward, backward and the two passes of a product. A plan holds
for shapes, strides and dtypes. The kernel that it launches depends only on the types of its
argument's members, so a new shape of a known pattern finds that kernel and builds nothing.

What types follow from, whatever the sizes, is a form: an argument template, generated with symbols
in the place of a call's numbers by the code that generates it with numbers, and filled in
for each call. Where that code has to know a number, as for a mask made from indices, a call has no
form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from fusedops.bind.bind import KEPT, Bound
from fusedops.generate.arguments import MANY_ROWS, Recipe, known
from fusedops.generate.source import Member
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.generate.views import blocks_view, kept_view, views_of
from fusedops.plan.members import written
from fusedops.plan.placing import outline_of, placed, row_numbers
from fusedops.plan.planned import Call, Launch, Pass, Planned
from fusedops.plan.reading import USUAL, Hints, Reading, padded, rank_of, readings
from fusedops.plan.second_stage import Argument, argument_of, second_stage
from fusedops.plan.symbolic import form_of, numbers_of, types_of, with_symbols
from fusedops.plan.wanted_gradients import Occurrence
from fusedops.schedule.architectures import ProductTiling
from fusedops.schedule.forward import host_columns

__all__ = ["Form", "plan", "plan_loaded"]

#: The most variants that are remembered of calls with the same form.
MOST_VARIANTS = 64

#: Variants by what they depend on beside the members of their argument.
Variants: TypeAlias = "dict[tuple[object, ...], Variant]"


class Form(NamedTuple):
    """A generated argument with the numbers of its calls left open."""

    members: tuple[Member, ...]  # its members
    words: int  # the number of its words
    recipe: Recipe  # its words
    patches: list[tuple[int, int, int]]  # the relocations of that
    workspaces: list[tuple[Any, tuple[Any, ...]]]  # dtype and shape of each workspace
    #: The source of the pointer of the workspace that each gradient with partial sums has.
    parts_of: dict[Occurrence, tuple[int, int]]
    in_shared: int  # as in `Results`
    sums: Argument | None  # the argument of a second kernel, if it leaves partial sums
    variants: Variants  # the kernels that calls with it have


def plan(one: Pass, target: Target | None = None, reading: Reading = USUAL) -> Planned | None:
    """Plan a pass of a call in one reading, without building anything.

    The target is by default that of x's device. None if no one kernel takes the tensors as they
    lie.

    Raises:
        UnsupportedError: No kernel can be made for the tensors or for the target.
        ValueError: A storage that a test forces cannot hold the row.
    """
    call = _placed(one, target or Target.of(one.bound.x.device), reading)
    return None if call is None else _with_second(*_generated(call))


def plan_loaded(one: Pass, target: Target, hints: Hints | None = None) -> Planned | None:
    """Plan a pass in the reading whose kernel is loaded, or as is usual if none is.

    A last batch of size one has a row dimension less, and must not build a kernel for that. What
    adds up partial sums makes no difference: few kernels do that for all calls.

    `hints` say where loaded kernels were found for the op's calls.
    """
    bound = one.bound
    first: Call | None = None

    def placed_as(reading: Reading) -> Call | None:
        nonlocal first
        made = _placed(one, target, reading, first)
        first = first or made
        return made

    hint = hints and hints.of(bound)
    hinted = placed_as(hint) if hint else None
    if hinted is not None and hinted.adds_nothing:
        kernel = _generated(hinted)
        if kernel[0].variant.loaded:
            return _with_second(*kernel)
    own = placed_as(USUAL)
    if own is None:
        return None
    if hinted is not None and not hinted.adds_nothing and hinted.adds_as(own):
        kernel = _generated(hinted)
        if kernel[0].variant.loaded:
            return _with_second(*kernel)
    usual = _generated(own)
    if usual[0].variant.loaded:
        if hints is not None:
            hints.note_usual(own.geometry)
        return _with_second(*usual)
    others: Iterable[Reading] = readings(bound, own.geometry, backward=own.sums is not None)
    for reading in others if hints is None else hints.first(others):
        other = placed_as(reading)
        if other is not None and other.adds_as(own):
            kernel = _generated(other)
            if kernel[0].variant.loaded:
                if hints is not None:
                    hints.note(bound, reading)
                return _with_second(*kernel)
    return _with_second(*usual)


def _placed(one: Pass, target: Target, reading: Reading, like: Call | None = None) -> Call | None:
    """Place the tensors and choose the schedule; `like` is the same call in another reading."""
    bound = one.bound
    if like is None:
        outline = outline_of(bound)
        tensors = one.tensors(outline, reading.vectors)
        if tensors is None:
            return None
        parts, summed = tensors
        drawn = row_numbers(bound, outline)
        merged = placed(bound, [*parts.values()], drawn, summed, in_order=one.in_order)
    else:
        outline, drawn, merged, parts = like.outline, like.drawn, like.merged, like.parts
        if reading.vectors != like.reading.vectors:
            tensors = one.tensors(outline, reading.vectors)
            assert tensors is not None
            parts = tensors[0]
    geometry = padded(merged, reading.rank or rank_of(outline.broadcasts, merged.sizes))
    count, places = len(parts), geometry.placed
    if None in places[:count]:  # reduced dimensions that do not merge
        return None
    tile, storage = one.schedule(geometry, outline, target, reading)
    columns, width = max(geometry.columns, 1), 0 if tile is None else tile.width
    listed = views_of([*parts.values()], places, width, columns)
    views = dict(zip(parts, listed, strict=True))
    if KEPT in views:
        views[KEPT] = kept_view(views[KEPT], one.op.kept, width)
    if bound.op.packed > 1 and ("out", "y") in views:
        views["out", "y"] = blocks_view(views["out", "y"], 1)
    for name in bound.op.of_blocks:
        if ("out", name) in views:
            views["out", name] = blocks_view(views["out", name], _block_step(bound))
    call = Call(
        one,
        target,
        reading,
        outline,
        drawn,
        parts,
        merged,
        geometry,
        storage,
        views,
        places[count:],
        tile,
    )
    return one.settled(call)


def _block_step(bound: Bound) -> int:
    """The step from the number of one block to that of the next, or the tiles of a row."""
    layout = bound.op.store[-1].block_layout
    if layout == "tiles":
        return -(-bound.blocks // 4)
    return math.prod(bound.row_shape) if layout == "columns" else 1


def _generated(call: Call) -> tuple[Planned, Form | None]:
    """Generate the first kernel and its argument, by the call's form if it has one."""
    one = call.one
    results = one.results(call)
    told, form = _form_key(call), None
    if told is not None:
        form = form_of(one.forms, told[0], lambda: _form(call))
    if told is None or form is None:
        members, write = written(call, results)
        variant = _variant(call, tuple(members), len(write.words))
        words, patches = write.pack(), write.patches
    else:
        numbers = numbers_of(call, told[1])
        for dtype, shape in form.workspaces:
            results.outputs.append((dtype, known(shape, numbers)))
        for use, patch in form.parts_of.items():
            results.parts_of[use] = patch, results.outputs[patch[1]][1][0]
        results.in_shared = form.in_shared
        words, patches = form.recipe.fill(numbers), form.patches
        # A variant keeps its schedule, so no other can have the same id.
        schedule = _most_columns(call) if call.tile is None else id(call.tile)
        key = (call.storage, schedule, call.target.arch, call.target.translated)
        found = form.variants.get(key)
        variant = found or _variant(call, form.members, form.words)
        # The schedule of a map is made anew for each call.
        reduces = one.op.reduces and (one.op.reduces_gradient or not one.gradient)
        if found is None and reduces:
            _remember(form, key, variant)
    launch = Launch(variant, words, patches, *one.launch(call, results))
    return Planned(call, (launch,), results), form


def _with_second(planned: Planned, form: Form | None) -> Planned:
    """Generate the second kernel, if slices of the rows share a gradient."""
    call, (first,), results = planned
    if not results.parts_of:
        return planned
    argument = form and form.sums
    if argument is None:
        argument = argument_of(call.views, results.parts_of, results.pieces_of, call.compute)
    words, tile, *launch = second_stage(argument, call, results)
    target, storage = call.target, "register" if tile else call.storage
    key = ("sums", storage, id(tile), target.arch, target.translated)
    variant = None if form is None else form.variants.get(key)
    if variant is None:
        variant = first.variant._replace(
            arch=target.arch,
            schedule=storage,
            tile=tile,
            members=argument.members,
            words=argument.words,
            op=call.one.op.kernels,
            entry="sums",
            most_columns=0,
        )
        if form is not None:
            _remember(form, key, variant)
    second = Launch(variant, words, argument.patches, *launch)
    return Planned(call, (first, second), results)


def _remember(form: Form, key: tuple[object, ...], variant: Variant) -> None:
    if len(form.variants) >= MOST_VARIANTS:
        form.variants.clear()
    form.variants[key] = variant


# ----------------------------------------------------------------------------------------- variants


def _variant(call: Call, members: tuple[Member, ...], words: int) -> Variant:
    """The kernel whose argument has these members and so many words."""
    one, tile, target = call.one, call.tile, call.target
    bound, op = one.bound, one.op
    return Variant(
        arch=tile.compiled_for if isinstance(tile, ProductTiling) else target.arch,
        schedule=call.storage,
        tile=tile,
        members=members,
        words=words,
        op=one.product or op.kernels,
        headers=tuple(op.headers(one.gradient)),
        load=bound.load,
        store=bound.store,
        dtype=one.dtype,
        declaration=op.declaration,
        definitions=op.definitions,
        entry=one.entry,
        translated=target.translated,
        most_columns=0 if tile is not None else _most_columns(call),
    )


def _most_columns(call: Call) -> int:
    """The columns of the bucket of a call on a CPU."""
    return host_columns(call.storage, max(call.geometry.columns, 1))


# -------------------------------------------------------------------------------------------- forms


def _form_key(call: Call) -> tuple[tuple[object, ...], list[int]] | None:
    """The key of a call's form, and its strides; None if the kernel's source needs a size.

    The key is everything that the source depends on, which excludes sizes and strides.
    """
    one = call.one
    bound, op = one.bound, one.op
    own = one.types(call)
    if own is None or call.geometry.rows >= MANY_ROWS or bound.op is not op:
        return None
    if bound.whole is not None or bound.tables or op.causal or op.positions or op.pair:
        return None
    typed = types_of([*call.views.values()], call.maps)
    if typed is None:
        return None
    views, strides = typed
    key = (
        own,
        views,
        len(call.geometry.sizes),
        bound.compute,
        (bound.x.dim(), bound.reduced) if any(call.drawn) else None,  # draws that rows share
        isinstance(bound.generator, Tensor),
        tuple(bound.dropout_slots.items()),
        tuple([type(value) for value in bound.operands.values()]),
    )
    return key, strides


def _form(call: Call) -> Form:
    made, results = with_symbols(call), call.one.results(call)
    count = len(results.outputs)
    members, write = written(made, results)
    parts_of = results.parts_of
    return Form(
        tuple(members),
        len(write.words),
        write.recipe(),
        write.patches,
        [(dtype, tuple(shape)) for dtype, shape in results.outputs[count:]],
        {use: patch for use, (patch, _) in parts_of.items()},
        results.in_shared,
        argument_of(made.views, parts_of, {}, write.compute) if parts_of else None,
        {},
    )
