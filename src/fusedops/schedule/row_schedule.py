# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The schedule of a kernel on a GPU: a tile, a storage of rows, and a launch configuration."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from fusedops.errors import counted
from fusedops.schedule.features import Features
from fusedops.schedule.launch import LaunchConfig
from fusedops.schedule.tiling import Tile, ceil_div, power_of_two_above

__all__ = [
    "RESERVED_SHARED",
    "STORAGES",
    "Schedule",
    "check_cluster",
    "check_reduces",
    "cluster_of",
    "reserved_shared",
]

#: C++ storage types, by the names that `fusedops.testing.force_schedule` takes.
STORAGES = {
    "register": "InRegisters",
    "cluster": "InRegisters",
    "shared": "InShared",
    "streaming": "Streamed",
    "chunks": "InChunks",
}

#: Bytes of the aligned words that shared-memory staging copies; a row may begin and end anywhere in
#: one.
STAGED_WORD = 16

#: Largest number of thread blocks in a grid.
MOST_BLOCKS = 2**31 - 1

#: Largest number of chunks that the blocks of a cluster can share: row/combine.cuh has a lane for
#: each.
MOST_SHARED_CHUNKS = 32

#: Bytes of shared memory per block that the CUDA runtime and barriers take.
RESERVED_SHARED = 2048

