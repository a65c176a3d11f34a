# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Place a call: its tensors as rows and columns, and the maps from its rows to what functors read.

Both passes are placed so, the backward pass with the parts of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from fusedops import _runtime
from fusedops.bind.bind import KEPT, Bound
from fusedops.bind.dimensions import row_positions
from fusedops.bind.geometry import Geometry, Placed, place
from fusedops.bind.shard_offset import drawn_rows
from fusedops.bind.shard_offset import first_query as number_of_first
from fusedops.errors import UNFUSED, UnsupportedError
from fusedops.generate.arguments import RowMaps
from fusedops.generate.views import Blank, Number, Part, View, filled, views_of, widened
from fusedops.run.contiguous import dense_cure
from fusedops.run.outline import Outline, outline_of

__all__ = [
    "columns_apart",
    "first_query",
    "parts_of",
    "placed",
    "placed_views",
    "queries",
    "row_maps",
    "row_numbers",
    "rows_of",
]

#: Maps from rows to their numbers in the dropout contract, by the dimensions that share a draw.
DrawnRows: TypeAlias = "dict[tuple[int, ...], list[int]]"


def parts_of(
    bound: Bound, outline: Outline | None = None, vectors: bool = False
) -> tuple[dict[str, Part], dict[str, Part]]:
    """The tensors that the kernel reads and the tensors that it writes, each by name.

    `outline` is the call's, and `vectors` that of the `Reading`.
    """
    outline = outline or outline_of(bound)
    x, op = bound.x, bound.op
    saved = [bound.output_dtype(name) for name in op.saves]
    key = (bound.keep, vectors, x.dtype, bound.dtype, *saved, *bound.out)
    blanks = outline.blanks.get(key)
    if blanks is None:
        blanks = outline.blanks[key] = _blanks(bound, outline.shared[vectors])
    values: dict[Any, Any] = {**bound.seen, "x": x}
    for name, tensor in bound.out.items():
        values["out", name] = tensor
    shape = x.shape
    inputs, outputs = (filled(some, values, shape, bound.reduced) for some in blanks)
    if bound.out or op.maxima:
        for name, part in outputs.items():
            if name in op.maxima:
                every = [1] * len(shape), [0] * len(shape)  # one element for all rows
                outputs[name] = part._replace(shape=every[0], strides=every[1], shared=True)
            elif len(part.shape) < len(shape):
                outputs[name] = widened(part, bound.reduced)
    return inputs, outputs


def _blanks(bound: Bound, shared: Collection[str]) -> tuple[list[Blank], list[Blank]]:
    """What is known of the tensors that the kernel reads and writes, whatever their sizes."""
    op = bound.op
    inputs = [Blank("x", "x", True, 0, None, (_runtime.POINTER, 0))]
    for name in bound.seen:
        patch = (_runtime.POINTER, op.slots[name])
        inputs.append(Blank(name, name, True, 0, None, patch, name in shared))
    outputs = []
    for index, name in enumerate(bound.outputs):
        patch, dtype = (_runtime.OUTPUT, index), bound.output_dtype(name)
        if name == KEPT:
            if op.kept:  # else there is nothing to write
                outputs.append(Blank(name, "x", False, op.kept, dtype, patch))
        elif name in bound.out:
            outputs.append(Blank(name, ("out", name), True, 0, None, patch))
        else:
            outputs.append(Blank(name, "x", False, int(name in op.statistics), dtype, patch))
    return inputs, outputs


def placed_views(
    bound: Bound,
    inputs: Mapping[str, Part],
    outputs: Mapping[str, Part],
    places: Sequence[Placed | None],
    width: int,
    columns: int,
) -> tuple[dict[str, View | Number], dict[str, View]]:
    """The operands of a call and its outputs as a kernel has them, each by name.

    Args:
        bound: The call.
        inputs: The tensors that the kernel reads.
        outputs: The tensors that it writes.
        places: How those lie, in this order, and then others.
        width: Columns of a pack; 0 on a CPU.
        columns: Row length in elements, at least 1.
    """
    views = views_of([*inputs.values(), *outputs.values()], places, width, columns)
    operands: dict[str, View | Number] = dict(zip(inputs, views, strict=False))
    for name, value in bound.operands.items():
        if name not in inputs:
            operands[name] = Number(bound.op.slots[name], isinstance(value, int))
    return operands, dict(zip(outputs, views[len(inputs) :], strict=True))


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
    if bound.op.causal and (rows := rows_of(bound)):
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
        cure = dense_cure(bound, parts_of(bound)[0], parts, operands, sizes)
        raise UnsupportedError(
            f"{bound.op.name}: x of shape {tuple(shape)} and its operands broadcast in too many "
            f"ways: {error}; {cure}, or use {UNFUSED}"
        ) from None


def rows_of(bound: Bound) -> list[int]:
    """The dimensions of x that are not reduced."""
    return [dim for dim in range(bound.x.dim()) if dim not in bound.reduced]


def queries(bound: Bound) -> int:
    """The number of queries, for masks that are made from indices; 1 where there are none."""
    return bound.counted[rows_of(bound)[-1]] if bound.op.causal else 1


def first_query(bound: Bound) -> int:
    """The number of x's first query."""
    return 0 if bound.whole is None else number_of_first(bound.whole, rows_of(bound))


def row_numbers(bound: Bound, outline: Outline) -> DrawnRows:
    """The maps from rows to their numbers in the dropout contract (`drawn_rows`) of a call."""
    if not bound.dropout_slots:
        return {}
    return _drawn_rows(bound.counted, bound.reduced, outline.drawn)


#: Remembered, since both passes of a call have the same.
_drawn_rows = functools.lru_cache(maxsize=64)(drawn_rows)


def _coordinates(bound: Bound) -> dict[int, list[int]]:
    """The maps from rows to the coordinates that functors read, by dimension."""
    return row_positions(bound.op, bound.x.shape, bound.reduced)


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
    inputs, outputs = parts_of(bound)
    parts = [*inputs.values(), *outputs.values()]
    return None in placed(bound, parts, row_numbers(bound, outline_of(bound))).placed
