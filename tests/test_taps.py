# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Further outputs of a STORE: probabilities before a dropout, results before an affine part."""

import pickle

import pytest
import torch
from cases import forced, named, raises, randn, same_bits

import fusedops as fo
from fusedops.declare.text import read
from fusedops.testing import check

SHAPE = (2, 3, 5, 24)
ATTENTION = fo.Softmax(
    load=[fo.Scale("s"), fo.Mask("m")], store=[fo.Tap("probs"), fo.Dropout("p")], lse=True
)
PLAIN = fo.Softmax(load=ATTENTION.load, store=[fo.Dropout("p")], lse=True)


def call(op, device="cpu", dtype=torch.float32):
    x = randn(*SHAPE, device=device, dtype=dtype)
    mask = randn(2, 1, 5, 24, device=device, seed=4) < -0.5
    return op(x.requires_grad_(), s=0.7, m=mask, p=0.4, generator=(3, 0)), x, mask


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_probabilities_before_dropout(dtype, device):
    got, x, mask = call(ATTENTION, device, dtype)
    assert got._fields == ("y", "probs", "lse")
    assert got.probs.dtype is dtype
    exact = torch.softmax((x.detach().double() * 0.7).masked_fill(mask, -torch.inf), -1)
    # Roundings of the logit (below 8, so 4 halves of an eps), exp, sum, reciprocal and product.
    share = 10 * torch.finfo(torch.float32).eps + torch.finfo(dtype).eps
    torch.testing.assert_close(
        got.probs.double(), exact, rtol=share, atol=torch.finfo(dtype).smallest_normal
    )
    other, _, _ = call(PLAIN, device, dtype)
    assert same_bits(got.y.detach(), other.y.detach())
    assert same_bits(got.lse.detach(), other.lse.detach())


@pytest.mark.thorough
@pytest.mark.parametrize("names", [("probs",), ("y", "probs"), ("probs", "lse"), ("y",)])
def test_gradients_join(names, device):
    """Against float64 by hand: dv = p * (g - sum(g * p)), where both outputs are made from p."""
    got, x, mask = call(ATTENTION, device)
    upstream = {
        k: randn(*got._asdict()[k].shape, device=device, seed=7 + i) for i, k in enumerate(names)
    }
    (dx,) = torch.autograd.grad([got._asdict()[k] for k in names], x, list(upstream.values()))
    p = torch.softmax((x.detach().double() * 0.7).masked_fill(mask, -torch.inf), -1)
    kept = ATTENTION.dropout_mask(SHAPE, 3, 0, 0.4).to(device)
    zero = torch.zeros(SHAPE, dtype=torch.float64, device=device)
    scale = 65536 / (65536 - round(0.4 * 65536))
    g = upstream.get("probs", zero).double() + upstream.get("y", zero).double() * kept * scale
    of_lse = upstream.get("lse", zero[..., 0]).double()[..., None]
    wanted = 0.7 * p * (g - (g * p).sum(-1, keepdim=True) + of_lse)
    torch.testing.assert_close(dx.double(), wanted, rtol=1e-5, atol=1e-6)


def test_nothing_leaks_from_under_a_mask(device):
    got, x, mask = call(ATTENTION, device)
    full = mask.expand(SHAPE)
    assert (got.probs[full] == 0).all()
    upstream = torch.where(full, torch.inf, randn(*SHAPE, device=device, seed=3))
    (dx,) = torch.autograd.grad(got.probs, x, upstream)
    assert (dx[full] == 0).all()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "op",
    [
        fo.Softmax(store=[fo.Tap("probs", dtype=torch.float32), fo.Dropout("p")]),
        fo.LogSoftmax(store=[fo.Dropout("p"), fo.Tap("logs")]),
        fo.LayerNorm(
            load=[fo.Save("stream")],
            store=[fo.Dropout("p"), fo.Tap("normed"), fo.Affine("gamma"), fo.Tap("last")],
            stats=True,
        ),
    ],
    ids=lambda op: op.name,
)
def test_check_compares_them(op, device):
    given = {"gamma": randn(24, device=device, seed=1)} if "gamma" in op.slots else {}
    assert check(op, randn(3, 5, 24, device=device), p=0.3, **given).passed


def test_channels(device):
    op = fo.GroupNorm(2, store=[fo.Tap("normed"), fo.Affine("gamma")])
    x, gamma = randn(2, 4, 3, 3, device=device), randn(4, device=device, seed=1)
    y, normed = op(x, gamma=gamma)
    assert normed.shape == x.shape
    assert torch.equal(normed, fo.GroupNorm(2)(x))
    torch.testing.assert_close(y, normed * gamma[:, None, None])


def test_every_schedule(scheduled):
    device, schedule = scheduled
    x = randn(3, 4097, device=device)
    with forced(schedule):
        y, probs = fo.Softmax(store=[fo.Tap("probs"), fo.Scale("s")])(x, s=2.0)
    torch.testing.assert_close(probs, torch.softmax(x, -1))
    assert torch.equal(y, 2 * probs)


def test_preallocated_outputs_and_no_elements(device):
    op = fo.Softmax(store=[fo.Tap("probs"), fo.Dropout("p")])
    x = randn(4, 24, device=device)
    out = torch.empty_like(x), torch.empty_like(x)
    op(x, p=0.0, out=out)
    assert torch.equal(out[0], out[1])
    for shape in ((0, 24), (4, 0)):
        assert op(torch.empty(shape, device=device), p=0.0).probs.shape == shape


def test_under_torch_compile():
    mask = torch.zeros(SHAPE, dtype=torch.bool)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def loss(x):
        got = ATTENTION(x, s=0.7, m=mask, p=0.4, generator=(3, 0))
        return got.y.square().sum() + got.probs.cos().sum()

    x = randn(*SHAPE).requires_grad_()
    (dx,) = torch.autograd.grad(loss(x), x)
    got = ATTENTION(x, s=0.7, m=mask, p=0.4, generator=(3, 0))
    (wanted,) = torch.autograd.grad(got.y.square().sum() + got.probs.cos().sum(), x)
    assert same_bits(dx, wanted)


def test_it_is_said_and_kept():
    assert pickle.loads(pickle.dumps(ATTENTION)) == ATTENTION == read(ATTENTION.text)
    x = randn(4, 24).requires_grad_()
    op = fo.Softmax(store=[fo.Tap("probs"), fo.Dropout("p")])
    assert "Tap(name='probs'" in str(op.explain(x, p=0.5))
    exported = fo.export(op, x.detach(), p=0.5, arch="cpu")
    assert "probs" in exported.text
    assert "dprobs" in exported.text
    assert named(op.unfused(x, p=0.5)).keys() == {"y", "probs"}


def test_what_is_refused():
    with raises(ValueError, "Tap", "load", "Save"):
        fo.Softmax(load=[fo.Tap("probs")])
    with raises(ValueError, "'lse'"):
        fo.Softmax(store=[fo.Tap("lse")], lse=True)
    with raises(ValueError, "names of saved streams and taps must differ", "['a', 'a']"):
        fo.LayerNorm(load=[fo.Save("a")], store=[fo.Tap("a")])
    with raises(TypeError, "dtype"):
        fo.Tap("probs", dtype=torch.int32)