#: Shared memory for the combination of partial statistics (row/combine.cuh): most numbers per part
#: of a row, and number of parts that are kept.
PART_NUMBERS = 4
KEPT_PARTS = 2 * 33


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The schedule of a kernel on a GPU.

    The tile decides the order in which a row is summed, and so the bits of the result. The storage,
    which may follow from the device's limits, and the launch configuration decide speed alone.
    """

    storage: str  # where a row is kept, one of `STORAGES`
    tile: Tile  # how a row is cut into chunks, threads and packs
    launch: LaunchConfig  # the launch configuration
    exact: bool  # whether every tile of every row is full, so that no pack needs a bounds check
    compute_bytes: int  # size of the compute type in bytes
    full: int = 0  # packs that are surely full in every thread
    pieces: bool = True  # whether the end of a row can cut a pack
    cluster: int = 1  # thread blocks in the cluster that shares a row; 1 without one
    #: Bytes per element of rows that are staged in shared memory as they lie in memory, or 0.
    staged_bytes: int = 0
    #: Bytes of dynamic shared memory of a backward pass's ring of rows, which has
    #: `launch.ring_stages` of them, and of the gradient of x where that leaves in words; 0 where
    #: rows are read from global memory.
    ring_bytes: int = 0
    #: The features by which the launch configuration was looked up; None for a kernel that has
    #: none.
    features: Features | None = dataclasses.field(default=None, compare=False, repr=False)
    #: The file from which the launch configuration is, if it was tuned on this machine.
    tuned: str = dataclasses.field(default="", compare=False)
    #: The shortest and the longest rows of its bucket (tiling.py); None for a kernel that has none.
    lengths: tuple[int, int] | None = dataclasses.field(default=None, compare=False)
    #: Whether the kernel is made for one length of a bucket, so that the length of a chunk is a
    #: constant.
    single: bool = False

    @functools.cached_property
    def threads(self) -> int:
        """Threads that hold one chunk of a row."""
        return self.tile.threads

    @functools.cached_property
    def packs(self) -> int:
        """Packs of a chunk per thread."""
        return self.tile.packs

    @functools.cached_property
    def width(self) -> int:
        """Vector width: elements in a pack."""
        return self.tile.width

    @functools.cached_property
    def chunks(self) -> int:
        """Number of chunks in a row."""
        return self.tile.chunks

    @functools.cached_property
    def chunk(self) -> int:
        """Elements in a chunk."""
        return self.tile.chunk

    @property
    def even(self) -> bool:
        """Whether the length of a chunk follows from the columns, so that chunks are even.

        It is then a word of the kernel's argument; otherwise a chunk is a whole tile.
        """
        return self.chunks > 1 and not self.exact and not self.single

    @property
    def extent(self) -> str:
        """How much of a row the tile holds, in words."""
        packs, columns = counted(self.packs, "pack"), counted(self.width, "column")
        return f"{counted(self.threads, 'thread')} x {packs} x {columns}"

    @property
    def served(self) -> str:
        """The rows that the kernel serves, in words."""
        low, top = self.lengths or (0, 0)
        kind = "that are odd" if self.width == 1 else f"that packs of {self.width} divide"
        if self.pieces:
            kind = f"that packs of {self.width} do not divide"
        if low == top:
            return f"the kernel serves rows of {counted(top, 'column')} alone"
        return f"the kernel serves rows of {low} to {top} columns {kind}"

    @functools.cached_property
    def rows_per_block(self) -> int:
        """Rows that a thread block has at a time."""
        return self.launch.rows_per_block

    @functools.cached_property
    def threads_per_block(self) -> int:
        """Threads per block."""
        return self.tile.threads * self.launch.rows_per_block

    @functools.cached_property
    def min_blocks_per_sm(self) -> int:
        """Occupancy target in thread blocks per SM; 0 leaves the registers to the compiler."""
        return self.launch.min_threads_per_sm // self.threads_per_block

    def grid(self, rows: int) -> int:
        """Thread blocks in the grid; where it cannot hold all rows, blocks take several in turn."""
        apart = self.blocks_per_row
        of_block = self.rows_per_block * self.launch.abreast
        return min(ceil_div(rows, of_block), MOST_BLOCKS // apart) * apart

    @functools.cached_property
    def blocks_per_row(self) -> int:
        """Thread blocks that share a row: a cluster's, or one for each independent chunk."""
        return self.chunks if self.storage == "chunks" else self.cluster

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory per block in bytes."""
        if self.staged_bytes:
            of_row = self.tile.capacity * self.staged_bytes + 2 * STAGED_WORD - 1
            return self.rows_per_block * (of_row // STAGED_WORD * STAGED_WORD)
        if self.storage != "shared":
            return 0
        return self.rows_per_block * self.chunks * self.tile.capacity * self.compute_bytes

    @property
    def stages(self) -> int:
        """Rows of the ring of a backward pass; 0 without one."""
        return self.launch.ring_stages if self.ring_bytes else 0

    @property
    def leaves_in_words(self) -> bool:
        """Whether the gradient of x goes through shared memory, behind the ring of rows."""
        return bool(self.ring_bytes) and self.launch.smem_staged

    @property
    def one_tile(self) -> bool:
        """Whether a block has a single tile of each row, held in its registers."""
        if self.storage == "chunks":
            return True
        return self.storage in ("register", "cluster") and self.chunks <= self.cluster

    def replaced(self, **fields: Any) -> Schedule:
        """The schedule with other values in these fields, made once: so is then its C++ text."""
        key = tuple(fields.items())
        found = self._replaced.get(key)
        if found is None:
            found = self._replaced.setdefault(key, dataclasses.replace(self, **fields))
        return found

    @functools.cached_property
    def _replaced(self) -> dict[tuple[tuple[str, Any], ...], Schedule]:
        return {}

    @functools.cached_property
    def source_options(self) -> tuple[object, ...]:
        """Compile-time choices that are not part of the C++ type of the schedule."""
        launch = self.launch
        return (
            launch.prefetch,
            self.min_blocks_per_sm,
            self.staged_bytes,
            launch.relay_handshake,
            launch.eager_operands,
            launch.interleaved,
            self.stages,
            self.leaves_in_words,
        )

    @functools.cached_property
    def cpp(self) -> str:
        """The C++ type, as source text."""
        storage = STORAGES[self.storage]
        if self.storage == "cluster" and not self.one_tile:
            storage = "Streamed"
        numbers = f"{self.threads}, {self.packs}, {self.width}, {self.rows_per_block}"
        flags = f"{str(self.exact).lower()}, {self.full}, {str(self.pieces).lower()}"
        chunk = ", -1" if self.even else f", {self.chunk}" if self.single else ""
        if self.launch.abreast > 1:
            chunk = f", 0, {self.launch.abreast}"
        return f"Schedule<{storage}, {numbers}, {flags}, {self.cluster}{chunk}>"


def cluster_of(chunks: int, limit: int) -> int:
    """Cluster size in thread blocks for a row of so many chunks; 1 if one block has all of them."""
    shared = 1 < chunks <= MOST_SHARED_CHUNKS
    return min(power_of_two_above(chunks), limit) if shared else 1


def check_cluster(columns: int, chunks: int, cluster: int) -> None:
    """Raise ValueError if a cluster is forced for a row that cannot have one."""
    if chunks == 1:
        raise ValueError(f"a row of {counted(columns, 'column')} is one chunk: nothing to share")
    if cluster == 1:
        raise ValueError(
            f"no cluster of this device holds the {chunks} chunks of {columns} columns"
        )


def check_reduces(storage: str | None) -> None:
    """Raise ValueError where independent chunks are forced on rows that are reduced."""
    if storage == "chunks":
        raise ValueError("the chunks of a row that is reduced are not independent of one another")


def reserved_shared(threads: int, compute_bytes: int) -> int:
    """Shared memory per block in bytes, besides rows and sums over rows.

    `threads` is the number of threads per block.
    """
    return RESERVED_SHARED + KEPT_PARTS * ceil_div(threads, 32) * PART_NUMBERS * compute_bytes
