# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of GPUs by architecture: the one table of hardware facts that schedules ask.

Each fact stands for itself: whether a device has clusters says nothing about its bulk copies. On a
device that is present the driver is asked instead (`generate.target.Target.of`), except for what it
does not tell.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["GPUS", "OLDEST", "PORTABLE_CLUSTER", "Gpu", "number"]

MIB = 1 << 20

#: The oldest architecture supported: every kernel may use the features that came with it.
OLDEST = "sm_80"

#: Portable cluster size: thread blocks that every GPU with clusters can schedule together (CUDA C++
#: Programming Guide, "Thread Block Clusters").
PORTABLE_CLUSTER = 8


class Gpu(NamedTuple):
    """Facts of a GPU that limit a kernel or a launch.

    Attributes:
        shared_limit: Bytes of shared memory that a thread block can opt in to.
        multiprocessors: Number of streaming multiprocessors (SMs).
        threads_per_sm: Largest number of resident threads per SM.
        l2_bytes: Size of the L2 cache in bytes.
        cluster_limit: Largest number of thread blocks in a cluster, where a kernel opts in to it;
            1 without clusters.
        bulk_copies: Whether there are bulk copies to shared memory and bulk prefetches to the L2
            cache (`cp.async.bulk`).
        name: The driver's name of the device; empty for an architecture that is only named.
    """

    shared_limit: int
    multiprocessors: int
    threads_per_sm: int
    l2_bytes: int
    cluster_limit: int = 1
    bulk_copies: bool = False
    name: str = ""


#: A100, A40, L40, H200, B200, B300, RTX 5090 and GB10, by architecture. The limits are those of
#: the CUDA C++ Programming Guide, "Compute Capabilities".
GPUS = {
    "sm_80": Gpu(166912, 108, 2048, 40 * MIB),
    "sm_86": Gpu(101376, 84, 1536, 6 * MIB),
    "sm_89": Gpu(101376, 142, 1536, 96 * MIB),
    "sm_90": Gpu(232448, 132, 2048, 60 * MIB, cluster_limit=16, bulk_copies=True),
    "sm_100": Gpu(232448, 148, 2048, 126 * MIB, cluster_limit=16, bulk_copies=True),
    "sm_103": Gpu(232448, 148, 2048, 126 * MIB, cluster_limit=16, bulk_copies=True),
    "sm_120": Gpu(101376, 170, 1536, 96 * MIB, cluster_limit=8, bulk_copies=True),
    "sm_121": Gpu(101376, 48, 1536, 24 * MIB, cluster_limit=8, bulk_copies=True),
}


def number(arch: str) -> int:
    """The number of an architecture, by which older and newer ones are told.

    >>> number("sm_90")
    90
    """
    return int(arch.removeprefix("sm_").rstrip("af"))
