# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the row schedule: how many threads hold a row, in how many packs, and where it lives.

The tile (threads x packs x width) follows from columns and dtypes alone, since it decides who is
added to whom. The storage may follow the device: registers, shared memory and streaming reduce the
same tiles in the same order, so they agree to the bit. Nothing here depends on the number of rows.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

__all__ = [
    "HOST_BUFFERED",
    "STORAGES",
    "Schedule",
    "Visiting",
    "choose",
    "choose_gradient",
    "choose_host",
    "resident_rows",
]

#: Storages by the names that `fusedops.testing.force_schedule` takes.
STORAGES = {
    "register": "InRegisters",
    "shared": "InShared",
    "streaming": "Streamed",
}

#: Columns that a CPU thread keeps between reduction and result; as HostSchedule::kBuffered.
HOST_BUFFERED = 16384

#: Values that a thread holds of a row of so many columns, and what that was worth on one H200
#: (fp16, 49152 rows, percent of the ceiling, softmax and LayerNorm with gamma and beta). Fewer
#: values leave room for more threads; more values make fewer threads do with one barrier. A double
#: takes two registers, so half as many.
VALUES = (
    (512, 16),  # 256 columns: 99 and 93, with 32 values 96 and 89
    (4096, 32),  # 1024 columns: 99 and 96, with 16 values 99 and 96; 2048: 100 and 99, 100 and 92
    (None, 64),  # 16384 columns: 97 and 97, with 32 values 99 and 62: a block of 512 fits only once
)

#: Threads that a multiprocessor shall have room for, by the values that each holds. Left alone, the
#: assembler saves registers by reading two packs after the other two: attention softmax with pair
#: bias and mask 88 percent of the ceiling, and 97 with room for 896 threads (72 registers each);
#: with dropout 80 and 83. For 16 values it costs 1 to 3 points, for 64 values nothing is gained.
RESIDENT = {32: 896}

#: Values of a row of a gradient that a block's registers hold at most: 1024 threads with 64
#: registers and 16 values each, or 512 with twice as many of both. Rows in chunks take more than 64
#: registers whatever the values.
GRADIENT_TILE = 16384
CHUNK_THREADS = 512

#: Threads of a row at most; rows of more than 64 x 256 columns are cut into chunks.
MOST_THREADS = 256

#: Threads of a block that holds several rows: 1024 columns 99 and 96 with 64, 97 and 95 with 128.
SMALL_BLOCK = 64

#: A pack that dropout draws for at once: one Philox call gives eight elements their bits.
DROPOUT_WIDTH = 8

#: Shared memory that the runtime and the exchange between warps keep.
RESERVED_SHARED = 2048


#: The same for gradients, where a thread holds as many of the gradient beside them. Like the
#: forward tile they may follow from the declaration, never from rows or from what is wanted:
#: without operands that have gradients; softmaxes with some; norms with one or two; with more.
GRADIENT_VALUES = {
    "plain": ((4096, 16), (8192, 32), (None, 16)),
    "softmax": ((None, 16),),
    "norm": ((512, 8), (1024, 32), (4096, 16), (8192, 32), (None, 16)),
    "long norm": ((512, 8), (4096, 16), (None, 32)),
}


class Visiting(NamedTuple):
    """How the rows of a gradient are visited: what may depend on their number, and what is wanted.

    Attributes:
        columns: The most, or None.
        values: That a thread holds, if it matters.
        block: Threads of a block that holds several rows.
        ahead: Rows that are asked for before their turn; 0 visits one row a block.
        resident: Threads that a multiprocessor has visiting at a time.
        sums: Where what rows share is summed, "registers" or "shared".
        room: Threads that a multiprocessor shall have room for; 0 leaves it to the compiler.
    """

    columns: int | None
    values: int | None = None
    block: int = 64
    ahead: int = 0
    resident: int = 1024
    sums: str = "registers"
    room: int = 0


#: Sums over rows from which on each is made by one visitor of a few neighbouring rows.
MANY_SUMS = 1024

#: Where no rows share a gradient.
ALONE = (
    Visiting(4096),
    Visiting(8192, room=768),
    Visiting(None, ahead=1, resident=1024),
)

