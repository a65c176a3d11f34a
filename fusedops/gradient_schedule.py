# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the row schedule of a gradient, and how its rows are visited.

The tile follows from columns, dtypes and the declaration, as a forward pass's does (schedule.py):
dx of a row depends on its row alone. How many rows a block visits one after another, and where it
adds up what they share, may follow from what is wanted and from the device as well.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from fusedops.schedule import (
    Schedule,
    check_cluster,
    cluster_of,
    full_packs,
    is_exact,
    pack_width,
    reserved_shared,
    tile_of,
)

__all__ = ["GRADIENT_VALUES", "Visiting", "choose_gradient", "resident_rows"]

#: Columns of a row of a gradient that one block holds, beyond which it is cut into chunks: 16384
#: columns in one block of 1024 threads reach 94 percent of the ceiling, in two of 256 threads 99.
GRADIENT_TILE = 8192

#: Columns beyond which a block of the largest cluster holds twice as many: what a cluster does not
#: hold is read twice, and 151936 columns reached 15 percent with LayerNorm, 64 with softmax.
GRADIENT_CLUSTER = 16 * GRADIENT_TILE

#: As schedule.ASKED, of both streams together, for rows that a cluster shares, do not fill their
#: tiles, and share no gradient. Softmax of 50257 columns: 64 without, 76 with 8 MB; of 128256
#: columns 68 and 78. Where tiles are full, asking costs: 32768 columns 96 without, 87 with 8 MB.
GRADIENT_ASKED = 8 << 20

#: As schedule.VALUES, where a thread holds as many of the gradient beside them. Like the
#: forward tile they may follow from the declaration, never from rows or from what is wanted:
#: without operands that have gradients; softmaxes with some; norms with one or two; with more.
GRADIENT_VALUES = {
    "plain": ((4096, 16), (None, 32)),
    "softmax": ((8192, 16), (None, 32)),
    "norm": ((512, 8), (1024, 32), (4096, 16), (None, 32)),
    "long norm": ((512, 8), (4096, 16), (None, 32)),
}

#: The same of norms where a pack is one column: LayerNorm of 257 columns 34 with 8 values, 59 with
#: 32; of 1023 columns 70 with 16, 73 with 32; of 50257 columns 31 and 51.
ODD_VALUES = ((None, 32),)

#: Both for norms of four bytes a column, where a pack is of four: LayerNorm of 2048 columns 70 percent
#: with 16 values and sums in shared memory, 91 with 8 and sums in registers; of 16384 columns 74 with
#: 32, 89 with 16; of 32768 columns 72 and 91. What a cluster of 16 values does not hold is read twice.
WIDE_VALUES = ((4096, 8), (65536, 16), (None, 32))
WIDE_ODD_VALUES = ((512, 16), (4096, 8), (32768, 16), (None, 32))


class Visiting(NamedTuple):
    """How the rows of a gradient are visited: what may depend on their number, and what is wanted.

    Attributes:
        columns: The most, or None.
        values: That a thread holds, if it matters.
        odd: Only where a pack is one column. A sum in shared memory then is a word of its own.
        block: Threads of a block that holds several rows.
        ahead: Rows of a slice that are asked for before their turn; 0 does not, and visits one row
            a block where nothing is summed.
        resident: Threads that a multiprocessor has visiting at a time.
        sums: Where what rows share is summed, "registers" or "shared".
        room: Threads that a multiprocessor shall have room for; 0 leaves it to the compiler.
        asks: How, as in `Schedule`; None asks at once where a thread would ask for little.
    """

    columns: int | None
    values: int | None = None
    odd: bool = False
    block: int = 64
    ahead: int = 0
    resident: int = 1024
    sums: str = "registers"
    room: int = 0
    asks: str | None = None


#: Sums over rows from which on each is made by one visitor of a few neighbouring rows.
MANY_SUMS = 1024

#: Where no rows share a gradient.
ALONE = (
    Visiting(4096),
    Visiting(None, room=768),
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
    Visiting(512, odd=True, block=128, ahead=1, resident=512),
    Visiting(4096, odd=True, ahead=1, resident=768),
    Visiting(None, odd=True, ahead=1, resident=768, sums="shared"),
    Visiting(512, block=128, ahead=1, resident=1024),
    Visiting(1024, values=32, block=128, ahead=1, resident=448, sums="shared"),
    Visiting(1024, ahead=1, resident=512, sums="shared"),
    Visiting(4096, ahead=1, resident=768, sums="shared"),
    Visiting(None, ahead=1, resident=512, sums="shared"),
)

