# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the row schedule: how many threads hold a row, in how many packs, and where it lives.

The tile (threads x packs x width) follows from columns, dtypes, the declaration and the blocks of a
cluster, since it decides who is added to whom. The storage may follow the device: registers, a
cluster of blocks, shared memory and streaming reduce the same tiles in the same order, so they
agree to the bit. Nothing here depends on the number of rows.
"""

from __future__ import annotations

import dataclasses
import functools

from fusedops.row_schedule import STAGED_WORD, STORAGES, Schedule
from fusedops.tiling import (
    Table,
    ceil_div,
    full_packs,
    is_exact,
    pack_width,
    power_of_two_above,
    tile_of,
)

__all__ = [
    "HOST_BUFFERED",
    "STORAGES",
    "Schedule",
    "check_cluster",
    "choose",
    "choose_host",
    "cluster_of",
    "reserved_shared",
    "staged",
]

#: Columns that a CPU thread keeps between reduction and result; as HostSchedule::kBuffered.
HOST_BUFFERED = 16384

#: Values that a thread holds of a row of so many columns, and what that was worth on one H200
#: (fp16, 49152 rows, percent of the ceiling, softmax and LayerNorm with gamma and beta). Fewer
#: values leave room for more threads; more values make fewer threads do with one barrier. A double
#: takes two registers, so half as many.
VALUES = (
    (32, 8),  # 32 columns: 99 and 99, with 16 values 95 and 99
    (512, 16),  # 256 columns: 101 and 97, with 32 values 96 and 89, with 8 101 and 93
    (4096, 32),  # 1024 columns: 99 and 96, with 16 values 99 and 96; 2048: 100 and 99, 100 and 92
    (None, 64),  # 16384 columns: 97 and 97, with 32 values 99 and 62: a block of 512 fits only once
)

#: The same where a pack is of 4 columns of 4 bytes. 32 columns: 107 and 107, with 16 values 95 and
#: 84; 64 columns: 102 and 100, 104 and 96; 512 columns: 100 and 98, 100 and 97.
WIDE_VALUES = ((512, 8), *VALUES[2:])

#: The most where a row that one block has alone does not fill all packs, which takes registers to
#: tell: in return it may have twice the threads.
INEXACT = 32

#: Bytes below which an access of x or y makes a row go through shared memory, as it is
#: (row/staging.cuh), and the columns from which on that is so where columns themselves are odd.
#: Beside operands that all rows share only packs of one column do: of 16 bits, LayerNorm of 30522
#: columns reaches 75 so and 77 as it is, RMSNorm 85 and 87.
WIDE_ACCESS = 8
STAGED_COLUMNS = 4096

#: As VALUES and MOST_THREADS, of such columns, by how many floats they are at most; and, where
#: operands are read beside x, columns of a pack and threads that a multiprocessor shall have room
#: for, of 16 bits and of more. Many small blocks, so that some load while others compute, but few
#: a row: softmax of 12289 columns of 16 bits reaches 98 percent in one block, 78 in 4 of 128
#: threads and 32 values; 50257 columns 93 with 8 of 128 threads and 50 values, 83 with 4 of 256 and
#: as many, 67 with 16. LayerNorm of 12289 columns 86 with two columns a pack, 83 with one, 32 bits
#: 90 and 88; of 50257 columns 69 and 55, 82 and 84. RMSNorm of 50257 columns 84 so, 77 with room
#: for 640, but of 32 bits 93 so, 90 with 768.
STAGED = (
    (12800, 50, 256, (2, 768), (2, 768)),
    (131072, 64, 128, (2, 768), (1, 640)),
    (None, 64, 256, (2, 768), (1, 640)),
)

#: As RESIDENT, of such columns with nothing beside: softmax of 50257 columns of 16 bits 94, and 93
#: with room for 768.
STAGED_ROOM = 1024

#: Bytes of a row from which on later rows are asked for, and how many bytes of them (from sm_90
#: on). One H200, 50 MB of L2 cache, softmax and LayerNorm forward, percent: 4096 columns 97 and 97
#: without, 100 and 100 with 4 MB; 5120 columns 97 and 88, 100 and 99, with 8 MB 83 and 85; 16384
#: columns 97 and 97, 100 and 100, 95 and 96; 32768 columns 101 and 98 with 4 MB, 99 and 96 with 8.
#: What is asked for too early is gone when its turn comes.
ASKED_ROW = 8192
ASKED = 4 << 20

#: The same of shorter rows that are read two bytes at a time, where nothing is centred: softmax of
#: 1023 columns 92, 88 without, RMSNorm 88 and 85 (LayerNorm 81 and 83); softmax of 257 columns 86
#: and 82, with 1 MB 83. Of 4 bytes 94 and 96.
NARROW_ASKED_ROW = 512
NARROW_ASKED = 1 << 19

#: Threads that a multiprocessor shall have room for, by the values that each holds. Left alone, the
#: assembler saves registers by reading two packs after the other two: attention softmax with pair
#: bias and mask 88 percent of the ceiling, and 97 with room for 896 threads (72 registers each);
#: with dropout 80 and 83. For 16 values it costs 1 to 3 points. For 64 values, softmax of 131072
#: and 262144 columns 98 and 87 with room for 512, 101 and 98 with 768; a LayerNorm of as many does
#: not fit and is given room for 512 (jit/nvrtc.py).
RESIDENT = {32: 896, 64: 768}

#: The same of 64 values beside operands that all rows share, by columns at most, of 4 bytes and of
#: 16 bits: RMSNorm of 30522 columns 94 and 89 percent so, 89 and 86 with room for 768; of 65536
#: columns 100 and 99, 98 and 96; of 131072 columns 96 and 96 so, 95 and 96 with room for 512; of
#: 262144 columns 88 and 90, 82 and 83.
BESIDE = ((65536, 640), (196608, 768), (None, 640))

#: Of a LayerNorm of 64 values, by bytes of a row at most: threads of a chunk, and room. It keeps
#: four numbers a part, and its mean's correction, beside the values. Of 16 bits: 20480 columns 98
#: percent so, 82 with room for 512, 24576 columns 98 and 92; 65536 columns 93, with 256 threads 90;
#: 131072 columns 86 and 83. Of 32 bits: 65536 columns 100 so, and with 256 threads, which this
#: compiler gives 255 registers, 83; 131072 columns 93 with 256, 81 with 128.
CENTRED = ((65536, 256, 768), (262144, 128, 768), (None, 256, 768))

#: Threads of a chunk at most; rows of more than 64 x 256 columns are cut into chunks. So many
#: times more of 16 bits, where half as many chunks do then: softmax and LayerNorm of 151936 columns
#: in 8 chunks of 320 threads 98 and 84, in 16 of 256 that hold 40 values each 87 and 66. An
#: RMSNorm, whose operand leaves no registers for it, is better off without (bfloat16 86, with 74),
#: and so is a LayerNorm of 32 bits (87 and 82).
MOST_THREADS = 256
MORE_THREADS = 1.25

#: Blocks of a cluster at most: 8 everywhere (CUDA C++ Programming Guide, "Thread Block Clusters"),
#: more where a kernel asks for it.
CLUSTERS = {"sm_90": 16, "sm_100": 16, "sm_103": 16, "sm_120": 8, "sm_121": 8}

#: Chunks of a row that the blocks of a cluster can share: row/combine.cuh has a lane for each.
MOST_SHARED_CHUNKS = 32

#: Threads of a block that holds several rows: 1024 columns 99 and 96 with 64, 97 and 95 with 128.
#: Where a thread has no more than 8 values: 32 columns of 16 bits 99 and 99 with 128, 88 and 81
#: with 64; no more than 16, in narrow packs and alone: 257 columns of 16 bits 84 and 79, 32 bits 99
#: and 98.
SMALL_BLOCK = 64
SMALL_BLOCK_OF_8 = 128

#: Shared memory that the runtime and barriers keep.
RESERVED_SHARED = 2048

#: Numbers that are known of a part of a row at most, and parts that are kept: row/combine.cuh.
PART_NUMBERS = 4
KEPT_PARTS = 2 * 33


@functools.lru_cache(maxsize=4096)
def choose(
    columns: int,
    element_bytes: int,
    compute_bytes: int,
    dropout: bool,
    shared_limit: int,
    cluster_limit: int,
    forced: str | None,
    streams: str = "many",
    centred: bool = False,
) -> Schedule:
    """The schedule on a GPU.

    Args:
        columns: of a row, at least 1.
        element_bytes: x's itemsize: a pack is 16 bytes of x at most.
        compute_bytes: 4 or 8.
        dropout: whether the chain draws random numbers.
        shared_limit: bytes of shared memory that a block of this device can opt in to.
        cluster_limit: blocks of a cluster at most; 1 where there are none.
        forced: a storage to use whatever the columns, or None.
        streams: what a row has beside x and y: "none", "columns" (operands that all rows share),
            or "many", which may be masks.
        centred: whether the operator subtracts a mean.

    Raises:
        ValueError: the forced storage cannot hold the row.
    """
    width = pack_width(columns, element_bytes, dropout)
    narrow = width * element_bytes < WIDE_ACCESS if streams == "none" else width == 1
    stages = narrow and columns >= STAGED_COLUMNS and streams != "many" and cluster_limit > 1
    table: Table = WIDE_VALUES if element_bytes == 4 == width else VALUES
    most_threads, staged_room = MOST_THREADS, STAGED_ROOM
    if stages:
        floats = columns * compute_bytes // 4
        _, values, most_threads, *beside = next(
            row for row in STAGED if row[0] is None or floats <= row[0]
        )
        table = ((None, values),)
        if streams == "columns":
            pack, staged_room = beside[element_bytes > 2]
            width = max(width, pack)
    elif centred:
        most_threads, _ = _centred(columns * element_bytes)
    threads, packs, chunks, chunk = tile_of(columns, width, compute_bytes, table, most_threads)
    roomy = element_bytes == 2 and (streams == "none" or centred)
    if chunks > 2 and roomy and not stages:
        more = tile_of(columns, width, compute_bytes, table, int(MORE_THREADS * most_threads))
        threads, packs, chunks, chunk = (
            more if more[2] < chunks else (threads, packs, chunks, chunk)
        )
    if chunks > cluster_limit and most_threads < MOST_THREADS:  # too small for this device
        threads, packs, chunks, chunk = tile_of(columns, width, compute_bytes, table, MOST_THREADS)
    fills = threads * packs * chunks * width == columns
    if chunks == 1 and not (fills or stages) and packs * width * compute_bytes // 4 > INEXACT:
        fewer = ((None, INEXACT),)
        tile = tile_of(columns, width, compute_bytes, fewer, 2 * MOST_THREADS)
        threads, packs, chunks, chunk = tile
    values = packs * width * compute_bytes // 4
    few = values <= (16 if narrow and streams == "none" else 8)
    small = SMALL_BLOCK_OF_8 if few else SMALL_BLOCK
    rows = max(1, small // threads) if threads <= 32 else 1
    schedule = Schedule(
        "register",
        threads,
        packs,
        width,
        rows,
        chunks,
        chunk,
        exact=is_exact(columns, threads * packs * width, chunks),
        compute_bytes=compute_bytes,
        full=full_packs(columns, threads, chunk, chunks, width),
        pieces=columns % width > 0,
        room=staged_room
        if stages
        else room_of(values, columns, element_bytes, streams == "columns", centred),
    )
    if forced == "host":
        raise ValueError("'host' is the schedule of a CPU")
    in_shared = dataclasses.replace(schedule, kind="shared")
    fits = in_shared.shared <= shared_limit - reserved_shared(threads, compute_bytes)
    cluster = cluster_of(chunks, cluster_limit)
    many = "cluster" if cluster > 1 else "shared" if fits else "streaming"
    kind = forced or ("register" if chunks == 1 else many)
    if kind == "register" and chunks > 1:
        raise ValueError(f"a row of {columns} columns does not fit the registers of a block")
    if kind == "shared" and not fits:
        raise ValueError(
            f"a row of {columns} columns takes {in_shared.shared} bytes of shared memory, the "
            f"device has {shared_limit} a block"
        )
    if kind == "cluster":
        check_cluster(columns, chunks, cluster)
        full = schedule.full if cluster == chunks else 0
        schedule = dataclasses.replace(schedule, cluster=cluster, full=full)
    pieces = width * element_bytes == 2 and streams != "many" and not centred
    ahead = _ahead(columns * element_bytes, pieces) if cluster_limit > 1 else 0  # from sm_90 on
    if ahead:
        schedule = dataclasses.replace(schedule, asks="at once", ahead=ahead)
    schedule = dataclasses.replace(schedule, kind=kind)
    if stages and schedule.one_tile:
        schedule = dataclasses.replace(schedule, staged=element_bytes)
    return schedule


def _ahead(row_bytes: int, narrow: bool) -> int:
    """Rows before its turn that a row is asked for; 0 if it is not."""
    if ASKED_ROW <= row_bytes <= ASKED:
        return ASKED // row_bytes
    return NARROW_ASKED // row_bytes if narrow and NARROW_ASKED_ROW <= row_bytes < ASKED_ROW else 0


def room_of(
    values: int, columns: int, element_bytes: int, beside: bool = False, centred: bool = False
) -> int:
    """Threads that a multiprocessor shall have room for; 0 leaves it to the compiler."""
    if centred and values > 32:
        return _centred(columns * element_bytes)[1]
    if beside and values > 32:
        return next(room for most, room in BESIDE if most is None or columns <= most)
    return next((room for most, room in RESIDENT.items() if most // 2 < values <= most), 0)


def _centred(row_bytes: int) -> tuple[int, int]:
    return next(
        (threads, room) for most, threads, room in CENTRED if most is None or row_bytes <= most
    )


def staged(tile: Schedule, own: int, access: int, element_bytes: int, limit: int) -> Schedule:
    """The tile with its rows going through shared memory, or not, as x and y lie.

    Args:
        tile: Of `choose`, whose `streams` are not many.
        own: Bytes that x and y, both of them, could be read and written by if rows were aligned.
        access: Bytes that they can be.
        element_bytes: The larger itemsize of x and y.
        limit: As `shared_limit` of `choose`.
    """
    plain = dataclasses.replace(tile, staged=0)
    misaligned = access < WIDE_ACCESS <= own
    if not (tile.staged or misaligned) or not tile.one_tile or tile.threads < STAGED_WORD // 2:
        return plain
    through = dataclasses.replace(tile, staged=element_bytes)
    fits = through.shared <= limit - reserved_shared(tile.threads, tile.compute_bytes)
    return through if fits else plain


def cluster_of(chunks: int, limit: int) -> int:
    """Blocks that share a row of so many chunks; 1 if one block has it alone."""
    alone = chunks == 1 or chunks > MOST_SHARED_CHUNKS
    return 1 if alone else min(power_of_two_above(chunks), limit)


def check_cluster(columns: int, chunks: int, cluster: int) -> None:
    """Raise ValueError where a cluster is asked for and there is none for this row."""
    if chunks == 1:
        raise ValueError(f"a row of {columns} columns is one chunk: there is nothing to share")
    if cluster == 1:
        raise ValueError(
            f"no cluster of this device holds the {chunks} chunks of {columns} columns"
        )


def reserved_shared(threads: int, compute_bytes: int) -> int:
    """Bytes of shared memory that a block of so many threads a row needs beside rows and sums."""
    return RESERVED_SHARED + KEPT_PARTS * ceil_div(threads, 32) * PART_NUMBERS * compute_bytes


def choose_host(columns: int, forced: str | None) -> str:
    """The schedule on a CPU: "host" (the row in a buffer that the caches hold) or "streaming"."""
    if forced in ("register", "shared", "cluster"):
        raise ValueError(f"a CPU has no {forced} schedule; it has 'host' and 'streaming'")
    if forced == "host" and columns > HOST_BUFFERED:
        raise ValueError(f"a row of {columns} columns does not fit the buffer of {HOST_BUFFERED}")
    return forced or ("host" if columns <= HOST_BUFFERED else "streaming")
