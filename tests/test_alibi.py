# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Alibi: a penalty for distance, counted from indices."""

import math

import pytest
import torch
from cases import FLOATS, declare, forced, randn, thorough, verify
from references import Chain

import fusedops as fo

SHAPE = (2, 4, 33, 129)


def paper_slopes(heads, dtype=torch.float32, device="cpu"):
    """The paper's: a geometric sequence, one slope a head."""
    slopes = [2 ** (-8 * (head + 1) / heads) for head in range(heads)]
    return torch.tensor(slopes, dtype=dtype, device=device)[:, None, None]


def alibi(op="softmax", align="top-left", offset=0, before=(), after=()):
    return Chain(op, (*before, ("alibi", "slopes", align, offset), *after))


@pytest.mark.thorough
@pytest.mark.parametrize("align", ["top-left", "bottom-right"])
@pytest.mark.parametrize("shape", [(2, 9, 9), (3, 5, 12), (2, 12, 5), (1, 1, 33), (2, 200, 129)])
@pytest.mark.parametrize("op", ["softmax", *thorough("log_softmax")])
def test_either_corner(op, shape, align, device):
    x = randn(*shape, device=device)
    for offset in (0, 3, -4, 500):
        verify(alibi(op, align, offset), x, {"slopes": paper_slopes(shape[0], device=device)})


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
@pytest.mark.parametrize("of_slopes", [torch.float32, torch.float16], ids=str)
def test_dtypes(dtype, of_slopes, device):
    x = randn(*SHAPE, dtype=dtype, device=device)
    verify(alibi(), x, {"slopes": paper_slopes(4, of_slopes, device)})


@pytest.mark.thorough
@pytest.mark.parametrize(
    "shape", [(4, 1, 1), (2, 4, 1, 1), (2, 1, 1, 1), (33, 1), (4, 33, 1), (1,), ()], ids=str
)
def test_slopes_broadcast(shape, device):
    slopes = randn(*shape, device=device, seed=1).abs()
    verify(alibi(), randn(*SHAPE, device=device), {"slopes": slopes})


