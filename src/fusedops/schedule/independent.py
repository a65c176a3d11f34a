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
from fusedops.schedule.features import IndependentFeatures
from fusedops.schedule.forward_tile import Row
from fusedops.schedule.launch import LaunchConfig
from fusedops.schedule.lookup import launch_config
from fusedops.schedule.row_schedule import Schedule
from fusedops.schedule.tiling import Bucket, Tile, bucket_of, ceil_div, of_lanes

__all__ = ["choose_map", "choose_map_gradient"]

#: The most threads of a chunk.
THREADS = 256

#: Bytes of x that a thread has, and the most packs: several vector accesses in flight, in few
#: enough registers that many threads fit on an SM. One H200, 16 bits, a bias, percent of the
#: ceiling: 1024 columns 98, 4096 columns 99, 65536 columns 97. Where a pack is one column, fewer
#: packs ought to do better: 1023 columns 48 with 32 packs.
FORWARD = (64, 16)
BACKWARD = (32, 16)  # also forward where a functor reads a partner, which takes registers


def choose_map(
    row: Row,
    arch: str,
    gpu: Gpu,
    storage: str | None = None,
    launch: LaunchConfig | None = None,
) -> Schedule:
    """Choose the schedule of a forward pass on a GPU.

    The arguments are those of `forward.choose`; `streams` and `centred` of a row make no
    difference.

    Raises:
        ValueError: The storage is one of a row that is reduced.
    """
    _check(storage)
    bucket = _bucket(row, BACKWARD if row.paired else FORWARD)
    features = _features(row, bucket.tile)._replace(in_blocks=row.align > 0)
    launch = launch or launch_config(features, arch, gpu).config
    return _made(row, bucket, launch)


def choose_map_gradient(
    row: Row,
    arch: str,
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
        arch: The architecture that the kernel is built for.
        gpu: The facts of the GPU.
        sums: The number of operands whose gradients can be sums over rows.
        across: Whether the gradient of an operand is a sum over all columns of a row. One block
            then visits all chunks of a row.
        more: Whether tensors of x's size move beside the gradients of y and of x.
        storage: A storage that a test forces, or None.
        launch: A launch configuration in place of the one that is looked up, or None.
        straight: Whether x alone is read and its gradient alone is written (row/straight.cuh). That
            moves as much as a forward pass, and has its tile, but for packs of one column.

    Raises:
        ValueError: The storage is one of a row that is reduced.
    """
    _check(storage)
    bucket = _bucket(row, FORWARD if straight and row.width > 1 else BACKWARD)
    features = _features(row, bucket.tile)._replace(
        gradient=True, sums=sums, visits=sums > 0 or across, more=more
    )
    launch = launch or launch_config(features, arch, gpu).config
    if across and bucket.tile.chunks > 1:
        return _made(row, bucket, launch._replace(sum_storage="memory"), "streaming")
    return _made(row, bucket, launch)


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


def _features(row: Row, tile: Tile) -> IndependentFeatures:
    return IndependentFeatures(
        gradient=False,
        values=tile.registers(row.compute_bytes),
        threads=tile.threads,
        chunks=tile.chunks,
        sharing=row.sharing,
    )


def _made(row: Row, bucket: Bucket, launch: LaunchConfig, storage: str = "chunks") -> Schedule:
    return Schedule(
        storage,
        bucket.tile,
        launch.with_abreast(row.sharing),
        exact=bucket.exact,
        compute_bytes=row.compute_bytes,
        full=bucket.full,
        pieces=row.columns % bucket.tile.width > 0,
        lengths=(bucket.low, bucket.top),
    )
