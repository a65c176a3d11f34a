# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""When one kernel for a product and its STORE is faster than two, and which tiles it has."""

from __future__ import annotations

from collections.abc import Sequence

from fusedops.functors import Functor
from fusedops.generate.product import TILINGS, ProductTiling

__all__ = ["choose"]


#: Pairs of tiles of which each cluster of an H200 has one: with fewer, multiprocessors are idle.
_FULL = 66

#: The largest K that was measured; beyond, functors after a product cost little in any case.
_MOST_K = 4096


def choose(chain: Sequence[Functor], rows: int, n: int, k: int, wide: bool) -> ProductTiling | None:
    """The tiling for a product of (rows, k) and (n, k), or None for two kernels.

    Measured on one NVIDIA H200 (docs/gemm.md): with a bias and a GELU one kernel takes 0.79 to 0.94
    of the time of two at six of seven shapes. The seventh has too few tiles. With a dropout or a
    residual, whose work the tensor cores wait for, it takes as long, or longer.

    Args:
        chain: The functors after the product.
        rows: The rows of the product.
        n: Its columns.
        k: The numbers that each element sums up.
        wide: Whether some operand has more elements than a row of the product.
    """
    tiling = TILINGS["Together"]
    if k % 8 or n % 8 or k > _MOST_K or rows < tiling.rows or n < tiling.cols:
        return None
    pairs = -(-rows // (2 * tiling.rows)) * -(-n // tiling.cols)
    if pairs < _FULL or wide or any(_is_costly(functor) for functor in chain):
        return None
    return tiling


def _is_costly(functor: Functor) -> bool:
    """Whether a functor draws, or writes a tensor of the product's size."""
    return not (functor.draws is None and functor.saves is None and functor.taps is None)
