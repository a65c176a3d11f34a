# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""When one kernel for a product and its STORE is faster than two, and which tiles it has."""

from __future__ import annotations

from fusedops.generate.product import TILINGS, ProductTiling

__all__ = ["choose"]


#: Pairs of tiles of which each cluster of an H200 has one: with fewer, multiprocessors are idle.
_FULL = {"Together": 66, "InTurns": 60}

#: The largest K that was measured; beyond, functors after a product cost little in any case.
_MOST_K = 4096


def choose(rows: int, n: int, k: int) -> ProductTiling | None:
    """The tiling for a product of (rows, k) and (n, k), or None for two kernels.

    Measured on one NVIDIA H200 (docs/gemm.md): one kernel takes 0.75 to 0.98 of the time of two,
    whatever the STORE, where there are tiles enough for all multiprocessors. Large tiles are faster
    if there are so many of them.

    Args:
        rows: The rows of the product.
        n: Its columns.
        k: The numbers that each element sums up.
    """
    if k % 8 or n % 8 or k > _MOST_K:
        return None
    for name, full in _FULL.items():
        tiling = TILINGS[name]
        pairs = -(-rows // (2 * tiling.rows)) * -(-n // tiling.cols)
        if rows >= tiling.rows and n >= tiling.cols and pairs >= full:
            return tiling
    return None
