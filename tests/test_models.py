# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks of models by modules alone, beside the same in torch's own calls: values and gradients.

The truth is torch's in float64; the bound is four times the error of torch's float32, as of any op.
"""

import functools

import pytest
import torch
from cases import named, randn
from torch.nn import functional

import fusedops as fo

DIM, HEADS, HEAD_DIM = 32, 4, 8
EPS = torch.finfo(torch.float32).eps


def heads(x):
    return x.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)


def weights_of(*shapes, device):
    """Random matrices, whose products keep the size of what they get."""
    return [
        randn(*shape, device=device, seed=20 + i) / shape[-1] ** 0.5
        for i, shape in enumerate(shapes)
    ]


def banded(scores, window):
    """Scores of the causal window of a layer with sliding attention."""
    query = torch.arange(scores.shape[-2], device=scores.device)[:, None]
    key = torch.arange(scores.shape[-1], device=scores.device)
    return scores.masked_fill((key > query) | (key < query - window), -torch.inf)


class Gemma2:
    """A layer of Gemma 2: weights around one, softcapped scores, a norm on either side."""

    names = ("x", "qkv", "out", "before", "after")
    window, cap, scale = 3, 5.0, 0.5

    def __init__(self, device):
        self.softmax = fo.nn.AttentionSoftmax(
            scale=self.scale, window=self.window, softcap=self.cap
        )
        self.before, self.after = (
            fo.nn.RMSNorm(DIM, 1e-6, unit_offset=True, device=device) for _ in range(2)
        )

    def inputs(self, device):
        matrices = weights_of((3 * DIM, DIM), (DIM, DIM), device=device)
        gammas = randn(2, DIM, device=device, seed=30) * 0.1
        return [randn(2, 9, DIM, device=device), *matrices, *gammas]

    def layer(self, x, qkv, out, before, after, norms, attend):
        query, key, value = map(heads, (norms[0](x, before) @ qkv.T).chunk(3, -1))
        attended = attend(query @ key.mT) @ value
        return x + norms[1](attended.transpose(1, 2).flatten(2) @ out.T, after)

    def fused(self, *given):
        norms = [
            lambda v, gamma, norm=norm: torch.func.functional_call(norm, {"weight": gamma}, v)
            for norm in (self.before, self.after)
        ]
        return self.layer(*given, norms, self.softmax)

    def plain(self, *given):
        def norm(v, gamma):
            return functional.rms_norm(v, (DIM,), eps=1e-6) * (1 + gamma)

        def attend(scores):
            scores = self.cap * torch.tanh(scores * self.scale / self.cap)
            return banded(scores, self.window).softmax(-1)

        return self.layer(*given, [norm, norm], attend)


class GptOss:
    """The attention of gpt-oss: queries that share keys, a learned sink of each head, a window."""

    names = ("x", "query", "key", "value", "sinks")
    window, scale = 4, HEAD_DIM**-0.5

    def __init__(self, device):
        self.softmax = fo.nn.AttentionSoftmax(scale=self.scale, window=self.window)

    def inputs(self, device):
        matrices = weights_of((DIM, DIM), (DIM // 2, DIM), (DIM // 2, DIM), device=device)
        return [randn(2, 9, DIM, device=device), *matrices, randn(HEADS, device=device, seed=31)]

    def layer(self, x, query, key, value, sinks, attend):
        query, key, value = (heads(x @ each.T) for each in (query, key, value))
        key, value = (each.repeat_interleave(2, 1) for each in (key, value))
        return attend(query @ key.mT, sinks) @ value

    def fused(self, *given):
        return self.layer(*given, lambda scores, sinks: self.softmax(scores, sink=sinks))

    def plain(self, *given):
        def attend(scores, sinks):
            scores = banded(scores * self.scale, self.window)
            sinks = sinks[:, None, None].expand(*scores.shape[:-1], 1)
            return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]

        return self.layer(*given, attend)


def differentiate(function, names, tensors, dtype=torch.float32):
    leaves = [each.detach().to(dtype).requires_grad_() for each in tensors]
    results = named(function(*leaves))
    upstream = randn(*results["y"].shape, device=leaves[0].device, seed=90).to(dtype)
    found = torch.autograd.grad(results["y"], leaves, upstream)
    results = {name: each.detach() for name, each in results.items()}
    return results | {f"d {name}": each for name, each in zip(names, found, strict=True)}


@pytest.mark.thorough
@pytest.mark.parametrize("model", [Gemma2, GptOss])
def test_a_layer(model, device):
    layer = model(device)
    run = functools.partial(differentiate, names=model.names, tensors=layer.inputs(device))
    fused, plain = run(layer.fused), run(layer.plain)
    for name, truth in run(layer.plain, dtype=torch.float64).items():
        error, allowed = (float((each[name] - truth).abs().max()) for each in (fused, plain))
        assert error <= 4 * max(allowed, EPS * float(truth.abs().max())), name
