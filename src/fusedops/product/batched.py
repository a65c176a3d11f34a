# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Torch's product of many matrices, without copies of heads that lie within rows."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedops.product.factors import torch_copies

__all__ = ["multiply"]

#: The most products in turn; each is one launch.
_MOST = 8


def multiply(first: Tensor, second: Tensor) -> Tensor:
    """``first @ second``, of which neither is differentiated.

    cuBLAS takes one stride for all matrices, so torch.matmul copies a factor whose batch dimensions
    are no single one, as of heads that lie within rows. Where one of two is small, there is one
    batched product for each of its indices (docs/gemm.md has what that gives).

    >>> heads = torch.ones(8, 3, 2, 4).transpose(1, 2)
    >>> multiply(heads, heads.mT).shape
    torch.Size([8, 2, 3, 3])
    """
    dim = _along(first, second)
    if dim is None:
        return first @ second
    made = first.new_empty((*first.shape[:-1], second.shape[-1]))
    for at in range(first.shape[dim]):
        torch.bmm(first.select(dim, at), second.select(dim, at), out=made.select(dim, at))
    return made


def _along(first: Tensor, second: Tensor) -> int | None:
    """The batch dimension to go along; None where one product is as good, or torch is watching."""
    plain = type(first) is Tensor and type(second) in (Tensor, torch.nn.Parameter)
    if not plain or not first.is_cuda or torch.is_grad_enabled():
        return None
    batch = first.shape[:-2]
    if len(batch) != 2 or second.shape[:-2] != batch or first.dtype is not second.dtype:
        return None
    dim = 0 if batch[0] <= batch[1] else 1
    if batch[dim] > _MOST or torch.is_autocast_enabled("cuda") or not torch_copies(first, second):
        return None
    return dim
