# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""One backward call: its tensors placed, its schedule chosen, its kernels generated.

The gradient of the STORE becomes the LOAD of the backward kernel, and the gradient of the LOAD its
STORE. If slices of the rows share a gradient, a second kernel adds up their partial sums.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops.bind.bind import KEPT, Bound
from fusedops.bind.geometry import Geometry, Placed
from fusedops.generate.arguments import ArgumentWriter
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.generate.views import (
    STORAGE,
    Number,
    Part,
    View,
    contiguous,
    kept_part,
    kept_view,
    part_of,
    view_of,
)
from fusedops.run import forward
from fusedops.run.operand_gradients import Occurrence, acting_place, occurrences
from fusedops.run.saved_tensors import joining_name, saved_name
from fusedops.run.second_stage import second_stage
from fusedops.schedule import forward as schedule
from fusedops.schedule.backward import choose_gradient, resident_rows
from fusedops.schedule.backward_tile import values_of
from fusedops.schedule.row_partition import Sharing, Slices, cut, sharing
from fusedops.schedule.traffic import traffic_of, without_rows

if TYPE_CHECKING:
    from fusedops.run.wanted_gradients import WantedGradients

__all__ = ["Backward", "Info"]


class Info(NamedTuple):
    """All that is known of a backward call before it runs; `sums` is the second kernel, if any."""

    schedule: str
    tile: schedule.Schedule | None
    geometry: Geometry
    slices: Slices
    sharing: Mapping[Occurrence, Sharing]
    variant: Variant
    sums: Variant | None


