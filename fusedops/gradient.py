# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Plan the backward pass of an op: the same declaration, walked for its gradient.

The gradient of the STORE becomes the LOAD of the backward kernel, and the gradient of the LOAD its
STORE. What is wanted, and which saved streams have gradients of their own, makes the kernel; each
such pair is a `Gradient`, with plans of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fusedops import _runtime, plan, schedule
from fusedops.binding import KEPT, Bound, bind
from fusedops.codegen import STORAGE, Arguments, Number, View
from fusedops.errors import UnsupportedError
from fusedops.functors import Functor, Role, rounded
from fusedops.geometry import Geometry, Placed
from fusedops.needed import needed
from fusedops.parts import Part, contiguous, kept_part, kept_view, part_of, view_of
from fusedops.runtime import draw
from fusedops.slices import Sharing, Slices, cut, sharing
from fusedops.variant import Target, Variant

if TYPE_CHECKING:
    from fusedops.ops import RowOp

__all__ = ["Gradient", "Info", "Occurrence", "joining_name", "saved_name"]

_NUMBER, _TENSOR, _DESCRIBED = 2, 4, 8

#: Threads of a block of the second stage, as op/column_sums.cuh has them.
_SUMS_BLOCK, _SUMS_COLUMNS = 1024, 8


class Occurrence(NamedTuple):
    """A wanted operand where a functor uses it; one that two functors use has two gradients.

    Attributes:
        side, place: Of the functor.
        number: Of the operand within the functor.
    """

    side: str
    place: int
    number: int
    name: str


class Info(NamedTuple):
    """What is known of a backward call before it runs."""

    schedule: str
    tile: schedule.Schedule | None
    geometry: Geometry
    slices: Slices
    sharing: Mapping[Occurrence, Sharing]
    variant: Variant
    sums: Variant | None


def saved_name(stream: str) -> str:
    """The keyword under which a backward call gets a saved stream."""
    return f"saved {stream}"


def joining_name(stream: str) -> str:
    """The keyword under which a backward call gets the gradient of a saved stream."""
    return f"gradient of {stream}"


class Gradient(_runtime.Dispatcher):
    """The backward pass of an op for one set of wanted gradients.

    Called with the gradient of y, and by keyword what `fusedops.autograd` kept. Returns a tuple:
    the gradient of x if that is wanted, then one for each of `occurrences`. Incoming gradients that
    lie too unlike x for one kernel are copied first.

    Attributes:
        wanted: The names whose gradients are asked for, "x" among them.
        joining: The saved streams that have gradients.
        needed: What it reads.
        places: Where among the results that of x is, and of each operand, if there is one.
        loose: Whether a result may be a float tensor of x's size, to be summed by the caller.
    """

    def __init__(self, op: RowOp, wanted: frozenset[str], joining: frozenset[str]) -> None:
        self.op = op
        self.wanted = wanted
        self.joining = joining
        self.needed = needed(op, wanted)
        self.occurrences = _occurrences(op, wanted)
        names = [one.name for one in self.occurrences]
        self.names = ["x"] * ("x" in wanted) + names
        self.loose = len(set(names)) != len(names)
        at = {name: place for place, name in enumerate(self.names)}
        self.places = [at.get(name) for name in ("x", *op.slots)]
        flags = {Role.VALUE: _NUMBER | _TENSOR | _DESCRIBED, Role.FLAGS: _TENSOR | _DESCRIBED}
        flags |= {Role.COUNT: _NUMBER | _TENSOR | _DESCRIBED, Role.PROBABILITY: 1 | _NUMBER}
        slots = [(KEPT, _TENSOR), ("x", _TENSOR | _DESCRIBED)]
        slots += [(operand.name, flags[operand.role]) for operand in op.operands]
        slots += [(saved_name(name), _TENSOR) for name in op.saves]
        slots += [(joining_name(name), _TENSOR) for name in op.saves]
        self._slots = {name: slot for slot, (name, _) in enumerate(slots, 1)}
        super().__init__(f"gradient of {op.name}", slots, self._slow, draw, tuple)

    def _slow(self, reason: str, dy: Any, given: dict[str, Any], options: dict[str, Any]) -> Any:
        if reason == "miss":
            return self._plan(dy, given, options)
        if reason in ("neg", "conj"):
            plain = {name: _resolved(value) for name, value in given.items()}
            return self(_resolved(dy), **plain, **options)
        if reason == "functorch" or (reason == "layout" and dy.layout is torch.strided):
            raise UnsupportedError(
                f"{self.op.name}: a vectorized backward pass (is_grads_batched=True, or "
                "vectorize=True) does not see into a fused kernel; leave that away, or use "
                "op.unfused"
            )
        raise UnsupportedError(
            f"{self.op.name}: the gradient of its result, or a tensor kept for it, cannot be used "
            f"by a fused kernel ({reason}): it must be a plain dense torch.Tensor on the device of "
            f"x, got {type(dy).__name__} with layout {dy.layout}; use op.unfused"
        )

    def _plan(self, dy: Tensor, given: dict[str, Any], options: dict[str, Any]) -> Any:
        try:
            described = self.describe(dy, given, options)
            if not described.apart:
                return described.plan()
        except UnsupportedError:
            # The forward pass took the operands: it is how the gradients lie that is too much.
            joining = [given.get(joining_name(name)) for name in self.op.saves]
            if all(t.is_contiguous() for t in (dy, *joining) if isinstance(t, Tensor)):
                raise
        dense = {k: v.contiguous() if isinstance(v, Tensor) else v for k, v in given.items()}
        return self(dy.contiguous(), **dense, **options)

    def describe(
        self,
        dy: Tensor,
        given: Mapping[str, Any],
        options: Mapping[str, Any],
        target: Target | None = None,
    ) -> Backward:
        """Place, choose and generate, without building anything; for dy's own device by default."""
        bound = self._bound(dy, given, options)
        return Backward(self, bound, dy, given, target or Target.of(dy.device))

    def _bound(self, dy: Tensor, given: Mapping[str, Any], options: Mapping[str, Any]) -> Bound:
        """The forward call, of tensors without memory: its checks have passed before."""
        operands = {operand.name: _meta(given[operand.name]) for operand in self.op.operands}
        options = {**options, "dtype": dy.dtype, "generator": None}
        return bind(self.op, _meta(given["x"]), operands, options)


