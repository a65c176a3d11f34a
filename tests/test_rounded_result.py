# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`save_result=True`: a softmax whose gradient reads y as it was returned, rounded to 16 bits."""

import pytest
import torch
from cases import same_bits, thorough
from test_saved_result import gradient, leaf, saves

import fusedops as fo
from fusedops import testing

DTYPES = (torch.float16, torch.bfloat16)
OF_Y, OF_X = fo.Softmax(save_result=True), fo.Softmax()


def of_y_alone(y, g, dtype):
    """The gradient in double of a y that is as it is, and half an ulp of it in `dtype`."""
    y, g = y.double(), g.double()
    found = y * (g - (g * y).sum(-1, keepdim=True))
    terms = y * (g.abs() + (g * y).abs().sum(-1, keepdim=True))
    exponent = torch.frexp(found).exponent.double().clamp(min=-13 if dtype == DTYPES[0] else -125)
    return found, torch.exp2(exponent - 1) * torch.finfo(dtype).eps * 0.51 + 2e-6 * terms


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 49, 512, *thorough(7, 64, 1030, 4096, 20000, 70000)])
def test_the_gradient_is_that_of_the_y_that_was_returned(columns, dtype, device):
    x = (3 * torch.randn(5, columns, device=device)).to(dtype).requires_grad_()
    g = torch.randn_like(x)
    y = OF_Y(x)
    found = gradient(y, x, g)
    assert same_bits(y, OF_X(x))
    wanted, off = of_y_alone(y.detach(), g, dtype)
    assert bool(((found.double() - wanted).abs() <= off).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(6, 33), *thorough((0, 8), (3, 1), (4, 5, 260), (2, 20011))])
def test_the_stated_bound(shape, dtype, device):
    """Random incoming gradients, odd columns, strides and misaligned memory: `testing.check`."""
    testing.check(OF_Y, leaf(device, dtype, shape))


def test_y_is_saved_and_not_x(device):
    for dtype in DTYPES:
        assert saves(OF_X, leaf(device, dtype)) == (True, False)
        assert saves(OF_Y, leaf(device, dtype)) == (False, True)


@pytest.mark.thorough
def test_sink_and_lse_have_bounds_as_well(device):
    op = fo.Softmax(save_result=True, sink="s", lse=True)
    testing.check(op, leaf(device, DTYPES[1]), s=leaf(device, shape=(5, 1)))


def test_masked_elements_and_inf_and_nan(device):
    x = torch.randn(4, 65, device=device, dtype=DTYPES[1])
    x[0, ::2] = x[1] = -torch.inf
    x[2, 3] = torch.nan
    g = torch.randn_like(x).masked_fill(x == -torch.inf, torch.nan)
    leaf_ = x.clone().requires_grad_()
    y = OF_Y(leaf_)
    found = gradient(y, leaf_, g)
    assert not found[x == -torch.inf].any()
    assert found[2].isnan().all()
    assert found[[0, 3]].isfinite().all()


def test_a_result_that_is_not_rounded_gives_the_bits_without(device):
    x = leaf(device)
    g = torch.randn_like(x)
    assert same_bits(gradient(OF_Y(x), x, g), gradient(OF_X(x), x, g))


@pytest.mark.thorough
def test_a_traced_program_saves_y(device):
    from torch._dynamo.backends.common import aot_autograd

    traced = []

    def look(module, inputs):
        traced.append(module)
        return module.forward

    x = leaf(device, DTYPES[1])
    g = torch.randn_like(x)
    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=look, bw_compiler=look)
    compiled = torch.compile(OF_Y, backend=backend, fullgraph=True)
    assert same_bits(gradient(compiled(x), x, g), gradient(OF_Y(x), x, g))
    assert "saved y" in str(traced[-1].graph)


@pytest.mark.parametrize(
    ("make", "cure"),
    [
        (lambda: fo.Softmax([fo.Scale("a")], save_result=True), "leave it or the functors away"),
        (lambda: fo.Softmax(store=[fo.Scale("a")], save_result=True), "functors away"),
        (lambda: fo.Softmax(empty_row="nan", save_result=True), "use empty_row='zero'"),
        (lambda: fo.LogSoftmax(save_result=True), "use Softmax"),
    ],
)
def test_where_y_does_not_tell(make, cure):
    with pytest.raises(ValueError, match=cure) as caught:
        make()
    assert "save_result must be False here" in str(caught.value)


def test_it_is_a_flag():
    with pytest.raises(TypeError, match="save_result"):
        fo.Softmax(save_result="y")
