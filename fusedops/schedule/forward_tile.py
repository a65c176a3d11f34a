# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the tile of a row in the forward pass: threads per row, and packs per thread.

It follows from columns, dtypes, the operator, what its operands move (traffic.py) and the most
blocks of a cluster alone, since it fixes the summation order; never from the number of rows.
Figures are of one H200, in percent of the ceiling.
"""

from __future__ import annotations

from typing import NamedTuple

from fusedops.schedule.tiling import Table, Tile, at_most, pack_width, tile_of

__all__ = ["WIDE_ACCESS", "Row", "room_of", "row_tile", "stages"]

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

#: Most values per thread where one block holds a row alone and the row does not fill all packs,
#: since bounds checks take registers: in return the row may have twice the threads.
INEXACT = 32

#: Vector width in bytes below which accesses of x or y are staged in shared memory, as they lie in
#: memory (row/staging.cuh), and the row length from which on that is so where the columns
#: themselves are odd. Beside operands that all rows share, only packs of one column are staged: of
#: 16 bits, LayerNorm of 30522 columns reaches 75 staged and 77 unstaged, RMSNorm 85 and 87.
WIDE_ACCESS = 8
STAGED_COLUMNS = 4096


class Staging(NamedTuple):
    """How rows that are staged in shared memory are cut.

    Attributes:
        floats: Largest row length this applies to, in 4-byte words of the compute type, or None for
            no bound.
        values: Elements per thread, as in VALUES.
        threads: Largest number of threads per chunk, as MOST_THREADS.
        beside: Vector width in columns and occupancy target in threads per SM, where operands are
            read beside x: one pair for elements of 16 bits, one for wider elements.
    """

    floats: int | None
    values: int
    threads: int
    beside: tuple[tuple[int, int], tuple[int, int]]


#: Many small thread blocks, so that some load while others compute, but few blocks per row: softmax
#: of 12289 columns of 16 bits reaches 98 percent in one block, 78 in 4 blocks of 128 threads and 32
#: values; 50257 columns 93 with 8 blocks of 128 threads and 50 values, 83 with 4 of 256 threads and
#: as many values, 67 with 16. LayerNorm of 12289 columns 83 with two columns per pack, 81 with one,
#: 32 bits 89 and 88; of 50257 columns 69 and 55, 82 and 84. RMSNorm of 50257 columns 84 as below,
#: 77 with an occupancy target of 640 threads, but of 32 bits 93 as below, 90 with 768.
STAGED = (
    Staging(12800, 50, 256, ((2, 768), (2, 768))),
    Staging(131072, 64, 128, ((2, 768), (1, 640))),
    Staging(None, 64, 256, ((2, 768), (1, 640))),
)

#: Occupancy target in threads per SM of staged rows without operands: softmax of 50257 columns of
#: 16 bits 94, and 93 with a target of 768.
STAGED_ROOM = 1024

#: Occupancy target in threads per SM, by 4-byte values per thread; it sets the minimum blocks of
#: `__launch_bounds__`. Without it ptxas saves registers by reading two packs after the other two:
#: attention softmax with pair bias and mask 88 percent of the ceiling, and 97 with a target of 896
#: threads (72 registers each); with dropout 80 and 83. For 16 values it costs 1 to 3 points. For 64
#: values, softmax of 131072 and 262144 columns 98 and 87 with a target of 512, 101 and 98 with 768;
#: LayerNorm of 20480 and 24576 columns, of 40 and 48 values, 82 and 92 with 512, 98 and 98 with
#: 768. A kernel that would spill registers, as a LayerNorm of 64 values, is compiled for one block
#: per SM less (jit/nvrtc.py).
RESIDENT = {32: 896, 64: 768}

#: Occupancy target of odd columns of 16 bits beside operands that all rows share, where no mean is
#: subtracted: RMSNorm of 257 columns 84 percent, 77 without; of 1023 columns 90 and 88, bfloat16 89
#: and 84.
NARROW_ROOM = 640

#: Occupancy targets of 64 values per thread beside operands that all rows share, by most columns,
#: of 4 bytes and of 16 bits: RMSNorm of 30522 columns 94 and 89 percent with these, 89 and 86 with
#: a target of 768; of 65536 columns 100 and 99, 98 and 96; of 131072 columns 96 and 96 with these,
#: 95 and 96 with 512; of 262144 columns 88 and 90, 82 and 83.
BESIDE = ((65536, 640), (196608, 768), (None, 640))

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

#: Largest number of threads per chunk; rows of more than 64 x 256 columns are cut into chunks.
#: MORE_THREADS times as many for 16 bits, where half as many chunks then do: softmax and LayerNorm
#: of 151936 columns in 8 chunks of 320 threads 98 and 84, in 16 of 256 threads that hold 40 values
#: each 87 and 66. A LayerNorm of 32 bits is better off without (87 and 82). The operand of an
#: RMSNorm leaves no registers for so many values: it gets MORE_THREADS_ALONE times as many threads,
#: where those hold no more than FEW_OF_MORE values each: of 151936 columns 92 in 8 chunks of 512
#: threads that hold 40 values each, 87 in 16, 74 in 8 of 320.
MOST_THREADS = 256
MORE_THREADS = 1.25
MORE_THREADS_ALONE = 2
FEW_OF_MORE = 48


class Row(NamedTuple):
    """The facts from which the tile of a row follows.

    Attributes:
        columns: Row length in elements, at least 1.
        element_bytes: Size of an element of x in bytes; a pack is 16 bytes of x at most.
        compute_bytes: Size of the compute type in bytes, 4 or 8.
        dropout: Whether the chain of functors draws random numbers.
        streams: The row's traffic beside x and y, as `Traffic.streams`: "none", "columns" (vectors
            of the STORE that all rows share), or "many".
        centred: Whether the operator subtracts a mean.
    """

    columns: int
    element_bytes: int
    compute_bytes: int
    dropout: bool = False
    streams: str = "many"
    centred: bool = False

    @property
    def bytes(self) -> int:
        """Size of a row of x in bytes."""
        return self.columns * self.element_bytes

    @property
    def width(self) -> int:
        """Vector width: columns in a pack, unless the schedule widens it."""
        return pack_width(self.columns, self.element_bytes, self.dropout)

    @property
    def narrow(self) -> bool:
        """Whether packs are so narrow that staging the row in shared memory is faster."""
        return self.width == 1 if self.streams != "none" else self.narrow_access

    @property
    def narrow_access(self) -> bool:
        """Whether the vector width is below WIDE_ACCESS bytes."""
        return self.width * self.element_bytes < WIDE_ACCESS

    @property
    def scaled(self) -> bool:
        """Whether all rows share the operands read beside the row, and no mean is subtracted."""
        return self.streams == "columns" and not self.centred

    @property
    def odd_scaled(self) -> bool:
        """Whether the row is `scaled` and its packs are two bytes wide."""
        return self.scaled and self.width * self.element_bytes == 2


def stages(row: Row, cluster_limit: int) -> bool:
    """Whether rows of these columns are staged in shared memory, where the device can do that."""
    long = row.columns >= STAGED_COLUMNS
    return row.narrow and long and row.streams != "many" and cluster_limit > 1


def row_tile(row: Row, cluster_limit: int) -> Tile:
    """The tile of a row in the forward pass.

    `cluster_limit` is the most thread blocks in a cluster of the device, 1 without clusters.
    """
    columns, compute_bytes = row.columns, row.compute_bytes
    staged = stages(row, cluster_limit)
    width, most_threads = row.width, MOST_THREADS
    table: Table = WIDE_VALUES if row.element_bytes == 4 == width else VALUES
    if staged:
        staging = _staging(row)
        table, most_threads = ((None, staging.values),), staging.threads
        if row.streams == "columns" and compute_bytes == 4:
            width = max(width, _beside(row)[0])
    elif row.streams == "columns" and row.narrow_access and columns > NARROW_COLUMNS:
        most_threads = NARROW_THREADS
    elif row.centred:
        most_threads = at_most(CENTRED, row.bytes)

    def cut(table: Table, most_threads: int) -> Tile:
        return tile_of(columns, width, compute_bytes, table, most_threads)

    tile = cut(table, most_threads)
    if tile.chunks > 2 and row.streams != "many" and row.element_bytes == 2 and cluster_limit > 1:
        more = cut(table, int((MORE_THREADS_ALONE if row.scaled else MORE_THREADS) * most_threads))
        few = tile.chunks > 8 and more.registers(compute_bytes) <= FEW_OF_MORE
        if more.chunks < tile.chunks and (few or not row.scaled) and not staged:
            tile = more
    if tile.chunks > cluster_limit and most_threads < MOST_THREADS:  # too small for this device
        tile = cut(table, MOST_THREADS)
    fills = tile.holds * tile.chunks == columns
    if tile.chunks == 1 and not (fills or staged) and tile.registers(compute_bytes) > INEXACT:
        tile = cut(((None, INEXACT),), 2 * MOST_THREADS)
    return tile


def room_of(row: Row, tile: Tile, cluster_limit: int) -> int:
    """Occupancy target (`room`) in threads per SM; 0 leaves the registers to the compiler."""
    if stages(row, cluster_limit):
        return _beside(row)[1] if row.streams == "columns" else STAGED_ROOM
    values = tile.registers(row.compute_bytes)
    if row.odd_scaled:
        return NARROW_ROOM
    if values > 32 and row.scaled:
        return max(at_most(BESIDE, row.columns), 2 * tile.threads)
    return next((room for most, room in RESIDENT.items() if most // 2 < values <= most), 0)


def _staging(row: Row) -> Staging:
    floats = row.columns * row.compute_bytes // 4
    return next(one for one in STAGED if one.floats is None or floats <= one.floats)


def _beside(row: Row) -> tuple[int, int]:
    of_16_bits, of_more = _staging(row).beside
    return of_16_bits if row.element_bytes == 2 else of_more
