# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A Map with a Tap: a chain whose end is a STORE, so that a gradient reads the LOAD's values."""

import pytest
import torch
from cases import exhaustive, raises, same_bits
from test_gradient_variants import backward_of
from test_gradient_variants import check_compiles as check_backward
from test_map import gelu, tail_case
from test_variants import ARCHS, check_compiles, described, tensor

import fusedops as fo
from fusedops.testing import check

TAPPED = fo.Map(
    load=[fo.Bias("b")],
    store=[fo.Tap("t"), gelu("b"), fo.Tap("u"), fo.Dropout("p"), fo.Residual("r")],
)
PLAIN = fo.Map(load=[fo.Bias("b"), gelu("b"), fo.Dropout("p"), fo.Residual("r")])


@pytest.mark.thorough
def test_a_value_within_the_chain(device):
    """Neither the chain nor its bits change; what follows a tap reads its input again."""
    x, operands = tail_case(6, 40, torch.float32, device)
    leaf = x.requires_grad_()
    got = TAPPED(leaf, **operands, generator=(3, 0))
    plain = PLAIN(leaf, **operands, generator=(3, 0))
    assert same_bits(got.y.detach(), plain.detach())
    assert same_bits(got.t.detach(), x.detach() + operands["b"])
    dy = torch.randn_like(x)
    ours, theirs = (torch.autograd.grad(y, leaf, dy)[0] for y in (got.y, plain))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "dtype", [torch.float16, *exhaustive(torch.float32, torch.float64)], ids=str
)
def test_check(dtype, device):
    x, operands = tail_case(6, 40, dtype, device)
    assert check(TAPPED, x, **operands).passed


def test_where_a_store_begins():
    with raises(ValueError, "begin with a Tap", "load=[Bias(", "store=[Tap("):
        fo.Map(store=[fo.Bias("b"), fo.Tap("t")])


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ARCHS)
def test_it_compiles(arch):
    x = tensor(64, 1000, dtype=torch.float16)
    operands = {"b": tensor(1000), "p": 0.3, "r": tensor(64, 1000, dtype=torch.float16)}
    check_compiles(described(TAPPED, x, operands, arch))
    check_backward(backward_of(TAPPED, x, operands, arch))
