# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Memory traffic of a row besides x and y, from which schedules are chosen.

A schedule does not depend on which functor reads an operand, so two declarations that move the same
bytes at the same time get the same schedule, whatever their functors are called. Since the tile
decides the order of a sum, nothing here may depend on the number of rows: see `extent`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from fusedops.bind.bind import Bound


class Extent(enum.Enum):
    """How much of an operand the kernel reads for one row."""

    NUMBER = "one number for all rows"
    ROW = "one number a row"
    VECTOR = "a vector that all rows share"
    FULL = "a row of its own"


class Traffic(NamedTuple):
    """Memory traffic of a call's rows besides x and y, by operand."""

    #: The extent of each operand of the LOAD's and of the STORE's functors, in their order; an
    #: operand that two functors read counts twice.
    load: tuple[Extent, ...]
    store: tuple[Extent, ...]
    draws: int  # number of functors that draw random numbers in this call
    saves: int  # number of tensors of x's size that are written beside y
    masks: bool  # whether a functor masks elements of the rows, which decides what is read

    @property
    def streams(self) -> str:
        """The traffic class of a forward pass, the `streams` of a `Row`.

        A number is no stream. Vectors that all rows share have schedules of their own where the
        STORE reads them, after the reduction. The LOAD's vectors are in flight together with x;
        that was not measured, nor were numbers of each row: both count as "many", as a full operand
        does.
        """
        if self.draws or self.saves or self.masks:
            return "many"
        if any(one is not Extent.NUMBER for one in self.load):
            return "many"
        store = [one for one in self.store if one is not Extent.NUMBER]
        if any(one is not Extent.VECTOR for one in store):
            return "many"
        return "columns" if store else "none"

    @property
    def more(self) -> bool:
        """Whether tensors of x's size move in addition to x and y."""
        return self.saves > 0 or Extent.FULL in self.load or Extent.FULL in self.store

    @property
    def beside(self) -> int:
        """Tensors of x's size that a backward pass moves in addition to dy, x and dx.

        Counted are tensors that are read or have gradients, and dropouts. What the STORE reads
        counts as two at least: a norm with gamma alone and one with gamma and beta were measured
        with the same tiles.
        """
        load = len(self.load) - self.load.count(Extent.NUMBER)
        store = len(self.store) - self.store.count(Extent.NUMBER)
        return load + (max(2, store) if store else 0) + self.draws


def traffic_of(bound: Bound) -> Traffic:
    """Memory traffic of a call's active functors."""
    op, x, reduced = bound.op, bound.x, bound.reduced
    extents = {name: extent(value, x, reduced) for name, value in bound.seen.items()}
    load, store = bound.read
    return Traffic(
        load=tuple([extents[name] for name in load]),
        store=tuple([extents[name] for name in store]),
        draws=len(bound.dropout_slots),
        saves=len(op.saves) + len(op.taps),
        masks=any(functor.masks for functor in (*bound.load, *bound.store)),
    )


def without_rows(value: Tensor, x: Tensor, reduced: tuple[int, ...]) -> bool:
    """Whether all rows read the same elements of an operand."""
    return reduced[0] == x.dim() - len(reduced) and value.dim() <= len(reduced)


def extent(value: Any, x: Tensor, reduced: tuple[int, ...]) -> Extent:
    """How much of an operand the kernel reads for one row of x.

    Whether rows share it is judged by its number of dimensions, never by its strides or by the
    sizes of its row dimensions: in a batch of one a full operand of shape (1, columns) looks like a
    shared vector with its row dimension kept, and the two must get the tile that they have in a
    larger batch. So only what has no row dimension at all is shared: 0-d tensors, and where x's
    reduced dimensions are its last ones, tensors of no more dimensions than those. Sizes in the
    reduced dimensions may count: columns are part of the tile.
    """
    if not isinstance(value, Tensor) or value.dim() == 0:
        return Extent.NUMBER
    shape, own = x.shape, value.shape
    lead, one = len(shape) - len(own), False
    for dim in reduced:
        if dim >= lead and own[dim - lead] != 1:
            one = False
            break
        one = one or shape[dim] != 1
    if without_rows(value, x, reduced):
        return Extent.NUMBER if one else Extent.VECTOR
    return Extent.ROW if one else Extent.FULL
