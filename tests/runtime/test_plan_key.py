# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Under what a plan is found again: each part of the key, and what is no part of it."""

from __future__ import annotations

import pytest
import torch
from dispatchers import Affine

from fusedops import _runtime

BASE = torch.zeros(64)
KEYS = {
    "base": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5),
    "x shape": lambda: dict(x=torch.ones(6, 4), b=torch.ones(6), s=1.0, p=0.5),
    "x rank": lambda: dict(x=torch.ones(1, 4, 6), b=torch.ones(6), s=1.0, p=0.5),
    "x strides": lambda: dict(x=torch.ones(6, 4).t(), b=torch.ones(6), s=1.0, p=0.5),
    "x dtype": lambda: dict(x=torch.ones(4, 6).double(), b=torch.ones(6), s=1.0, p=0.5),
    "x dtype of the same size": lambda: dict(
        x=torch.ones(4, 6).int(), b=torch.ones(6), s=1.0, p=0.5
    ),
    "x alignment": lambda: dict(
        x=BASE[1:25].reshape(4, 6), b=torch.ones(6), s=1.0, p=0.5
    ),
    "x better alignment": lambda: dict(
        x=BASE[2:26].reshape(4, 6), b=torch.ones(6), s=1.0, p=0.5
    ),
    "b shape": lambda: dict(x=torch.ones(4, 6), b=torch.ones(1, 6), s=1.0, p=0.5),
    "b stride": lambda: dict(x=torch.ones(4, 6), b=torch.ones(1).expand(6), s=1.0, p=0.5),
    "b half": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6).half(), s=1.0, p=0.5),
    "b bfloat16": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6).bfloat16(), s=1.0, p=0.5),
    "no b": lambda: dict(x=torch.ones(4, 6), s=1.0, p=0.5),
    "s int": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1, p=0.5),
    "no s": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), p=0.5),
    "p zero": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.0),
    "no p": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1.0),
    "not training": lambda: dict(
        x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, training=False
    ),
    "dim": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, dim=0),
    "another dim": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, dim=1),
    "two dims": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, dim=(0, 1)),
    "normalized_shape": lambda: dict(
        x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, normalized_shape=(0, 1)
    ),
    "dtype": lambda: dict(
        x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, dtype=torch.half
    ),
    "out": lambda: dict(
        x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, out=torch.ones(4, 6)
    ),
    "out strides": lambda: dict(
        x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, out=torch.ones(6, 4).t()
    ),
}  # fmt: skip


def test_each_part_of_the_key_parts_plans(library):
    affine = Affine(library)
    for number, make in enumerate(KEYS.values(), 1):
        for _ in range(2):  # tensors of their own each time: addresses are no key
            keywords = make()
            affine(keywords.pop("x"), **keywords)
        assert affine.dispatch.plans == number
    assert affine.reasons == ["miss"] * len(KEYS)
    assert affine.dispatch.hits == len(KEYS)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (dict(p=0.1), dict(p=0.9)),
        (dict(p=1), dict(p=1.0)),
        (dict(p=0), dict(p=0.0)),
        (dict(p=0.5, training=False), dict(p=0.0, training=False)),
        (dict(s=1.0), dict(s=-7.5)),
        (dict(dim=-1), dict(dim=(-1,))),
        (dict(dim=-1), dict(dim=[-1])),
        ({}, dict(training=True)),
        ({}, dict(dtype=None, dim=None, out=None, generator=None, normalized_shape=None)),
        (dict(generator=torch.Generator()), {}),
        (dict(generator=(1, 2)), {}),
        (dict(generator=(1, 2)), dict(generator=(2**64 - 1, 3))),
        (dict(normalized_shape=6), dict(normalized_shape=torch.Size([6]))),
    ],
)
def test_what_is_no_key(affine, x, one, other):
    affine(x, **one)
    affine(x, **other)
    assert affine.reasons == ["miss"]


def test_the_salt_parts_plans(affine, x):
    affine(x)
    _runtime.set_salt(3)
    try:
        affine(x)
    finally:
        _runtime.set_salt(0)
    affine(x)
    assert (affine.dispatch.misses, affine.dispatch.hits) == (2, 1)


def test_shapes_without_end_do_not_fill_the_memory(affine):
    for size in range(9000):
        affine(torch.empty(0, size))
    assert affine.dispatch.plans <= 8192
