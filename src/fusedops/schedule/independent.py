# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the schedule of an operator that reduces nothing: rows are cut into independent chunks.

Each chunk has a thread block of its own, whatever the length of the row and the architecture. No
tile changes a bit of a result or of the gradient of x, so the tile follows from speed alone. A sum
over rows depends on the number of blocks, as it does for every operator. Lengths share kernels as
those of other operators do (tiling.py).
"""

from __future__ import annotations

from fusedops.schedule.architectures import Gpu
from fusedops.schedule.forward_tile import Row
from fusedops.schedule.launch import LaunchConfig
from fusedops.schedule.row_schedule import Schedule
from fusedops.schedule.tiling import (
    Bucket,
    Table,
    Tile,
    at_most,
    bucket_of,
    ceil_div,
    of_lanes,
)

__all__ = ["choose_map", "choose_map_gradient"]

#: Threads in a block.
THREADS = 256

#: Bytes of x that a thread has, and the most packs: several vector accesses in flight, in few
#: enough registers that many threads fit on an SM. One H200, 16 bits, a bias, percent of the
#: ceiling: 1024 columns 98, 4096 columns 99, 65536 columns 97. Where a pack is one column, fewer
#: packs ought to do better: 1023 columns 48 with 32 packs.
FORWARD = (64, 16)
BACKWARD = (32, 16)  # also forward where a functor reads a partner, which takes registers

#: Occupancy targets in threads per SM, by values per thread, as for softmaxes in sm_90.json: with
#: 32 values room for the loads of several tensors at a time is worth more than more threads. 0
#: leaves the registers to the compiler.
OCCUPANCY: Table = ((16, 0), (None, 896))

#: Occupancy target where columns of a warp's row share numbers in blocks. Its lanes exchange, so a
#: block has one row: then none is without. A gate of SwiGLU of 1024 columns, y of 8 bits,
#: scales of 128 and of 32 columns, percent of a copy of as many bytes: 96 and 98, with eight rows a
#: block 87 and 87, with one and a target of 896 threads 97 and 94.
ALONE = 1024

#: Threads per SM of blocks that visit one row after another, and what there is room for: where the
#: gradients of y and of x are all of x's size that moves, and where there is more, whose registers
#: are worth more than threads. Percent of the ceiling on one H200 with 512, 640, 768 and 1024
#: threads, 16 bits: a bias of 256 columns 71, 71, 76, 78, of 16384 84, 84, 88, 90; bias, GELU and
#: residual of 1024 columns 83, 83, 80, 66, of 16384 88, 88, 86, 80, with a dropout 88, 88, 81, 69.
PERSISTENT = 1024
PERSISTENT_OF_MORE = 640


#: Rows that a thread has at a time where a functor reads a partner, and rows share its operands. A
#: rotation of 128 columns of 16 bits 92 in blocks of 64 threads, 94 in those of a warp, of which so
#: few fit that fewer bytes are in flight; four rows abreast 93, eight 92.
ABREAST = 2


def choose_map(
    row: Row,
    gpu: Gpu,
    storage: str | None = None,
    launch: LaunchConfig | None = None,
) -> Schedule:
    """Choose the schedule of a forward pass on a GPU.

    Args:
        row: The facts of a row; `streams` and `centred` make no difference.
        gpu: The facts of the GPU.
        storage: A storage that a test forces, or None.
        launch: A launch configuration in place of the chosen one, or None.

    Raises:
        ValueError: The storage is one of a row that is reduced.
    """
    _check(storage)
    bucket = _bucket(row, BACKWARD if row.paired else FORWARD)
    occupancy = at_most(OCCUPANCY, bucket.tile.registers(row.compute_bytes))
    if launch is None and row.align and bucket.tile.threads == 32 and bucket.tile.chunks == 1:
        launch = LaunchConfig(1, min(ALONE, gpu.threads_per_sm))
    if launch is not None:
        launch = launch.with_abreast(row.sharing)
    made = _made(row, bucket, gpu, occupancy, launch)
    if launch is not None or row.sharing == 1:
        return made
    rows = max(1, 32 // bucket.tile.threads)
    return made.replaced(launch=made.launch._replace(rows_per_block=rows, abreast=ABREAST))


def choose_map_gradient(
    row: Row,
    gpu: Gpu,
    sums: int,
    across: bool,
    more: bool,
    storage: str | None = None,
    launch: LaunchConfig | None = None,
    straight: bool = False,
) -> Schedule:
    """Choose the schedule of a backward pass on a GPU.

    Args:
        row: The facts of a row; `streams` and `centred` make no difference.
        gpu: The facts of the GPU.
        sums: The number of operands whose gradients can be sums over rows.
        across: Whether the gradient of an operand is a sum over all columns of a row. One block
            then visits all chunks of a row.
        more: Whether tensors of x's size move beside the gradients of y and of x.
        storage: A storage that a test forces, or None.
        launch: A launch configuration in place of the chosen one, or None.
        straight: Whether x alone is read and its gradient alone is written (row/straight.cuh). That
            moves as much as a forward pass, and has its tile, but for packs of one column.

    Raises:
        ValueError: The storage is one of a row that is reduced.
    """
    _check(storage)
    if launch is not None:
        launch = launch.with_abreast(row.sharing)
    bucket = _bucket(row, FORWARD if straight and row.width > 1 else BACKWARD)
    occupancy = at_most(OCCUPANCY, bucket.tile.registers(row.compute_bytes))
    persistent = PERSISTENT_OF_MORE if more else PERSISTENT
    if sums or across:
        occupancy = persistent
    streams = across and bucket.tile.chunks > 1
    return _made(row, bucket, gpu, occupancy, launch, persistent, summed=sums > 0, streams=streams)


def _check(storage: str | None) -> None:
    if storage not in (None, "chunks"):
        raise ValueError(
            f"an operator that reduces nothing keeps no rows: it has no {storage!r} schedule, only "
            "'chunks'"
        )


def _bucket(row: Row, values: tuple[int, int]) -> Bucket:
    """The bucket of a row, with the row's tile."""

    def tile_at(columns: int, fills: bool) -> Tile:
        return _tile(row, columns, values)

    return bucket_of(
        row.columns,
        row.width,
        row.cut,
        tile_at,
        shared=False,
        padded=row.dropout,
        align=row.align,
    )


