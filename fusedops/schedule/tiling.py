# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Cut a row into packs, tiles and chunks: arithmetic that schedules of both passes share."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = [
    "Table",
    "Tile",
    "at_most",
    "ceil_div",
    "full_packs",
    "is_exact",
    "pack_width",
    "power_of_two_above",
    "tile_of",
]

#: Values by the most columns, None for all.
Table = tuple[tuple[int | None, int], ...]

#: A pack that dropout draws for at once: one Philox call gives eight elements their bits.
DROPOUT_WIDTH = 8

#: Packs that chunks begin at a multiple of: lines of the cache, where packs are of 16 bytes.
CHUNK_PACKS = 8


class Tile(NamedTuple):
    """How a row is cut.

    Attributes:
        threads: That have a chunk.
        packs: That a thread has of it.
        width: Columns of a pack.
        chunks: Of the row.
        chunk: Columns of one: what its packs hold, or a little less where that makes chunks even.
    """

    threads: int
    packs: int
    width: int
    chunks: int
    chunk: int

    @property
    def holds(self) -> int:
        """Columns that the packs of a chunk hold."""
        return self.threads * self.packs * self.width

    def registers(self, compute_bytes: int) -> int:
        """Registers of a thread for its values."""
        return self.packs * self.width * compute_bytes // 4


def at_most(table: Table, number: int) -> int:
    """The value in the first line whose most is no less than `number`."""
    return next(value for most, value in table if most is None or number <= most)


def pack_width(columns: int, element_bytes: int, dropout: bool) -> int:
    """Columns of a pack: all packs of a row are whole, unless dropout draws for a pack at once.

    Where columns are odd, rows begin anywhere: then neighbouring threads read neighbouring
    elements, which reaches the memory's speed; 16 bytes in pieces do not.
    """
    if dropout:
        return min(DROPOUT_WIDTH, _power_of_two_below(columns))
    return math.gcd(16 // element_bytes, columns)


def tile_of(
    columns: int,
    width: int,
    compute_bytes: int,
    table: Table,
    most_threads: int,
) -> Tile:
    """Cut a row into packs of so many columns, for threads of so many values each.

    Args:
        columns: Of the row.
        width: Of a pack.
        compute_bytes: A double takes two registers.
        table: Values of a thread at most, by columns.
        most_threads: That have a chunk.
    """
    most_packs = max(1, at_most(table, columns) * 4 // compute_bytes // width)
    packs_of_row = ceil_div(columns, width)
    if packs_of_row <= 32 * most_packs:
        threads = power_of_two_above(ceil_div(packs_of_row, most_packs))
        packs = ceil_div(packs_of_row, threads)
        return Tile(threads, packs, width, 1, threads * packs * width)
    if packs_of_row <= most_threads * most_packs:
        # Warps that come out even, if there are any: then no pack need be asked if it is there.
        for packs in range(most_packs, most_packs // 2, -1):
            if packs_of_row % (32 * packs) == 0 and packs_of_row // packs <= most_threads:
                return Tile(packs_of_row // packs, packs, width, 1, packs_of_row * width)
        threads = 32 * ceil_div(packs_of_row, 32 * most_packs)
        packs = ceil_div(packs_of_row, threads)
        return Tile(threads, packs, width, 1, threads * packs * width)
    # As many as a cluster has blocks, which share a row.
    chunks = power_of_two_above(ceil_div(packs_of_row, most_threads * most_packs))
    packs = ceil_div(packs_of_row, most_threads * chunks)
    threads = 32 * ceil_div(packs_of_row, 32 * packs * chunks)
    # All alike, so that no block waits for a fuller one and most packs are surely there.
    even = min(CHUNK_PACKS * ceil_div(packs_of_row, CHUNK_PACKS * chunks), threads * packs)
    return Tile(threads, packs, width, ceil_div(packs_of_row, even), even * width)


def is_exact(columns: int, tile: int, chunks: int) -> bool:
    """Whether all tiles are full, whatever cluster shares them: of a power of two of blocks."""
    return columns == tile * chunks and chunks == power_of_two_above(chunks)


def full_packs(columns: int, threads: int, chunk: int, blocks: int, width: int) -> int:
    """Packs that every thread surely has, whole.

    `blocks`: how many share the row, each with one chunk.
    """
    of_last = columns - (blocks - 1) * chunk
    return max(0, min(chunk, of_last) // (threads * width))


def ceil_div(a: int, b: int) -> int:
    """A quotient of positive integers, rounded up."""
    return -(-a // b)


def power_of_two_above(n: int) -> int:
    """The least power of two that is no less than `n`."""
    return 1 << (n - 1).bit_length()


def _power_of_two_below(n: int) -> int:
    return 1 << (n.bit_length() - 1)