class Backward:
    """One backward call: its tensors placed, its schedule chosen, its kernels generated.

    Attributes:
        apart: Whether some tensor's reduced dimensions do not merge, so that no kernel can be made;
            if so, the attributes that describe kernels are not set.
        loose: Whether some operand's gradient has the shape of x and is for the caller to sum.
    """

    def __init__(
        self,
        gradient: WantedGradients,
        bound: Bound,
        dy: Tensor,
        given: Mapping[str, Any],
        target: Target,
        split: bool = False,
    ) -> None:
        self.gradient = gradient
        self.split = split
        self.bound = bound
        self.op = gradient.op
        self.target = target
        self.slots = gradient.numbers
        self.given = given
        self.outputs: list[tuple[torch.dtype, Sequence[int]]] = []
        self.loose = False
        self.shared_sums = 0  # elements of shared memory
        self.parts_of: dict[Occurrence, tuple[tuple[int, int], int]] = {}  # patch, number of parts
        inputs = self._inputs(dy)
        results = self._results()
        shape = tuple(bound.x.shape)
        whole = Part(shape, contiguous(shape), bound.compute, (0, 0), 16)
        parts = {**inputs, **results, ("whole",): whole}
        self.parts = list(parts)
        rank = len(inputs)
        summed = [rank + i for i, key in enumerate(results) if isinstance(key, Occurrence)]
        self.geometry = forward.placed(bound, list(parts.values()), summed)
        places = self.geometry.placed[: len(parts)]
        self.apart = None in places
        if self.apart:
            return
        self.maps = self.geometry.placed[len(parts) :]
        self.tile, self.kind, width = self._schedule()
        self.width = width
        columns = max(self.geometry.columns, 1)
        self.most_columns = 0 if self.tile else schedule.host_columns(self.kind, columns)
        views = {
            name: view_of(part, place, width)
            for (name, part), place in zip(parts.items(), places, strict=True)
        }
        views[KEPT] = kept_view(views[KEPT], self.op.kept, width)
        self.views: dict[Any, View] = views
        self._generate()

    def _inputs(self, dy: Tensor) -> dict[Any, Part]:
        """The tensors that the kernel reads, by keyword; the gradient of y is ("upstream",)."""
        bound, rank = self.bound, self.bound.x.dim()
        rows = rank - len(bound.reduced)
        inputs: dict[Any, Part] = {("upstream",): part_of(dy, (_runtime.POINTER, 0))}
        for name, value in self.given.items():
            if not isinstance(value, Tensor) or not self._is_read(name):
                continue
            patch = (_runtime.POINTER, self.slots[name])
            if name == KEPT:
                shape = bound._replace(keep=True).output_shape(KEPT)
                inputs[name] = kept_part(shape, value.dtype, patch, bound.reduced)
            else:
                shared = rows > 0 and without_rows(value, bound.x, bound.reduced)
                inputs[name] = part_of(value, patch, shared and name in self.op.slots)
        return inputs

    def partial(self, share: Sharing) -> bool:
        """Whether several slices of the rows share such a sum, each leaving a partial sum.

        A `split` kernel leaves partial sums of every sum over all rows, however few rows there are.
        """
        if self.split and share.group == self.geometry.rows > 1:
            return True
        return share.group > self.slices.rows

    def _is_read(self, name: str) -> bool:
        if name == "x":
            return self.gradient.needed.x
        return name not in self.op.slots or name in self.gradient.needed.operands

    def _results(self) -> dict[Any, Part]:
        """The gradients as parts, in the shapes and dtypes of the tensors they belong to."""
        results: dict[Any, Part] = {}
        meant: list[tuple[Any, Tensor]] = []
        if "x" in self.gradient.wanted:
            meant.append((("to",), self.bound.x))
        meant += [(one, self.bound.operands[one.name]) for one in self.gradient.occurrences]
        names = [one.name for one in self.gradient.occurrences]
        for key, tensor in meant:
            twice = key != ("to",) and names.count(key.name) > 1
            dtype = self.bound.compute if twice else tensor.dtype
            patch = (_runtime.OUTPUT, len(self.outputs))
            shape = tuple(tensor.shape)
            results[key] = Part(shape, contiguous(shape), dtype, patch, 16)
            self.outputs.append((dtype, shape))
        return results

    def _schedule(self) -> tuple[schedule.Schedule | None, str, int]:
        geometry = self.geometry
        columns = max(geometry.columns, 1)
        if self.target.shared_limit is None:
            return None, schedule.choose_host(columns, forward.forced), 0
        forward.check_columns(self.op.name, columns)
        traffic = traffic_of(self.bound)
        tile = choose_gradient(
            schedule.Row(
                columns=columns,
                element_bytes=self.bound.x.element_size(),
                compute_bytes=self.bound.compute.itemsize,
                dropout=traffic.draws > 0,
            ),
            self.target.shared_limit,
            self.target.cluster_limit,
            values_of(self.op.normalizes, traffic.beside),
            tuple(self._groups()),
            forward.forced,
        )
        return tile, tile.kind, tile.width

    def _groups(self) -> Iterator[int]:
        """For each operand whose gradient can be a sum over rows, the number of such sums."""
        x, reduced = self.bound.x, self.bound.reduced
        for one in occurrences(self.op, self.op.slots):
            tensor = self.bound.operands[one.name]
            if not isinstance(tensor, Tensor):
                continue
            lead = x.dim() - tensor.dim()
            own = {dim + lead: size for dim, size in enumerate(tensor.shape)}
            rows = [dim for dim in range(x.dim()) if dim not in reduced]
            shared = any(own.get(dim, -1) < x.shape[dim] for dim in rows)
            if shared and all(own.get(dim, 1) == x.shape[dim] for dim in reduced):
                yield math.prod(own.get(dim, 1) for dim in rows)

    def _generate(self) -> None:
        """Generate the kernel, and a second one if slices of the rows share a gradient."""
        geometry, gradient = self.geometry, self.gradient
        self.sharing = {
            one: sharing(self.views[one].placed, geometry.sizes, geometry.columns)
            for one in gradient.occurrences
        }
        tile = self.tile
        self.slices = cut(
            geometry.rows,
            geometry.columns,
            list(self.sharing.values()),
            None if tile is None else resident_rows(tile, self.target.multiprocessors),
            1 if tile is None else tile.rows,
            tile is not None and tile.visits,
        )
        summed = any(s.group > 1 for s in self.sharing.values() if s.kind in ("column", "row"))
        if tile is not None and tile.asks == "across" and summed:  # slices of several rows
            self.tile = dataclasses.replace(tile, asks="never")
        for one, share in self.sharing.items():
            if share.outer < 0 and self.partial(share):
                self.sharing[one] = share._replace(kind="apart")
        self.returned = len(self.outputs)
        self.first = self._kernel()
        self.second = self._sums()

    @property
    def compute(self) -> str:
        """The C++ compute type, "float" or "double"."""
        return "double" if self.bound.compute is torch.float64 else "float"

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants of the kernels, one or two, in the order in which they run."""
        return (self.first[0],) if self.second is None else (self.first[0], self.second[0])

    def plan(self) -> Any:
        """Build the kernels and return the runtime's plan, which launches them in order."""
        geometry, tile = self.geometry, self.tile
        first, words, patches = self.first
        second = self.second
        total = self.slices.total
        then = []
        if second is not None:
            variant, sum_words, sum_patches, rows, blocks = second
            stage = (variant.kernel(), sum_words, sum_patches, rows, 1)
            then.append((*stage, blocks, 1 if variant.tile is None else variant.tile.block, 0))
        info = Info(
            schedule="shared" if self.shared_sums and self.kind == "register" else self.kind,
            tile=tile,
            geometry=geometry,
            slices=self.slices,
            sharing=self.sharing,
            variant=first,
            sums=None if second is None else second[0],
        )
        return _runtime.Plan(
            kernel=first.kernel(),
            words=words,
            patches=patches,
            outputs=[(*forward.DLPACK[dtype], tuple(shape)) for dtype, shape in self.outputs],
            rows=total,
            grain=total if geometry.rows * geometry.columns <= forward.HOST_INLINE else 1,
            grid=1 if tile is None else -(-total // tile.rows) * tile.cluster,
            block=1 if tile is None else tile.block,
            shared=self.shared_sums * self.bound.compute.itemsize,
            draws=self.op.dropouts if self.bound.slots else 0,
            info=info,
            then=then,
            returned=self.returned,
        )

    def _kernel(self) -> tuple[Variant, bytes, list[tuple[int, int, int]]]:
        """Generate the first kernel: its variant, argument words and relocations."""
        bound, geometry, op = self.bound, self.geometry, self.op
        x = bound.x
        operands: dict[str, View | Number] = {
            name: self.views[name] for name in ("x", *op.slots) if name in self.views
        }
        for name, value in bound.operands.items():
            if not isinstance(value, Tensor):
                operands[name] = Number(self.slots[name], isinstance(value, int))
        views = self.views
        rows = [dim for dim in range(x.dim()) if dim not in bound.reduced]
        query, logical = (() if place is None else place.row_strides for place in self.maps)
        write = ArgumentWriter(
            compute=self.compute,
            sizes=geometry.sizes,
            columns=geometry.columns,
            queries=x.shape[rows[-1]] if rows else 1,
            operands=operands,
            outputs={n: views[saved_name(n)] for n in op.saves if saved_name(n) in views},
            query=query,
            logical_row=logical,
            slots=self.slots,
            joining={n: views[joining_name(n)] for n in op.saves if n in self.gradient.joining},
            drawn_in_memory=isinstance(bound.generator, Tensor),
        )
        members = forward.declared(bound, write, geometry, op.gradient_cpp(write.compute))
        members.append((write.view(views[("upstream",)]), "upstream"))
        members.append((write.view(views[KEPT]), "kept"))
        to = views.get(("to",))
        members.append((write.absent() if to is None else write.view(to), "to"))
        members += [self._target(write, one) for one in self.gradient.occurrences]
        if self.tile is not None and self.tile.asks != "never":
            write.constant(self.tile.ahead)
            members.append(("int64_t", "ahead"))
        for number in (self.slices.rows, self.slices.span, self.slices.per_span):
            write.constant(number)
        members.append(("Slices", "slices"))
        return self._variant("gradient", members, write), write.pack(), write.patches

    def _variant(
        self, entry: str, members: Sequence[tuple[str, str]], write: ArgumentWriter
    ) -> Variant:
        bound = self.bound
        return Variant(
            arch=self.target.arch,
            schedule=self.kind,
            tile=self.tile,
            members=tuple(members),
            words=len(write.words),
            op=self.op.name,
            header=self.op.gradient_header,
            load=bound.load,
            store=bound.store,
            dtype=bound.x.dtype,
            declaration=self.op.declaration,
            definitions=self.op.definitions,
            entry=entry,
            translated=self.target.translated,
            most_columns=self.most_columns if entry == "gradient" else 0,
        )

    def _target(self, write: ArgumentWriter, one: Occurrence) -> tuple[str, str]:
        """The C++ type and the name of the member that receives the gradient of an operand."""
        share, view = self.sharing[one], self.views[one]
        acting = acting_place(self.op, self.bound, one)
        name = f"of_{one.side}{acting}_{one.number}"
        numbers = f"{acting}, {one.number}"
        columns = self.geometry.columns
        if share.kind == "apart":
            # Rows that share it are no neighbours: it is written in x's shape, the caller sums it.
            self.loose = True
            view = self._whole(view)
            return f"Each<{numbers}, {write.view(view)}>", name
        if share.kind == "each":
            return f"Each<{numbers}, {write.view(view)}>", name
        partial = self.partial(share)
        flag = str(partial).lower()
        if share.kind == "row":
            if partial:
                view = self._scratch(one, 1)
            kind = f"ByRow<{numbers}, {write.view(view)}, {flag}, {write.compute}>"
            write.constant(share.group)
            return kind, name
        sums = "memory" if self.tile is None else self.tile.sums
        memory = None
        if partial or sums == "memory":
            memory = self._scratch(one, columns)
        if not partial:
            to = write.view(view)
        elif sums == "memory":
            to = write.absent()
        else:
            assert memory is not None
            to = write.view(memory)
        write.pointer(memory.patch if memory is not None and sums == "memory" else None)
        write.constant(self.shared_sums)
        if sums == "shared" and self.tile is not None:
            self.shared_sums += self.tile.block * self.tile.packs * self.tile.width
        write.constant(share.group)
        write.constant(columns)
        flags = f"{flag}, Sums::k{sums.capitalize()}, {write.compute}"
        return f"ByColumn<{numbers}, {to}, {flags}>", name

    def _scratch(self, one: Occurrence, columns: int) -> View:
        """Allot a workspace of `columns` elements of the compute type for each partial sum."""
        patch = (_runtime.OUTPUT, len(self.outputs))
        tile, by_column = self.tile, self.sharing[one].kind == "column"
        combined = by_column and tile is not None and tile.sums != "memory"
        parts = self.slices.total // (tile.rows if tile is not None and combined else 1)
        self.outputs.append((self.bound.compute, (parts, columns)))
        if self.partial(self.sharing[one]):
            self.parts_of[one] = patch, parts
        width = 1
        if self.width:
            size = self.bound.compute.itemsize
            width = next(w for w in (8, 4, 2, 1) if w * size <= 16 and columns % w == 0)
            width = min(width, self.width)
        place = Placed((columns,), 1)
        return View(STORAGE[self.bound.compute], place, width if self.width else 0, patch, False)

    def _whole(self, view: View) -> View:
        """Replace the output for an operand's gradient by one of x's shape and compute type."""
        kind, index = view.patch
        shape = tuple(self.bound.x.shape)
        self.outputs[index] = (self.bound.compute, shape)
        return self.views[("whole",)]._replace(patch=(kind, index))

    def _sums(self) -> Any:
        """Generate the second kernel, which adds up partial sums; None if there are none."""
        if not self.parts_of:
            return None
        stage = second_stage(self.geometry, self.sharing, self.views, self.parts_of, self.compute)
        variant = self._variant("sums", stage.members, stage.write)
        if self.tile is not None:
            tile = schedule.Schedule(
                "register", stage.block, 1, stage.wide, 1, 1, stage.block * stage.wide, False, 4
            )
            variant = variant._replace(tile=tile, schedule="register")
        return variant, stage.write.pack(), stage.write.patches, stage.rows, stage.blocks
