# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tiles (packs, threads and chunks of a row) and buckets (row lengths that share a kernel).

A kernel is made for a bucket, and the number of columns is a word of its argument. So a job whose
row lengths vary builds a few kernels, whatever lengths it meets. The tile of a bucket is that of
its longest rows; it follows from the columns alone, and with it every bit of the results. A row
length that fills its tile to the last element has a kernel of its own, in which nothing is checked.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

__all__ = [
    "CHUNK_PACKS",
    "Bucket",
    "Table",
    "Tile",
    "at_most",
    "bucket_of",
    "ceil_div",
    "evened",
    "longest",
    "of_lanes",
    "pack_width",
    "power_of_two_above",
    "samples",
    "single_length",
    "tile_of",
]

#: First-match table of (largest number of columns, value); None stands for no upper bound.
Table = tuple[tuple[int | None, int], ...]

#: Pack width with dropout, in elements: one Philox call yields the random bits of eight.
DROPOUT_WIDTH = 8

#: Chunks begin at a multiple of this many packs: at a cache line, where packs are of 16 bytes.
CHUNK_PACKS = 8


class Tile(NamedTuple):
    """How a row is cut into chunks, threads and packs."""

    threads: int  # threads that hold one chunk of a row
    packs: int  # packs (vector accesses) of a chunk per thread
    width: int  # vector width: elements in a pack
    chunks: int  # number of chunks in a row
    #: Elements in a chunk: what its packs hold, or a little less where that makes the chunks even.
    chunk: int

    @property
    def capacity(self) -> int:
        """Capacity of the packs of a chunk, in elements."""
        return self.threads * self.packs * self.width

    def registers(self, compute_bytes: int) -> int:
        """32-bit registers per thread that hold its elements of the row."""
        return self.packs * self.width * compute_bytes // 4


def at_most(table: Table, number: int) -> int:
    """The value of the first table line whose upper bound is at least `number`."""
    return next(value for most, value in table if most is None or number <= most)


