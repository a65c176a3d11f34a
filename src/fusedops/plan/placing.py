# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Place a call: its tensors as rows and columns, and the maps from its rows to what functors read.

How operands lie against x, whatever the sizes, is cached as an outline: which operands rows share,
what is read beside x and which gradients are sums follows from the declaration, the functors that
act, and the dimensions of each tensor that have size 1. A call with a new length or a new number of
rows has an outline that is known, most often.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from fusedops import _runtime
from fusedops.bind.bind import KEPT, Bound
from fusedops.bind.dimensions import contiguous, read_positions
from fusedops.bind.geometry import Geometry, Placed, Strided, place
from fusedops.bind.shard_offset import drawn_rows, shared_dims
from fusedops.errors import UNFUSED, UnsupportedError
from fusedops.generate.arguments import RowMaps
from fusedops.generate.views import Blank, Part, filled, widened
from fusedops.schedule.traffic import Traffic, traffic_of, without_rows

__all__ = [
    "Outline",
    "columns_apart",
    "is_shared",
    "outline_of",
    "parts_of",
    "placed",
    "row_maps",
    "row_numbers",
]

#: Maps from rows to their numbers in the dropout contract, by the dimensions that share a draw.
DrawnRows: TypeAlias = "dict[tuple[int, ...], list[int]]"


#: The most outlines that a declaration remembers.
MOST = 1024


class Outline:
    """What is known of a call by the dimensions of its tensors that have size 1.

    Attributes:
        shared: The names of the operands of which all rows read the same columns (`is_shared`),
            without and with `Reading.vectors`.
        drawn: The dimensions along which each functor that draws shares its draw.
        broadcasts: Whether rows differ by their places, or some of them share operands or draws
            with rows.
        traffic: The memory traffic of a row beside x and y.
        streams, beside: As in `Traffic`.
        blanks: What is known of the tensors of forward calls (`parts_of`), by what that depends on
            beside this.
        sums: The numbers of sums over rows that gradients can be (`plan.backward_schedule`), by
            what they depend on beside this.
    """

    def __init__(self, bound: Bound) -> None:
        tensors = [(k, v) for k, v in bound.seen.items() if isinstance(v, Tensor)]
        self.shared = tuple(
            frozenset([name for name, value in tensors if is_shared(bound, name, value, vectors)])
            for vectors in (False, True)
        )
        rank = bound.x.dim()
        self.drawn = tuple([shared_dims(functor, rank) for functor in bound.drawing])
        self.broadcasts = _broadcasts(bound)
        self.traffic: Traffic = traffic_of(bound)
        self.streams, self.beside = self.traffic.streams, self.traffic.beside
        self.blanks: dict[tuple[object, ...], Any] = {}
        self.sums: dict[tuple[object, ...], tuple[int, ...]] = {}


def outline_of(bound: Bound) -> Outline:
    """The cached facts of a call's broadcast pattern, computed at its first use."""
    known: dict[tuple[object, ...], Outline] = bound.op.outlines
    key = (
        _runtime.ones([bound.x, *bound.seen.values()]),
        bound.reduced,
        tuple(bound.dropout_slots.items()),
    )
    found = known.get(key)
    if found is None:
        if len(known) >= MOST:
            known.clear()
        found = known.setdefault(key, Outline(bound))
    return found


def is_shared(bound: Bound, name: str, value: Tensor, vectors: bool) -> bool:
    """Whether all rows of a call read the same columns of an operand, however many there are.

    `vectors` is that of the `Reading`.
    """
    if not without_rows(value, bound.x, bound.reduced):
        return False
    if bound.x.dim() > len(bound.reduced):
        return True
    if not vectors:
        return False
    saving = (functor for functor in (*bound.load, *bound.store) if functor.saves)
    return not any(operand.name == name for functor in saving for operand in functor.operands())


