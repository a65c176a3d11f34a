# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the schedule of a backward pass: tile, storage of a row, and launch configuration.

The tile follows from columns, dtypes, the operator, its operands and the largest cluster
(backward_tile.py). How many rows a persistent block processes one after another, and where it
accumulates the gradients that rows share, may follow from which gradients are wanted and from the
device as well.
"""

from __future__ import annotations

import functools

from fusedops.schedule.architectures import Gpu
from fusedops.schedule.backward_tile import GradientBucket, gradient_bucket
from fusedops.schedule.features import BackwardFeatures
from fusedops.schedule.forward_tile import Row
from fusedops.schedule.launch import LaunchConfig
from fusedops.schedule.lookup import Found, launch_config, remembered
from fusedops.schedule.row_schedule import (
    Schedule,
    check_cluster,
    check_reduces,
    cluster_of,
    reserved_shared,
)

__all__ = ["choose_gradient", "resident_rows"]

#: Share of the persistent clusters that an SM count alone would allow and that do not fit at a
#: time, by largest cluster size. A cluster's blocks run on neighbouring SMs, whose number no
#: cluster size divides: one H200 holds 132, 62, 30 and 14 clusters of 2, 4, 8 and 16 blocks, at two
#: blocks per SM.
CLUSTERS_LOST = ((2, 0.0), (5, 0.06), (8, 0.09), (16, 0.15))


def choose_gradient(
    row: Row,
    arch: str,
    gpu: Gpu,
    family: str,
    sums: tuple[int, ...],
    storage: str | None = None,
    launch: LaunchConfig | None = None,
) -> Schedule:
    """Choose the schedule of a backward pass on a GPU.

    Args:
        row: As for `choose`; its `streams` make no difference.
        arch: The architecture that the kernel is built for.
        gpu: The facts of the GPU.
        family: A key of `backward_tile.GRADIENT_VALUES`.
        sums: For each operand whose gradient is a sum over rows, the number of such sums.
        storage: A storage or None, as for `choose`; "register" and "shared" say where the sums are
            accumulated, "cluster" that a cluster shares the row.
        launch: A launch configuration in place of the one that is looked up, or None.

    Raises:
        ValueError: The storage cannot hold the row.
    """
    if storage is None:
        chosen = _chosen(row.stand_in, arch, gpu, family, sums, None, launch)
        if chosen.chunks == 1:
            return chosen
    return _chosen(row, arch, gpu, family, sums, storage, launch)


@remembered
def _chosen(
    row: Row,
    arch: str,
    gpu: Gpu,
    family: str,
    sums: tuple[int, ...],
    storage: str | None,
    launch: LaunchConfig | None,
) -> Schedule:
    check_reduces(storage)
    found = gradient_bucket(row, gpu.cluster_limit, family)
    bucket, columns = found.bucket, row.columns
    tile = bucket.tile
    if storage in ("register", "shared") and tile.chunks > 1:
        raise ValueError(f"a row of {columns} columns does not fit the registers of a block")
    cluster = cluster_of(tile.chunks, gpu.cluster_limit)
    if storage == "cluster":
        check_cluster(columns, tile.chunks, cluster)
    if storage == "streaming":
        cluster = 1
    kind = "cluster" if cluster > 1 else "register" if tile.chunks == 1 else "streaming"
    kind = "streaming" if storage == "streaming" else kind
    read_once = kind == "register" or (kind == "cluster" and cluster >= tile.chunks)
    features = _features(row, found, cluster, read_once, family, sums)
    looked_up = launch_config(features, arch, gpu) if launch is None else Found(launch)
    config = looked_up.config
    where = {"register": "registers", "shared": "shared"}.get(storage or "", config.sum_storage)
    taken = len(sums) * config.rows_per_block * tile.capacity * row.compute_bytes
    threads = tile.threads * config.rows_per_block
    free = gpu.shared_limit - reserved_shared(threads, row.compute_bytes)
    if not read_once or (where == "shared" and taken > free):
        where = "memory"
    return Schedule(
        kind,
        tile,
        config._replace(sum_storage=where),
        exact=bucket.exact,
        compute_bytes=row.compute_bytes,
        full=bucket.full if cluster <= tile.chunks else 0,
        pieces=columns % tile.width > 0,
        cluster=cluster,
        features=features,
        tuned=looked_up.where,
        lengths=(bucket.low, bucket.top),
    )


def _features(
    row: Row,
    cut: GradientBucket,
    cluster: int,
    read_once: bool,
    family: str,
    sums: tuple[int, ...],
) -> BackwardFeatures:
    bucket, tile = cut.bucket, cut.bucket.tile
    return BackwardFeatures(
        columns=bucket.top,
        row_bytes=bucket.top * row.element_bytes,
        element_bytes=row.element_bytes,
        compute_bytes=row.compute_bytes,
        pack_columns=tile.width,
        pack_bytes=tile.width * row.element_bytes,
        values_limit=cut.values,
        threads=tile.threads,
        chunks=tile.chunks,
        cluster=cluster,
        exact=bucket.exact,
        read_once=read_once,
        family=family,
        sums=len(sums),
        groups=min(sums, default=0),
    )


@functools.cache
def resident_clusters(multiprocessors: int, blocks: int, cluster: int) -> int:
    """Number of persistent clusters that are resident on the device at a time.

    Args:
        multiprocessors: Number of SMs of the device.
        blocks: Resident thread blocks per SM.
        cluster: Blocks in a cluster; 1 without clusters.
    """
    lost = next(lost for most, lost in CLUSTERS_LOST if cluster <= most)
    return max(1, int(multiprocessors * max(1, blocks) * (1 - lost) / cluster))


def resident_rows(schedule: Schedule, multiprocessors: int) -> int:
    """Number of rows that the persistent blocks of a device process at a time."""
    blocks = schedule.launch.persistent_threads_per_sm // schedule.threads_per_block
    clusters = resident_clusters(multiprocessors, blocks, schedule.cluster)
    return max(1, clusters * schedule.cluster // schedule.blocks_per_row) * schedule.rows_per_block
