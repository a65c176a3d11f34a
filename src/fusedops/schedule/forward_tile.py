# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the tile of a row in the forward pass: threads per row, and packs per thread.

The tile fixes the summation order, and so the bits of the result. It follows from columns, dtypes,
the operator, what its operands move (traffic.py) and the largest cluster of the device alone: never
from the number of rows, and never from the other facts of a device or a tuning file. A change of a
number here changes results in their last bits. Figures are of one H200, in percent of the ceiling.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from fusedops.schedule.tiling import (
    Bucket,
    Table,
    Tile,
    at_most,
    bucket_of,
    ceil_div,
    longest,
    of_lanes,
    pack_width,
    single_length,
    tile_of,
)

__all__ = ["WIDE_ACCESS", "Row", "is_staged_tile", "row_bucket"]

#: Elements per thread, by the row's columns, and what that was worth on one H200 (fp16, 49152 rows,
#: percent of the ceiling, softmax and LayerNorm with gamma and beta). Fewer values per thread take
#: fewer registers and allow more threads on an SM (occupancy); more values let fewer threads do,
#: with one barrier. A double takes two registers, so half as many values.
VALUES = (
    (32, 8),  # 32 columns: 99 and 99, with 16 values 95 and 99
    (512, 16),  # 256 columns: 101 and 97, with 32 values 96 and 89, with 8 101 and 93
    (4096, 32),  # 1024 columns: 99 and 96, with 16 values 99 and 96; 2048: 100 and 99, 100 and 92
    (None, 64),  # 16384 columns: 97 and 97, with 32 values 99 and 62: a block of 512 fits only once
)

#: VALUES where a pack is 4 columns of 4 bytes. 32 columns: 107 and 107, with 16 values 95 and 84;
#: 64 columns: 102 and 100, 104 and 96; 512 columns: 100 and 98, 100 and 97.
WIDE_VALUES = ((512, 8), *VALUES[2:])

#: Largest number of values per thread where one block holds the whole row and the row does not fill
#: all packs, since bounds checks take registers: in return the row may have twice the threads.
INEXACT = 32

#: Rows of 16 bits of an RMSNorm that fill their tiles, by their least and most columns, and their
#: values per thread in place of VALUES. 1024 columns: 99 with two warps a row, 97 with one; 16384
#: columns: 99 with a cluster of two blocks, 98 with one, 12288 columns 97 and 97.
SCALED_VALUES = ((1024, 1024, 16), (12288, 16384, 32))

#: Rows of 16 bits that fill their tiles and whose y has 8 bits, up to SHRUNK_COLUMNS: values per
#: thread in place of VALUES, and the most threads, by traffic. They have few bytes, so instructions
#: take the time, of which more values share those that a thread has once for its row. Beside a
#: tensor of x's size more threads are worth more. With a scale a row, percent of a copy of as many
#: bytes: a LayerNorm of 16384 columns 92, with 64 values 85, of 8192 columns 90, with 128 values
#: 89; a gate of SwiGLU of 16384 columns 98 in one block of 512 threads, 88 in one of 256 with 64
#: values, 90 in a cluster of two with 32; an RMSNorm of 1024 columns 94 with 32 values, 86 with 16.
SHRUNK_COLUMNS = 16384
SHRUNK: dict[str, tuple[Table, int]] = {
    "columns": (((512, 16), (2048, 32), (8192, 64), (None, 128)), 256),
    "many": (((512, 16), (None, 32)), 512),
}

#: Rows of which nothing is kept: threads of a block, bytes of x that a thread reads at a time, and
#: the most packs. One H200, cross entropy of 8192 rows of 16 bits, percent of the best copy of as
#: many bytes: of 128256 columns 104, of 32000 columns 97; with twice the packs 103 and 90, with 512
#: threads 95 and 73, with the tiles of a softmax 71 and 88. Of 32 bits 128256 columns 105.
FORGOTTEN_THREADS, FORGOTTEN_BYTES, FORGOTTEN_PACKS = 256, 64, 32

#: Columns of 16 bits, from the first to the last, of which 128 threads have 128 bytes each: a cross
#: entropy of 16384 x 8192 takes 62.2 us so, 64.3 with 256 threads (one H200).
FORGOTTEN_HALVES = range(4097, 8193)

#: Vector width in bytes below which rows are cut for staging in shared memory, as they lie in
#: memory (row/staging.cuh), and the row length beyond which that is so. Beside operands that all
#: rows share, only packs of one column are staged: of 16 bits, LayerNorm of 30522 columns reaches
#: 75 staged and 77 unstaged, RMSNorm 85 and 87.
WIDE_ACCESS = 8
STAGED_COLUMNS = 4096


class Staging(NamedTuple):
    """How rows that are staged in shared memory are cut."""

    #: Largest row length this applies to, in 4-byte words of the compute type, or None for no
    #: bound.
    words: int | None
    values: int  # elements per thread, as in VALUES
    threads: int  # largest number of threads per chunk, as MOST_THREADS
    #: Vector width in columns, where operands are read beside x: for elements of 16 bits, and for
    #: wider elements.
    width: tuple[int, int]


