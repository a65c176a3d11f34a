# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings in graphs: as models spell them, behind a norm, in a transpose, and left."""

import pytest
import torch
from cases import randn, thorough
from torch.nn import functional

import fusedops as fo
from fusedops import testing


def rotate_half(x):
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def by_chunks(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def llama(q, k, cos, sin, g):
    """As transformers has it: a projection's view, transposed, and tables of batch and tokens."""
    q, k = q.view(2, 5, -1, 16).transpose(1, 2), k.view(2, 5, -1, 16).transpose(1, 2)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


def qwen(q, k, cos, sin, g):
    """The same with a norm of queries and keys."""
    q = functional.rms_norm(q.view(2, 5, -1, 16), (16,), g, 1e-6).transpose(1, 2)
    k = functional.rms_norm(k.view(2, 5, -1, 16), (16,), g, 1e-6).transpose(1, 2)
    cos, sin = cos[:, None], sin[:, None]
    return cos * q + by_chunks(q) * sin, k * cos + by_chunks(k) * sin


def plain(q, k, cos, sin, g):
    """Neither a norm nor a transpose."""
    k = k.view(2, 5, -1, 16)
    return k * cos[:, :, None] + rotate_half(k) * sin[:, :, None], q * 2


WANTED = {
    llama: ["Map(load=[Rotate(cos='cos', sin='sin', interleaved=False, dims=None)])"] * 2,
    qwen: [
        "RMSNorm(store=[Affine(gamma='gamma', beta=None), Rotate(cos='cos', sin='sin', "
        "interleaved=False, dims=None)], eps=1e-06, stats=False)"
    ]
    * 2,
    plain: ["Map(load=[Rotate(cos='cos', sin='sin', interleaved=False, dims=None)])"],
}


def given(dtype=torch.float32, device="cpu"):
    q, k = randn(2, 5, 64, dtype=dtype, device=device), randn(2, 5, 32, dtype=dtype, device=device)
    angle = 9 * randn(2, 5, 8, device=device, seed=3).repeat(1, 1, 2)
    g = randn(16, dtype=dtype, device=device, seed=4)
    return q, k, angle.cos().to(dtype), angle.sin().to(dtype), g


@pytest.mark.parametrize("program", WANTED, ids=lambda one: one.__name__)
def test_models_spell_them(program):
    report = fo.explain_graph(program, *given())
    found = [one.op.declaration for one in report.fused if one.what == "rotary embedding"]
    assert found == WANTED[program]
    assert all(one.what == "rms_norm" for one in report.left)  # as such


@pytest.mark.parametrize("program", [qwen, *thorough(llama, plain)], ids=lambda one: one.__name__)
def test_their_values_and_gradients(program, device):
    compiled = torch.compile(program, backend="fusedops", options={"inner": "aot_eager"})
    arguments = given(device=device)
    leaves = [one.clone().requires_grad_() for one in (*arguments[:2], arguments[4])]
    call = [*leaves[:2], *arguments[2:4], leaves[2]]
    with testing.count_launches() as launches:
        found = compiled(*call)
    assert sum(launches.values()) == len(WANTED[program])
    want = program(*call)
    ups = [randn(*one.shape, device=device, seed=9) for one in want]
    for one, other in zip(found, want, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(
        torch.autograd.grad(found, leaves, ups, allow_unused=True),
        torch.autograd.grad(want, leaves, ups, allow_unused=True),
        strict=True,
    ):
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()


def several_uses(q, k, cos, sin, g):
    """The norm's result is returned as well, so the norm stays a kernel of its own."""
    k = functional.rms_norm(k.view(2, 5, -1, 16), (16,), g, 1e-6)
    return k * cos[:, :, None] + rotate_half(k) * sin[:, :, None], k


def of_another_order(q, k, cos, sin, g):
    """The sum is contiguous where x is a transpose."""
    k = k.view(2, 5, -1, 16).transpose(1, 2)
    return sin[:, None] * rotate_half(k) + cos[:, None] * k


def other_signs(q, k, cos, sin, g):
    k = k.view(2, 5, -1, 16)
    first, second = k.chunk(2, -1)
    return k * cos[:, :, None] + torch.cat((second, -first), -1) * sin[:, :, None]


def other_halves(q, k, cos, sin, g):
    k = k.view(2, 5, -1, 16)
    turned = torch.cat((-k[..., 4:12], k[..., :8]), -1)
    return k * cos[:, :, None] + turned * sin[:, :, None]


def test_what_is_something_else():
    report = fo.explain_graph(of_another_order, *given())
    assert [one.op.declaration for one in report.fused] == WANTED[plain]
    report = fo.explain_graph(several_uses, *given())
    assert [one.op.declaration for one in report.fused][-1] == WANTED[plain][0]
    for program in (other_signs, other_halves):
        assert not fo.explain_graph(program, *given()).found


def test_tables_with_gradients_are_left():
    arguments = given()
    arguments[2].requires_grad_()
    (left,) = fo.explain_graph(plain, *arguments).left
    assert "a table requires grad" in str(left.why)
