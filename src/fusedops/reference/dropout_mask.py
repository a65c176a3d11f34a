# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The dropout contract in torch: which elements (seed, offset, slot) keeps.

docs/explanation/dropout.md has the map. The kernels draw the same bits; this is for `op.unfused`,
`op.dropout_mask`, and for reading.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF


def threshold(p: float) -> int:
    """Sixteen bits below this are dropped: round(p * 65536), within 1..65535 unless p is 0 or 1."""
    if p <= 0:
        return 0
    return 65536 if p >= 1 else min(max(round(p * 65536), 1), 65535)


def keep_scale(p: float) -> float:
    """The factor of kept elements, 1 / (1 - p) for p in 16 bits; 0 if none is kept."""
    dropped = threshold(p)
    return 65536 / (65536 - dropped) if dropped < 65536 else 0.0


def keep_mask(
    shape: Sequence[int],
    reduced: Sequence[int],
    *,
    seed: int,
    offset: int,
    p: float,
    shared: Collection[int] = (),
    strides: Sequence[int] | None = None,
    first: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """True where an element is kept; rows and columns are numbered in the order of the dims.

    Seed and offset count as the kernels take them, modulo 2^64. Along the `shared` dimensions all
    elements have one draw, that of a tensor in which those have size 1. Of a part of a tensor,
    `first` is the number of the first row, and `strides` say what a step along each dimension adds.
    """
    whole, shape = tuple(shape), [1 if dim in shared else n for dim, n in enumerate(shape)]
    rows = [dim for dim in range(len(shape)) if dim not in reduced]
    columns = math.prod(shape[dim] for dim in reduced)
    count = math.prod(shape[dim] for dim in rows)
    calls = (columns + 7) // 8
    row = torch.arange(count, device=device)
    if strides is not None:
        row = torch.full([shape[dim] for dim in rows], first, device=device)
        for at, dim in enumerate(rows):
            along = torch.arange(shape[dim], device=device) * strides[dim]
            row += along.view(-1, *[1] * (len(rows) - 1 - at))
    row = row.reshape(count, 1).expand(count, calls)
    call = torch.arange(calls, device=device).expand(count, calls)
    counter = (
        call,
        row & _LOW,
        torch.full_like(row, offset & _LOW),
        (row >> 32) << 16 | (offset >> 32 & _LOW),
    )
    words = philox(counter, seed & _LOW, seed >> 32 & _LOW)
    bits = torch.stack([half for word in words for half in (word & 0xFFFF, word >> 16)], -1)
    kept = (bits >= threshold(p)).flatten(1)[:, :columns]
    order = [*rows, *reduced]
    placed = kept.reshape([shape[dim] for dim in order])
    return placed.permute([order.index(dim) for dim in range(len(shape))]).expand(whole)


def philox(
    counter: Sequence[Tensor], key0: int, key1: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 over int64 tensors that hold 32-bit words (Salmon et al., SC 2011)."""
    c0, c1, c2, c3 = counter
    for _ in range(10):
        high0, low0 = _multiply(c0, 0xD2511F53)
        high1, low1 = _multiply(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0 = key0 + 0x9E3779B9 & _LOW
        key1 = key1 + 0xBB67AE85 & _LOW
    return c0, c1, c2, c3


def _multiply(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low words of a product; by halves, since int64 has no room for 64 unsigned bits."""
    low = (a & 0xFFFF) * b
    high = (a >> 16) * b + (low >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF
