# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a functor reads from outside is read once: the op and `unfused` never part."""

import pickle
import types

import pytest
import torch
from cases import randn

import fusedops as fo

FACTOR = 2.0
HELD = types.SimpleNamespace(factor=2.0)
LISTED = [2.0]
TENSOR = torch.tensor(2.0)


def helper(x):
    return x * FACTOR


def closed():
    factor = 2.0

    def of_cell(x):
        return x * factor

    def change(value):
        nonlocal factor
        factor = value

    return of_cell, change


def defaulted(x, factor=2.0):
    return x * factor


OF_CELL, CHANGE_CELL = closed()
READS = {
    "a global": lambda x: x * FACTOR,
    "an attribute": lambda x: x * HELD.factor,
    "an item": lambda x: x * LISTED[0],
    "a tensor": lambda x: x * TENSOR,
    "a tensor that is computed with": lambda x: x * (TENSOR + TENSOR) / 2,
    "another function": lambda x: helper(x),
    "a cell": OF_CELL,
    "a default": lambda x: defaulted(x),
}


@pytest.fixture
def change(monkeypatch):
    """What they all read becomes another number, until the test is over."""

    def to(value):
        monkeypatch.setitem(globals(), "FACTOR", value)
        monkeypatch.setattr(HELD, "factor", value)
        LISTED[0] = value
        TENSOR.fill_(value)
        CHANGE_CELL(value)
        monkeypatch.setattr(defaulted, "__defaults__", (value,))

    yield to
    to(2.0)


@pytest.mark.thorough
@pytest.mark.parametrize("name", READS)
def test_a_change_reaches_neither_the_op_nor_unfused(name, change, device):
    x = randn(3, 5, device=device)
    kind = fo.functor(READS[name])
    op = fo.Softmax(load=[kind()])
    want = torch.softmax(2 * x, -1)
    torch.testing.assert_close(op(x), want)
    change(50.0)
    torch.testing.assert_close(op(x), want)
    torch.testing.assert_close(op.unfused(x), want)
    torch.compiler.reset()
    compiled = torch.compile(op.unfused, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), want)
    torch.testing.assert_close(fo.Softmax(load=[kind()]).unfused(x), want)  # declared before
    anew = fo.Softmax(load=[fo.functor(READS[name])()])
    torch.testing.assert_close(anew(x), torch.softmax(50 * x, -1))
    torch.testing.assert_close(anew.unfused(x), anew(x))


class Tripled(torch.autograd.Function):
    """Its gradient is another than torch's."""

    @staticmethod
    def forward(x):
        return x * FACTOR

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def without_gradient(x):
    with torch.no_grad():
        factor = x.sign() * FACTOR
    return x * factor


@pytest.mark.thorough
@pytest.mark.parametrize("function", [lambda x: Tripled.apply(x), without_gradient])
def test_what_cannot_be_run_from_its_trace_is_refused_once_it_changes(function, change, device):
    op = fo.Softmax(load=[fo.functor(function)()])
    x, upstream = randn(3, 5, device=device).requires_grad_(), randn(3, 5, device=device, seed=1)
    torch.testing.assert_close(op.unfused(x), op(x))
    got, want = (torch.autograd.grad(y, x, upstream)[0] for y in (op(x), op.unfused(x)))
    torch.testing.assert_close(got, want)
    change(50.0)
    with pytest.raises(fo.UnsupportedError, match=r"has changed since it was declared.*an operand"):
        op.unfused(x)


@fo.functor
def made(x, a, b):
    """Tensors that are made, written to, viewed and detached."""
    total = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    total += a.expand(x.shape).clone().mul_(x)
    total.add_(x.new_full(x.shape, 0.5)).add_(torch.full((), 0.25, dtype=x.dtype, device=x.device))
    rounded = x + (x.round() - x).detach()
    return total.view_as(x) + torch.where(b > 0, rounded, torch.ones_like(x) * torch.tensor(3.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 4, 7)], ids=str)
def test_a_trace_serves_every_shape(shape, dtype, device):
    functor = made("a", "b")
    x, a, b = (randn(*size, device=device).to(dtype) for size in (shape, (7,), (*shape[:-1], 1)))
    leaves = [one.requires_grad_() for one in (x, a, b)]
    op = fo.RMSNorm(load=[functor])
    got, want = op.unfused(x, a=a, b=b), op.reference(made.function(x, a, b))[0]
    assert torch.equal(got, want)
    upstream = torch.randn_like(x)
    for mine, theirs in zip(
        torch.autograd.grad(got, leaves, upstream, allow_unused=True),
        torch.autograd.grad(want, leaves, upstream, allow_unused=True),
        strict=True,
    ):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine, theirs)


@fo.functor
def softcap(x, cap):
    return cap * torch.tanh(x / cap)


def test_a_trace_is_differentiated_and_mapped_as_a_function(device):
    op = fo.LayerNorm(store=[softcap("cap")])
    x = randn(3, 6, device=device).double().requires_grad_()
    cap = torch.tensor(2.0, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, cap: op.unfused(x, cap=cap), (x, cap))
    x, cap = x.detach(), cap.detach()
    mapped = torch.func.vmap(lambda row: op.unfused(row, cap=cap))(x)
    torch.testing.assert_close(mapped, op(x, cap=cap))
    _, along = torch.func.jvp(lambda x: op.unfused(x, cap=cap), (x,), (x,))
    assert torch.isfinite(along).all()


def test_a_functor_is_still_a_value():
    assert pickle.loads(pickle.dumps(softcap("cap"))) == softcap("cap")
    assert softcap("cap") != softcap("other")
    assert "frozen" not in repr(softcap("cap"))
