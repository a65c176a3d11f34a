# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors for a call of which only shapes and dtypes are known, and fewer rows of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fusedops.bind.bind import Bound

__all__ = ["fewer_rows", "fewer_rows_of_factor", "filled"]

#: The share of true elements in a tensor of flags: few enough that no row is masked whole.
FLAGGED = 0.2


def fewer_rows(bound: Bound, elements: int) -> tuple[Tensor, dict[str, Any]]:
    """X and the operands, cut along row dimensions until x has no more elements than these.

    The outermost dimensions are cut first, to halves, and no dimension to less than two: rows that
    share operands go on sharing them. No tile and no launch configuration depends on the number of
    rows.

    Args:
        bound: A checked call; its tensors may have no memory.
        elements: The largest number of elements.
    """
    x = bound.x
    sizes = list(x.shape)
    rows = [dim for dim in range(x.dim()) if dim not in bound.reduced]
    while x.numel() > elements and any(sizes[dim] > 3 for dim in rows):
        dim = next(dim for dim in rows if sizes[dim] > 3)
        sizes[dim] //= 2
        x = x.narrow(dim, 0, sizes[dim])

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        for dim in rows:
            own = dim - x.dim()
            if -own <= value.dim() and value.shape[own] == bound.x.shape[dim]:
                value = value.narrow(own, 0, sizes[dim])
        return value

    given = {k: v if k in bound.tables else cut(v) for k, v in bound.operands.items()}
    for key, one in bound.op.tables.items():
        along = -1 if one.dim is None else one.dim % x.dim()
        if along >= 0 and given[key].shape[1] == bound.x.shape[along]:
            given[key] = given[key][:, : sizes[along]]
    return x, given


def fewer_rows_of_factor(factor: Tensor, z: Tensor, last: int) -> Tensor:
    """A factor of a product that has been cut to fewer rows.

    Args:
        factor: The factor.
        z: The product, cut.
        last: The number of the factor's last dimensions that stay as they are.
    """
    for dim in range(-factor.dim(), -last):
        if factor.shape[dim] > 1:  # else it is shared
            factor = factor.narrow(dim, 0, z.shape[dim])
    return factor


def filled(values: Mapping[str, Any], columns: int, device: torch.device) -> dict[str, Any]:
    """The values on a device: for tensors, random ones of the same shapes, strides and dtypes.

    Floating-point elements are normal, flags are true in one of five, counts reach from half of the
    columns to all of them.
    """
    return {
        name: _filled(value, columns, device) if isinstance(value, Tensor) else value
        for name, value in values.items()
    }


def _filled(like: Tensor, columns: int, device: torch.device) -> Tensor:
    sizes = zip(like.shape, like.stride(), strict=True)
    end = 1 + sum((size - 1) * step for size, step in sizes) if like.numel() else 0
    memory = torch.empty(end, dtype=like.dtype, device=device)
    if like.is_floating_point():
        memory.normal_()
    elif like.dtype is torch.bool:
        memory.bernoulli_(FLAGGED)
    else:
        memory.random_(columns // 2, columns + 1)
    return memory.as_strided(like.shape, like.stride())
