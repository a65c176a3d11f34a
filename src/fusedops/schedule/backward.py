# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the schedule of a backward pass: tile, storage of a row, and launch configuration.

The tile follows from columns, dtypes, the operator, its operands and the largest cluster. How many
rows a persistent block processes one after another, and where it accumulates the gradients that
rows share, may follow from which gradients are wanted and from the device as well. Figures beside
the tables are of one H200, in percent of the ceiling.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from fusedops.schedule.architectures import Gpu
from fusedops.schedule.features import BackwardFeatures
from fusedops.schedule.forward_tile import Row
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
from fusedops.schedule.tiling import Bucket, Table, Tile, at_most, bucket_of, tile_of

__all__ = [
    "GRADIENT_VALUES",
    "GradientBucket",
    "choose_gradient",
    "gradient_bucket",
    "resident_rows",
    "values_of",
    "with_ring",
]

#: Columns that one thread block holds, beyond which a row is cut into chunks: 16384 columns in one
#: block of 1024 threads reach 94 percent, in two of 256 threads 99.
GRADIENT_TILE = 8192

#: Columns beyond which a block of the largest cluster holds twice as many: what a cluster does not
#: hold is read twice, and 151936 columns reached 15 percent with LayerNorm, 64 with softmax. For
#: norms of 16 bits that do not fill their tiles the limit is lower: LayerNorm of 128256 columns 73
#: and RMSNorm 91 in blocks of 512 threads, 67 and 89 of 256; LayerNorm of 131072 columns 72 and 75.
#: For softmaxes of 16 bits it is a little higher: of 151936 columns 89 in 16 blocks of 320 threads,
#: 82 of 416.
GRADIENT_CLUSTER = 16 * GRADIENT_TILE
NORM_CLUSTER = 8 * GRADIENT_TILE
MORE_THREADS = 1.25

#: Columns beyond which softmaxes of 16 bits read a row twice all the same: blocks of 512 threads
#: fill an SM, and 262144 columns reach 56 percent with them, 79 with 256 threads; of 4 bytes 84 and
#: 78.
READ_TWICE = 24 * GRADIENT_TILE

#: Elements per thread by columns, as forward_tile.VALUES, where a thread holds as many of the
#: gradient beside them: with no traffic beside (`Traffic.beside`); softmaxes with some; norms with
#: one or two; norms with more.
GRADIENT_VALUES = {
    "plain": ((2048, 16), (None, 32)),  # 16 bits, 4096 columns: 99 with 32, 97 with 16
    "softmax": ((8192, 16), (None, 32)),
    "norm": ((128, 8), (512, 16), (1024, 32), (4096, 16), (None, 32)),
    "long norm": ((512, 8), (4096, 16), (None, 32)),
}

#: Elements per thread of short rows of 16 bits where a functor reads a partner column: two packs,
#: of which each has the partners of the other, so that no value is computed twice.
PAIRED = ((256, 16),)

#: Elements per thread where a pack is one column. Norms: LayerNorm of 257 columns 34 with 8 values,
#: 59 with 32; of 1023 columns 70 with 16, 73 with 32; of 50257 columns 31 and 51. Without gradients
#: of operands, in blocks of NARROW_THREADS: softmax of 12289 columns 89, 82 with 32 values and 256
#: threads; of 50257 columns 85 and 77.
ODD_VALUES = {
    "plain": ((2048, 16), (8192, 32), (None, 64)),
    "norm": ((None, 32),),
}
NARROW_THREADS = 64

#: Largest number of threads per chunk of an odd norm, where clusters of such blocks hold the row:
#: of 4 bytes, LayerNorm of 12289 columns 90 with it, 87 with 256; of 16 bits beyond ODD_COLUMNS,
#: 50257 columns 59 and 55, RMSNorm 74 and 70.
ODD_THREADS = 128
ODD_COLUMNS = 32768

#: Elements per thread in norms of 4 bytes per column: LayerNorm of 2048 columns 70 with 16 values
#: and sums in shared memory, 91 with 8 and sums in registers; of 16384 columns 74 with 32, 89 with
#: 16; of 32768 columns 72 and 91; of 4096 columns 90 with 8, 92 with 16. WIDE_ODD_VALUES where a
#: pack is one column: LayerNorm of 50257 columns 81 with 16, 77 with 32. What a cluster of 16
#: values per thread cannot hold is read twice.
WIDE_VALUES = ((2048, 8), (65536, 16), (None, 32))
WIDE_ODD_VALUES = ((512, 16), (4096, 8), (65536, 16), (None, 32))


