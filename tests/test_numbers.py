# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers that are hard on a reduction: huge, tiny, constant, far from zero, not finite."""

import dataclasses
import math

import pytest
import torch
from cases import (
    NORMS,
    OPERATORS,
    compare,
    declare,
    forced,
    gradients_of,
    parameters,
    poisoned,
    randn,
    same_bits,
    upstream_of,
    verify,
)
from references import Chain, check, evaluate, exact, precise

import fusedops as fo


@pytest.fixture(params=[64, 1023, 20000])
def columns(request):
    return request.param


def overflow(op, x):
    """Whether the squares of a norm's rows do not add up in float32, in torch's norms either."""
    return op in NORMS and bool(
        (x.double().square().sum(-1) > torch.finfo(torch.float32).max).all()
    )


def verify_or_nan(op, x, operands):
    """Rows whose squares overflow are NaN throughout: neither zeros nor other numbers."""
    if overflow(op, x):
        y = declare(OPERATORS[op])(x, **operands)
        constant = op == "layer_norm" and bool((x == x[:, :1]).all())
        # The mean of a constant row may be off by its rounding, or not: then there are no squares.
        if not constant or y.isnan().any():
            assert y.isnan().all()
            return
    verify(OPERATORS[op], x, operands, unfused=not overflow(op, x))


@pytest.mark.parametrize("value", [0.0, 1.0, -7.5, 1e-30, 3e37])
@pytest.mark.parametrize("op", OPERATORS)
def test_constant_rows(op, value, columns, device):
    chain = OPERATORS[op]
    x = torch.full((3, columns), value, device=device)
    operands = parameters(chain, columns, device=device)
    verify_or_nan(op, x, operands)


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
    verify_or_nan(op, x, operands)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPERATORS)
def test_the_largest_half_numbers(op, dtype, columns, device):
    chain = OPERATORS[op]
    sign = randn(5, columns, device=device).sign()
    x = (sign * min(torch.finfo(dtype).max, 8e37)).to(dtype)
    operands = parameters(chain, columns, dtype, device)
    verify_or_nan(op, x, operands)


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


def diverged(op, value, columns, device, schedule=None):
    """A row that holds `value` is NaN everywhere: results, statistics and gradients."""
    options = {"stats": True} if op in NORMS else {}
    chain = dataclasses.replace(OPERATORS[op], **options)
    operands = parameters(chain, columns, device=device)
    clean = randn(5, columns, device=device)
    others = [0, 1, 3, 4]
    for at in {0, columns // 2, columns - 1}:
        x = clean.clone()
        x[2, at] = value
        out, intact = poisoned(x.shape, x.dtype, x.device)
        if op not in NORMS:
            with forced(schedule):
                declare(chain)(x, out=out)
            assert intact()
            assert out[2].isnan().all()
        upstream = upstream_of(chain, x, operands)
        with forced(schedule, also=["register"] * (schedule == "shared")):
            outputs, gradients = gradients_of(declare(chain), x, operands, upstream)
            wanted, near = gradients_of(declare(chain), clean, operands, upstream)
        assert outputs["y"][2].isnan().all(), "what is wrong must show"
        assert gradients["x"][2].isnan().all()
        assert same_bits(outputs["y"][others], wanted["y"][others])
        assert same_bits(gradients["x"][others], near["x"][others])
        if op in NORMS:
            assert outputs["rstd"][2].isnan()
            if op == "layer_norm" and not math.isfinite(value):
                assert not outputs["mean"][2].isfinite()
            assert gradients["gamma"].isnan().all()


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [3, 16, 257, 1024, 4096])
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_diverges_is_nan(op, value, columns, scheduled):
    """At every schedule, in each part of a row that threads, warps and chunks have."""
    device, schedule = scheduled
    diverged(op, value, columns, device, schedule)


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [20000, 100001])
@pytest.mark.parametrize("op", OPERATORS)
def test_a_long_row_that_diverges_is_nan(op, columns, device):
    for value in (torch.nan, torch.inf):
        diverged(op, value, columns, device)


@pytest.mark.thorough
@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("value", [-torch.inf, 1e30])
def test_a_norm_of_squares_beyond_range_is_nan(op, value, columns, device):
    """Of -Inf, and of finite values: a reciprocal deviation of zero would give zeros."""
    diverged(op, value, columns, device)


def test_a_saved_stream_of_halves_is_infinite_and_one_of_floats_is_not(device):
    """As the pages say of save=: the chain goes on with what was saved."""
    x = torch.full((2, 8), 60000.0, dtype=torch.float16, device=device)
    x[:, ::2] *= -1
    for dtype, finite in ((None, False), (torch.float32, True)):
        op = fo.LayerNorm(load=[fo.Residual("r", save="stream", dtype=dtype)])
        for call in (op, op.unfused):
            y, stream = call(x, r=x)
            assert [bool(one.isfinite().all()) for one in (y, stream)] == [finite, finite]


def test_the_default_eps_of_an_rms_norm_is_larger_than_torchs(device):
    """As the tables say."""
    x = 1e-3 * randn(3, 64, device=device)
    for op, eps in ((fo.RMSNorm(), 1e-6), (fo.RMSNorm(eps=torch.finfo(torch.float32).eps), None)):
        torch.testing.assert_close(op(x), torch.nn.functional.rms_norm(x, (64,), None, eps))
    assert fo.nn.RMSNorm(64).op().constants["eps"] == torch.finfo(torch.float32).eps
    assert fo.LayerNorm().constants["eps"] == torch.nn.LayerNorm(1).eps


@pytest.mark.thorough
def test_a_norm_of_halves_has_no_squares_beyond_range(device):
    """65504 squared, 100000 times, is in range; so is a double beyond the largest float."""
    x = torch.full((2, 100000), 65504.0, device=device, dtype=torch.float16)
    x[:, ::2] *= -1
    assert torch.equal(fo.RMSNorm()(x), x.sign())
    assert torch.equal(fo.LayerNorm()(x), x.sign())
    wide = randn(2, 1000, device=device).double() * 1e100
    near = wide / wide.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(fo.RMSNorm(eps=0.0)(wide), near)


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
