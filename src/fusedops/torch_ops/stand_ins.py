# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors without memory by which a call is checked whose sizes are not all known."""

from __future__ import annotations

import torch
from torch import Tensor

from fusedops.functors import TableOf

__all__ = ["stand_in", "table_stand_in"]


def stand_in(tensor: Tensor, x: Tensor) -> Tensor:
    """A tensor to check a call by: sizes not known yet are taken to fit, and guard nothing.

    A batch may then be of any size, one included, in code that is compiled once.
    """
    extra = x.dim() - tensor.dim()
    shape = []
    for at, size in enumerate(tensor.shape):
        of_x = x.shape[at + extra] if at + extra >= 0 else size
        known = type(size) is int and (type(of_x) is int or size == 1)
        shape.append(size if known else of_x if type(of_x) is int else 2)
    return torch.empty(shape, dtype=tensor.dtype, device="meta")


def table_stand_in(table: Tensor, one: TableOf, x: Tensor) -> Tensor:
    """The same of a table, whose sizes are not those of x."""
    shape = [size if type(size) is int else 2 for size in table.shape]
    if one.dim is not None and len(shape) == 2:
        of_x = x.shape[one.dim]
        known = type(table.shape[1]) is int and (type(of_x) is int or shape[1] == 1)
        shape[1] = shape[1] if known else of_x if type(of_x) is int else 2
    return torch.empty(shape, dtype=table.dtype, device="meta")