#: Many small thread blocks, so that some load while others compute, but few blocks per row: softmax
#: of 12289 columns of 16 bits reaches 98 percent in one block, 78 in 4 blocks of 128 threads and 32
#: values; 50257 columns 93 with 8 blocks of 128 threads and 50 values, 83 with 4 of 256 threads and
#: as many values, 67 with 16. LayerNorm of 12289 columns 83 with two columns per pack, 81 with one,
#: 32 bits 89 and 88; of 50257 columns 69 and 55, 82 and 84.
STAGED = (
    Staging(12800, 50, 256, (2, 2)),
    Staging(131072, 64, 128, (2, 1)),
    Staging(None, 64, 256, (2, 1)),
)

#: Largest number of threads per chunk in a LayerNorm, by most bytes of a row. It keeps four numbers
#: per part of a row, and its mean's correction, beside the values. Of 16 bits: 65536 columns 93
#: percent with these, 90 with 256 threads; 131072 columns 86 and 83. Of 32 bits: 65536 columns 100
#: with these, and 83 with 256 threads, to which this compiler gives 255 registers; 131072 columns
#: 93 with 256, 81 with 128.
CENTRED = ((65536, 256), (262144, 128), (None, 256))

#: Largest number of threads per chunk of narrow packs beside operands that all rows share, for more
#: columns than one block of MOST_THREADS holds: LayerNorm of 30522 columns of 16 bits 82 percent
#: with it, 80 with 256 threads; RMSNorm 91 and 89.
NARROW_THREADS = 128
NARROW_COLUMNS = 16384

#: Largest number of threads per chunk; rows of more than 64 x 256 columns are cut into chunks. On
#: devices with clusters, MORE_THREADS times as many for 16 bits, where half as many chunks then do:
#: softmax and LayerNorm of 151936 columns in 8 chunks of 320 threads 98 and 84, in 16 of 256
#: threads that hold 40 values each 87 and 66. A LayerNorm of 32 bits is better off without (87 and
#: 82). The operand of an RMSNorm leaves no registers for so many values: it gets
#: MORE_THREADS_SCALED times as many threads, where those hold no more than FEW_OF_MORE values each:
#: of 151936 columns 92 in 8 chunks of 512 threads that hold 40 values each, 87 in 16, 74 in 8 of
#: 320.
MOST_THREADS = 256
MORE_THREADS = 1.25
MORE_THREADS_SCALED = 2
FEW_OF_MORE = 48


class Row(NamedTuple):
    """The facts from which the tile of a row follows."""

    columns: int  # row length in elements, at least 1
    element_bytes: int  # size of an element of x in bytes; a pack is 16 bytes of x at most
    compute_bytes: int  # size of the compute type in bytes, 4 or 8
    dropout: bool = False  # whether the chain of functors draws random numbers
    #: The row's traffic beside x and y, as `Traffic.streams`: "none", "columns" (vectors of the
    #: STORE that all rows share), or "many".
    streams: str = "many"
    centred: bool = False  # whether the operator subtracts a mean
    #: Whether a row in chunks is to have a kernel for its length alone, with its bucket's tile.
    single: bool = False
    #: Columns at a multiple of which chunks have to begin; 0 for no more than speed asks.
    align: int = 0
    #: Whether nothing of a row is needed after its reduction: its chunks are read one after
    #: another, each once.
    forgets: bool = False
    narrow_result: bool = False  # whether an element of y has 8 bits or less
    paired: bool = False  # whether a functor reads a partner column
    #: Neighbouring rows that share all operands but x, a power of two, where a functor reads a
    #: partner column. No tile depends on it.
    sharing: int = 1

    @property
    def width(self) -> int:
        """Vector width: columns in a pack, unless the schedule widens it."""
        return pack_width(self.columns, self.element_bytes, self.dropout)

    @property
    def cut(self) -> bool:
        """Whether the end of the row cuts a pack, where dropout widens packs."""
        return self.columns % self.width > 0

    @property
    def representative(self) -> Row:
        """The representative row, whose schedule this one shares if it fits one chunk.

        It is the longest row of its step of the ladder (tiling.py) that fills no tile, and has
        packs of the same width, which the end of the row cuts or does not. So few schedules are
        computed and kept where lengths vary.
        """
        columns = _representative_of(self.columns, self.element_bytes, self.dropout)
        return self if columns == self.columns else Row(columns, *self[1:])

    @property
    def narrow(self) -> bool:
        """Whether packs are so narrow that staging the row in shared memory is faster."""
        return self.width == 1 if self.streams != "none" else self.narrow_access

    @property
    def narrow_access(self) -> bool:
        """Whether the vector width is below WIDE_ACCESS bytes."""
        return self.width * self.element_bytes < WIDE_ACCESS

    @property
    def shrinks(self) -> bool:
        """Whether rows of 16 bits have operands and a y of half their size, or less."""
        return self.narrow_result and self.element_bytes == 2 and self.streams in SHRUNK

    @property
    def scaled(self) -> bool:
        """Whether rows share their operands, as an RMSNorm's weight, and no mean is subtracted."""
        return self.streams == "columns" and not self.centred