def _broadcasts(bound: Bound) -> bool:
    x, reduced = bound.x, bound.reduced
    if bound.op.causal or {*read_positions(bound.op, x.dim())} - {*reduced}:
        return True
    shape = x.shape
    for functor in bound.drawing:
        if any(dim not in reduced for dim in shared_dims(functor, len(shape))):
            return True
    rows = [dim for dim, size in enumerate(shape) if size > 1 and dim not in reduced]
    for value in bound.seen.values():
        if not isinstance(value, Tensor) or (own := value.shape) == shape:
            continue
        lead = len(shape) - len(own)
        if without_rows(value, x, reduced):
            continue
        if any(dim < lead or own[dim - lead] == 1 for dim in rows):
            return True
    return False


def parts_of(
    bound: Bound, outline: Outline | None = None, vectors: bool = False
) -> dict[Any, Part]:
    """The tensors of a call: those that the kernel reads by name, and then those that it writes.

    An output has the key ("out", name), row statistics that are kept have `KEPT`. `outline` is the
    call's, and `vectors` that of the `Reading`.
    """
    outline = outline or outline_of(bound)
    x, op = bound.x, bound.op
    saved = [bound.output_dtype(name) for name in op.saves]
    key = (
        bound.keep,
        vectors,
        bound.blocks,
        _packed(bound),
        x.dtype,
        bound.dtype,
        *saved,
        *bound.out,
    )
    blanks = outline.blanks.get(key)
    if blanks is None:
        blanks = outline.blanks[key] = _blanks(bound, outline.shared[vectors])
    values: dict[Any, Any] = {**bound.seen, "x": x}
    for name, tensor in bound.out.items():
        values["out", name] = tensor
    shape = x.shape
    parts = filled(blanks, values, shape, bound.reduced)
    if bound.out or op.maxima:
        for name in bound.op.outputs:
            part = parts["out", name]
            if name in op.of_blocks or (name == "y" and op.packed > 1):
                continue
            if name in op.maxima:
                every = [1] * len(shape), [0] * len(shape)  # one element for all rows
                parts["out", name] = part._replace(shape=every[0], strides=every[1], shared=True)
            elif len(part.shape) < len(shape):
                parts["out", name] = widened(part, bound.reduced)
    return parts


def _packed(bound: Bound) -> int:
    """The elements of a row of y that each hold several columns; 0 if each holds one."""
    return bound.columns // bound.op.packed if bound.op.packed > 1 else 0


def _blanks(bound: Bound, shared: Collection[str]) -> list[Blank]:
    """What is known of the tensors that the kernel reads and writes, whatever their sizes."""
    op = bound.op
    blanks = [Blank("x", "x", True, 0, None, (_runtime.POINTER, 0))]
    for name in bound.seen:
        patch = (_runtime.POINTER, op.slots[name])
        blanks.append(Blank(name, name, True, 0, None, patch, name in shared))
    for index, name in enumerate(bound.outputs):
        patch, dtype, key = (_runtime.OUTPUT, index), bound.output_dtype(name), ("out", name)
        if name == KEPT:
            if op.kept:  # else there is nothing to write
                blanks.append(Blank(KEPT, "x", False, op.kept, dtype, patch))
        elif name == "y" and op.packed > 1:
            blanks.append(Blank(key, "x", False, max(_packed(bound), 1), dtype, patch))
        elif name in op.of_blocks:  # dense where the call gives it, too: `bind` checks that
            numbers = max(bound.blocks, 1) if op.store[-1].block_layout == "rows" else 1
            blanks.append(Blank(key, "x", False, numbers, dtype, patch))
        elif name in bound.out:
            blanks.append(Blank(key, key, True, 0, None, patch))
        else:
            blanks.append(Blank(key, "x", False, int(name in op.statistics), dtype, patch))
    return blanks


