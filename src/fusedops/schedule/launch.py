# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Launch configurations of kernels, which change speed and no bit of a row's result.

No field of a launch configuration changes a bit of a forward pass or of the gradient of x. Sums
over rows depend on how many blocks share the rows, as they do on the size of the device.
"""

from __future__ import annotations

from typing import NamedTuple

from fusedops.schedule.architectures import TILINGS

#: How a later row is prefetched into the L2 cache: not at all; each thread its own packs; one bulk
#: prefetch of the whole row; one cache line a thread; or, in a backward pass whose blocks have one
#: row each, one bulk prefetch of a row that a later block takes.
PREFETCHES = ("never", "per_thread", "bulk", "per_line", "across_rows")

#: Where a backward pass accumulates the sums over rows.
SUM_STORAGES = ("registers", "shared", "memory")

#: What runs a matrix product and the functors after it: torch's product and a kernel, or one
#: kernel, named by its tiling.
IMPLEMENTATIONS = ("two_kernels", *TILINGS)


class LaunchConfig(NamedTuple):
    """A launch configuration of either pass.

    `relay_handshake` is for forward passes, the fields after it for backward passes.
    """

    #: Rows that a thread block has at a time; 1 where a row takes several warps.
    rows_per_block: int = 1
    #: Occupancy target in threads per SM, which sets the minimum blocks of `__launch_bounds__`; 0
    #: leaves the registers to the compiler.
    min_threads_per_sm: int = 0
    prefetch: str = "never"  # one of `PREFETCHES`
    prefetch_distance: int = 0  # number of rows by which the prefetch is ahead; 0 with "never"
    #: Whether rows whose tile is made for it go through shared memory, as they lie in memory
    #: (row/staging.cuh); in a backward pass with a ring, whether the gradient of x does.
    smem_staged: bool = False
    #: Whether one block of a cluster waits for the start-up handshake and relays it to the others
    #: (core/cluster.cuh).
    relay_handshake: bool = False
    #: Whether blocks of a backward pass process several rows one after another.
    persistent: bool = False
    #: Number of threads of such blocks per SM. More than an SM holds gives several waves of blocks.
    persistent_threads_per_sm: int = 1024
    sum_storage: str = "registers"  # one of `SUM_STORAGES`
    #: Whether a backward pass issues the loads of its operands together with those of the row: more
    #: loads in flight, more registers.
    eager_operands: bool = True
    #: Whether the slices of a backward pass take rows in turns, where all rows share the operands,
    #: so that all blocks read neighbouring rows at a time. A block has one row at a time then.
    interleaved: bool = False
    #: Rows that bulk copies bring to shared memory ahead in a persistent block (row/ring.cuh),
    #: where the LOAD has no functors; 0 for none. Operands of the STORE that all rows share are in
    #: registers then, where packs have several columns.
    ring_stages: int = 0
    #: Rows that the threads of a row have at a time, where neighbours share all operands but x
    #: (row/abreast.cuh); 1 where they do not.
    abreast: int = 1

    def with_abreast(self, most: int) -> LaunchConfig:
        """The launch configuration with no more rows abreast than share their operands."""
        return self if self.abreast <= most else self._replace(abreast=most)


class ProductConfig(NamedTuple):
    """How a GEMM with an epilogue is run: two kernels, or one fused kernel."""

    implementation: str = IMPLEMENTATIONS[0]  # one of `IMPLEMENTATIONS`
    rival: str = ""  # a tiling that runs in its place where `waves.quicker` says so; empty for none
