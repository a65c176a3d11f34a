# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The two declarations into which an op is cut whose columns are sharded, and what joins them.

The first is computed of a rank's own columns, the second brings what it gives together with the
numbers of the whole row (`Operator.row_parts`):

- softmax and log-softmax: the op without its STORE and with ``lse``; a row is shifted by the
  logarithm of the sum of all ranks. Masks and biases made from indices are moved by the number of
  the rank's first column, which their offset says.
- norms: a `Map` with the LOAD, of which each rank takes the numbers of its columns; the second
  subtracts the mean and multiplies by the reciprocal deviation.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from fusedops.declare.operator import own_operators
from fusedops.declare.text import read
from fusedops.functors import Bias, Functor, Place, Role, Scale

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration

__all__ = ["SCALE", "SHIFT", "ColumnParts", "column_parts"]

#: The operands with which the parts of a row are brought together. No others can have these names.
SHIFT, SCALE = "_shift_of_all_columns", "_scale_of_all_columns"


class ColumnParts(NamedTuple):
    """How an op is cut.

    Attributes:
        part: The op on a rank's own columns; None for one without a LOAD that reads x.
        whole: The op that makes the results of the whole row of what the first has given.
        numbers: How many numbers of a row each rank hands to the others.
        returned: Whether the first op returns them, as its last output.
        streams: How many saved streams the first returns after its y.
        counted: The operands of both that are integers.
        lengths: Those that count columns from the row's first, not from the rank's.
        placed: Whether it must be known where a rank's part lies.
    """

    part: Any
    whole: Any
    numbers: int
    returned: bool
    streams: int
    counted: tuple[str, ...]
    lengths: tuple[str, ...]
    placed: bool


def column_parts(text: str, place: tuple[int, int, int, int] | None = None) -> ColumnParts | None:
    """How the op of this text is cut, on the rank of this `Place`; None where columns are gathered.

    A dropout cannot be cut, which counts columns from the row's first, nor an op with operands of
    its own, such as a sink. Without a place a part that must have one is not to be called.
    """
    return _column_parts(text, place)


# Dynamo asks as it compiles: it cannot trace how an op is declared.
column_parts._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=1024)
def _column_parts(text: str, place: tuple[int, int, int, int] | None) -> ColumnParts | None:
    op: Declaration = read(text)
    rows = op.row_parts
    if rows is None or op.row_operands or op.taps or op.quantized or op.maxima:
        return None
    if rows.own is None and op.masked:
        return None  # how many columns of a row are left would have to be counted, too
    if not all(one.elementwise for one in op.store):
        return None
    here = Place(0, 0, 1, 1) if place is None else Place(*place)
    load: list[Functor] = []
    for one in op.load:
        functor = one.on_columns(here)
        if functor is None:
            return None
        load.append(functor)
    make: Any = own_operators["Map"]
    part = make(load=load) if load else None
    if rows.own is not None:
        again: Any = type(op)
        part = again(load, **rows.own)
    joins = [Bias(SHIFT)] * rows.shift + [Scale(SCALE)] * rows.scale
    whole = make(load=[*joins, *op.store])
    counts = [one for functor in load for one in functor.operands() if one.role is Role.COUNT]
    return ColumnParts(
        part,
        whole,
        rows.numbers,
        rows.own is not None,
        len(op.saves),
        tuple(op.counted),
        tuple(one.name for one in counts),
        not all(one.elementwise for one in op.load),
    )
