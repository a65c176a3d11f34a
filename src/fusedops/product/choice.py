# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Whether one kernel runs a product and its STORE, which tiles it has, and why.

Which is faster is data: the rows for products of a tuning file (schedule/tuning_file.py), the
package's or what `fusedops tune` found on this machine. Both give results within one bound.
"""

from __future__ import annotations

from typing import NamedTuple

from fusedops.generate.product import CLUSTER, TILINGS, ProductTiling
from fusedops.schedule.architectures import Gpu
from fusedops.schedule.features import ProductFeatures
from fusedops.schedule.launch import ProductConfig
from fusedops.schedule.lookup import product_config

__all__ = ["Choice", "choose", "filled_percent", "wave_percent"]

#: Rows of all products are numbers of 32 bits, those of one tile more among them.
MOST_ROWS = 2**31 - 256

#: The tiling by which `ProductFeatures.wave_percent` counts.
_LARGE = TILINGS["Together"]


class Choice(NamedTuple):
    """How a call is run.

    Attributes:
        tiling: That of one kernel, or None for torch's product and a kernel after it.
        why: The reason, in words.
    """

    tiling: ProductTiling | None
    why: str


def wave_percent(rows: int, columns: int, multiprocessors: int, batches: int = 1) -> int:
    """The waves of so many products in large tiles on a GPU, in percent.

    >>> wave_percent(16384, 1024, 132)
    387
    """
    return 100 * batches * _pairs(rows, columns) // max(1, multiprocessors // CLUSTER)


def filled_percent(rows: int, columns: int) -> int:
    """The elements of a product in percent of those in the pairs of large tiles that cover it.

    >>> filled_percent(384, 384)
    56
    """
    covered = _pairs(rows, columns) * CLUSTER * _LARGE.rows * _LARGE.cols
    return 100 * rows * columns // max(1, covered)


def _pairs(rows: int, columns: int) -> int:
    return -(-rows // (CLUSTER * _LARGE.rows)) * -(-columns // _LARGE.cols)


def choose(
    features: ProductFeatures, arch: str, gpu: Gpu, forced: ProductConfig | None = None
) -> Choice:
    """How a product and the functors after it are run on a GPU.

    Args:
        features: The product and what its functors move.
        arch: The architecture of the GPU.
        gpu: Its facts.
        forced: What tests and the tuner choose; None leaves it to the tuning files.
    """
    if forced is None:
        found = product_config(features, arch, gpu)
        config = found.config
        said = f"tuned on this device, from {found.where}" if found.tuned else "docs/gemm.md"
        faster, slower = f"faster than two ({said})", f"not faster ({said})"
    else:
        config, faster, slower = forced, "forced", "forced away"
    tiling = TILINGS.get(config.vehicle)
    if tiling is None:
        return Choice(None, f"one kernel for both is {slower}")
    rows, columns, depth, batches = features[:4]
    if rows * batches >= MOST_ROWS or not batches:
        return Choice(None, f"one kernel for both counts from 1 to {MOST_ROWS - 1} rows")
    if columns % 8 or depth % 8 or not depth or rows < tiling.rows or columns < tiling.cols:
        return Choice(
            None,
            f"one kernel for both has tiles of {tiling.rows} x {tiling.cols}, and x and w of "
            "multiples of 8 columns and rows",
        )
    return Choice(tiling, f"which is {faster}")