def placed(
    bound: Bound,
    parts: Sequence[Part],
    drawn: DrawnRows,
    summed: Sequence[int] = (),
    *,
    in_order: bool = False,
) -> Geometry:
    """Place the parts in their order, then the maps from a row to the numbers that functors read.

    These are its query index, its numbers in the dropout contract and its coordinates.

    A map that no functor reads is zero everywhere, so that it keeps no dimensions from merging.
    `drawn` are the latter maps (`row_numbers`), and `summed` the indices of the parts that are sums
    over what they are broadcast over. Where rows stay `in_order`, those that share an operand are
    not visited together.
    """
    shape = bound.x.shape
    query = [0] * len(shape)
    if bound.op.causal and (rows := bound.rows):
        query[rows[-1]] = 1
    maps: list[Sequence[int]] = [query, *drawn.values()]
    if bound.op.positions:
        maps += _coordinates(bound).values()
    operands: list[Any] = [*parts, *zip(maps)]  # parts begin with shape and strides
    sizes = [0] * len(operands)
    if not in_order and len(shape) > len(bound.reduced) + 1:  # else there is nothing to order
        sizes[: len(parts)] = [part.dtype.itemsize for part in parts]
    try:
        return place(shape, bound.reduced, operands, sizes, summed)
    except ValueError as error:
        inputs = {name: part for name, part in parts_of(bound).items() if type(name) is str}
        cure = _dense_cure(bound, inputs, parts, operands, sizes)
        raise UnsupportedError(
            f"{bound.op.name}: x of shape {tuple(shape)} and its operands broadcast in too many "
            f"ways: {error}; {cure}, or use {UNFUSED}"
        ) from None


def row_numbers(bound: Bound, outline: Outline) -> DrawnRows:
    """The maps from rows to their numbers in the dropout contract (`drawn_rows`) of a call."""
    if not bound.dropout_slots:
        return {}
    return _drawn_rows(bound.counted, bound.reduced, outline.drawn)


#: Remembered, since both passes of a call have the same.
_drawn_rows = functools.lru_cache(maxsize=64)(drawn_rows)


def _coordinates(bound: Bound) -> dict[int, list[int]]:
    """The maps from rows to the coordinates that functors read, by dimension.

    A map is a number for each of x's dimensions: what one step along it adds.
    """
    rank = bound.x.dim()
    dims = [dim for dim in read_positions(bound.op, rank) if dim not in bound.reduced]
    return {dim: [int(dim == one) for one in range(rank)] for dim in dims}


def row_maps(bound: Bound, places: Iterable[Placed | None], drawn: DrawnRows) -> RowMaps:
    """The maps of a call from its rows, as `placed` has placed them after the parts."""
    query, *others = [() if place is None else place.row_strides for place in places]
    x = bound.x
    return RowMaps(
        query=query,
        drawn_rows=dict(zip(drawn, others, strict=False)),
        positions=dict(zip(_coordinates(bound), others[len(drawn) :], strict=True)),
        columns=tuple([(dim, x.shape[dim]) for dim in bound.reduced]),
        rank=x.dim(),
    )


def columns_apart(bound: Bound) -> bool:
    """Whether some tensor's reduced dimensions do not merge into one, so that it needs a copy."""
    if len(bound.reduced) == 1:
        return False
    outline = outline_of(bound)
    parts = [*parts_of(bound, outline).values()]
    return None in placed(bound, parts, row_numbers(bound, outline)).placed


def _dense_cure(
    bound: Bound,
    inputs: Mapping[str, Part],
    parts: Sequence[Part],
    operands: Sequence[Strided],
    sizes: Sequence[int],
) -> str:
    """Say which tensor to make contiguous so that a kernel takes the other tensors as they are.

    `inputs` are the tensors that the call was given, x first. `parts` are those of them that could
    not be placed, then others; `operands` has their shapes and strides, then those of virtual
    operands, and `sizes` the bytes of an element of each.
    """
    shape = tuple(bound.x.shape)
    for at, (name, part) in enumerate(inputs.items()):
        if at >= len(parts) or parts[at] != part:
            break  # a gradient's
        changed = [*operands]
        changed[at] = (shape, contiguous(shape))
        try:
            place(shape, bound.reduced, changed, sizes)
        except ValueError:
            continue
        return "pass x.contiguous()" if name == "x" else f"pass {name}.expand(x.shape).contiguous()"
    return "pass x.contiguous(), and operands made contiguous, b.expand(x.shape).contiguous() say"
