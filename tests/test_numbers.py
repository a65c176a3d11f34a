# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers that are hard on a reduction: huge, tiny, constant, far from zero, not finite."""

import pytest
import torch
from cases import OPERATORS, compare, declare, parameters, randn, verify
from references import Chain, check, evaluate, exact, precise


@pytest.fixture(params=[64, 1023, 20000])
def columns(request):
    return request.param


#: From here on squares overflow in float32, and with them torch's own norms.
SQUARES_OVERFLOW = 1e19


@pytest.mark.parametrize("value", [0.0, 1.0, -7.5, 1e-30, 3e37])
@pytest.mark.parametrize("op", OPERATORS)
def test_constant_rows(op, value, columns, device):
    chain = OPERATORS[op]
    x = torch.full((3, columns), value, device=device)
    operands = parameters(chain, columns, device=device)
    verify(chain, x, operands, unfused=value < SQUARES_OVERFLOW)


@pytest.mark.parametrize("op", OPERATORS)
def test_mean_of_ten_thousand_sigma(op, columns, device):
    chain = OPERATORS[op]
    x = randn(5, columns, device=device) + 1e4
    verify(chain, x, parameters(chain, columns, device=device))


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-10, 1e10, 1e18, 1e30, 8e37])
@pytest.mark.parametrize("op", OPERATORS)
def test_inputs_of_every_size(op, scale, columns, device):
    chain = OPERATORS[op]
    x = (randn(5, columns, device=device).double().clamp(-4, 4) * scale).float()
    operands = parameters(chain, columns, device=device)
    verify(chain, x, operands, unfused=scale < SQUARES_OVERFLOW)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPERATORS)
def test_the_largest_half_numbers(op, dtype, columns, device):
    chain = OPERATORS[op]
    sign = randn(5, columns, device=device).sign()
    x = (sign * min(torch.finfo(dtype).max, 8e37)).to(dtype)
    operands = parameters(chain, columns, dtype, device)
    verify(chain, x, operands, unfused=dtype == torch.float16)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_one_element_far_above_the_rest(op, columns, device):
    x = randn(3, columns, device=device)
    x[0, 0] = 100
    x[1, columns // 2] = 1e30
    x[2, -1] = 88
    verify(OPERATORS[op], x, {})


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_many_equal_elements_below_one(op, columns, device):
    """The error of one exponential, as often as there are columns: none averages out."""
    shifts = torch.linspace(-15, 0, 64, device=device)
    x = shifts[:, None].repeat(1, columns)
    x[:, 3] = 0
    verify(OPERATORS[op], x, {})


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_a_shift_changes_nothing(op, columns, device):
    x = randn(3, columns, device=device).mul(64).round() / 64  # a shift by 1024 is exact
    fused = declare(OPERATORS[op])
    assert torch.equal(fused(x), fused(x + 1024))


@pytest.mark.parametrize("columns", [2, 64, 1024, 32768])
def test_small_integers_are_exact(columns, device):
    """Threes and fives in equal parts are -1 and 1 after a norm without eps."""
    x = torch.tensor([3.0, 5.0], device=device).repeat(2, columns // 2)
    chain = Chain("layer_norm", eps=0.0)
    assert torch.equal(declare(chain)(x), x - 4)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_and_inf_stay_in_their_row(op, value, columns, device):
    chain = OPERATORS[op]
    operands = parameters(chain, columns, device=device)
    x = randn(5, columns, device=device)
    clean = declare(chain)(x, **operands)
    for at in (0, columns // 2, columns - 1):
        bad = x.clone()
        bad[2, at] = value
        y = declare(chain)(bad, **operands)
        assert y[2, at].isnan(), "what is wrong must show"
        if value != value or op in ("softmax", "log_softmax"):
            compare(chain, bad, operands, {"y": y})
        others = [0, 1, 3, 4]
        assert torch.equal(y[others], clean[others])


@pytest.mark.parametrize("columns", [1, 7, 33, 1000, 4097])
@pytest.mark.parametrize("op", OPERATORS)
def test_double_against_higher_precision(op, columns, device):
    chain = Chain(op, eps=1e-5)
    # Two scales, so that the inputs use all of double's digits.
    coarse, fine = (randn(2, columns, device=device, seed=i).double() for i in range(2))
    x = coarse * 3 + fine * 1e-9
    got = declare(chain)(x)
    high, low = precise(op, exact(x), chain.eps)
    near = evaluate(chain, x.cpu(), {}, torch.float64)["y"]
    check(got.cpu(), high, near, low=low)


def test_warps_without_a_column_far_from_zero(device):
    """The last of eight chunks of 16384 columns holds 312: most warps have nothing to merge."""
    columns = 115000
    x = randn(2, columns, device=device) * 1e16 + 1e20
    chain = OPERATORS["layer_norm"]
    verify(chain, x, parameters(chain, columns, device=device), unfused=False)  # torch: NaN
