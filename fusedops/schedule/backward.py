# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the row schedule of a backward pass, and how its blocks process the rows.

The tile follows from columns, dtypes, the operator, its operands and the most blocks of a cluster
(backward_tile.py). How many rows a persistent block processes one after another, and where it
accumulates the gradients that rows share, may follow from which gradients are wanted and from the
device as well.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from fusedops.schedule.backward_tile import gradient_tile
from fusedops.schedule.forward import (
    Schedule,
    check_cluster,
    cluster_of,
    reserved_shared,
)
from fusedops.schedule.forward_tile import WIDE_ACCESS, Row
from fusedops.schedule.tiling import full_packs, is_exact

__all__ = ["Visiting", "choose_gradient", "resident_rows"]

#: L2 prefetch distance in bytes, as forward.ASKED but of both streams together, for rows that a
#: cluster shares and that share no gradient. Softmax, 16 bits: 50257 columns 73 without, 84 with 8
#: MB; 65536 columns 90 and 96; 131072 columns 85 and 93. Up to ASKED_COLUMNS, and of 4 bytes where
#: tiles are full, 99 without. A quarter of it for rows that are read twice: 262144 columns 79, with
#: 4 MB 77, with 6 MB 72.
GRADIENT_ASKED = 8 << 20
ASKED_COLUMNS = 16384


class Visiting(NamedTuple):
    """Launch parameters of a gradient: they may depend on the rows and the gradients wanted.

    "Visiting" is the processing of rows one after another by blocks that stay (persistent blocks).

    Attributes:
        columns: Largest row length in elements that the line is for, or None for no bound.
        values: Values per thread (`GradientTile.values`) that the line is for, or None for any.
        odd: Whether the line is only for packs of one column. A sum in shared memory then takes a
            word of its own for each column.
        alone: Whether the line is only for a single sum over rows.
        block: Threads per block, where a block holds several rows.
        ahead: L2 prefetch distance in rows of a slice; 0 turns prefetch off, and gives each block
            one row where nothing is summed.
        resident: Threads of persistent blocks per SM.
        sums: Where gradients that rows share are accumulated, "registers" or "shared" (memory).
        room: Occupancy target in threads per SM; 0 leaves the registers to the compiler.
        asks: How rows are prefetched, as in `Schedule`; None prefetches "at once" where the
            prefetches of each thread would be small.
        gathers: Whether operands are loaded together with the row, as in `Schedule`; some rows are
            loaded first all the same (`_fetches_first`).
    """

    columns: int | None
    values: int | None = None
    odd: bool = False
    alone: bool = False
    block: int = 64
    ahead: int = 0
    resident: int = 1024
    sums: str = "registers"
    room: int = 0
    asks: str | None = None
    gathers: bool = True


#: From this many sums over rows on, each is made by one slice of a few neighbouring rows.
MANY_SUMS = 1024

#: Launch parameters where no rows share a gradient. Above 131072 columns a thread block is large,
#: and what matters is that two blocks fit on an SM.
ALONE = (
    Visiting(4096),
    Visiting(131072, room=768),
    Visiting(None, odd=True, room=768),
    # 151936 columns 89 percent, 84 where every cluster has one row and prefetches across rows.
    Visiting(163840, ahead=1, resident=640, room=640),
    Visiting(None, room=1024),  # 180000 columns 85, 56 with a target of 768
)

#: Launch parameters where no rows share a gradient, of 4 bytes per column and more.
WIDE_ALONE = (
    Visiting(4096),
    Visiting(131072, room=768),
    Visiting(196608, room=1024),  # 163840, 196608 columns 100, 77 and 82 with a target of 768
    # 200000 columns, softmax and log-softmax, 97 and 84; 98 and 70 where operands are loaded
    # together with the row.
    Visiting(212992, room=896, gathers=False),
    Visiting(None, room=768),
)

#: Launch parameters where rows that share a gradient are neighbours, so that a sum is complete
#: after a few rows.
GROUPED = (
    Visiting(512, ahead=1, resident=2048),
    Visiting(4096, ahead=1, resident=4096, sums="shared", room=640),
    Visiting(None, values=16, ahead=1, resident=1024, sums="shared"),
    Visiting(None, resident=512, sums="shared"),
)

