# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The two declarations into which an op is cut whose columns are sharded, and what joins them.

The first is computed of a rank's own columns, the second brings what it gives together with the
numbers of the whole row:

- softmax and log-softmax: the op without its STORE and with ``lse``; a row is shifted by the
  logarithm of the sum of all ranks. Masks and biases made from indices are moved by the number of
  the rank's first column, which their offset says.
- norms: a `Map` with the LOAD, of which each rank takes the numbers of its columns; the second
  subtracts the mean and multiplies by the reciprocal deviation.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from fusedops.declare.operator import own_operators
from fusedops.declare.text import read
from fusedops.functors import (
    Affine,
    Alibi,
    Bias,
    Causal,
    Gate,
    Lengths,
    Mask,
    Residual,
    Role,
    Scale,
    Segments,
    Softcap,
    Window,
)

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration
    from fusedops.functors import Functor

__all__ = ["SCALE", "SHIFT", "ColumnParts", "column_parts"]

#: Where a rank's part of x lies: the numbers of its first query and its first column, and how many
#: queries and columns x has.
Place = tuple[int, int, int, int]

#: Functors that do to an element what its operands say, wherever it is.
_ELEMENTWISE = (Affine, Bias, Gate, Mask, Residual, Scale, Segments, Softcap)

#: Functors that compare the number of a query with that of a column.
_POSITIONED = (Alibi, Causal, Window)

#: The operands with which the parts of a row are brought together. No others can have these names.
SHIFT, SCALE = "_shift_of_all_columns", "_scale_of_all_columns"

#: How many numbers of a row each rank hands to the others, by the name of the op.
_NUMBERS = {"Softmax": 1, "LogSoftmax": 1, "LayerNorm": 2, "RMSNorm": 1, "L2Norm": 1}


class ColumnParts(NamedTuple):
    """How an op is cut.

    Attributes:
        part: The op on a rank's own columns; None for a norm without a LOAD, which reads x.
        whole: The op that makes the results of the whole row of what the first has given.
        numbers: How many numbers of a row each rank hands to the others.
        streams: How many saved streams the first returns after its y.
        lengths: The operands that count columns from the row's first, not from the rank's.
        placed: Whether it must be known where a rank's part lies.
    """

    part: Any
    whole: Any
    numbers: int
    streams: int
    lengths: tuple[str, ...] = ()
    placed: bool = False


def column_parts(text: str, place: Place | None = None) -> ColumnParts | None:
    """How the op of this text is cut, on the rank of this place; None where columns are gathered.

    A dropout cannot be cut, which counts columns from the row's first, nor an op with operands of
    its own, such as a sink. Without a place a part that must have one is not to be called.
    """
    return _column_parts(text, place)


# Dynamo asks as it compiles: it cannot trace how an op is declared.
column_parts._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=1024)
def _column_parts(text: str, place: Place | None) -> ColumnParts | None:
    op: Declaration = read(text)
    numbers, kind = _NUMBERS.get(op.name), own_operators.get(op.name)
    if numbers is None or type(op) is not kind or op.row_operands:
        return None
    softmax = op.name in ("Softmax", "LogSoftmax")
    loaded = (*_ELEMENTWISE, *_POSITIONED, Lengths) if softmax else _ELEMENTWISE
    if not all(type(one) in loaded for one in op.load):
        return None
    if not all(type(one) in _ELEMENTWISE for one in op.store):
        return None
    make: Any = own_operators["Map"]
    again: Any = kind
    streams = len(op.saves)
    if softmax:
        if op.logarithmic and any(one.masks for one in op.load):
            return None  # an empty part would be -inf - -inf
        load = [_moved(one, place) for one in op.load]
        part = again(load, **{**op.constants, "lse": True, "empty_row": "zero"})
        join = Bias(SHIFT) if op.logarithmic else Scale(SCALE)
        counts = (one for functor in load for one in functor.operands() if one.role is Role.COUNT)
        lengths = tuple(one.name for one in counts)
        placed = bool(lengths) or any(type(one) in _POSITIONED for one in load)
        return ColumnParts(part, make(load=[join, *op.store]), numbers, streams, lengths, placed)
    if op.masked:
        return None  # how many columns of a row are left would have to be counted, too
    joins = [Bias(SHIFT), Scale(SCALE)] if op.centred else [Scale(SCALE)]
    first = make(load=op.load) if op.load else None
    return ColumnParts(first, make(load=[*joins, *op.store]), numbers, streams)


def _moved(functor: Functor, place: Place | None) -> Functor:
    """The functor as it is for a part of x at this place."""
    if place is None or type(functor) not in _POSITIONED:
        return functor
    positioned: Any = functor
    query, column, queries, columns = place
    offset = positioned.shift(queries, columns) + query - column
    moved: Functor = dataclasses.replace(positioned, align="top-left", offset=offset)
    return moved
