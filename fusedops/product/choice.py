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

__all__ = ["Choice", "choose", "wave_percent"]

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


def wave_percent(rows: int, columns: int, multiprocessors: int) -> int:
    """The waves of a product in large tiles on a GPU, in percent.

    >>> wave_percent(16384, 1024, 132)
    387
    """
    pairs = -(-rows // (CLUSTER * _LARGE.rows)) * -(-columns // _LARGE.cols)
    return 100 * pairs // max(1, multiprocessors // CLUSTER)


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
    rows, columns, depth = features[:3]
    if columns % 8 or depth % 8 or rows < tiling.rows or columns < tiling.cols:
        return Choice(
            None,
            f"one kernel for both has tiles of {tiling.rows} x {tiling.cols}, and x and w of "
            "multiples of 8 columns and rows",
        )
    return Choice(tiling, f"which is {faster}")
