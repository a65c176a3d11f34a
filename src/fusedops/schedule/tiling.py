# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Cut a row into packs, tiles and chunks: arithmetic that the schedules of both passes share."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = [
    "CHUNK_PACKS",
    "Table",
    "Tile",
    "at_most",
    "ceil_div",
    "evened",
    "pack_width",
    "power_of_two_above",
    "tile_of",
]

#: First-match table of (largest number of columns, value); None stands for no upper bound.
Table = tuple[tuple[int | None, int], ...]

#: Pack width with dropout, in elements: one Philox call yields the random bits of eight.
DROPOUT_WIDTH = 8

#: Chunks begin at a multiple of this many packs: at a cache line, where packs are of 16 bytes.
CHUNK_PACKS = 8


class Tile(NamedTuple):
    """How a row is cut into chunks, threads and packs.

    Attributes:
        threads: Threads that hold one chunk of a row.
        packs: Packs (vector accesses) of a chunk per thread.
        width: Vector width: elements in a pack.
        chunks: Number of chunks in a row.
        chunk: Elements in a chunk: what its packs hold, or a little less where that makes the
            chunks even.
    """

    threads: int
    packs: int
    width: int
    chunks: int
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

    Args:
        columns: Row length in elements.
        width: Elements in a pack (vector width).
        compute_bytes: Size of the compute type in bytes, 4 or 8; a double takes two registers.
        table: Largest number of 4-byte values per thread, by columns.
        most_threads: Largest number of threads that hold one chunk.
    """
    most_packs = max(1, at_most(table, columns) * 4 // compute_bytes // width)
    packs_of_row = ceil_div(columns, width)
    if packs_of_row <= 32 * most_packs:
        threads = power_of_two_above(ceil_div(packs_of_row, most_packs))
        packs = ceil_div(packs_of_row, threads)
        return Tile(threads, packs, width, 1, threads * packs * width)
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


def evened(tile: Tile, columns: int, chunks: int) -> Tile:
    """The tile with `chunks` chunks of even size, or fewer, for rows of so many columns.

    They are no more columns than the tile was cut for. So no block waits for a fuller one, and most
    packs are surely full: where the last chunk is nearly empty, each access of every chunk has to
    be predicated.
    """
    if chunks == 1:
        return tile
    packs_of_row = ceil_div(columns, tile.width)
    even = min(
        CHUNK_PACKS * ceil_div(packs_of_row, CHUNK_PACKS * chunks), tile.threads * tile.packs
    )
    return tile._replace(chunks=ceil_div(packs_of_row, even), chunk=even * tile.width)


def ceil_div(a: int, b: int) -> int:
    """The quotient of two positive integers, rounded up."""
    return -(-a // b)


def power_of_two_above(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << (n - 1).bit_length()