def pack_width(columns: int, element_bytes: int, dropout: bool) -> int:
    """Vector width in elements: every pack of a row is whole, unless dropout needs wider packs.

    Where the number of columns is odd, rows begin at any address. Then neighbouring threads read
    neighbouring elements, which reaches the memory's bandwidth; 16 bytes read in pieces do not.
    """
    if dropout:
        return DROPOUT_WIDTH
    return math.gcd(16 // element_bytes, columns)


def tile_of(
    columns: int,
    width: int,
    compute_bytes: int,
    table: Table,
    most_threads: int,
) -> Tile:
    """Cut a row into packs of a given vector width, by a limit on the elements per thread.

    `width` is in elements. `compute_bytes` is 4 or 8: a double takes two registers. `table` has the
    largest number of 4-byte values per thread, by columns. At most `most_threads` threads hold one
    chunk.
    """
    most_packs = max(1, at_most(table, columns) * 4 // compute_bytes // width)
    packs_of_row = ceil_div(columns, width)
    if packs_of_row <= 32 * most_packs:
        return of_lanes(packs_of_row, most_packs, width)
    if packs_of_row <= most_threads * most_packs:
        # Whole warps with every pack full, if there is such a cut: no pack then needs a bounds
        # check.
        for packs in range(most_packs, most_packs // 2, -1):
            if packs_of_row % (32 * packs) == 0 and packs_of_row // packs <= most_threads:
                return Tile(packs_of_row // packs, packs, width, 1, packs_of_row * width)
        threads = 32 * ceil_div(packs_of_row, 32 * most_packs)
        packs = ceil_div(packs_of_row, threads)
        return Tile(threads, packs, width, 1, threads * packs * width)
    # A power of two, like the blocks of a cluster, which share a row.
    chunks = power_of_two_above(ceil_div(packs_of_row, most_threads * most_packs))
    packs = ceil_div(packs_of_row, most_threads * chunks)
    threads = 32 * ceil_div(packs_of_row, 32 * packs * chunks)
    return evened(Tile(threads, packs, width, chunks, threads * packs * width), columns, chunks)


def of_lanes(packs_of_row: int, most_packs: int, width: int) -> Tile:
    """The tile of a row that lanes of one warp hold, each so many packs at most."""
    threads = power_of_two_above(ceil_div(packs_of_row, most_packs))
    packs = ceil_div(packs_of_row, threads)
    return Tile(threads, packs, width, 1, threads * packs * width)


def evened(tile: Tile, columns: int, chunks: int, align: int = 0) -> Tile:
    """The tile with `chunks` chunks of even size, or fewer, for rows of so many columns.

    They are no more columns than the tile was cut for. So no block waits for a fuller one, and most
    packs are surely full: where the last chunk is nearly empty, each access of every chunk has to
    be predicated. `align` is as for `bucket_of`.
    """
    if chunks == 1:
        return tile
    packs_of_row = ceil_div(columns, tile.width)
    step = _chunk_packs(tile.width, align)
    even = min(step * ceil_div(packs_of_row, step * chunks), tile.threads * tile.packs)
    return tile._replace(chunks=ceil_div(packs_of_row, even), chunk=even * tile.width)


def _chunk_packs(width: int, align: int) -> int:
    """Chunks begin at a multiple of this many packs."""
    return max(CHUNK_PACKS, align // width)


def ceil_div(a: int, b: int) -> int:
    """The quotient of two positive integers, rounded up."""
    return -(-a // b)


def power_of_two_above(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << (n - 1).bit_length()


#: Longest rows of the shortest bucket; where the end of a row may cut a pack, of which there are
#: three kinds (columns divisible by 4, by 2 and by neither), that is one bucket for all short rows.
SHORTEST = 8
SHORTEST_CUT = 32

#: The same where dropout widens packs. Rows up to the second have no kernel for a single length:
#: random numbers are most of their work, and checks of packs are not.
SHORTEST_PADDED = 32
SHORTEST_PADDED_CUT = 64

#: Buckets in each doubling of the columns, as first-match table of (largest number of columns,
#: buckets where packs have more than NARROW columns, where they have fewer, and where the end of a
#: row may cut a pack). What a bucket has beyond the end of its shortest rows costs instructions:
#: many packs of one column each cost more of them than few wide ones. Buckets whose tile is the
#: same are one, so where steps are fine, tiles decide: a backward pass of 200000 columns of 4 bytes
#: in 16 blocks needs 448 threads a block, of which two fit on an SM, and not the 480 that 212992
#: columns need.
NARROW = 2
STEPS: tuple[tuple[int | None, tuple[int, int, int]], ...] = (
    (128, (1, 1, 1)),
    (4096, (4, 4, 1)),
    (131072, (8, 16, 8)),
    (None, (32, 32, 32)),
)


#: Columns up to which no row is cut into chunks.
CHUNKED = 4096


class Bucket(NamedTuple):
    """A range of row lengths that one kernel serves."""

    #: The shortest and the longest rows.
    low: int
    top: int
    #: The tile of a row of the given number of columns: threads, packs and width are those of all
    #: rows of the bucket, the length of a chunk is the row's own.
    tile: Tile
    exact: bool  # whether the bucket has a single length, which fills every tile
    full: int  # packs that are full in every thread and every row of the bucket


def bucket_of(
    columns: int,
    width: int,
    pieces: bool,
    tile_at: Callable[[int, bool], Tile],
    shared: bool = True,
    padded: bool = False,
    align: int = 0,
) -> Bucket:
    """The bucket of a row.

    Args:
        columns: Row length in elements.
        width: Elements in a pack, by which the ladder is chosen.
        pieces: Whether the end of the row cuts a pack.
        tile_at: The tile of a row of so many columns, if it fills the tile and if it does not.
        shared: Whether the blocks of a cluster may share the chunks of a row, so that their number
            is a power of two.
        padded: Whether packs are wider than the columns and accesses ask for, as with dropout;
            short rows then have fewer buckets.
        align: Columns, a power of two, at a multiple of which chunks have to begin.
    """
    top = longest(columns, width, pieces, padded)
    if columns == top and not (padded and columns <= SHORTEST_PADDED_CUT):
        for tile in (tile_at(top, True), tile_at(top, False)):
            if top == tile.capacity * _chunks(tile, shared):
                return Bucket(top, top, tile, True, tile.packs)
    tile = tile_at(top, False)
    low = _step_below(top, width, pieces, padded)
    # Neighbours with the same tile are the same bucket, within one doubling of the columns.
    while low & (low - 1) and _same(tile, tile_at(low, False)):
        low = _step_below(low, width, pieces, padded)
    while top & (top - 1):
        above = longest(top + 1, width, pieces, padded)
        if not _same(tile, tile_at(above, False)):
            break
        top = above
    low += 1
    chunks = _chunks(tile, shared)
    full = _full(columns, tile, chunks, align)
    if chunks > 1:
        # The last chunk of the shortest rows lacks a pack that all others have.
        low = max(low, _fewest(full, tile, chunks, align))
        top = min(top, _fewest(full + 1, tile, chunks, align) - 1)
    else:
        full = _full(low, tile, chunks, align)
    return Bucket(low, top, evened(tile, columns, chunks, align), False, full)


def single_length(bucket: Bucket, columns: int) -> Bucket:
    """One length of a bucket whose rows are cut into chunks, by itself; other buckets as they are.

    The tile is the same, and so is every bit. Known are the length of the chunks and the number of
    packs that are full in all of them.
    """
    tile = bucket.tile
    if tile.chunks == 1 or bucket.exact:
        return bucket
    of_last = columns - (power_of_two_above(tile.chunks) - 1) * tile.chunk
    full = max(0, of_last) // (tile.threads * tile.width)
    return Bucket(columns, columns, tile, False, full)


def longest(columns: int, width: int, pieces: bool, padded: bool = False) -> int:
    """The longest rows of the bucket that has rows of so many columns."""
    shortest = _shortest(pieces, padded)
    if columns <= shortest:
        return shortest
    below = 1 << (columns - 1).bit_length() - 1  # a power of two, below the columns
    step = below // _steps(2 * below)[_kind(width, pieces)]
    return below + -(-(columns - below) // step) * step


def samples(most: int) -> list[int]:
    """Representative row lengths up to `most`: one per alignment and bucket.

    >>> samples(9)
    [1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    found = {most, *range(1, min(most, 16) + 1)}
    below = 16
    while below < most:
        # Rows in chunks have buckets within a step: where every chunk has one full pack more.
        step = below // max(16 if below < CHUNKED else 64, *_steps(2 * below))
        for first in range(below, min(2 * below, most), step):
            last = min(first + step, most)
            found.add(last)
            # Of two neighbours with the same divisor, the longest rows of a bucket are one at most.
            for width in (1, 2, 4, 8, 16):
                inside = range(first + 1, last)
                alike = [n for n in inside if math.gcd(n, 16) == width]
                found.update(alike[:1] + (alike[-1:] if below >= CHUNKED else []))
        below *= 2
    return sorted(found)


def _shortest(pieces: bool, padded: bool) -> int:
    """The longest rows of the shortest bucket."""
    if padded:
        return SHORTEST_PADDED_CUT if pieces else SHORTEST_PADDED
    return SHORTEST_CUT if pieces else SHORTEST


def _step_below(top: int, width: int, pieces: bool, padded: bool) -> int:
    """The longest rows of the next shorter bucket; 0 for the shortest."""
    if top <= _shortest(pieces, padded):
        return 0
    below = 1 << (top - 1).bit_length() - 1
    return top - below // _steps(2 * below)[_kind(width, pieces)]


@functools.cache  # of powers of two
def _steps(columns: int) -> tuple[int, int, int]:
    """Buckets in the doubling that ends with so many columns, of each kind."""
    return next(steps for most, steps in STEPS if most is None or columns <= most)


def _kind(width: int, pieces: bool) -> int:
    return 2 if pieces else 1 if width <= NARROW else 0


def _same(one: Tile, other: Tile) -> bool:
    return one[:4] == other[:4]


def _chunks(tile: Tile, shared: bool) -> int:
    """The number of chunks into which a row of the tile is cut evenly."""
    return power_of_two_above(tile.chunks) if shared else tile.chunks


def _full(columns: int, tile: Tile, chunks: int, align: int) -> int:
    """Packs that are full in every thread, in all rows of at least so many columns."""
    return max(0, columns // chunks - _shortage(tile, chunks, align)) // (tile.threads * tile.width)


def _fewest(full: int, tile: Tile, chunks: int, align: int) -> int:
    """The shortest rows that have so many full packs in every thread."""
    short = _shortage(tile, chunks, align)
    return chunks * (full * tile.threads * tile.width + short) if full else 0


def _shortage(tile: Tile, chunks: int, align: int) -> int:
    """By how many columns at most the last chunk of a row is shorter than the row's share.

    Chunks are rounded up to CHUNK_PACKS packs or more.
    """
    return (chunks - 1) * _chunk_packs(tile.width, align) * tile.width