class GradientBucket(NamedTuple):
    """The bucket of a row in a backward pass."""

    bucket: Bucket  # the bucket, with the row's tile
    values: int  # largest number of 4-byte values per thread that its tile was cut by


def values_of(normalizes: bool, beside: int) -> str:
    """The key into GRADIENT_VALUES for a row: plain, softmax, norm or long norm.

    `beside` is the traffic beside dy, x and dx, as `Traffic.beside`.
    """
    if not beside:
        return "plain"
    return "softmax" if not normalizes else "norm" if beside <= 2 else "long norm"


def gradient_bucket(row: Row, cluster_limit: int, family: str) -> GradientBucket:
    """The bucket of a row in the backward pass, with the row's tile.

    `cluster_limit` is the largest number of thread blocks in a cluster, 1 without clusters;
    `family` is a key of GRADIENT_VALUES.
    """

    def tile_at(columns: int, fills: bool) -> Tile:
        return _tile(row, columns, fills, cluster_limit, family)[0]

    bucket = bucket_of(row.columns, row.width, row.cut, tile_at, padded=row.dropout)
    return GradientBucket(bucket, _tile(row, bucket.top, bucket.exact, cluster_limit, family)[1])


def _tile(row: Row, columns: int, fills: bool, cluster_limit: int, family: str) -> tuple[Tile, int]:
    """The tile of a bucket, and the largest number of values per thread that it was cut by.

    The arguments are as in forward_tile.py.
    """
    width = row.width
    odd = width == 1
    wide = family == "norm" and row.element_bytes == row.compute_bytes == 4
    usual = ODD_VALUES if odd and family == "norm" else GRADIENT_VALUES
    softmax = family in ("plain", "softmax")
    twice = softmax and row.element_bytes == 2 and columns > READ_TWICE
    most_threads = GRADIENT_TILE // 32 if twice else _most_threads(row, columns, fills, family)
    kinds: list[tuple[Table, int]] = [(usual[family], most_threads)]
    if row.paired and not softmax and row.element_bytes == 2 and columns <= PAIRED[-1][0]:
        kinds.insert(0, (PAIRED, most_threads))
    if wide:
        kinds.insert(0, (WIDE_ODD_VALUES if odd else WIDE_VALUES, most_threads))
    elif odd and family == "plain" and row.element_bytes == 2:
        narrow = ODD_VALUES[family]
        few = at_most(narrow, columns) == 64
        kinds.insert(0, (narrow, NARROW_THREADS if few else most_threads))
    long = columns > (GRADIENT_TILE if wide else ODD_COLUMNS)
    if family == "norm" and odd and long and (wide or row.element_bytes == 2):
        kinds.insert(0, (kinds[0][0], ODD_THREADS))
    # Small thread blocks, unless a cluster of them is too small, so that a row would be read twice.
    tiles = [tile_of(columns, width, row.compute_bytes, *kind) for kind in kinds]
    fits = next((i for i, tile in enumerate(tiles) if tile.chunks <= cluster_limit), -1)
    return tiles[fits], at_most(kinds[fits][0], columns)


def _most_threads(row: Row, columns: int, fills: bool, family: str) -> int:
    """Largest number of threads that hold one chunk of a row, if the row is read once."""
    floats, two_bytes = columns * row.compute_bytes // 4, row.element_bytes == 2
    few = GRADIENT_TILE // 32
    cut = family == "norm" and two_bytes and not (fills and columns % GRADIENT_TILE == 0)
    if GRADIENT_TILE < floats <= (NORM_CLUSTER if cut else GRADIENT_CLUSTER):
        return few
    softmax = family in ("plain", "softmax")
    if softmax and two_bytes and GRADIENT_CLUSTER < floats <= MORE_THREADS * GRADIENT_CLUSTER:
        return int(MORE_THREADS * few)
    return 2 * few