#: Launch parameters where all rows share a gradient. One sum of 32 values fits the registers beside
#: the row: RMSNorm of 16384 columns of 16 bits 93 percent with it, 88 with sums in shared memory;
#: of 65536 columns 94 and 83. Two sums do not fit. From 8192 columns on, rows of two sums are
#: prefetched by line: LayerNorm of 8192, 16384 and 32768 columns 90, 90 and 88 percent; by one
#: thread at once 73, 88 and 84.
SUMMED = (
    # LayerNorm and RMSNorm of 257 columns 64 and 68 percent; in blocks of 128 threads, with 512
    # resident per SM, 64 and 65, where rows are prefetched at once 61 and 63. Of 511 columns 69 and
    # 73, and 56 and 57 where the registers are left to the compiler. Of 1023 columns by line 78 and
    # 80, at once 76 and 79.
    Visiting(
        512,
        values=32,
        odd=True,
        block=192,
        ahead=1,
        resident=384,
        room=384,
        asks="by line",
        gathers=False,
    ),
    Visiting(512, odd=True, block=128, ahead=1, resident=512, asks="by line"),
    Visiting(4096, odd=True, alone=True, block=128, ahead=1, resident=384, asks="by line"),
    Visiting(4096, odd=True, block=128, ahead=1, resident=448, asks="by line"),
    # LayerNorm of 12289 columns 69, 57 to 60 with sums in shared memory.
    Visiting(None, odd=True, ahead=1, resident=512, room=512),
    # 128 columns 75 and 78; with sums in registers 69 and 77.
    Visiting(
        128,
        values=8,
        block=128,
        ahead=1,
        resident=1024,
        sums="shared",
        room=1024,
        gathers=False,
    ),
    # 256 columns, LayerNorm and RMSNorm: 81 and 85 with these, with sums in registers 78 and 83, of
    # 8 values 80 and 83; 512 columns 83 and 86 with these, 82 and 83 where operands are loaded
    # after the row.
    Visiting(
        256, values=16, block=256, ahead=1, resident=896, sums="shared", room=896, gathers=False
    ),
    Visiting(512, values=16, block=128, ahead=1, resident=640, sums="shared", room=640),
    Visiting(512, block=128, ahead=1, resident=1024),
    # LayerNorm 86, RMSNorm 88; of 16 values 84 and 85.
    Visiting(1024, values=32, block=128, ahead=1, resident=512, sums="shared", asks="at once"),
    Visiting(1024, ahead=1, resident=512, sums="shared"),
    Visiting(2048, ahead=1, resident=640, sums="shared", room=640),  # 87 and 89, as 4096 85 and 88
    Visiting(4096, ahead=1, resident=768, sums="shared"),
    Visiting(8192, ahead=1, resident=512, sums="shared", room=512, asks="by line"),
    Visiting(32768, alone=True, ahead=1, resident=512, room=512, asks="at once"),
    Visiting(None, alone=True, ahead=1, resident=512, asks="at once"),
    Visiting(32768, ahead=1, resident=512, sums="shared", room=512, asks="by line"),
    # LayerNorm of 65536 columns 82, 78 where operands are loaded together with the row.
    Visiting(65536, ahead=1, resident=512, sums="shared", room=512, asks="at once", gathers=False),
    Visiting(None, ahead=1, resident=512, sums="shared", room=512, asks="by line"),
)

#: Launch parameters where all rows share a gradient, for norms of 4 bytes per column. A row that
#: does not fill its tiles is prefetched at once by one thread: 30522 columns 87 percent, 77 where
#: each thread prefetches.
WIDE_SUMMED = (
    # 257 columns, LayerNorm and RMSNorm: 81 and 83 with these, 79 and 79 where operands are loaded
    # together with the row; 1023 columns 86 and 88, 84 and 85; 50257 columns 81 and 84, 78 and 83.
    Visiting(4096, odd=True, ahead=1, resident=512, asks="each thread", gathers=False),
    Visiting(32768, odd=True, ahead=1, resident=640, room=640),
    Visiting(None, odd=True, ahead=1, resident=512, room=512, gathers=False),
    # 64 columns 77 and 82, 128 columns 84 and 86; with sums in registers and 512 threads 75 and 79,
    # 82 and 84.
    Visiting(128, block=128, ahead=1, resident=1024, sums="shared", room=1024),
    Visiting(256, ahead=1, resident=512, gathers=False),  # 85 and 87, otherwise 84 and 85
    Visiting(1024, ahead=1, resident=640, room=640, asks="each thread"),
    # 2048 columns 92 and 93 with these, 90 and 90 where operands are loaded together with the row.
    Visiting(2048, ahead=1, resident=640, room=640, asks="by line", gathers=False),
    Visiting(4096, ahead=1, resident=512, room=512, asks="by line"),
    Visiting(
        32768, ahead=1, resident=640, asks="each thread"
    ),  # 8192 columns 93 and 94, by line 90
    Visiting(
        65536, ahead=1, resident=512, room=512, asks="by line"
    ),  # 92 and 94, by each thread 91
    # RMSNorm of 131072 columns 84, 82 where operands are loaded together with the row, prefetched
    # at once 67.
    Visiting(196608, alone=True, ahead=1, resident=512, asks="each thread", gathers=False),
    Visiting(None, alone=True, ahead=1, resident=512),
    Visiting(131072, ahead=1, resident=512, room=512),  # 87, with sums in shared memory 70
    Visiting(196608, ahead=1, resident=512),
    Visiting(None, ahead=1, resident=512, sums="shared"),
)


