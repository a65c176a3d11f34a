# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""When one kernel for a product and its STORE is faster than two, and which tiles it has."""

from __future__ import annotations

from collections.abc import Sequence

from fusedops.functors import Functor
from fusedops.generate.product import TILINGS, ProductTiling

__all__ = ["choose"]


def choose(chain: Sequence[Functor], rows: int, n: int, k: int) -> ProductTiling | None:
    """The tiling for a product of (rows, k) and (n, k), or None for two kernels.

    Args:
        chain: The functors after the product.
        rows, n, k: The sizes.
    """
    if k % 8 or n % 8 or rows < 128 or n < 256:
        return None
    return None
