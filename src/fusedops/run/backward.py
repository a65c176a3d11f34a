# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""One backward call: its tensors placed, its schedule chosen, its kernels generated.

The gradient of the STORE becomes the LOAD of the backward kernel, and the gradient of the LOAD its
STORE. If slices of the rows share a gradient, a second kernel adds up their partial sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.bind.bind import KEPT, Bound
from fusedops.bind.shard_offset import first_rows
from fusedops.generate.arguments import ArgumentWriter
from fusedops.generate.source import Member, Members
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.generate.views import Number, View, kept_view, views_of
from fusedops.run import forward, placing
from fusedops.run.backward_cut import cut_of
from fusedops.run.backward_form import Form, Variants, first_kernel
from fusedops.run.backward_parts import parts_of, read_otherwise
from fusedops.run.backward_schedule import backward_schedule, sums_schedule
from fusedops.run.gradient_targets import BlockNumbers, GradientTargets
from fusedops.run.kernel_members import declared, scheduled
from fusedops.run.outline import Outline, outline_of
from fusedops.run.planned import Launch, Planned
from fusedops.run.reading import USUAL, Reading, as_read, padded, rank_of
from fusedops.run.saved_tensors import RESULT, joining_name, saved_name
from fusedops.run.second_stage import argument_of, second_stage
from fusedops.schedule import Schedule
from fusedops.schedule.forward import host_columns
from fusedops.schedule.row_partition import is_sum

if TYPE_CHECKING:
    from fusedops.run.wanted_gradients import WantedGradients


#: The most variants that are remembered of calls with the same form.
MOST_VARIANTS = 64


