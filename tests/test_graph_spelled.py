# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Norms and softmaxes that a program spells out: what the backend "fusedops" makes of each."""

import pytest
import torch
from captured import compiled, held, trained
from cases import randn
from references import check

X = randn(2, 3, 24, seed=1)
GAMMA = randn(24, seed=2)
BETA = randn(24, seed=3)


def llama(x, gamma):
    hidden = x.to(torch.float32)
    variance = hidden.pow(2).mean(-1, keepdim=True)
    hidden = hidden * torch.rsqrt(variance + 1e-6)
    return gamma * hidden.to(x.dtype)


def gemma(x, gamma):
    normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return (normed * (1.0 + gamma.float())).type_as(x)


def t5(x, gamma):
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + 1e-6)
    return gamma * x.to(gamma.dtype)


HALF = {
    llama: "RMSNorm(store=[Cast(dtype=torch.float16), Affine(gamma='scale', beta=None)], eps=1e-06",
    gemma: "RMSNorm(store=[Affine(gamma='scale', beta=None), Cast(dtype=torch.float16)], eps=1e-06",
    t5: "RMSNorm(store=[Cast(dtype=torch.float16), Affine(gamma='scale', beta=None)], eps=1e-06",
}


@pytest.mark.thorough
@pytest.mark.parametrize("program", HALF, ids=lambda one: one.__name__)
def test_norms_of_models_in_half(program):
    """With their conversions: what they round stays rounded, what they widen costs nothing."""
    given = [X.half(), GAMMA.half()]
    fused, found = compiled(program)
    (y,), (dx, _) = trained(fused, given)
    assert [repr(one.op).startswith(HALF[program]) for one in found] == [True]
    x, gamma = (t.double() for t in given)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    chain = given[0].float() * torch.rsqrt(given[0].float().square().mean(-1, keepdim=True) + 1e-6)
    if program is gemma:
        check(y, normed * (1 + gamma), chain * (1 + gamma.float()))
    else:  # rounded to half before the weight: where that falls the other way counts as an error
        check(y, normed * gamma, chain.half().float() * gamma.float())
    torch.testing.assert_close(dx, trained(program, given)[1][0], rtol=2**-8, atol=2**-9)


def layer_norm(x, gamma, beta):
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return gamma * ((x - mean) / torch.sqrt(variance + 1e-5)) + beta


def layer_norm_of_channels(x, gamma, beta):
    mean = x.mean(1, keepdim=True)
    centred = x - mean
    return centred * torch.rsqrt((centred * centred).mean(dim=1, keepdim=True) + 1e-5) * 2


def layer_norm_by_var(x, gamma, beta):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * gamma


def rms_by_root(x, gamma, beta):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() + beta


def rms_by_reciprocal(x, gamma, beta):
    return (1 / torch.sqrt(torch.mean(x * x, dim=[-1], keepdim=True) + 1e-5)) * x


def rms_by_keywords(x, gamma, beta):
    squares = torch.mean(input=torch.pow(input=x, exponent=2), dim=-1, keepdim=True)
    return x / torch.sqrt(input=squares + 1e-5)


def softmax(x, gamma, beta):
    x = x * gamma
    powers = torch.exp(x - x.max(dim=-1, keepdim=True)[0])
    return powers / powers.sum(-1, keepdim=True)


def softmax_by_amax(x, gamma, beta):
    powers = (x - x.amax(1, keepdim=True).detach()).exp()
    return powers / torch.sum(powers, dim=1, keepdim=True)


def log_softmax(x, gamma, beta):
    return x - torch.logsumexp(x, -1, keepdim=True)


def l2_norm(x, gamma, beta):
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-3)


def l2_norm_by_linalg(x, gamma, beta):
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True) * gamma


SPELLED = {
    layer_norm: "LayerNorm(store=[Affine(gamma='scale', beta='bias')], eps=1e-05, stats=False)",
    layer_norm_of_channels: "LayerNorm(store=[Scale(scale='scale')], eps=1e-05, stats=False)",
    layer_norm_by_var: "LayerNorm(store=[Affine(gamma='scale', beta=None)], eps=1e-05, "
    "stats=False)",
    rms_by_root: "RMSNorm(store=[Bias(bias='bias')], eps=1e-05, stats=False)",
    rms_by_reciprocal: "RMSNorm(eps=1e-05, stats=False)",
    rms_by_keywords: "RMSNorm(eps=1e-05, stats=False)",
    softmax: "Softmax(load=[Scale(scale='scale')], empty_row='nan')",
    softmax_by_amax: "Softmax(empty_row='nan')",
    log_softmax: "LogSoftmax(empty_row='nan')",
    l2_norm: "L2Norm(eps=0.001, stats=False)",
    l2_norm_by_linalg: "L2Norm(store=[Scale(scale='scale')], eps=0.0, stats=False)",
}


@pytest.mark.thorough
@pytest.mark.parametrize("program", SPELLED, ids=lambda one: one.__name__)
def test_spelled_out(program):
    (one,) = held(program, X, GAMMA, BETA)
    assert repr(one.op) == SPELLED[program]
    assert "spelled out" in one.what


def unbiased(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(x.var(-1, keepdim=True) + 1e-5)


def deviation(x):
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)


def another_mean(x):
    return (x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(-1, False, True) + 1e-5)


def another_square(x):
    return x * torch.rsqrt((x + 1).pow(2).mean(-1, keepdim=True) + 1e-5)


def a_cube(x):
    return x * torch.rsqrt(x.abs().pow(3).mean(-1, keepdim=True) + 1e-5)


def without_maximum(x):
    return x.exp() / x.exp().sum(-1, keepdim=True)


def another_maximum(x):
    powers = torch.exp(x - x.amax(1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def used_elsewhere(x):
    root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    return x * root, root


def the_norm_of_rows_of_several_dims(x):
    return x * torch.rsqrt(x.pow(2).mean((-2, -1), keepdim=True) + 1e-5)


NO_NORMS = [
    unbiased,
    deviation,
    another_mean,
    another_square,
    a_cube,
    without_maximum,
    another_maximum,
    used_elsewhere,
    the_norm_of_rows_of_several_dims,
]


@pytest.mark.parametrize("program", NO_NORMS, ids=lambda one: one.__name__)
def test_what_only_looks_like_one(program):
    assert not [one for one in held(program, X) if one.op is not None]