#: The same with WIDE_VALUES. A row that does not fill its tiles is asked for at once by one thread:
#: 30522 columns 87 percent, 77 where each asks.
WIDE_SUMMED = (
    Visiting(4096, odd=True, ahead=1, resident=512, asks="each thread"),
    Visiting(32768, odd=True, ahead=1, resident=1024, asks="each thread"),
    Visiting(None, odd=True, ahead=1, resident=512, sums="shared", room=512, asks="at once"),
    Visiting(256, ahead=1, resident=512, asks="each thread"),
    Visiting(65536, ahead=1, resident=640, asks="each thread"),
    Visiting(None, ahead=1, resident=512, sums="shared"),
)


@functools.lru_cache(maxsize=4096)
def choose_gradient(
    columns: int,
    element_bytes: int,
    compute_bytes: int,
    dropout: bool,
    shared_limit: int,
    cluster_limit: int,
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
        cluster_limit: As for `choose`.
        declared: Which of `GRADIENT_VALUES`.
        sums: For each operand whose gradient is a sum over rows, how many such sums there are.
        forced: As for `choose`; "register" and "shared" say where the sums are, "cluster" that
            the row is shared.

    Raises:
        ValueError: the forced storage cannot hold the row.
    """
    width = pack_width(columns, element_bytes, dropout)
    wide = declared == "norm" and element_bytes == compute_bytes == 4
    summed = WIDE_SUMMED if wide else SUMMED
    table = ALONE if not sums else GROUPED if min(sums) >= MANY_SUMS else summed
    odd = width == 1
    values = GRADIENT_VALUES[declared]
    if declared == "norm" and (wide or odd):
        values = (WIDE_ODD_VALUES if odd else WIDE_VALUES) if wide else ODD_VALUES
    held = next(values for most, values in values if most is None or columns <= most)
    visiting = next(
        one
        for one in table
        if (one.columns is None or columns <= one.columns)
        and one.values in (None, held)
        and odd >= one.odd
    )
    of_floats = columns * compute_bytes // 4
    chunked = GRADIENT_TILE < of_floats <= GRADIENT_CLUSTER
    most_threads = GRADIENT_TILE // 32 if chunked else GRADIENT_TILE // 16
    threads, packs, chunks, chunk = tile_of(columns, width, compute_bytes, values, most_threads)
    rows = max(1, visiting.block // threads) if threads <= 32 else 1
    exact = chunk == threads * packs * width and is_exact(columns, chunk, chunks)
    if forced in ("register", "shared") and chunks > 1:
        raise ValueError(f"a row of {columns} columns does not fit the registers of a block")
    cluster = cluster_of(chunks, cluster_limit)
    if forced == "cluster":
        check_cluster(columns, chunks, cluster)
    if forced == "streaming":
        cluster = 1
    kind = "cluster" if cluster > 1 else "register" if chunks == 1 else "streaming"
    kind = "streaming" if forced == "streaming" else kind
    one_tile = kind == "register" or (kind == "cluster" and cluster >= chunks)
    where = {"register": "registers", "shared": "shared"}.get(forced or "", visiting.sums)
    taken = len(sums) * rows * threads * packs * width * compute_bytes
    if not one_tile or (
        where == "shared" and taken > shared_limit - reserved_shared(threads, compute_bytes)
    ):
        where = "memory"
    visits = visiting.ahead > 0 and one_tile
    ahead, asks = (visiting.ahead, "each thread") if visits else (0, "never")
    # One number a thread is no more to ask for than a row: 16-bit LayerNorm of 1023 columns would
    # spend a third of its instructions on it.
    if visits and (cluster > 1 or odd):
        asks = "at once" if cluster > 1 and not (exact or odd) else visiting.asks or "at once"
    if not sums and not exact and cluster > 1:
        ahead, asks = max(1, GRADIENT_ASKED // (2 * columns * element_bytes)), "across"
    return Schedule(
        kind=kind,
        threads=threads,
        packs=packs,
        width=width,
        rows=rows,
        chunks=chunks,
        chunk=chunk,
        exact=exact,
        compute_bytes=compute_bytes,
        full=full_packs(columns, threads, chunk, max(chunks, cluster), width),
        pieces=columns % width > 0,
        cluster=cluster,
        ahead=ahead,
        asks=asks,
        visits=visits,
        resident=visiting.resident,
        sums=where,
        room=visiting.room if one_tile else 0,
    )


def visitors(multiprocessors: int, blocks: int, cluster: int) -> int:
    """Clusters of which so many blocks a multiprocessor find room at once.

    A cluster's blocks run on neighbouring multiprocessors, whose number no size of a cluster
    divides: one H200 has room for 132, 62, 30 and 14 clusters of 2, 4, 8 and 16 blocks, two a
    multiprocessor.
    """
    lost = 0 if cluster < 3 else 0.06 if cluster < 6 else 0.09 if cluster < 9 else 0.15
    return max(1, int(multiprocessors * max(1, blocks) * (1 - lost) / cluster))


def resident_rows(tile: Schedule, multiprocessors: int) -> int:
    """Rows of a gradient that a device visits at a time."""
    return visitors(multiprocessors, tile.resident // tile.block, tile.cluster) * tile.rows