#: Where rows that share a gradient are neighbours, so that a sum is complete after a few rows.
GROUPED = (
    Visiting(512, ahead=1, resident=2048),
    Visiting(4096, ahead=1, resident=4096, sums="shared", room=640),
    Visiting(None, values=16, ahead=1, resident=1024, sums="shared"),
    Visiting(None, resident=512, sums="shared"),
)

#: Where all rows share one.
SUMMED = (
    Visiting(512, block=128, ahead=1, resident=1024),
    Visiting(1024, values=32, block=128, ahead=1, resident=448, sums="shared"),
    Visiting(1024, ahead=1, resident=512, sums="shared"),
    Visiting(4096, ahead=1, resident=768, sums="shared"),
    Visiting(8192, ahead=1, resident=512, sums="shared"),
    Visiting(None, values=16, ahead=1, resident=1024, sums="shared"),
    Visiting(None, resident=512, sums="shared"),  # asking ahead would spill registers
)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A row schedule. `chunks` tiles of `threads * packs * width` columns cover a row.

    A gradient's may fetch the next row of its slice `ahead`, while it works on one.
    """

    kind: str
    threads: int
    packs: int
    width: int
    rows: int
    chunks: int
    exact: bool
    compute_bytes: int
    ahead: int = 0
    resident: int = 0
    sums: str = "registers"
    room: int = 0

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.threads * self.rows

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor shall have room for; 0 leaves it to the compiler."""
        return self.room // self.block

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory of a block."""
        if self.kind != "shared":
            return 0
        return self.rows * self.chunks * self.threads * self.packs * self.width * self.compute_bytes

    @property
    def cpp(self) -> str:
        """The C++ type."""
        storage = STORAGES[self.kind]
        exact = str(self.exact).lower()
        return (
            f"Schedule<{storage}, {self.threads}, {self.packs}, {self.width}, {self.rows}, {exact}>"
        )


def _tile(
    columns: int,
    width: int,
    compute_bytes: int,
    table: tuple[tuple[int | None, int], ...],
    most_threads: int,
) -> tuple[int, int, int]:
    """Threads, packs a thread and chunks of a row."""
    values = next(values for most, values in table if most is None or columns <= most)
    most_packs = max(1, values * 4 // compute_bytes // width)
    packs_of_row = _ceil(columns, width)
    if packs_of_row <= 32 * most_packs:
        threads = _power_of_two_above(_ceil(packs_of_row, most_packs))
        return threads, _ceil(packs_of_row, threads), 1
    if packs_of_row <= most_threads * most_packs:
        # Warps that come out even, if there are any: then no pack need be asked if it is there.
        for packs in range(most_packs, most_packs // 2, -1):
            if packs_of_row % (32 * packs) == 0 and packs_of_row // packs <= most_threads:
                return packs_of_row // packs, packs, 1
        threads = 32 * _ceil(packs_of_row, 32 * most_packs)
        return threads, _ceil(packs_of_row, threads), 1
    chunks = _ceil(packs_of_row, most_threads * most_packs)
    return most_threads, _ceil(packs_of_row, most_threads * chunks), chunks


@functools.lru_cache(maxsize=4096)
def choose(
    columns: int,
    element_bytes: int,
    compute_bytes: int,
    dropout: bool,
    shared_limit: int,
    forced: str | None,
) -> Schedule:
    """The schedule on a GPU.

    Args:
        columns: of a row, at least 1.
        element_bytes: x's itemsize: a pack is 16 bytes of x.
        compute_bytes: 4 or 8.
        dropout: whether the chain draws random numbers.
        shared_limit: bytes of shared memory that a block of this device can opt in to.
        forced: a storage to use whatever the columns, or None.

    Raises:
        ValueError: the forced storage cannot hold the row.
    """
    width = DROPOUT_WIDTH if dropout else 16 // element_bytes
    width = min(width, _power_of_two_below(columns))
    threads, packs, chunks = _tile(columns, width, compute_bytes, VALUES, MOST_THREADS)
    rows = max(1, SMALL_BLOCK // threads) if threads <= 32 else 1
    exact = columns == chunks * threads * packs * width
    values = packs * width * compute_bytes // 4
    room = next((room for most, room in RESIDENT.items() if most // 2 < values <= most), 0)
    schedule = Schedule(
        "register", threads, packs, width, rows, chunks, exact, compute_bytes, room=room
    )
    in_shared = dataclasses.replace(schedule, kind="shared")
    fits = in_shared.shared <= shared_limit - RESERVED_SHARED
    if forced == "host":
        raise ValueError("'host' is the schedule of a CPU")
    kind = forced or ("register" if chunks == 1 else "shared" if fits else "streaming")
    if kind == "register" and chunks > 1:
        raise ValueError(f"a row of {columns} columns does not fit the registers of a block")
    if kind == "shared" and not fits:
        raise ValueError(
            f"a row of {columns} columns takes {in_shared.shared} bytes of shared memory, the "
            f"device has {shared_limit} a block"
        )
    return dataclasses.replace(schedule, kind=kind)


@functools.lru_cache(maxsize=4096)
def choose_gradient(
    columns: int,
    element_bytes: int,
    compute_bytes: int,
    dropout: bool,
    shared_limit: int,
    declared: str,
    sums: tuple[int, ...],
    forced: str | None,
) -> Schedule:
    """The schedule of a gradient on a GPU.

    Args:
        columns: As for `choose`.
        element_bytes: As for `choose`.
        compute_bytes: As for `choose`.
        dropout: As for `choose`.
        shared_limit: As for `choose`.
        declared: Which of `GRADIENT_VALUES`.
        sums: For each operand whose gradient is a sum over rows, how many such sums there are.
        forced: As for `choose`; "register" and "shared" say where the sums are.

    Raises:
        ValueError: the forced storage cannot hold the row.
    """
    width = DROPOUT_WIDTH if dropout else 16 // element_bytes
    width = min(width, _power_of_two_below(columns))
    table = ALONE if not sums else GROUPED if min(sums) >= MANY_SUMS else SUMMED
    values = GRADIENT_VALUES[declared]
    held = next(values for most, values in values if most is None or columns <= most)
    visiting = next(
        one
        for one in table
        if (one.columns is None or columns <= one.columns) and one.values in (None, held)
    )
    most_threads = GRADIENT_TILE // max(16, held)
    threads, packs, chunks = _tile(columns, width, compute_bytes, values, most_threads)
    if chunks > 1 or forced == "streaming":
        threads, packs, chunks = _tile(columns, width, compute_bytes, values, CHUNK_THREADS)
    rows = max(1, visiting.block // threads) if threads <= 32 else 1
    exact = columns == chunks * threads * packs * width
    if forced in ("register", "shared") and chunks > 1:
        raise ValueError(f"a row of {columns} columns does not fit the registers of a block")
    kind = "register" if chunks == 1 and forced != "streaming" else "streaming"
    where = {"register": "registers", "shared": "shared"}.get(forced or "", visiting.sums)
    taken = len(sums) * rows * threads * packs * width * compute_bytes
    if kind == "streaming" or (where == "shared" and taken > shared_limit - RESERVED_SHARED):
        where = "memory"
    return Schedule(
        kind=kind,
        threads=threads,
        packs=packs,
        width=width,
        rows=rows,
        chunks=chunks,
        exact=exact,
        compute_bytes=compute_bytes,
        ahead=visiting.ahead if kind == "register" else 0,
        resident=visiting.resident,
        sums=where,
        room=visiting.room,
    )


def resident_rows(tile: Schedule, multiprocessors: int) -> int:
    """Rows of a gradient that a device visits at a time."""
    return multiprocessors * max(1, tile.resident // tile.block) * tile.rows


def choose_host(columns: int, forced: str | None) -> str:
    """The schedule on a CPU: "host" (the row in a buffer that the caches hold) or "streaming"."""
    if forced in ("register", "shared"):
        raise ValueError(f"a CPU has no {forced} schedule; it has 'host' and 'streaming'")
    if forced == "host" and columns > HOST_BUFFERED:
        raise ValueError(f"a row of {columns} columns does not fit the buffer of {HOST_BUFFERED}")
    return forced or ("host" if columns <= HOST_BUFFERED else "streaming")


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _power_of_two_above(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _power_of_two_below(n: int) -> int:
    return 1 << (n.bit_length() - 1)
