# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings of models, patched: an attention whose forward calls the function by name."""

import copy
import functools
import pickle

import pytest
import torch
from cases import randn
from torch import nn

import fusedops as fo
from fusedops import testing


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def warned(function):
    """A decorator, as models have some."""

    @functools.wraps(function)
    def wrapper(*arguments, **named):
        named.pop("old", None)
        return function(*arguments, **named)

    return wrapper


class Attention(nn.Module):
    """What an attention does before the product of queries and keys."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(16, 48)

    @warned
    def forward(self, x, tables, *, heads=4):
        packed = self.proj(x).view(*x.shape[:-1], -1, 8).transpose(1, 2)
        q, k = packed[:, :heads], packed[:, heads:]
        q, k = apply_rotary_pos_emb(q, k, *tables)
        return torch.cat((q, k), 1)


class Doubled(Attention):
    """It calls something else by the name."""

    def forward(self, x, tables):
        return tables, other_name(x)


def other_name(x):
    return x


def given(device):
    angle = randn(2, 5, 4, device=device, seed=3).repeat(1, 1, 2)
    return randn(2, 5, 16, device=device), (angle.cos(), angle.sin())


def test_an_attention_is_patched(device):
    model = nn.Sequential(Attention()).to(device)
    stock, (x, tables) = copy.deepcopy(model[0]), given(device)
    done = fo.patch(model)
    assert [(one.cls, one.label) for one in done.replaced] == [("Attention", "rotary embedding")]
    assert isinstance(model[0], Attention)
    x.requires_grad_()
    with testing.count_launches() as launches:
        y = model[0](x, tables, old=1)
    assert sum(launches.values()) == 2
    want = stock(x, tables)
    torch.testing.assert_close(y, want, rtol=1e-6, atol=1e-6)
    upstream = randn(*y.shape, device=device, seed=5)
    (found,), (true,) = (torch.autograd.grad(one, x, upstream) for one in (y, want))
    torch.testing.assert_close(found, true, rtol=1e-5, atol=1e-6)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other[0](x, tables), y)
    assert type(fo.unpatch(model)[0]) is Attention


def test_what_runs_as_before(device):
    """Tables with gradients, and what no kernel takes."""
    model, (x, tables) = Attention().to(device), given(device)
    want = model(x, tables)
    fo.patch(model)
    with testing.count_launches() as launches:
        assert torch.equal(model(x, [one.clone().requires_grad_() for one in tables]), want)
        wider = [torch.cat((one, one), 1)[:, :5, :1] for one in tables]
        model(x, wider)
    assert not launches


def test_what_is_left():
    model = nn.Sequential(Attention(), Doubled())
    assert [one.name for one in fo.patch(model, skip=["0"]).left] == ["0"]
    assert not fo.patch(model, skip=[Attention]).replaced


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("llama", marks=pytest.mark.thorough),
        pytest.param("qwen3", marks=[pytest.mark.thorough, pytest.mark.exhaustive]),
    ],
)
def test_models_train_and_generate_alike(name, device):
    pytest.importorskip("transformers")
    from transformers_models import make

    model = make(name, device)
    ids = torch.randint(1, 99, (2, 10), device=device)
    twin = copy.deepcopy(model)
    done = fo.patch(model)
    assert sum(one.label == "rotary embedding" for one in done.replaced) == 2
    settings = {"max_new_tokens": 8, "do_sample": False}
    assert torch.equal(model.generate(ids, **settings), twin.generate(ids, **settings))
    losses = []
    for each in (model, twin):
        each.train()
        optimizer, taken = torch.optim.SGD(each.parameters(), 0.1), []
        for _ in range(50):
            loss = each(ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            taken.append(loss.item())
        losses.append(taken)
    assert losses[0][-1] < losses[0][0] / 2
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-4)