@functools.lru_cache(maxsize=4096)
def choose_gradient(
    row: Row,
    shared_limit: int,
    cluster_limit: int,
    declared: str,
    sums: tuple[int, ...],
    forced: str | None = None,
) -> Schedule:
    """Choose the schedule of a backward pass on a GPU.

    Args:
        row: As for `choose`; its `streams` make no difference.
        shared_limit: Bytes of shared memory that a block of this device can opt in to.
        cluster_limit: Largest number of thread blocks in a cluster; 1 without clusters.
        declared: A key of `backward_tile.GRADIENT_VALUES`.
        sums: For each operand whose gradient is a sum over rows, the number of such sums.
        forced: A storage or None, as for `choose`; "register" and "shared" say where the sums are
            accumulated, "cluster" that a cluster shares the row.

    Raises:
        ValueError: The forced storage cannot hold the row.
    """
    columns, compute_bytes = row.columns, row.compute_bytes
    tile, values, odd, wide = gradient_tile(row, cluster_limit, declared)
    threads, packs, width, chunks, chunk = tile
    summed = WIDE_SUMMED if wide else SUMMED
    alone = ALONE if row.element_bytes == 2 else WIDE_ALONE
    table = alone if not sums else GROUPED if min(sums) >= MANY_SUMS else summed
    visiting = next(
        one
        for one in table
        if (one.columns is None or columns <= one.columns)
        and one.values in (None, values)
        and odd >= one.odd
        and one.alone <= (len(sums) == 1)
    )
    rows = max(1, visiting.block // threads) if threads <= 32 else 1
    exact = is_exact(columns, tile.holds, chunks)
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
    taken = len(sums) * rows * tile.holds * compute_bytes
    if not one_tile or (
        where == "shared" and taken > shared_limit - reserved_shared(threads, compute_bytes)
    ):
        where = "memory"
    # Without sums, blocks are persistent only where an SM has two at least, so that one computes
    # while another loads.
    stays = len(sums) > 0 or 2 * threads <= visiting.resident
    visits = visiting.ahead > 0 and one_tile and stays
    ahead, asks = (visiting.ahead, "each thread") if visits else (0, "never")
    # Where a pack is one column, a prefetch per thread costs as much as its load: 16-bit LayerNorm
    # of 1023 columns would spend a third of its instructions on it.
    if visits and (cluster > 1 or odd or visiting.asks):
        asks = visiting.asks or "at once"
        if cluster > 1 and not (exact or odd):
            asks = "at once"
    long = columns > ASKED_COLUMNS and row.element_bytes == 2
    if not (sums or visits) and cluster > 1 and (long or not exact):
        asked = GRADIENT_ASKED if one_tile else GRADIENT_ASKED // 4
        ahead, asks = max(1, asked // (2 * row.bytes)), "across"
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
        gathers=visiting.gathers and not _fetches_first(row, len(sums), width, one_tile),
    )


def _fetches_first(row: Row, sums: int, width: int, one_tile: bool) -> bool:
    """Whether a row is loaded before the operands that are read beside it (no `gathers`).

    With 16 bits in narrow packs there are as many loads as values, and no registers for those of
    operands as well. LayerNorm of 1023, 12289 and 30522 columns 78, 69 and 72 row first, 59, 62 and
    65 together; RMSNorm 78, 74 and 80, and 80, 81 and 87. Without sums, where rows are short:
    softmax of 8192 and 16384 columns 99 and 100 row first, 94 and 88; of 30522, 65536 and 131072
    columns 93, 96 and 92, and 93, 97 and 95; of 12289 and 50257 columns 90 and 85, 86 and 77; of
    200000 and 262144 columns, which are read twice, 72 and 79, 59 and 70.
    """
    narrow = row.element_bytes == 2 and width * row.element_bytes < WIDE_ACCESS
    if sums == 0:
        twice = not one_tile and row.element_bytes == 2
        return twice or row.columns <= ASKED_COLUMNS or (narrow and width == 1)
    return narrow and sums > 1


def visitors(multiprocessors: int, blocks: int, cluster: int) -> int:
    """Number of persistent clusters that are resident on the device at a time.

    A cluster's blocks run on neighbouring SMs, whose number no cluster size divides: one H200 holds
    132, 62, 30 and 14 clusters of 2, 4, 8 and 16 blocks, at two blocks per SM.

    Args:
        multiprocessors: Number of SMs of the device.
        blocks: Resident thread blocks per SM.
        cluster: Blocks in a cluster; 1 without clusters.
    """
    lost = 0 if cluster < 3 else 0.06 if cluster < 6 else 0.09 if cluster < 9 else 0.15
    return max(1, int(multiprocessors * max(1, blocks) * (1 - lost) / cluster))


def resident_rows(tile: Schedule, multiprocessors: int) -> int:
    """Number of rows that the persistent blocks of a device process at a time."""
    return visitors(multiprocessors, tile.resident // tile.block, tile.cluster) * tile.rows
