# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How a call is read where its shapes leave that open, so that few kernels serve all of them.

A kernel is compiled for a number of row dimensions, and for the operands that all rows share. Of a
call with few rows several numbers are right, and for a single row without row dimensions, whether
an operand would have rows in a batch is not known. All readings give the same results, to the bit
but for the sign of a zero in the gradient of an operand: tiles follow from none of this.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from fusedops.bind.geometry import MAX_ROW_DIMS, Geometry, Placed, Sharing, shares_of
from fusedops.plan.placing import Outline, is_shared, outline_of
from fusedops.plan.wanted_gradients import Occurrence, gradient_like, occurrences
from fusedops.schedule.traffic import without_rows

if TYPE_CHECKING:
    from fusedops.bind.bind import Bound

#: Numbers of row dimensions that kernels are made for.
RANKS = (1, 2, 3, MAX_ROW_DIMS)


class Reading(NamedTuple):
    """One way to read a call."""

    rank: int = 0  # number of row dimensions of the kernel; 0 for the usual one of the call
    #: Whether operands of an x without row dimensions are shared by all rows, as those without row
    #: dimensions are in a batch; not those whose functor saves a stream, since that has rows.
    vectors: bool = False
    #: Whether the gradient of an operand of size 1 in a dimension in which x has size 1 as well is
    #: a sum over that dimension, as in a larger batch.
    broadcast: bool = False
    #: Whether the sums of a single row are left in partial sums as those of many rows are, in place
    #: of the kernel for few rows (`plan.backward_schedule.in_one_block`).
    many: bool = False
    #: Whether the kernel is to serve any number of rows, so that a thread has no several rows at a
    #: time (`plan.abreast`).
    any_rows: bool = False


#: The reading of a call for which no kernel is loaded.
USUAL = Reading()

#: The reading with no more row dimensions than are left after merging, for what is made once.
EXACT = Reading(rank=1)

#: That of a kernel for any number of rows, too.
ANY_ROWS = Reading(rank=1, any_rows=True)


class Hints:
    """Which readings of an op's calls were loaded: the ones to look for first.

    To describe a call by each of its readings takes several times as long as to launch it. That a
    reading is loaded does not depend on this, and any that is loaded has the same bits, so a hint
    that is wrong costs time alone.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[bool, ...], Reading] = {}  # by which sizes of x are 1
        self._served: dict[Reading, None] = {}
        self._ranks: set[int] = set()

    def of(self, bound: Bound) -> Reading | None:
        """The reading by which a call with an x like this one was served last, if not the usual."""
        return self._found.get(tuple([size == 1 for size in bound.x.shape]))

    def note(self, bound: Bound, reading: Reading) -> None:
        """Remember the reading that serves a call."""
        self._found[tuple([size == 1 for size in bound.x.shape])] = reading
        self._served[reading] = None

    def note_usual(self, geometry: Geometry) -> None:
        """Remember that the usual reading serves a call with this geometry."""
        self._ranks.add(len(geometry.sizes))

    def first(self, all_readings: Iterable[Reading]) -> list[Reading]:
        """The candidate readings, ordered by how likely a loaded kernel serves them."""
        served = list(self._served)
        ranks = self._ranks.union([one.rank for one in served])
        kinds = {(one.vectors, one.broadcast) for one in served}

        def unlike(one: Reading) -> tuple[bool, bool, bool]:
            kind = one.vectors, one.broadcast
            return one not in served, one.rank not in ranks, kind not in kinds

        return sorted(all_readings, key=unlike)


def rank_of(broadcasts: bool, sizes: Sequence[int]) -> int:
    """The number of row dimensions that the kernel of a call is made for.

    Where rows share an operand in some dimension, that is two at least, whatever the sizes: calls
    of the same kind with more rows need as many.

    The sizes are those of the row dimensions after merging.
    """
    least = len(sizes)
    if least < 2 and broadcasts:
        least = 2
    return RANKS[bisect.bisect_left(RANKS, least)]


def readings(bound: Bound, first: Geometry, backward: bool = False) -> Iterator[Reading]:
    """The readings of a call in the order in which loaded kernels are looked for.

    `first` is the geometry of the call as it is usually read.
    """
    sizes = first.sizes
    while len(sizes) > 1 and sizes[0] == 1:
        sizes = sizes[1:]
    usual = rank_of(outline_of(bound).broadcasts, sizes)
    ranks = [
        usual,
        *(r for r in RANKS if r > usual),
        *(r for r in RANKS if len(sizes) <= r < usual),
    ]
    alone = bound.x.dim() == len(bound.reduced)
    own = [value for value in bound.seen.values() if isinstance(value, Tensor)]
    own += [gradient_like(bound, one) for one in occurrences(bound.op, bound.tables)]
    open_ = backward and any(may_broadcast(bound, value) for value in own)
    kinds = [(False, False)] + [(False, True)] * open_ + [(True, False)] * (alone and bool(own))
    many = (False, True) if backward and first.rows == 1 else (False,)
    for (vectors, broadcast), one_of_many in itertools.product(kinds, many):
        for rank in ranks:
            yield Reading(rank, vectors, broadcast, one_of_many)


def may_broadcast(bound: Bound, value: Tensor) -> bool:
    """Whether an operand of a call may be one that rows share in a larger batch.

    It has then size 1 in a dimension of the rows in which x has size 1 as well, or in all of them,
    or x has no rows.
    """
    x, reduced = bound.x, bound.reduced
    if x.dim() == len(reduced):
        return value.dim() > 0
    if without_rows(value, x, reduced):
        return False
    sizes = [1] * (x.dim() - value.dim()) + list(value.shape)
    rows = bound.rows
    return any(sizes[d] == 1 == x.shape[d] for d in rows) or all(sizes[d] == 1 for d in rows)


def padded(geometry: Geometry, rank: int) -> Geometry:
    """The geometry with row dimensions of size 1 in front, so that it has `rank` of them."""
    padding = rank - len(geometry.sizes)
    if padding <= 0:
        return geometry
    rows, columns, sizes, placed, order = geometry
    zeros, new = (0,) * padding, tuple.__new__  # at half the cost of a call of the class
    places = [
        None if place is None else new(Placed, (zeros + place[0], place[1], place[2]))
        for place in placed
    ]
    return Geometry(rows, columns, (1,) * padding + sizes, tuple(places), order)


def as_read(
    bound: Bound,
    outline: Outline,
    geometry: Geometry,
    reading: Reading,
    uses: Sequence[Occurrence],
    places: Sequence[Placed],
) -> list[Sharing]:
    """How elements of x share those of operands that have gradients, as a reading has it.

    `places` has the strides of the operand in each of its uses.
    """
    if bound.tables:  # of a table, a gradient is made of what elements give to its entries
        vectors = reading.vectors
        whole = [is_shared(bound, one.name, gradient_like(bound, one), vectors) for one in uses]
    else:
        shared = outline.shared[reading.vectors]
        whole = [one.name in shared for one in uses]
    of_row = [one.side == "op" for one in uses]
    found = shares_of(places, geometry.sizes, geometry.columns, of_row, whole)
    if reading.broadcast:
        for at, share in enumerate(found):
            if share.kind == "each" and may_broadcast(bound, gradient_like(bound, uses[at])):
                found[at] = share._replace(kind="column")  # a sum over one row
    return found
