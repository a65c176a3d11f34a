# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Operands that are described by dtype and shape instead of given."""

from __future__ import annotations

import pytest
import torch
from dispatchers import DESCRIBED, NUMBER, TENSOR, Affine, Echo

from fusedops import _runtime

SLOTS = (("b", TENSOR | DESCRIBED), ("s", NUMBER | TENSOR | DESCRIBED), ("d", DESCRIBED))

DIFFERENT = (
    (torch.float32, (6,)),
    (torch.float16, (6,)),
    (torch.float32, (6, 1)),
    (torch.float32, (1, 6)),
    (torch.float32, (7,)),
    (torch.float32, ()),
)


@pytest.fixture
def described(library):
    return Affine(library, SLOTS)


def test_a_tensor_or_its_description(described, x):
    b = torch.randn(6)
    for _ in range(2):
        assert torch.equal(described(x, b=b), x + b)
        described(x, b=(b.dtype, b.shape))  # nothing is there to be added
        assert torch.equal(described(x), x)
    assert described.reasons == ["miss"] * 3
    assert described.calls[1][1] == {"b": (torch.float32, (6,))}


def test_each_part_of_a_description_parts_plans(described, x):
    for number, description in enumerate(DIFFERENT, 1):
        for _ in range(2):
            described(x, d=description)
        assert described.dispatch.plans == number


def test_slots_do_not_run_together(described, x):
    for first, second in ((DIFFERENT[0], None), (None, DIFFERENT[0]), DIFFERENT[2:4]):
        given = dict(b=first, d=second)
        described(x, **{name: value for name, value in given.items() if value is not None})
    described(x, b=DIFFERENT[3], d=DIFFERENT[2])
    assert described.dispatch.plans == 4


def test_any_tuple_of_ints_is_a_shape(described, x):
    for shape in ((4, 6), x.shape, torch.Size([4, 6])):
        described(x, d=(torch.float32, shape))
    assert described.dispatch.plans == 1


def test_a_number_is_still_one(library):
    echo = Echo(library, [(1, _runtime.FLOAT64, 1)], slots=[("v", NUMBER | DESCRIBED)])
    assert echo(v=2.5) == echo(v=2.5)
    with pytest.raises(ValueError, match="does not fit the value in slot 1"):
        echo(v=(torch.float32, (1,)))


@pytest.mark.parametrize("kind", [_runtime.POINTER, _runtime.INT64, _runtime.THRESHOLD])
def test_no_patch_can_use_one(library, kind):
    echo = Echo(library, [(1, kind, 1)], slots=[("v", TENSOR | DESCRIBED)])
    with pytest.raises(ValueError, match="does not fit the value in slot 1"):
        echo(v=(torch.float32, (1,)))


@pytest.mark.parametrize(
    "value",
    [
        (),
        (torch.float32,),
        (torch.float32, (6,), 0),
        (torch.float32, 6),
        (torch.float32, [6]),
        (torch.float32, (6.0,)),
        (torch.float32, (True,)),
        (torch.float32, (2**64,)),
        ("float32", (6,)),
        ((6,), torch.float32),
        [torch.float32, (6,)],
        torch.float32,
        None,
        1.0,
    ],
)
def test_wrong_descriptions_go_to_python(described, x, value):
    assert described(x, d=value) == "arguments"


def test_a_slot_of_descriptions_alone_takes_no_tensor(described, x):
    assert described(x, d=x) == "arguments"
