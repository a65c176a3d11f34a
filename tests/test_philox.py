# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The plain Python Philox that dropout is tested against, held to published answers."""

import ctypes
import random

import pytest
import torch
from cpptest import build
from philox import keep_mask, keep_rows, keep_scale, philox4x32, threshold

# Counter, key and output from the file kat_vectors of Random123, the authors' own library.
KNOWN_ANSWERS = [
    "00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1",
]


@pytest.mark.parametrize("line", KNOWN_ANSWERS)
@pytest.mark.parametrize("number", [int, torch.tensor])
def test_known_answers(line, number):
    words = [number(int(word, 16)) for word in line.split()]
    assert [int(word) for word in philox4x32(words[:4], words[4:6])] == [int(w) for w in words[6:]]


def test_counters_of_a_column_share_products_and_keep_their_bits(tmp_path):
    library, drawn = build("philox", tmp_path), random.Random(0)
    edges = (0, 1, 2**32 - 1)
    for case in range(20):
        stream = [drawn.getrandbits(32) if case > 2 else edges[case] for _ in range(5)]
        lows = [*edges, *(drawn.getrandbits(32) for _ in range(5))]
        found = (ctypes.c_uint32 * (4 * len(lows)))()
        library.column_bits(
            (ctypes.c_uint32 * 5)(*stream), (ctypes.c_uint32 * 8)(*lows), len(lows), found
        )
        first, middle, high, *key = stream
        want = [word for low in lows for word in philox4x32((first, low, middle, high), key)]
        assert [*found] == want


def test_the_map_element_by_element():
    seed, offset, p, slot = 0xFEDCBA9876543210, (7 << 32) + 5, 0.3, 2
    rows = [0, 1, 1 << 32, (3 << 32) + 9]
    mask = keep_rows(torch.tensor(rows), 19, seed, offset, p, slot)
    for i, row in enumerate(rows):
        for column in range(19):
            stream = offset + slot
            words = philox4x32(
                (column // 8, row % 2**32, stream % 2**32, (row >> 32) * 65536 + (stream >> 32)),
                (seed % 2**32, seed >> 32),
            )
            lane = column % 8
            bits = (words[lane // 2] >> 16 * (lane % 2)) & 0xFFFF
            assert bool(mask[i, column]) == (bits >= round(p * 65536))


def test_a_large_mask_is_that_of_its_parts(monkeypatch):
    whole = keep_mask((5, 7, 33), 1, 2, 0.5)
    monkeypatch.setattr("philox.CHUNK", 8)
    assert torch.equal(keep_mask((5, 7, 33), 1, 2, 0.5), whole)


def test_thresholds():
    assert [threshold(p) for p in (0, 1e-9, 0.1, 0.5, 1 - 1e-9, 1)] == [
        *(0, 1, 6554, 32768, 65535, 65536)
    ]
    assert keep_scale(0.5) == 2
    assert keep_scale(0) == 1
    assert keep_scale(1) == 0


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_many_are_kept_as_p_says(p):
    kept = keep_mask((1024, 1024), 3, 0, p).double().mean().item()
    assert abs(kept - (1 - threshold(p) / 65536)) < 5 * (p * (1 - p)) ** 0.5 / 1024