class Backward:
    """One backward call: its tensors placed, its schedule chosen, its kernels generated."""

    def __init__(
        self,
        gradient: Gradient,
        bound: Bound,
        dy: Tensor,
        given: Mapping[str, Any],
        target: Target,
    ) -> None:
        self.gradient = gradient
        self.bound = bound
        self.op = gradient.op
        self.target = target
        self.slots = gradient._slots
        self.given = given
        self.outputs: list[tuple[torch.dtype, Sequence[int]]] = []
        self.shared_sums = 0  # elements of shared memory
        inputs = self._inputs(dy)
        results = self._results()
        shape = tuple(bound.x.shape)
        whole = Part(shape, contiguous(shape), bound.compute, (0, 0), 16)
        parts = {**inputs, **results, ("whole",): whole}
        self.parts = list(parts)
        rank = len(inputs)
        summed = [rank + i for i, key in enumerate(results) if isinstance(key, Occurrence)]
        self.geometry = plan.placed(bound, list(parts.values()), summed)
        places = self.geometry.placed[: len(parts)]
        self.apart = None in places
        if self.apart:
            return
        self.maps = self.geometry.placed[len(parts) :]
        self.tile, self.kind, width = self._schedule()
        self.width = width
        views = {
            name: view_of(part, place, width)
            for (name, part), place in zip(parts.items(), places, strict=True)
        }
        views[KEPT] = kept_view(views[KEPT], self.op.kept, width)
        self.views: dict[Any, View] = views
        self._generate()

    def _inputs(self, dy: Tensor) -> dict[Any, Part]:
        """What the kernel reads, by keyword; the gradient of y is "upstream"."""
        bound, rank = self.bound, self.bound.x.dim()
        rows = rank - len(bound.reduced)
        most = len(bound.reduced) if rows > 0 and bound.reduced[0] == rows else -1
        inputs: dict[Any, Part] = {("upstream",): part_of(dy, (_runtime.POINTER, 0))}
        for name, value in self.given.items():
            if not isinstance(value, Tensor) or not self._is_read(name):
                continue
            patch = (_runtime.POINTER, self.slots[name])
            if name == KEPT:
                shape = bound._replace(keep=True).output_shape(KEPT)
                inputs[name] = kept_part(shape, value.dtype, patch, bound.reduced)
            else:
                shared = value.dim() <= most and name in self.op.slots
                inputs[name] = part_of(value, patch, shared)
        return inputs

    def _is_read(self, name: str) -> bool:
        if name == "x":
            return self.gradient.needed.x
        return name not in self.op.slots or name in self.gradient.needed.operands

    def _results(self) -> dict[Any, Part]:
        """The gradients, in the shapes and types of what they belong to."""
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
            return None, schedule.choose_host(columns, plan.forced), 0
        tile = schedule.choose_gradient(
            columns,
            self.bound.x.element_size(),
            self.bound.compute.itemsize,
            bool(self.bound.slots),
            self.target.shared_limit,
            self.op.gradient_values,
            tuple(self._groups()),
            plan.forced,
        )
        return tile, tile.kind, tile.width

    def _groups(self) -> Iterator[int]:
        """Of every operand whose gradient can be a sum over rows: how many such sums there are."""
        x, reduced = self.bound.x, self.bound.reduced
        for one in _occurrences(self.op, frozenset(self.op.slots)):
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
        """One kernel, and a second where slices share a gradient."""
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
            None if tile is None else schedule.resident_rows(tile, self.target.multiprocessors),
            1 if tile is None else tile.rows,
            0 if tile is None else tile.ahead,
        )
        for one, share in self.sharing.items():
            if share.outer < 0 and share.group > self.slices.rows:
                self.sharing[one] = share._replace(kind="apart")
        self.returned = len(self.outputs)
        self.first = self._kernel()
        self.second = self._sums()

    def plan(self) -> Any:
        """Build the kernels."""
        geometry, tile = self.geometry, self.tile
        first, words, patches = self.first
        second = self.second
        total = self.slices.total
        then = []
        if second is not None:
            variant, sum_words, sum_patches, rows, blocks = second
            stage = (variant.kernel(), sum_words, sum_patches, rows, 1)
            then.append((*stage, blocks, _SUMS_BLOCK, 0))
        info = Info(
            schedule="shared" if self.shared_sums else self.kind,
            tile=tile,
            geometry=geometry,
            slices=self.slices,
            sharing=self.sharing,
            variant=first,
            sums=None if second is None else second[0],
        )
        return _runtime.Plan(
            first.kernel(),
            words,
            patches,
            [(*plan.DLPACK[dtype], tuple(shape)) for dtype, shape in self.outputs],
            total,
            total if geometry.rows * geometry.columns <= plan.HOST_INLINE else 1,
            1 if tile is None else -(-total // tile.rows),
            1 if tile is None else tile.block,
            self.shared_sums * self.bound.compute.itemsize,
            self.op.dropouts if self.bound.slots else 0,
            info,
            then,
            self.returned,
        )

    def _kernel(self) -> tuple[Variant, bytes, list[tuple[int, int, int]]]:
        """The kernel: walks the declaration once more, for what its gradient reads."""
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
        write = Arguments(
            compute="double" if bound.compute is torch.float64 else "float",
            sizes=geometry.sizes,
            columns=geometry.columns,
            queries=x.shape[rows[-1]] if rows else 1,
            operands=operands,
            outputs={n: views[saved_name(n)] for n in op.saves if saved_name(n) in views},
            query=query,
            logical_row=logical,
            slots=self.slots,
            joining={n: views[joining_name(n)] for n in gradient_streams(self.gradient)},
        )
        members = [(write.rows(geometry.rows, geometry.sizes), "rows")]
        write.constant(geometry.columns)
        members.append(("int64_t", "cols"))
        if op.eps is None:
            write.constant(0)
        else:
            write.number(rounded(op.eps, write.compute))
        members.append((op.gradient_cpp(write.compute), "op"))
        members.append((write.operand("x"), "x"))
        for side, chain in (("load", bound.load), ("store", bound.store)):
            for position, functor in enumerate(chain):
                write.dropout_slot = bound.slots.get((side, position), -1)
                members.append((functor.spell(write), f"{side}{position}"))
        members.append((write.view(views[("upstream",)]), "upstream"))
        members.append((write.view(views[KEPT]), "kept"))
        to = views.get(("to",))
        members.append((write.absent() if to is None else write.view(to), "to"))
        members += [self._target(write, one) for one in self.gradient.occurrences]
        for number in (self.slices.rows, self.slices.span, self.slices.per_span):
            write.constant(number)
        members.append(("Slices", "slices"))
        return self._variant("gradient", members, write), write.pack(), write.patches

    def _variant(self, entry: str, members: Sequence[tuple[str, str]], write: Arguments) -> Variant:
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
        )

    def _target(self, write: Arguments, one: Occurrence) -> tuple[str, str]:
        """Where the gradient of an operand goes."""
        share, view = self.sharing[one], self.views[one]
        acting = _acting_place(self.op, self.bound, one)
        name = f"of_{one.side}{acting}_{one.number}"
        numbers = f"{acting}, {one.number}"
        columns = self.geometry.columns
        if share.kind == "apart":
            # Rows that share it are no neighbours: it is written whole, and the caller sums it.
            self.gradient.loose = True
            view = self._whole(view)
            return f"Each<{numbers}, {write.view(view)}>", name
        if share.kind == "each":
            return f"Each<{numbers}, {write.view(view)}>", name
        partial = share.group > self.slices.rows
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
        """A row of the compute type for each slice."""
        patch = (_runtime.OUTPUT, len(self.outputs))
        tile, by_column = self.tile, self.sharing[one].kind == "column"
        combined = by_column and tile is not None and tile.sums != "memory"
        parts = self.slices.total // (tile.rows if tile is not None and combined else 1)
        self.outputs.append((self.bound.compute, (parts, columns)))
        if self.sharing[one].group > self.slices.rows:
            self._parts_of = getattr(self, "_parts_of", {})
            self._parts_of[one] = patch, parts
        width = 1
        if self.width:
            size = self.bound.compute.itemsize
            width = next(w for w in (8, 4, 2, 1) if w * size <= 16 and columns % w == 0)
            width = min(width, self.width)
        place = Placed((columns,), 1)
        return View(STORAGE[self.bound.compute], place, width if self.width else 0, patch, False)

    def _whole(self, view: View) -> View:
        """In place of an operand's gradient, one of x's size in the compute type."""
        kind, index = view.patch
        shape = tuple(self.bound.x.shape)
        self.outputs[index] = (self.bound.compute, shape)
        return self.views[("whole",)]._replace(patch=(kind, index))

    def _sums(self) -> Any:
        """The second stage: adds up the parts that slices left."""
        parts = getattr(self, "_parts_of", {})
        if not parts:
            return None
        write = Arguments(
            compute="double" if self.bound.compute is torch.float64 else "float",
            sizes=(1,),
            columns=0,
            queries=0,
            operands={},
            outputs={},
            query=(),
            logical_row=(),
            slots={},
        )
        members, rows, blocks = [], 0, 0
        for number, (one, (patch, all_parts)) in enumerate(parts.items()):
            share, view = self.sharing[one], self.views[one]
            columns = 1 if share.kind == "row" else self.geometry.columns
            groups = self.geometry.rows // share.group
            of_group = all_parts // groups
            place = Placed((share.outer,), view.placed.column_stride)
            to = write.view(view._replace(placed=place, width=1 if self.width else 0, shared=False))
            write.pointer(patch)
            for constant in (of_group, groups, columns):
                write.constant(constant)
            members.append((f"PartsOf<{to}, {write.compute}>", f"sum{number}"))
            rows += groups
            blocks += -(-columns // _SUMS_COLUMNS) * groups
        variant = self._variant("sums", members, write)
        if self.tile is not None:
            tile = schedule.Schedule("register", _SUMS_BLOCK, 1, 1, 1, 1, False, 4)
            variant = variant._replace(tile=tile, schedule="register")
        return variant, write.pack(), write.patches, rows, blocks


def gradient_streams(gradient: Gradient) -> list[str]:
    """The saved streams whose gradients join, in the order of the declaration."""
    return [name for name in gradient.op.saves if name in gradient.joining]


def _occurrences(op: RowOp, wanted: frozenset[str]) -> list[Occurrence]:
    found = []
    for side, chain in (("load", op.load), ("store", op.store)):
        for place, functor in enumerate(chain):
            for index, name in enumerate(_numbered(functor)):
                if name in wanted:
                    found.append(Occurrence(side, place, index, str(name)))
    return found


def _numbered(functor: Functor) -> Sequence[str | None]:
    """The operands by the numbers that the C++ functor gives them."""
    return functor.gradients()


def _acting_place(op: RowOp, bound: Bound, one: Occurrence) -> int:
    """The functor's place among those that act."""
    chain = op.load if one.side == "load" else op.store
    acting = bound.load if one.side == "load" else bound.store
    if len(chain) == len(acting):
        return one.place
    gone = sum(1 for f in chain[: one.place] if not any(f is g for g in acting))
    return one.place - gone


def _meta(value: Any) -> Any:
    """A tensor, or the description of one, as a tensor without memory."""
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, tuple):
        dtype, shape = value
        return torch.empty(shape, dtype=dtype, device="meta")
    return value


def _resolved(value: Any) -> Any:
    return value.resolve_conj().resolve_neg() if isinstance(value, Tensor) else value
