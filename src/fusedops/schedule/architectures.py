# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tables by GPU architecture: hardware facts, and the tilings of GEMM kernels with epilogues.

A GEMM kernel for another architecture is one more entry of `PRODUCT_KERNELS`, and the header that
its tilings name. What is chosen among them is data, rows of a tuning file (lookup.py).

Each fact stands for itself: whether a device has clusters says nothing about its bulk copies. On a
device that is present the driver is asked instead (`generate.target.Target.of`), except for what it
does not tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

__all__ = [
    "EIGHT_BIT_TILINGS",
    "GPUS",
    "OLDEST",
    "PORTABLE_CLUSTER",
    "PRODUCT_KERNELS",
    "TILINGS",
    "Gpu",
    "ProductKernel",
    "ProductTiling",
    "number",
]


#: Portable cluster size: thread blocks that every GPU with clusters can schedule together (CUDA C++
#: Programming Guide, "Thread Block Clusters").
PORTABLE_CLUSTER = 8


#: The bytes of a factor's row in one stage of the ring, `kStageBytes` in pipeline.cuh.
STAGE_BYTES = 128


@dataclasses.dataclass(frozen=True)
class ProductTiling:
    """A tile of the product, and the form of the kernel."""

    name: str  # what tuning files call it
    dtype: str  # the C++ type of the factors
    #: The size of a tile.
    rows: int
    cols: int
    stages: int  # the stages of the ring
    group: int = 8  # pairs of tiles of a column that clusters work on before the next column
    in_turns: bool = False  # whether warpgroups multiply in turns
    #: Whether w has shape (K, N), as in x @ w, in place of (N, K), as in x @ w.T.
    mn_major: bool = False
    x_mn_major: bool = False  # whether x has shape (K, M), as in x.T @ w
    #: The architecture that compilers are told: wgmma is in no other's code.
    compiled_for: str = "sm_90a"
    header: str = "gemm/kernel.cuh"  # the header of the template
    #: The threads of a block: a warpgroup that produces, two that multiply, and one that runs the
    #: STORE.
    threads: int = 512
    cluster: int = 2  # the blocks of a cluster
    #: The columns of a factor in one stage of the ring, `kStageK` in pipeline.cuh: 128 bytes.
    stage_columns: int = 64
    width: int = 8  # the columns of a pack, `kPack` in gemm/epilogue.cuh
    #: Whether there is a kernel of many products, too, and, with `one_column`, of a gradient.
    several: bool = True

    @property
    def cpp(self) -> str:
        """The C++ type; kPacks is a constant of the source."""
        major = "kMN" if self.mn_major else "kK"
        sizes = f"{self.rows}, {self.cols}, {self.stages}, {str(self.in_turns).lower()}"
        of_x = ", gemm::Major::kMN" if self.x_mn_major else ""
        return f"gemm::Tiling<{self.dtype}, {sizes}, kPacks, gemm::Major::{major}{of_x}>"

    @property
    def source_options(self) -> tuple[object, ...]:
        """Compile-time options besides the C++ type: none."""
        return ()

    @property
    def storage(self) -> str:
        """A word for the name of the kernel's folder in the cache."""
        return f"{self.rows}x{self.cols}"

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory, `Stages::kShared` in pipeline.cuh."""
        stage = (self.rows + self.cols) * STAGE_BYTES
        handed = self.rows * self.cols * (4 if self.in_turns else 2) + 128
        if self.x_mn_major:
            handed = self.rows * (self.cols * 2 + 16) + 128  # copied
        elif not self.in_turns and not self.eight_bits:
            stage += self.cols * 2  # a bias
        return 1024 + self.stages * stage + handed + 2 * self.stages * 8

    @property
    def one_column(self) -> bool:
        """Whether all packs of a tile that a lane of the STORE has are of the same columns.

        Then it can add up its rows, for a gradient, and has both halves of a product.
        """
        return 32 % (self.cols // self.width) == 0

    @property
    def eight_bits(self) -> bool:
        """Whether the factors have 8 bits."""
        return self.stage_columns == STAGE_BYTES

    @property
    def boxes(self) -> tuple[int, int]:
        """The rows of x and of w that one copy takes; its columns are `stage_columns`."""
        of_x = self.stage_columns if self.x_mn_major else self.rows
        return of_x, self.stage_columns if self.mn_major else self.cols // self.cluster

    def fitted(self, rows: int, cols: int, depth: int, multiprocessors: int) -> ProductTiling:
        """The tiling for a product of this size: the same for all."""
        return self

    def covers(self, rows: int, cols: int) -> bool:
        """Whether tiles, which are whole, lie within a product of this size."""
        return rows >= self.rows and cols >= self.cols

    def parts(self, rows: int) -> int:
        """How many sums over rows of a tile there are for a column: four warps have each tile."""
        return 4 * self.cluster * -(-rows // (self.cluster * self.rows))

    def grid(self, rows: int, cols: int, multiprocessors: int, batches: int = 1) -> int:
        """Blocks of a launch, which stay until all tiles of all products are done."""
        pairs = batches * -(-rows // (self.cluster * self.rows))
        return self.cluster * min(pairs * -(-cols // self.cols), multiprocessors // self.cluster)


@dataclasses.dataclass(frozen=True)
class FewRowsTiling(ProductTiling):
    """A tile of a product of few rows, whose K the blocks of a cluster share.

    `threads` are those that multiply, 128 for 64 columns of a tile, and a warp that produces.
    """

    header: str = "gemm/few_rows.cuh"
    several: bool = False
    tall: int = 16  # the rows of x that each tile has, of `rows` that it has room for
    #: Whether the two blocks of a cluster have tiles beside each other with all of K, and each
    #: copies one half of x's rows to both.
    shares: bool = False

    @property
    def cpp(self) -> str:
        """The C++ type."""
        major = "kMN" if self.mn_major else "kK"
        sizes = f"{self.rows}, {self.cols}, {self.stages}, {1 if self.shares else self.cluster}"
        shares = str(self.shares).lower()
        return f"gemm::{self.name}<{self.dtype}, {sizes}, {shares}, gemm::Major::{major}>"

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: a warpgroup has room for 64 rows of w."""
        return (self.rows + -(-self.cols // 64) * 64) * STAGE_BYTES

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory, `Stages::kShared` in pipeline.cuh."""
        return 1024 + self.stages * (self.stage_bytes + 16)

    @property
    def boxes(self) -> tuple[int, int]:
        """The rows of x and of w that one copy takes."""
        of_x = -(-self.tall // 16) * 8 if self.shares else self.tall
        return of_x, self.stage_columns if self.mn_major else self.cols

    def grid(self, rows: int, cols: int, multiprocessors: int, batches: int = 1) -> int:
        """Blocks of a launch: a tile has those of a cluster, or two tiles have."""
        clusters = -(-cols // (2 * self.cols if self.shares else self.cols))
        return self.cluster * -(-rows // self.rows) * clusters

    def covers(self, rows: int, cols: int) -> bool:
        """Whether there is an element: what a tile exceeds is not written."""
        return rows > 0 and cols > 0

    def fitted(self, rows: int, cols: int, depth: int, multiprocessors: int) -> ProductTiling:
        """The tile of which the busiest multiprocessor reads least, and clusters that split K.

        How K is split follows from w and the GPU alone, so that a row has the same bits in each
        batch. Not all multiprocessors can be in clusters of more than two blocks at the same time.
        """
        tiles, split = -(-cols // 64), 1
        fewer = multiprocessors * 3 // 4
        while split < PORTABLE_CLUSTER:
            most = multiprocessors if split == 1 else fewer
            if 2 * split * tiles > most or 2 * split * self.stage_columns > depth:
                break
            split *= 2
        fitting = []
        for of_x, widths in FEW_ROWS.items():
            across = max(1, -(-rows // of_x))
            tall = max(1, -(-rows // across))
            if of_x != next(size for size in FEW_ROWS if tall <= size):
                continue  # a smaller tile has room for as many
            for of_w in widths:
                shares = split == 1 and of_x >= SHARED_ROWS
                tile = dataclasses.replace(
                    self,
                    rows=of_x,
                    tall=tall,
                    cols=of_w,
                    threads=128 * -(-of_w // 64) + 32,
                    cluster=2 if shares else split,
                    shares=shares,
                )
                busy = multiprocessors if tile.cluster <= 2 else fewer
                each = -(-tile.grid(rows, cols, multiprocessors) // busy)
                two = of_x == 16 or (of_x <= 64 and each > 1)
                stages = RING_BYTES // (2 if two else 1) // tile.stage_bytes
                read = each * (tall + of_w) + AGAIN * (across - 1)
                fitting.append((read, across, dataclasses.replace(tile, stages=stages)))
        return min(fitting, key=lambda one: one[:2])[-1]


#: Rows of w in a tile of few rows of x, and of more. Of 112 there are 128 tiles in w of 14336 rows,
#: enough for all of 132 multiprocessors.
NARROW, WIDE = (64,), (64, 112, 128)

#: The rows of w that a tile may have, by the rows of x for which it has room.
FEW_ROWS = {16: NARROW, 32: NARROW, 64: NARROW, 96: WIDE, 128: WIDE, 192: WIDE, 256: WIDE}

#: The rows that a multiprocessor reads in the time that a second tile of x costs, which reads w
#: again.
AGAIN = 48

#: Where a tile has room for so many rows of x, two blocks share what they read of it.
SHARED_ROWS = 192

#: Bytes of the stages of one block on a multiprocessor; of two, half as many. With 16 rows more
#: stages gained nothing.
RING_BYTES = 200 << 10


class ProductKernel(NamedTuple):
    """The GEMM kernel with an epilogue for one architecture."""

    tilings: Mapping[str, ProductTiling]  # its tilings by name, which no other architecture's has
    #: Those of factors of 8 bits, by the same names; not all have one.
    of_eight_bits: Mapping[str, ProductTiling]
    counted: ProductTiling  # the tiling by which waves and filled tiles of a product are counted


_SM_90 = {
    "Together": ProductTiling("Together", "half", 128, 256, 3),
    "Together192": ProductTiling("Together192", "half", 128, 192, 4),
    "InTurns": ProductTiling("InTurns", "half", 128, 128, 5, in_turns=True),
    "FewRows": FewRowsTiling("FewRows", "half", 16, 64, 10, cluster=1, threads=160),
}
#: Each has half as large a tile, since the sum of each stage has registers of its own.
_SM_90_EIGHT_BITS = {
    "Together": ProductTiling("Together", "float8_e4m3", 128, 128, 6, stage_columns=STAGE_BYTES),
}

#: By the name of the architecture; others run torch's product and a kernel after it.
PRODUCT_KERNELS: Mapping[str, ProductKernel] = MappingProxyType(
    {"sm_90": ProductKernel(_SM_90, _SM_90_EIGHT_BITS, _SM_90["Together"])}
)

#: The tilings of all architectures by name, and those of factors of 8 bits.
TILINGS = {name: one for kernel in PRODUCT_KERNELS.values() for name, one in kernel.tilings.items()}
EIGHT_BIT_TILINGS = {
    name: one for kernel in PRODUCT_KERNELS.values() for name, one in kernel.of_eight_bits.items()
}


MIB = 1 << 20

#: The oldest architecture supported: every kernel may use the features that came with it.
OLDEST = "sm_80"


class Gpu(NamedTuple):
    """Facts of a GPU that limit a kernel or a launch."""

    shared_limit: int  # bytes of shared memory that a thread block can opt in to
    multiprocessors: int  # number of streaming multiprocessors (SMs)
    threads_per_sm: int  # largest number of resident threads per SM
    l2_bytes: int  # size of the L2 cache in bytes
    #: Largest number of thread blocks in a cluster, where a kernel opts in to it; 1 without
    #: clusters.
    cluster_limit: int = 1
    #: Whether there are bulk copies to shared memory and bulk prefetches to the L2 cache
    #: (`cp.async.bulk`).
    bulk_copies: bool = False
    name: str = ""  # the driver's name of the device; empty for an architecture that is only named


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
    """The compute capability as an integer, 90 for "sm_90", for comparisons.

    >>> number("sm_90")
    90
    """
    return int(arch.removeprefix("sm_").rstrip("af"))
