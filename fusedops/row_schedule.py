# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A row schedule: what a kernel is told of its tile, of where rows live and of its blocks."""

from __future__ import annotations

import dataclasses

from fusedops.tiling import ceil_div

__all__ = ["STAGED_WORD", "STORAGES", "Schedule"]

#: Storages by the names that `fusedops.testing.force_schedule` takes.
STORAGES = {
    "register": "InRegisters",
    "cluster": "InRegisters",
    "shared": "InShared",
    "streaming": "Streamed",
}

#: Bytes of a word that a row is moved to shared memory by: it may begin and end anywhere in one.
STAGED_WORD = 16

#: Blocks of a grid.
MOST_BLOCKS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A row schedule. `chunks` of `chunk` columns cover a row, each in a tile of packs of threads.

    A row may be asked for so many rows `ahead` of its turn: by "each thread" for itself, "at once",
    or, of a gradient's rows that are no slice, "across". A gradient's slices are of several rows
    where they `visit`. `staged`: bytes of an element of rows that go through shared memory as they
    are, or 0.
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

    @property
    def tile(self) -> int:
        """Columns that the packs of a row's threads hold: a chunk, or a little more."""
        return self.threads * self.packs * self.width

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.threads * self.rows

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor shall have room for; 0 leaves it to the compiler."""
        return self.room // self.block

    def grid(self, rows: int) -> int:
        """Blocks for so many rows; where a grid cannot hold them, blocks take several in turn."""
        return min(ceil_div(rows, self.rows), MOST_BLOCKS // self.cluster) * self.cluster

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        if self.staged:
            of_row = self.chunk * self.staged + 2 * STAGED_WORD - 1
            return self.rows * (of_row // STAGED_WORD * STAGED_WORD)
        if self.kind != "shared":
            return 0
        return self.rows * self.chunks * self.tile * self.compute_bytes

    @property
    def one_tile(self) -> bool:
        """Whether a block has one tile of a row, which its registers hold."""
        return self.kind in ("register", "cluster") and self.chunks <= self.cluster

    @property
    def told(self) -> tuple[object, ...]:
        """What a kernel is told beside its type."""
        return (self.asks, self.blocks, self.staged)

    @property
    def cpp(self) -> str:
        """The C++ type."""
        storage = STORAGES[self.kind]
        if self.kind == "cluster" and not self.one_tile:
            storage = "Streamed"
        numbers = f"{self.threads}, {self.packs}, {self.width}, {self.rows}"
        flags = f"{str(self.exact).lower()}, {self.full}, {str(self.pieces).lower()}"
        chunk = "" if self.chunk == self.tile else f", {self.chunk}"
        return f"Schedule<{storage}, {numbers}, {flags}, {self.cluster}{chunk}>"
