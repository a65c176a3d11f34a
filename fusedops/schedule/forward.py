# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the row schedule: the storage of a row, rows per thread block, and L2 prefetch distance.

The storage may follow the device: registers, a cluster of thread blocks, shared memory and
streaming reduce the same tiles (forward_tile.py) in the same order, so they agree to the bit.
Nothing here depends on the number of rows.
"""

from __future__ import annotations

import dataclasses
import functools

from fusedops.schedule.forward_tile import WIDE_ACCESS, Row, room_of, row_tile, stages
from fusedops.schedule.tiling import ceil_div, full_packs, is_exact, power_of_two_above

__all__ = [
    "HOST_BUFFERED",
    "STORAGES",
    "Row",
    "Schedule",
    "check_cluster",
    "choose",
    "choose_host",
    "cluster_of",
    "host_columns",
    "reserved_shared",
    "staged",
]

#: C++ storage types, by the names that `fusedops.testing.force_schedule` takes.
STORAGES = {
    "register": "InRegisters",
    "cluster": "InRegisters",
    "shared": "InShared",
    "streaming": "Streamed",
}

#: Largest number of columns of each CPU kernel that keeps rows in a buffer. The loops of the short
#: ones have constant bounds, and several rows go through each step together (host/rows.cuh). The
#: last is HostSchedule::kBuffered: 256 KiB of float, which an L2 cache holds.
HOST_COLUMNS = (16, 32, 64, 128, 65536)
HOST_BUFFERED = HOST_COLUMNS[-1]

#: L2 prefetch of later rows (`asks`, from sm_90 on): size of a row in bytes from which on it is
#: done, and prefetch distance in bytes. One H200, 50 MB of L2 cache, softmax and LayerNorm forward,
#: percent: 4096 columns 97 and 97 without, 100 and 100 with 4 MB; 5120 columns 97 and 88, 100 and
#: 99, with 8 MB 83 and 85; 16384 columns 97 and 97, 100 and 100, 95 and 96; 32768 columns 101 and
#: 98 with 4 MB, 99 and 96 with 8. What is prefetched too early is evicted before its turn.
ASKED_ROW = 8192
ASKED = 4 << 20

#: Prefetch of shorter rows whose packs are two bytes wide, where no mean is subtracted: softmax of
#: 1023 columns 92, 88 without, RMSNorm 88 and 85 (LayerNorm 81 and 83); softmax of 257 columns 86
#: and 82, with 1 MB 83. Of 4 bytes 94 and 96.
NARROW_ASKED_ROW = 512
NARROW_ASKED = 1 << 19

#: Largest number of thread blocks in a cluster: 8 everywhere (CUDA C++ Programming Guide, "Thread
#: Block Clusters"), more where a kernel opts in to it.
CLUSTERS = {"sm_90": 16, "sm_100": 16, "sm_103": 16, "sm_120": 8, "sm_121": 8}

#: Largest number of chunks that the blocks of a cluster can share: row/combine.cuh has a lane for
#: each.
MOST_SHARED_CHUNKS = 32

#: Threads per block where a block holds several rows: 1024 columns 99 and 96 with 64, 97 and 95
#: with 128. SMALL_BLOCK_OF_FEW where a thread has no more than 8 values: 32 columns of 16 bits 99
#: and 99 with 128, 88 and 81 with 64; and no more than 16 in narrow packs with no operands beside:
#: 257 columns of 16 bits 84 and 79, 32 bits 99 and 98.
SMALL_BLOCK = 64
SMALL_BLOCK_OF_FEW = 128

#: Threads per block for an RMSNorm of narrow packs of 16 bits with more values per thread: 1023
#: columns 91 percent, 89 with 64 or 128. Both with forward_tile.NARROW_ROOM as occupancy target.
SMALL_BLOCK_OF_NARROW = 32

#: Columns beyond which one block of a cluster `leads`: it alone waits for the start-up handshake
#: and relays it to the others (core/cluster.cuh); LED_NARROW is for narrow packs. Of 16 bits,
#: beside operands that all rows share. LayerNorm of 65536 columns 95 percent with it, 92 where each
#: block waits; of 32768 columns 97 and 98; RMSNorm of 20480 columns 94 and 100. Narrow: LayerNorm
#: of 30522 columns 86 and 82, of 50257 columns 70 and 68; RMSNorm 91 and 88, 88 and 84.
LED = 32768
LED_NARROW = 16384

#: Columns up to which a block relays the handshake, where a mean is subtracted and where none is.
#: LayerNorm of 98304 columns 81 with it, 85 where each block waits; RMSNorm of 131072 columns 98
#: and 95, of 151936 columns 84 and 87.
LED_MOST = 65536
LED_MOST_ALONE = 131072

#: Bytes of the aligned words that shared-memory staging copies; a row may begin and end anywhere in
#: one.
STAGED_WORD = 16

#: Largest number of thread blocks in a grid.
MOST_BLOCKS = 2**31 - 1

#: Bytes of shared memory per block that the CUDA runtime and barriers take.
RESERVED_SHARED = 2048

#: Shared memory for the combination of partial statistics (row/combine.cuh): most numbers per part
#: of a row, and number of parts that are kept.
PART_NUMBERS = 4
KEPT_PARTS = 2 * 33


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A row schedule: `chunks` of `chunk` columns cover a row, each a tile of packs per thread.

    Attributes:
        kind: Storage of a row, one of `STORAGES`.
        threads: Threads of a block that hold one row, or one chunk of it.
        packs: Packs (vector accesses) per thread and tile.
        width: Vector width: columns in a pack.
        rows: Rows per thread block at a time.
        chunks, chunk: Chunks in a row, and columns in a chunk.
        exact: Whether every tile of every row is full, so that no pack needs a bounds check.
        compute_bytes: Size of the compute type in bytes.
        full: Packs that are surely full in every thread.
        pieces: Whether the end of a row can cut a pack.
        cluster: Thread blocks in the cluster that shares a row; 1 without one.
        ahead: L2 prefetch distance in rows.
        asks: How a row is prefetched: "never"; by "each thread" its own packs; "at once" by one
            bulk prefetch; "by line" one cache line a thread; "across" slices, where those of a
            gradient are single rows.
        visits: Whether the blocks of a gradient are persistent: their slices have several rows.
        resident: Threads of such persistent blocks per SM.
        sums: Where a gradient adds up what rows share: "registers", "shared" or "memory".
        room: Occupancy target in threads per SM; 0 leaves the registers to the compiler.
        staged: Bytes per element of rows that are staged in shared memory as they lie in memory, or
            0.
        leads: Whether one block relays the start-up handshake of its cluster to the others.
        gathers: Whether a gradient issues the loads of its operands together with those of the row.
    """

    kind: str
    threads: int
    packs: int
    width: int
    rows: int
    chunks: int
    chunk: int
    exact: bool
    compute_bytes: int
    full: int = 0
    pieces: bool = True
    cluster: int = 1
    ahead: int = 0
    asks: str = "never"
    visits: bool = False
    resident: int = 0
    sums: str = "registers"
    room: int = 0
    staged: int = 0
    leads: bool = False
    gathers: bool = True

    @property
    def tile(self) -> int:
        """Capacity of one tile in columns: a chunk, or a little more."""
        return self.threads * self.packs * self.width

    @property
    def block(self) -> int:
        """Threads per block."""
        return self.threads * self.rows

    @property
    def blocks(self) -> int:
        """Occupancy target in thread blocks per SM; 0 leaves the registers to the compiler."""
        return self.room // self.block

    def grid(self, rows: int) -> int:
        """Thread blocks in the grid; where it cannot hold all rows, blocks take several in turn."""
        return min(ceil_div(rows, self.rows), MOST_BLOCKS // self.cluster) * self.cluster

    @property
    def shared(self) -> int:
        """Dynamic shared memory per block in bytes."""
        if self.staged:
            of_row = self.chunk * self.staged + 2 * STAGED_WORD - 1
            return self.rows * (of_row // STAGED_WORD * STAGED_WORD)
        if self.kind != "shared":
            return 0
        return self.rows * self.chunks * self.tile * self.compute_bytes

    @property
    def one_tile(self) -> bool:
        """Whether a block has a single tile of each row, held in its registers."""
        return self.kind in ("register", "cluster") and self.chunks <= self.cluster

    @property
    def told(self) -> tuple[object, ...]:
        """The choices that the source of a kernel depends on beside the C++ type."""
        return (self.asks, self.blocks, self.staged, self.leads, self.gathers)

    @property
    def cpp(self) -> str:
        """The C++ type, as source text."""
        storage = STORAGES[self.kind]
        if self.kind == "cluster" and not self.one_tile:
            storage = "Streamed"
        numbers = f"{self.threads}, {self.packs}, {self.width}, {self.rows}"
        flags = f"{str(self.exact).lower()}, {self.full}, {str(self.pieces).lower()}"
        chunk = "" if self.chunk == self.tile else f", {self.chunk}"
        return f"Schedule<{storage}, {numbers}, {flags}, {self.cluster}{chunk}>"


@functools.lru_cache(maxsize=4096)
def choose(row: Row, shared_limit: int, cluster_limit: int, forced: str | None = None) -> Schedule:
    """Choose the schedule of a forward pass on a GPU.

    Args:
        row: The facts from which the tile follows.
        shared_limit: Bytes of shared memory that a block of this device can opt in to.
        cluster_limit: Largest number of thread blocks in a cluster; 1 without clusters.
        forced: A storage to use whatever the columns, or None.

    Raises:
        ValueError: The forced storage cannot hold the row.
    """
    columns, compute_bytes = row.columns, row.compute_bytes
    tile = row_tile(row, cluster_limit)
    threads, packs, width, chunks, chunk = tile
    alone = row.narrow and row.streams == "none"
    few = tile.registers(compute_bytes) <= (16 if alone else 8)
    small = SMALL_BLOCK_OF_FEW if few else SMALL_BLOCK
    if row.odd_scaled:
        few = tile.registers(compute_bytes) <= 16
        small = SMALL_BLOCK_OF_FEW if few else SMALL_BLOCK_OF_NARROW
    schedule = Schedule(
        "register",
        threads,
        packs,
        width,
        max(1, small // threads) if threads <= 32 else 1,
        chunks,
        chunk,
        exact=is_exact(columns, tile.holds, chunks),
        compute_bytes=compute_bytes,
        full=full_packs(columns, threads, chunk, chunks, width),
        pieces=columns % width > 0,
        room=room_of(row, tile, cluster_limit),
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
        schedule = dataclasses.replace(schedule, cluster=cluster, full=full, leads=_leads(row))
    schedule = dataclasses.replace(schedule, kind=kind)
    ahead = _ahead(row, width) if cluster_limit > 1 else 0  # from sm_90 on
    if ahead:
        schedule = dataclasses.replace(schedule, asks="at once", ahead=ahead)
    if stages(row, cluster_limit) and schedule.one_tile:
        schedule = dataclasses.replace(schedule, staged=row.element_bytes)
    return schedule


def _leads(row: Row) -> bool:
    least = LED_NARROW if row.narrow_access else LED
    most = LED_MOST if row.centred else LED_MOST_ALONE
    return row.streams == "columns" and row.element_bytes == 2 and least < row.columns <= most


def _ahead(row: Row, width: int) -> int:
    """L2 prefetch distance in rows; 0 for no prefetch."""
    if ASKED_ROW <= row.bytes <= ASKED:
        return ASKED // row.bytes
    two_bytes = width * row.element_bytes == 2 and row.streams != "many" and not row.centred
    return NARROW_ASKED // row.bytes if two_bytes and row.bytes >= NARROW_ASKED_ROW else 0


def staged(tile: Schedule, own: int, access: int, element_bytes: int, limit: int) -> Schedule:
    """The schedule with or without shared-memory staging, by the alignment of x and y.

    Args:
        tile: A schedule from `choose`, for a row whose `streams` are not "many".
        own: Vector width in bytes that x and y would both allow if their rows were aligned.
        access: Vector width in bytes that x and y do allow.
        element_bytes: The larger itemsize of x and y.
        limit: Bytes of shared memory per block, as `shared_limit` of `choose`.
    """
    plain = dataclasses.replace(tile, staged=0)
    misaligned = access < WIDE_ACCESS <= own
    if not (tile.staged or misaligned) or not tile.one_tile or tile.threads < STAGED_WORD // 2:
        return plain
    through = dataclasses.replace(tile, staged=element_bytes)
    fits = through.shared <= limit - reserved_shared(tile.threads, tile.compute_bytes)
    return through if fits else plain


def cluster_of(chunks: int, limit: int) -> int:
    """Cluster size in thread blocks for a row of so many chunks; 1 if one block has it alone."""
    alone = chunks == 1 or chunks > MOST_SHARED_CHUNKS
    return 1 if alone else min(power_of_two_above(chunks), limit)


def check_cluster(columns: int, chunks: int, cluster: int) -> None:
    """Raise ValueError where a cluster is forced and there is none for this row."""
    if chunks == 1:
        raise ValueError(f"a row of {columns} columns is one chunk: there is nothing to share")
    if cluster == 1:
        raise ValueError(
            f"no cluster of this device holds the {chunks} chunks of {columns} columns"
        )


def reserved_shared(threads: int, compute_bytes: int) -> int:
    """Shared memory in bytes that a block needs beside its rows and sums.

    `threads` is the number of threads per row.
    """
    return RESERVED_SHARED + KEPT_PARTS * ceil_div(threads, 32) * PART_NUMBERS * compute_bytes


def choose_host(columns: int, forced: str | None) -> str:
    """The schedule on a CPU: "host" (the row in a buffer that fits the caches) or "streaming"."""
    if forced in ("register", "shared", "cluster"):
        raise ValueError(f"a CPU has no {forced} schedule; it has 'host' and 'streaming'")
    if forced == "host" and columns > HOST_BUFFERED:
        raise ValueError(f"a row of {columns} columns does not fit the buffer of {HOST_BUFFERED}")
    return forced or ("host" if columns <= HOST_BUFFERED else "streaming")


def host_columns(kind: str, columns: int) -> int:
    """Largest number of columns of a CPU's kernel for such rows; 0 if it takes any number."""
    return 0 if kind == "streaming" else next(most for most in HOST_COLUMNS if columns <= most)
