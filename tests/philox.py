# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Dropout's contract in plain Python: Philox4x32-10, and which elements are kept.

Nothing here comes from fusedops. The generator is the one of Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3" (2011); `test_philox.py` holds it to the authors' known answers.
"""

from math import prod

import torch

MASK32 = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)

#: Blocks drawn at once: what bounds the memory of `keep_rows`.
CHUNK = 1 << 22


def philox4x32(counter, key, rounds=10):
    """Four 32-bit words of output for four of counter and two of key.

    The words are Python integers, or int64 tensors that broadcast (a product of two 32-bit words
    wraps there, but keeps its bits).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        p0, p1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            ((p1 >> 32) & MASK32) ^ c1 ^ k0,
            p1 & MASK32,
            ((p0 >> 32) & MASK32) ^ c3 ^ k1,
            p0 & MASK32,
        )
        k0, k1 = (k0 + WEYL[0]) & MASK32, (k1 + WEYL[1]) & MASK32
    return c0, c1, c2, c3


def threshold(p):
    """The number of 65536 equally likely values that drop an element."""
    if p in (0, 1):
        return 65536 * int(p)
    return min(max(round(p * 65536), 1), 65535)


def keep_scale(p):
    """What a survivor is multiplied by."""
    return 0.0 if p == 1 else 65536 / (65536 - threshold(p))


def keep_rows(rows, columns, seed, offset, p, slot=0):
    """True where an element is kept, as [len(rows), columns], for the logical rows in `rows`."""
    blocks = -(-columns // 8)
    if rows.numel() > 1 and rows.numel() * blocks > CHUNK:
        parts = rows.split(max(1, CHUNK // blocks))
        return torch.cat([keep_rows(part, columns, seed, offset, p, slot) for part in parts])
    block = torch.arange(blocks, dtype=torch.int64, device=rows.device)
    row = rows.to(torch.int64)[:, None]
    stream = (offset + slot) % 2**64
    words = philox4x32(
        (block, row & MASK32, stream & MASK32, (row >> 32) << 16 | stream >> 32),
        (seed & MASK32, (seed >> 32) & MASK32),
    )
    halves = [half for word in words for half in (word & 0xFFFF, word >> 16)]
    drawn = torch.stack(torch.broadcast_tensors(*halves), dim=-1).reshape(rows.numel(), 8 * blocks)
    return drawn[:, :columns] >= threshold(p)


def keep_mask(shape, seed, offset, p, slot=0, dims=1, device="cpu"):
    """`keep_rows` for a whole tensor whose last `dims` dimensions are the row."""
    columns = prod(shape[len(shape) - dims :])
    rows = torch.arange(prod(shape[: len(shape) - dims]), device=device)
    return keep_rows(rows, columns, seed, offset, p, slot).reshape(shape)


def drawn(device, seed):
    """The (seed, offset) that the first fused call draws from a generator seeded with `seed`."""
    if torch.device(device).type == "cuda":
        return seed, 0
    generator = torch.Generator().manual_seed(seed)
    return torch.empty((), dtype=torch.int64).random_(generator=generator).item(), 0
