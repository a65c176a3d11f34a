# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the schedule of a forward pass: tile, storage of a row, and launch configuration.

The storage may follow the device: registers, a cluster of thread blocks, shared memory and
streaming reduce the same tiles (forward_tile.py) in the same order, so they agree to the bit.
Nothing here depends on the number of rows.
"""

from __future__ import annotations

import dataclasses

from fusedops.schedule.architectures import Gpu
from fusedops.schedule.features import ForwardFeatures
from fusedops.schedule.forward_tile import (
    FORGOTTEN_BYTES,
    FORGOTTEN_THREADS,
    WIDE_ACCESS,
    Row,
    is_staged_tile,
    row_bucket,
)
from fusedops.schedule.launch import LaunchConfig
from fusedops.schedule.lookup import Found, launch_config, remembered
from fusedops.schedule.row_schedule import (
    STAGED_WORD,
    Schedule,
    check_cluster,
    check_reduces,
    cluster_of,
    reserved_shared,
)
from fusedops.schedule.tiling import Bucket, Tile

#: Occupancy targets in threads per SM of kernels that keep nothing of a row: without operands, as
#: measured beside forward_tile.FORGOTTEN_THREADS, and where operands take registers as well.
FORGETTING, FORGETTING_MORE = 1536, 1024

__all__ = ["HOST_BUFFERED", "Row", "choose", "choose_host", "host_columns", "staged"]

#: Largest number of columns of each CPU kernel that keeps rows in a buffer. The loops of the short
#: ones have constant bounds, and several rows go through each step together (host/rows.cuh). The
#: last is HostSchedule::kBuffered: 256 KiB of float, which an L2 cache holds, and twice that
#: in a backward pass.
HOST_COLUMNS = (16, 32, 64, 128, 65536)
HOST_BUFFERED = HOST_COLUMNS[-1]


def choose(
    row: Row,
    arch: str,
    gpu: Gpu,
    storage: str | None = None,
    launch: LaunchConfig | None = None,
) -> Schedule:
    """Choose the schedule of a forward pass on a GPU.

    Args:
        row: The facts from which the tile follows.
        arch: The architecture that the kernel is built for.
        gpu: The facts of the GPU.
        storage: A storage to use whatever the columns, or None.
        launch: A launch configuration in place of the one that is looked up, or None.

    Raises:
        ValueError: The storage cannot hold the row.
    """
    if storage is None:
        found = _chosen(row.representative, arch, gpu, None, launch)
        if found.chunks == 1:
            return found
    return _chosen(row, arch, gpu, storage, launch)


@remembered
def _chosen(
    row: Row, arch: str, gpu: Gpu, storage: str | None, launch: LaunchConfig | None
) -> Schedule:
    columns, compute_bytes = row.columns, row.compute_bytes
    bucket = row_bucket(row, gpu.cluster_limit)
    tile = bucket.tile
    cluster = cluster_of(tile.chunks, gpu.cluster_limit)

    def made(kind: str) -> Schedule:
        blocks = cluster if kind == "cluster" else 1
        read_once = kind == "register" or (kind == "cluster" and tile.chunks <= blocks)
        features = _features(row, bucket, blocks, read_once, gpu)
        if launch is None and row.forgets:
            found = Found(_forgetting(row, tile, gpu))
        else:
            found = launch_config(features, arch, gpu) if launch is None else Found(launch)
        return Schedule(
            kind,
            tile,
            found.config.with_abreast(row.sharing),
            exact=bucket.exact,
            compute_bytes=compute_bytes,
            full=0 if kind == "cluster" and blocks != tile.chunks else bucket.full,
            pieces=columns % tile.width > 0,
            cluster=blocks,
            staged_bytes=row.element_bytes if found.config.smem_staged and read_once else 0,
            features=features,
            tuned=found.where,
            lengths=(bucket.low, bucket.top),
            single=row.single and tile.chunks > 1 and not bucket.exact,
        )

    if storage == "host":
        raise ValueError("'host' is the schedule of a CPU")
    check_reduces(storage)
    in_shared = dataclasses.replace(made("shared"), staged_bytes=0)
    free = gpu.shared_limit - reserved_shared(in_shared.threads_per_block, compute_bytes)
    fits = in_shared.shared_bytes <= free
    many = "cluster" if cluster > 1 else "shared" if fits else "streaming"
    if row.forgets:
        many = "streaming"
    kind = storage or ("register" if tile.chunks == 1 else many)
    if kind == "register" and tile.chunks > 1:
        raise ValueError(f"a row of {columns} columns does not fit the registers of a block")
    if kind == "shared" and not fits:
        raise ValueError(
            f"a row of {columns} columns takes {in_shared.shared_bytes} bytes of shared memory, "
            f"the device has {gpu.shared_limit} a block"
        )
    if kind == "cluster":
        check_cluster(columns, tile.chunks, cluster)
    return made(kind)


def _forgetting(row: Row, tile: Tile, gpu: Gpu) -> LaunchConfig:
    """The launch configuration of rows of which nothing is kept."""
    short = tile.threads <= 32 and tile.chunks == 1
    rows = max(1, FORGOTTEN_THREADS // tile.threads) if short else 1
    more = row.streams != "none" or tile.packs * tile.width * row.element_bytes > FORGOTTEN_BYTES
    occupancy = FORGETTING_MORE if more else FORGETTING
    return LaunchConfig(rows, min(occupancy, gpu.threads_per_sm))


def _features(row: Row, bucket: Bucket, cluster: int, read_once: bool, gpu: Gpu) -> ForwardFeatures:
    tile = bucket.tile
    return ForwardFeatures(
        columns=bucket.top,
        row_bytes=bucket.top * row.element_bytes,
        element_bytes=row.element_bytes,
        compute_bytes=row.compute_bytes,
        pack_columns=row.width,
        pack_bytes=row.width * row.element_bytes,
        values=tile.registers(row.compute_bytes),
        threads=tile.threads,
        chunks=tile.chunks,
        cluster=cluster,
        exact=bucket.exact,
        read_once=read_once,
        traffic=row.streams,
        centred=row.centred,
        staged_tile=is_staged_tile(row, bucket.top, gpu.cluster_limit),
        narrow_result=row.narrow_result,
        sharing=row.sharing,
    )


def staged(
    schedule: Schedule, own: int, access: int, element_bytes: int, shared_limit: int
) -> Schedule:
    """The schedule with or without shared-memory staging, by the alignment of x and y.

    Args:
        schedule: A schedule from `choose`, for a row whose `streams` are not "many".
        own: Vector width in bytes that x and y would both allow if their rows were aligned.
        access: Vector width in bytes that x and y do allow.
        element_bytes: The larger itemsize of x and y.
        shared_limit: Bytes of shared memory that a thread block can opt in to.
    """
    plain = schedule.replaced(staged_bytes=0) if schedule.staged_bytes else schedule
    misaligned = access < WIDE_ACCESS <= own
    few_threads = schedule.threads < STAGED_WORD // 2
    if not (schedule.staged_bytes or misaligned) or not schedule.one_tile or few_threads:
        return plain
    through = schedule.replaced(staged_bytes=element_bytes)
    free = shared_limit - reserved_shared(schedule.threads_per_block, schedule.compute_bytes)
    return through if through.shared_bytes <= free else plain


def choose_host(columns: int, forced: str | None) -> str:
    """The schedule on a CPU: "host" (the row in a buffer that fits the caches) or "streaming"."""
    if forced in ("register", "shared", "cluster", "chunks"):
        raise ValueError(f"a CPU has no {forced} schedule; it has 'host' and 'streaming'")
    if forced == "host" and columns > HOST_BUFFERED:
        raise ValueError(f"a row of {columns} columns does not fit the buffer of {HOST_BUFFERED}")
    return forced or ("host" if columns <= HOST_BUFFERED else "streaming")


def host_columns(kind: str, columns: int) -> int:
    """The most columns that a CPU kernel for such rows can take; 0 if any number."""
    return 0 if kind == "streaming" else next(most for most in HOST_COLUMNS if columns <= most)
