# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the row schedule: how many threads hold a row, in how many packs, and where it lives.

The tile (threads x packs x width) follows from columns and dtypes alone, since it decides who is added
to whom. The storage may follow the device: registers, shared memory and streaming reduce the same
tiles in the same order, so they agree to the bit. Nothing here depends on the number of rows.
"""

from __future__ import annotations

import dataclasses
import functools

__all__ = ["HOST_BUFFERED", "STORAGES", "Schedule", "choose", "choose_host"]

#: Storages by the names that `fusedops.testing.force_schedule` takes.
STORAGES = {
    "register": "InRegisters",
    "shared": "InShared",
    "streaming": "Streamed",
}

#: Columns that a CPU thread keeps between reduction and result; as HostSchedule::kBuffered.
HOST_BUFFERED = 16384

#: Values that a thread holds: 4 packs of 8 halves, each an independent 16-byte read, which is what it
#: takes to have about 32 KiB in flight a multiprocessor (H200: 97 to 100 % of a copy's bandwidth from
#: 256 to 16384 columns). A double takes two registers.
VALUES = {4: 32, 8: 16}

#: Threads of a row at most: 32 values and what surrounds them need more than the 64 registers that are
#: left to each of 1024 threads.
MOST_THREADS = 512

#: Threads of a block that holds several rows.
SMALL_BLOCK = 128

#: A pack that dropout draws for at once: one Philox call gives eight elements their bits.
DROPOUT_WIDTH = 8

#: Shared memory that the runtime and the exchange between warps keep.
RESERVED_SHARED = 2048


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A row schedule. `chunks` tiles of `threads * packs * width` columns cover a row."""

    kind: str
    threads: int
    packs: int
    width: int
    rows: int
    chunks: int
    exact: bool
    compute_bytes: int

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.threads * self.rows

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
    most_packs = max(1, VALUES[compute_bytes] // width)
    packs_of_row = _ceil(columns, width)
    chunks = 1
    if packs_of_row <= 32 * most_packs:
        threads = _power_of_two_above(_ceil(packs_of_row, most_packs))
    else:
        threads = 32 * _ceil(packs_of_row, 32 * most_packs)
        if threads > MOST_THREADS:
            threads = MOST_THREADS
            chunks = _ceil(packs_of_row, threads * most_packs)
    packs = _ceil(packs_of_row, threads * chunks)
    rows = max(1, SMALL_BLOCK // threads) if threads <= 32 else 1
    exact = columns == chunks * threads * packs * width
    schedule = Schedule("register", threads, packs, width, rows, chunks, exact, compute_bytes)
    in_shared = dataclasses.replace(schedule, kind="shared")
    fits = in_shared.shared <= shared_limit - RESERVED_SHARED
    if forced == "host":
        raise ValueError("'host' is the schedule of a CPU")
    kind = forced or ("register" if chunks == 1 else "shared" if fits else "streaming")
    if kind == "register" and chunks > 1:
        raise ValueError(f"a row of {columns} columns does not fit the registers of a block")
    if kind == "shared" and not fits:
        raise ValueError(
            f"a row of {columns} columns takes {in_shared.shared} bytes of shared memory, the device "
            f"has {shared_limit} a block"
        )
    return dataclasses.replace(schedule, kind=kind)


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