@pytest.mark.parametrize("slope", [0.0, 0.25, -0.5, 1e4])
def test_one_slope_that_is_a_number(slope, device):
    verify(alibi(), randn(*SHAPE, device=device), {"slopes": slope})


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, *thorough(torch.float16)], ids=str)
@pytest.mark.parametrize("columns", [1, 33, 1000, 4096, 16384])
def test_every_schedule(dtype, columns, scheduled):
    device, schedule = scheduled
    x = randn(2, 7, columns, dtype=dtype, device=device)
    slopes = paper_slopes(2, device=device)
    verify(alibi(offset=columns // 2), x, {"slopes": slopes}, schedule=schedule)


@pytest.mark.thorough
def test_it_applies_where_it_stands(device):
    """Before a scale it is scaled, after it is not; a mask beside it takes its elements out."""
    operands = {"slopes": paper_slopes(4, device=device), "s": 0.125, "p": 0.25}
    x = randn(*SHAPE, device=device)
    scale, causal = ("scale", "s"), ("causal", "bottom-right", 0)
    for chain in (
        alibi(before=[scale], after=[causal]),
        alibi(before=[causal], after=[scale]),
        alibi(before=[("dropout", "p")], after=[scale, ("window", 20, 5, "top-left", 0)]),
    ):
        steps = {name for _, name, *_ in chain.load}
        wanted = {name: value for name, value in operands.items() if name in steps}
        verify(chain, x, wanted)


def test_two_of_them_are_two(device):
    chain = alibi(after=[("alibi", "others", "bottom-right", 3)])
    slopes = {"slopes": paper_slopes(4, device=device), "others": 0.125}
    verify(chain, randn(*SHAPE, device=device), slopes)


def test_beside_causal_it_is_the_papers_own_form(device):
    """Whose bias is slope * (k - q): probabilities do not see the constant in a row."""
    x, slopes = randn(2, 4, 64, 64, device=device), paper_slopes(4, device=device)
    ours = fo.Softmax(load=[fo.Alibi("slopes"), fo.Causal()])(x, slopes=slopes)
    position = torch.arange(64.0, device=device)
    linear = fo.Softmax(load=[fo.Bias("bias"), fo.Causal()])(x, bias=slopes * position)
    torch.testing.assert_close(ours, linear, rtol=2e-5, atol=0)


@pytest.mark.thorough
def test_queries_are_counted_by_their_dimension_not_by_their_place(device):
    """In a transposed x, and under a bias whose sharing changes the order of the rows."""
    x = randn(3, 256, 2, 256, device=device).transpose(1, 2)
    bias = randn(1, 2, 256, 256, device=device, seed=1)
    chain = alibi(after=[("bias", "b")])
    verify(chain, x, {"slopes": paper_slopes(2, device=device), "b": bias})
    wide = randn(3, 8, 256, 256, device=device)
    bias = randn(1, 8, 256, 256, device=device, seed=1)
    verify(chain, wide, {"slopes": paper_slopes(8, device=device), "b": bias})


def test_the_reduced_dimension_need_not_be_the_last(device):
    x, op = randn(2, 9, 5, device=device), declare(alibi())
    got = op(x, slopes=0.25, dim=1)
    wanted = op(x.transpose(1, 2).contiguous(), slopes=0.25).transpose(1, 2)
    assert torch.equal(got, wanted)


def test_nothing_of_it_leaks_from_under_a_mask(device):
    """An infinite slope makes NaN and -inf everywhere but where the masks do."""
    x = randn(4, 8, 8, device=device)
    op = declare(alibi(before=[("causal", "top-left", -1)]))
    slopes = torch.tensor([0.5, math.inf, -math.inf, math.nan], device=device)[:, None, None]
    for function in (op, op.unfused):
        y = function(x, slopes=slopes)
        assert torch.equal(y[0], function(x, slopes=0.5)[0])
        beyond = torch.ones(8, 8, dtype=torch.bool, device=device).triu()
        assert y[1, 0].eq(0).all(), "an empty row"
        assert y[1].eq(0).all(), "all that is left is -inf"
        assert y[:2, beyond].eq(0).all()


def test_distances_are_exact_integers(device):
    """In every pack and tail of a row: log-softmax of distances alone shows them."""
    x = torch.zeros(3, 2050, dtype=torch.float64, device=device)
    op = fo.LogSoftmax(load=[fo.Alibi("slopes", offset=10**9)])
    y = op(x, slopes=1.0)
    step = y.diff(dim=-1)
    torch.testing.assert_close(step, torch.ones_like(step), rtol=0, atol=1e-6)
    # A float has no room for the distances, but twice a rounding is all that goes wrong.
    chain = alibi(offset=10**9)
    verify(chain, x.float(), {"slopes": 1e-9})


@pytest.mark.thorough
def test_a_streaming_schedule_sees_the_same(device):
    x = randn(2, 3, 700, device=device)
    op, slopes = declare(alibi("log_softmax", offset=300)), paper_slopes(2, device=device)
    wanted = op(x, slopes=slopes)
    with forced("streaming"):
        assert torch.equal(op(x, slopes=slopes), wanted)


def test_the_gradient_of_the_unfused_chain(device):
    """To slopes of their own shape: minus the distances, weighted by the upstream gradient."""
    x = randn(2, 4, 5, 7, device=device).double()
    slopes = paper_slopes(4, torch.float64, device).requires_grad_()
    op = fo.LogSoftmax(load=[fo.Alibi("slopes", align="bottom-right")])
    y, g = op.unfused(x, slopes=slopes), randn(2, 4, 5, 7, device=device, seed=1).double()
    (got,) = torch.autograd.grad(y, slopes, g)
    far = (torch.arange(5, device=device)[:, None] + 2 - torch.arange(7, device=device)).abs()
    through = g - y.detach().exp() * g.sum(-1, keepdim=True)
    torch.testing.assert_close(got, -(far * through).sum((0, 2, 3))[:, None, None])


def test_a_declaration_is_data():
    functor = fo.Alibi("slopes", align="bottom-right", offset=2)
    assert repr(functor) == "Alibi(slopes='slopes', align='bottom-right', offset=2)"
    assert functor == fo.Alibi("slopes", "bottom-right", 2) != fo.Alibi("slopes")
    assert repr(fo.Window(3)) == "Window(left=3, right=0, align='top-left', offset=0)"
    assert len({fo.Window(3), fo.Window(3, 0), fo.Window(3, 1), fo.Window(None)}) == 3
