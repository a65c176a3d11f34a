# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of modules that are given as formulas.

Imported when a module first needs one: tracing a formula takes what few programs need.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusedops.functors import functor

__all__ = ["offset_scale", "softcap"]


@functor
def offset_scale(x: Tensor, weight: Tensor) -> Tensor:
    """The affine part of Gemma's norms: a weight of zero changes nothing."""
    return x * (1 + weight)


@functor
def softcap(x: Tensor, cap: float) -> Tensor:
    """Keeps scores within -cap and cap, as Gemma 2 does."""
    return cap * torch.tanh(x / cap)
