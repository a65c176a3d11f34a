# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that stand for those of every row length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fusedops.schedule.tiling import samples

__all__ = ["of_lengths"]


def of_lengths(values: Mapping[str, Any], most: int) -> Iterator[dict[str, Any]]:
    """The operands of calls that need the kernels of all calls with rows of up to `most` columns.

    Args:
        values: x and the operands by name; a row of x is its last dimension. Tensors whose last
            size is that of x get the other lengths.
        most: The longest rows.
    """
    columns = values["x"].shape[-1]

    def resized(one: Any, length: int) -> Any:
        if not isinstance(one, torch.Tensor) or one.dim() == 0 or one.shape[-1] != columns:
            return one
        return torch.empty((*one.shape[:-1], length), dtype=one.dtype, device=one.device)

    for length in samples(most):
        yield {name: resized(one, length) for name, one in values.items()}