def _tile(row: Row, columns: int, values: tuple[int, int]) -> Tile:
    """Cut rows of up to so many columns into chunks of at most THREADS threads.

    Of `row` only what all rows of a bucket have in common counts.
    """
    size, most = values
    width = row.width
    registers = size // row.element_bytes * 4 // row.compute_bytes
    packs = max(1, min(registers // width, most))
    packs_of_row = ceil_div(columns, width)
    if packs_of_row <= 32 * packs:
        return of_lanes(packs_of_row, packs, width)
    chunks = ceil_div(packs_of_row, THREADS * packs)
    threads = 32 * ceil_div(packs_of_row, 32 * packs * chunks)
    return Tile(threads, packs, width, chunks, threads * packs * width)


def _made(
    row: Row,
    bucket: Bucket,
    gpu: Gpu,
    occupancy: int,
    launch: LaunchConfig | None,
    persistent: int = PERSISTENT,
    *,
    summed: bool = False,
    streams: bool = False,
) -> Schedule:
    tile = bucket.tile
    if launch is None:
        rows = max(1, THREADS // tile.threads) if tile.chunks == 1 and tile.threads <= 32 else 1
        launch = LaunchConfig(
            rows,
            min(occupancy, gpu.threads_per_sm),
            persistent_threads_per_sm=min(persistent, gpu.threads_per_sm),
        )
        if summed:  # a block visits its rows one after another
            launch = launch._replace(prefetch="per_thread", prefetch_distance=1)
    if streams:
        launch = launch._replace(sum_storage="memory")
    return Schedule(
        "streaming" if streams else "chunks",
        tile,
        launch,
        exact=bucket.exact,
        compute_bytes=row.compute_bytes,
        full=bucket.full,
        pieces=row.columns % tile.width > 0,
        lengths=(bucket.low, bucket.top),
    )