#: Alignment of a ring of rows in shared memory, in bytes.
RING_LINE = 128

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
    bulk_rows: bool = False,
) -> Schedule:
    """Choose the schedule of a backward pass on a GPU.

    Args:
        row: As for `choose`; its `streams` make no difference.
        arch: The architecture that the kernel is built for.
        gpu: The facts of the GPU.
        family: A key of `GRADIENT_VALUES`.
        sums: For each operand whose gradient is a sum over rows, the number of such sums.
        storage: A storage or None, as for `choose`; "register" and "shared" say where the sums are
            accumulated, "cluster" that a cluster shares the row.
        launch: A launch configuration in place of the one that is looked up, or None.
        bulk_rows: Whether nothing but the GPU and the length of a row is in the way of bulk copies
            (`BackwardFeatures.bulk_rows`).

    Raises:
        ValueError: The storage cannot hold the row.
    """
    if storage is None:
        chosen = _chosen(row.representative, arch, gpu, family, sums, None, launch, bulk_rows)
        if chosen.chunks == 1:
            return chosen
    return _chosen(row, arch, gpu, family, sums, storage, launch, bulk_rows)


@remembered
def _chosen(
    row: Row,
    arch: str,
    gpu: Gpu,
    family: str,
    sums: tuple[int, ...],
    storage: str | None,
    launch: LaunchConfig | None,
    bulk_rows: bool,
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
    # Of other types no narrow packs were measured.
    known = tile.width * row.element_bytes == STAGED_WORD or row.element_bytes == 2
    whole = known and columns % tile.width == 0
    bulk_rows = bulk_rows and gpu.bulk_copies and whole and read_once and tile.threads > 32
    features = _features(row, found, cluster, read_once, family, sums, bulk_rows)
    looked_up = launch_config(features, arch, gpu) if launch is None else Found(launch)
    config = looked_up.config.with_abreast(row.sharing)
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
    bulk_rows: bool,
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
        bulk_rows=bulk_rows,
        sharing=row.sharing,
    )


def with_ring(
    schedule: Schedule,
    gpu: Gpu,
    element_bytes: Sequence[int],
    pack: int,
    kept: int,
    leaving: int,
) -> Schedule | None:
    """The schedule with a ring of rows in shared memory (row/ring.cuh); None if it has no room.

    Args:
        schedule: A schedule from `choose_gradient` whose launch has such a ring.
        gpu: The facts of the GPU.
        element_bytes: The itemsizes of the tensors of x's size that it brings.
        pack: Bytes of an access to these.
        kept: How many numbers the forward pass has kept of a row.
        leaving: The itemsize of the gradient of x; 0 if it is not wanted.
    """
    size, stages, tile = schedule.compute_bytes, schedule.launch.ring_stages, schedule.tile
    # The kept numbers of a row begin anywhere in a word.
    words = -(-(kept * size + STAGED_WORD - size) // STAGED_WORD) if kept else 0
    stage = words * STAGED_WORD
    for one in element_bytes:
        stage += -(-tile.capacity * one // RING_LINE) * RING_LINE
        stage += RING_LINE * (pack < STAGED_WORD)  # a row begins anywhere in a line
    taken = stages * stage + RING_LINE - STAGED_WORD
    if not leaving:
        schedule = schedule.replaced(launch=schedule.launch._replace(smem_staged=False))
    elif schedule.launch.smem_staged:
        taken += (tile.capacity * leaving + 2 * STAGED_WORD - 1) // STAGED_WORD * STAGED_WORD
    free = gpu.shared_limit - reserved_shared(schedule.threads_per_block, size)
    if schedule.launch.sum_storage == "shared":
        assert isinstance(schedule.features, BackwardFeatures)
        free -= schedule.features.sums * tile.capacity * size
    return schedule.replaced(ring_bytes=taken) if taken <= free else None


@functools.cache
def resident_clusters(multiprocessors: int, blocks: int, cluster: int) -> int:
    """Number of persistent clusters that are resident on the device at a time.

    `blocks` are the resident thread blocks per SM; `cluster` is 1 without clusters.
    """
    lost = next(lost for most, lost in CLUSTERS_LOST if cluster <= most)
    return max(1, int(multiprocessors * max(1, blocks) * (1 - lost) / cluster))


def resident_rows(schedule: Schedule, multiprocessors: int) -> int:
    """Number of rows that the persistent blocks of a device process at a time."""
    blocks = schedule.launch.persistent_threads_per_sm // schedule.threads_per_block
    clusters = resident_clusters(multiprocessors, blocks, schedule.cluster)
    return max(1, clusters * schedule.cluster // schedule.blocks_per_row) * schedule.rows_per_block