@functools.lru_cache(maxsize=64)  # both passes of a call ask for it
def _representative_of(columns: int, element_bytes: int, dropout: bool) -> int:
    """The representative of a row length: lengths that share a schedule have one."""
    width = pack_width(columns, element_bytes, dropout)
    cut = columns % width > 0
    top = longest(columns, width, cut, dropout)
    return (
        columns
        if columns == top
        else _representative(top, width, cut, element_bytes, dropout) or columns
    )


@functools.cache  # of the steps of the ladder
def _representative(top: int, width: int, cut: bool, element_bytes: int, dropout: bool) -> int:
    """The representative of row lengths below `top`, in its step; 0 if they have none."""
    columns = top - (1 if cut else width)
    if columns <= 0 or pack_width(columns, element_bytes, dropout) != width:
        return 0
    same = (columns % width > 0) == cut and longest(columns, width, cut, dropout) == top
    return columns if same else 0


def is_staged_tile(row: Row, columns: int, cluster_limit: int) -> bool:
    """Whether the tile of rows of up to so many columns is made for staging in shared memory.

    The tile may not depend on anything that comes after the cluster limit. So it is cut for staging
    on every device with clusters, whether or not its rows are staged then.
    """
    long = columns > STAGED_COLUMNS
    return row.narrow and long and row.streams != "many" and cluster_limit > 1


def row_bucket(row: Row, cluster_limit: int) -> Bucket:
    """The bucket of a row in the forward pass, with the row's tile.

    `cluster_limit` is the largest number of thread blocks in a cluster, 1 without clusters.
    """

    def tile_at(columns: int, fills: bool) -> Tile:
        if row.forgets:
            return _forgotten(row, columns)
        return _tile(row, columns, fills, cluster_limit)

    bucket = bucket_of(
        row.columns, row.width, row.cut, tile_at, not row.forgets, row.dropout, row.align
    )
    return single_length(bucket, row.columns) if row.single else bucket


def _forgotten(row: Row, columns: int) -> Tile:
    """The tile of rows of which nothing is kept: a row is a block's, whatever its length."""
    width, held = row.width, FORGOTTEN_BYTES
    if columns in FORGOTTEN_HALVES and (width, row.element_bytes) == (8, 2):
        held *= 2
    packs = max(1, min(held // (width * row.element_bytes), FORGOTTEN_PACKS))
    packs_of_row = ceil_div(columns, width)
    if packs_of_row <= 32 * packs:
        return of_lanes(packs_of_row, packs, width)
    threads = min(FORGOTTEN_THREADS, 32 * ceil_div(packs_of_row, 32 * packs))
    capacity = threads * packs * width
    return Tile(threads, packs, width, ceil_div(columns, capacity), capacity)


def _tile(row: Row, columns: int, fills: bool, cluster_limit: int) -> Tile:
    """The tile of a bucket whose longest rows have so many columns.

    `fills` says whether all of its rows have so many, and fill the tile if any does; of `row` only
    what all rows of the bucket have in common counts.
    """
    compute_bytes = row.compute_bytes
    staged = is_staged_tile(row, columns, cluster_limit)
    width, most_threads = row.width, MOST_THREADS
    table: Table = WIDE_VALUES if row.element_bytes == 4 == width else VALUES
    if staged:
        words = columns * compute_bytes // 4
        staging = next(one for one in STAGED if one.words is None or words <= one.words)
        table, most_threads = ((None, staging.values),), staging.threads
        if row.streams == "columns" and compute_bytes == 4:
            width = max(width, staging.width[row.element_bytes != 2])
    elif row.shrinks and fills and columns <= SHRUNK_COLUMNS:
        table, most_threads = SHRUNK[row.streams]
    elif row.streams == "columns" and row.narrow_access and columns > NARROW_COLUMNS:
        most_threads = NARROW_THREADS
    elif row.centred:
        most_threads = at_most(CENTRED, columns * row.element_bytes)
    elif row.scaled and fills and row.element_bytes == 2 and cluster_limit > 1:
        own = [one for least, most, one in SCALED_VALUES if least <= columns <= most]
        table = ((None, own[0]),) if own else table

    def cut(table: Table, most_threads: int) -> Tile:
        return tile_of(columns, width, compute_bytes, table, most_threads)

    tile = cut(table, most_threads)
    if tile.chunks > 2 and row.streams != "many" and row.element_bytes == 2 and cluster_limit > 1:
        more = cut(table, int((MORE_THREADS_SCALED if row.scaled else MORE_THREADS) * most_threads))
        few = tile.chunks > 8 and more.registers(compute_bytes) <= FEW_OF_MORE
        if more.chunks < tile.chunks and (few or not row.scaled) and not staged:
            tile = more
    if tile.chunks > cluster_limit and most_threads < MOST_THREADS:  # too small for this device
        tile = cut(table, MOST_THREADS)
    fills = fills and tile.capacity * tile.chunks == columns
    if tile.chunks == 1 and not (fills or staged) and tile.registers(compute_bytes) > INEXACT:
        tile = cut(((None, INEXACT),), 2 * MOST_THREADS)
    return tile