class Backward:
    """One backward call: its tensors placed, its schedule chosen, and, by `generate`, its kernels.

    `like` is the same call read otherwise, if it has been placed before.

    Attributes:
        apart: Whether some tensor's reduced dimensions do not merge, so that no kernel can be made;
            if so, the attributes that describe kernels are not set.
        few: Whether one block has all rows, so that no sum over them is in parts.
        targets: Where the kernel puts the gradients of operands.
        parts_at: The index of the argument word of the second kernel that holds the number of
            partial sums, for each of `targets.parts_of`.
    """

    def __init__(
        self,
        gradient: WantedGradients,
        bound: Bound,
        dy: Tensor,
        given: Mapping[str, Any],
        target: Target,
        split: bool = False,
        reading: Reading = USUAL,
        like: Backward | None = None,
    ) -> None:
        self.gradient = gradient
        self.split = split
        self.reading = reading
        self.bound = bound
        self.op = gradient.op
        self.target = target
        self.slots = gradient.numbers
        self.parts_at: Sequence[int] = ()
        self.generated = False
        self.outline: Outline = outline_of(bound) if like is None else like.outline
        outline = self.outline
        if like is None:
            self.parts = parts_of(gradient, bound, dy, given, outline, reading.vectors)
        else:
            self.parts = like.parts
            shared = outline.shared[reading.vectors]
            if reading.vectors != like.reading.vectors:
                self.parts = read_otherwise(like.parts, gradient, bound, dy, given, shared)
        parts, outputs, merged, self.drawn = self.parts
        self.outputs = list(outputs)
        self.geometry = padded(merged, reading.rank or rank_of(outline.broadcasts, merged.sizes))
        places = self.geometry.placed[: len(parts)]
        self.apart = None in places
        if self.apart:
            return
        self.maps = self.geometry.placed[len(parts) :]
        tile, self.kind = backward_schedule(
            bound, outline, self.geometry, target, gradient, reading
        )
        self.tile = tile
        self.width = width = 0 if tile is None else tile.width
        columns = max(self.geometry.columns, 1)
        self.most_columns = 0 if tile else host_columns(self.kind, columns)
        views = dict(zip(parts, views_of([*parts.values()], places, width, columns), strict=True))
        if KEPT in views:
            views[KEPT] = kept_view(views[KEPT], self.op.kept, width)
        self.views: dict[Any, View] = views
        self._cut()

    @property
    def adds_nothing(self) -> bool:
        """Whether no rows share an element of a gradient, so that all readings add the same."""
        return not self.apart and all(share.group == 1 for share in self.sharing.values())

    def adds_as(self, other: Backward) -> bool:
        """Whether this reading of a call adds up every sum over rows in the same order as another.

        The kernel of a reading with more sums may have another launch configuration, and so another
        row partition. It may not serve then: which kernels are loaded must not decide a bit.
        """
        shares = (*self.sharing.values(), *other.sharing.values())
        if not any(is_sum(share) and share.group > 1 for share in shares):
            return True
        tiles = (self.tile, other.tile)
        blocks = [0 if tile is None else tile.rows_per_block for tile in tiles]
        return self.slices == other.slices and blocks[0] == blocks[1]

    @property
    def loaded(self) -> bool:
        """Whether the first kernel, which is generated for that, is loaded in this process."""
        return bool(self.generate().first[0].loaded)

    def _cut(self) -> None:
        """Cut the rows into slices, and choose where the gradients of operands are summed."""
        gradient, geometry, reading = self.gradient, self.geometry, self.reading
        uses = gradient.occurrences
        places = [self.views[one].placed for one in uses]
        shared = as_read(self.bound, self.outline, geometry, reading, uses, places)
        chosen, target = self.tile, self.target
        cut = cut_of(gradient.cuts, geometry, shared, chosen, target, self.split, reading.many)
        for at in cut.apart:
            shared[at] = shared[at]._replace(kind="apart")
        self.cut = cut
        self.tile, self.few, self.slices = cut.tile, cut.few, cut.slices
        self.sharing = dict(zip(uses, shared, strict=True))
        pack = math.gcd(geometry.columns, 16 // self.bound.compute.itemsize)
        self.returned = len(self.outputs)
        self.targets = GradientTargets(
            self.bound,
            geometry,
            self.tile,
            self.slices,
            self.sharing,
            self.views,
            self.outputs,
            dict(zip(uses, cut.partial, strict=True)),
            self.few,
            BlockNumbers(pack, cut.blocks, cut.of_one),
        )

    def generate(self) -> Backward:
        """Generate the kernel, and a second one if slices of the rows share a gradient."""
        if not self.apart and not self.generated:
            self.generated = True
            self.first, form = first_kernel(self)
            self.second = self._sums(form)
        return self

    @property
    def compute(self) -> str:
        """The C++ compute type, "float" or "double"."""
        return "double" if self.bound.compute is torch.float64 else "float"

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants of the kernels, one or two, in the order in which they run."""
        first = self.first[0]
        return (first,) if self.second is None else (first, self.second.variant)

    def planned(self) -> Planned:
        """The launches of the kernels, in order, and their outputs."""
        geometry, tile, total = self.geometry, self.tile, self.slices.total
        shared_sums = self.targets.shared_sums
        grain = total if geometry.rows * geometry.columns <= forward.HOST_INLINE else 1
        launch: tuple[int, ...] = ()
        if tile is not None:
            grid = -(-total // tile.rows_per_block) * tile.blocks_per_row
            launch = (grid, tile.threads_per_block, shared_sums * self.bound.compute.itemsize)
        launches = [Launch(*self.first, total, grain, *launch)]
        if self.second is not None:
            launches.append(self.second)
        return Planned(
            tuple(launches),
            self.outputs,
            self.op.dropouts if self.bound.dropout_slots else 0,
            "shared" if shared_sums and self.kind == "register" else self.kind,
            self.returned,
        )

    def members(self) -> tuple[Members, ArgumentWriter]:
        """Generate the members of the first kernel's argument; and the writer of its words."""
        bound, geometry, op, gradient = self.bound, self.geometry, self.op, self.gradient
        operands: dict[str, View | Number] = {
            name: self.views[name] for name in ("x", *op.slots) if name in self.views
        }
        from_result = gradient.needed.result
        if from_result:
            operands["x"] = self.views[RESULT]
        for name, value in bound.operands.items():
            if not isinstance(value, Tensor):
                operands[name] = Number(self.slots[name], isinstance(value, int))
        views = self.views
        write = ArgumentWriter(
            compute=self.compute,
            sizes=geometry.sizes,
            columns=geometry.columns,
            queries=placing.queries(bound),
            first_query=placing.first_query(bound),
            operands=operands,
            outputs={n: views[saved_name(n)] for n in op.saves if saved_name(n) in views},
            maps=placing.row_maps(bound, self.maps, self.drawn),
            tables=bound.tables,
            first_rows=first_rows(bound.whole, self.drawn),
            slots=self.slots,
            output_gradients={
                n: views[joining_name(n)] for n in op.joining if n in gradient.joining
            },
            drawn_in_memory=isinstance(bound.generator, Tensor),
        )
        members = declared(bound, write, geometry, gradient=True, from_result=from_result)
        members.append(Member(write.view(views[("upstream",)]), "upstream"))
        members.append(Member(write.view(views[KEPT]) if op.kept else write.absent(), "kept"))
        to = views.get(("to",))
        members.append(Member(write.absent() if to is None else write.view(to), "to"))
        targets = self.targets
        members += [targets.member(write, one) for one in gradient.occurrences]
        members += scheduled(write, self.tile)
        write.constant(self.slices.rows, self.slices.span, self.slices.per_span)
        members.append(Member("Slices", "slices"))
        return members, write

    def variant(self, members: Members, words: int, known: Variants) -> Variant:
        """The first kernel, by the members of its argument and the number of its words.

        `known` are the kernels of calls that have the same members. The schedule of a map is made
        anew for each call, so its variants are not looked up.
        """
        known = known if self.op.reduces else {}
        return self._variant("gradient", self.kind, self.tile, members, words, known)

    def _variant(
        self,
        entry: str,
        kind: str,
        tile: Schedule | None,
        members: Members,
        words: int,
        known: Variants,
    ) -> Variant:
        bound, target = self.bound, self.target
        # A variant keeps its schedule, so no other can have the same id.
        key = (entry, kind, id(tile), self.most_columns, target.arch, target.translated)
        found = known.get(key)
        if found is not None:
            return found
        if len(known) >= MOST_VARIANTS:
            known.clear()
        made = known[key] = Variant(
            arch=self.target.arch,
            schedule=kind,
            tile=tile,
            members=tuple(members),
            words=words,
            op=self.op.kernels,
            headers=tuple(self.op.headers(gradient=True)),
            load=bound.load,
            store=bound.store,
            dtype=bound.x.dtype,
            declaration=self.op.declaration,
            definitions=self.op.definitions,
            entry=entry,
            translated=self.target.translated,
            most_columns=self.most_columns if entry == "gradient" else 0,
        )
        return made

    def _sums(self, form: Form | None) -> Launch | None:
        """Generate the second kernel, which adds up partial sums; None if there are none."""
        targets = self.targets
        if not targets.parts_of:
            return None
        parts_of, pieces_of = targets.parts_of, targets.pieces_of
        argument = form and form.sums
        if argument is None:
            argument = argument_of(self.views, parts_of, pieces_of, self.compute)
        call = self.geometry, self.sharing, self.views
        stage = second_stage(argument, *call, parts_of, pieces_of)
        self.parts_at = argument.parts_at
        kind, tile = self.kind, None
        if self.tile is not None:
            kind, tile = "register", sums_schedule(stage.block, stage.wide)
        known = {} if form is None else form.variants
        variant = self._variant("sums", kind, tile, argument.members, argument.words, known)
        threads = 1 if tile is None else tile.threads_per_block
        return Launch(
            variant, stage.words, argument.patches, stage.rows, grid=stage.blocks, block=threads
        )
