# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Grouped products and experts by torch's calls: under torch.func, modes, vectorized gradients."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from cases import raises, randn
from test_grouped import given, offsets_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import fusedops as fo
from fusedops.product import grouped_product, routing
from fusedops.product.grouped_training import GroupedTraining
from fusedops.product.routing import check_experts, dispatch, route
from fusedops.torch_ops.tracing import is_mapped, is_plain

ROWS = 3000
BIASED = fo.GroupedLinear([fo.Bias("b")], ["b"])


def by_grad(call, table, upstream):
    return torch.func.grad(lambda one: (call(one) * upstream).sum())(table)


def by_vmap(call, table, upstream):
    return torch.vmap(lambda one: by_grad(call, one, upstream))(table[None])[0]


def by_vjp(call, table, upstream):
    return torch.func.vjp(call, table)[1](upstream)[0]


def by_mapped_vjp(call, table, upstream):
    return torch.vmap(torch.func.vjp(call, table)[1])(upstream[None])[0][0]


def by_batch(call, table, upstream):
    leaf = table.clone().requires_grad_()
    return torch.autograd.grad(call(leaf), leaf, upstream[None], is_grads_batched=True)[0][0]


WAYS = [by_grad, by_vmap, by_vjp, by_mapped_vjp, by_batch]


def check_sums(found, terms):
    """One rounding of each sum, and one in float32 of each of its partial sums."""
    u, of_sums = torch.finfo(found.dtype).eps / 2, torch.finfo(torch.float32).eps / 2
    off = len(terms) * of_sums * terms.double().abs().sum(0)
    want = terms.double().sum(0)
    assert ((found.double() - want).abs() <= off + u * (want.abs() + off)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("way", WAYS)
def test_sums_of_many_rows(way, dtype):
    """Of a bias by group in 16 bits: terms of one sign, which a sum in 16 bits stops counting."""
    x, w = torch.zeros(ROWS, 16, dtype=dtype), torch.zeros(2, 8, 16, dtype=dtype)
    b, upstream = torch.zeros(2, 8, dtype=dtype), randn(ROWS, 8, dtype=dtype).abs()
    offsets = torch.tensor([0, ROWS - 5, ROWS])
    found = way(lambda b: BIASED.unfused(x, w, offsets=offsets, b=b), b, upstream)
    for one, terms in zip(found, upstream.split([ROWS - 5, 5]), strict=True):
        check_sums(one, terms)


@pytest.mark.parametrize("way", WAYS)
def test_sums_of_many_choices(way):
    """Of a token that is copied to many rows."""
    x, experts = torch.zeros(1, 4, dtype=torch.bfloat16), torch.arange(600)[None] % 7
    found, _, _ = route(experts, torch.ones(1, 600), x, 7, unfused=True)
    upstream = randn(600, 4, dtype=torch.bfloat16).abs()
    (one,) = way(lambda x: dispatch(x, found, unfused=True), x, upstream)
    check_sums(one, upstream)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_biases_of_experts(dtype):
    """Under grad, and mapped: the sums of a plain step, which one rounding separates at most."""
    experts = fo.nn.Experts(2, 8, 8, bias=True, dtype=dtype)
    x, index = torch.ones(ROWS, 8, dtype=dtype), torch.zeros(ROWS, 1, dtype=torch.int64)
    given = x, index, x[:, :1]
    names = ["gate_up_proj_bias", "down_proj_bias"]
    biases = [getattr(experts, name) for name in names]
    want = torch.autograd.grad(experts.unfused(*given).float().sum(), biases)
    made = {"inner." + name: one.detach() for name, one in zip(names, biases, strict=True)}

    class Unfused(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = experts

        def forward(self, *given):
            return self.inner.unfused(*given)

    module = Unfused()

    def total(made):
        return torch.func.functional_call(module, made, given).float().sum()

    several = {name: one[None] for name, one in made.items()}
    mapped = {name: one[0] for name, one in torch.vmap(torch.func.grad(total))(several).items()}
    for found in (torch.func.grad(total)(made), mapped):
        for one, right in zip(found.values(), want, strict=True):
            torch.testing.assert_close(one, right, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)


def test_grad_alone_runs_the_functions(monkeypatch):
    """Nothing is read on the host, and sums are those of a step without transforms."""

    def none(*_given):
        raise AssertionError("the host has read where groups end")

    monkeypatch.setattr(grouped_product, "_sizes", none)
    called, combined = [], routing._Combine.backward

    def backward(*given):
        called.append(given)
        return combined(*given)

    monkeypatch.setattr(routing._Combine, "backward", staticmethod(backward))
    experts = fo.nn.Experts(4, 8, 16, bias=True)
    x, index = randn(9, 8), torch.arange(18).view(9, 2) % 4
    weight = randn(9, 2, seed=1)

    def total(x, weight):
        return experts.unfused(x, index, weight).square().sum()

    found = torch.func.grad(total, (0, 1))(x, weight)
    assert len(called) == 1
    leaves = [one.clone().requires_grad_() for one in (x, weight)]
    for one, right in zip(found, torch.autograd.grad(total(*leaves), leaves), strict=True):
        torch.testing.assert_close(one, right)


def test_which_transforms_map():
    x, asked = torch.ones(2), []

    def call(x):
        asked.append((is_mapped(x), is_plain()))
        return x.sum()

    call(x)
    torch.func.grad(call)(x)
    torch.func.grad(lambda x: torch.func.grad(call)(x).sum())(x)
    torch.vmap(call)(x[None])
    torch.vmap(torch.func.grad(call))(x[None])
    torch.func.jvp(call, (x,), (x,))
    with FakeTensorMode(allow_non_fake_inputs=True):
        call(x)
    assert asked == [(False, True), *[(False, False)] * 2, *[(True, False)] * 3, (False, False)]


class TestModes:
    """A mode may give tensors whose values are not known."""

    def test_of_groups(self):
        x, w, *_ = (one.detach() for one in given("cpu").values())
        offsets, op = offsets_of((4, 0, 5, 2), "cpu"), fo.GroupedLinear()

        def unfused(x, w, offsets):
            return op.unfused(x, w, offsets=offsets)

        graph = make_fx(unfused)(x, w, offsets)
        torch.testing.assert_close(graph(x, w, offsets), unfused(x, w, offsets))
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert unfused(x, w, offsets).shape == (11, 24)
            op.explain(x, w, offsets=offsets)

    def test_of_experts(self):
        index = torch.zeros(3, 2, dtype=torch.int64)

        def checked(index):
            check_experts(index, 4)
            return index + 1

        assert make_fx(checked)(index)(index).eq(1).all()
        with FakeTensorMode(allow_non_fake_inputs=True):
            check_experts(index, 4)

    def test_of_targets(self):
        x, target = randn(3, 5), torch.arange(3)
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert fo.CrossEntropy()(x, target=target).shape == ()


@pytest.mark.parametrize("inner", [lambda call: call, torch.func.grad])
def test_offsets_cannot_be_mapped(inner):
    x, w, *_ = (one.detach() for one in given("cpu").values())
    several = offsets_of((4, 0, 5, 2), "cpu").expand(2, -1)

    def total(x, offsets):
        return fo.GroupedLinear().unfused(x, w, offsets=offsets).sum()

    with raises(fo.UnsupportedError, "torch.vmap cannot map offsets", "one call"):
        torch.vmap(inner(total), (None, 0))(x, several)


def test_an_optional_operand_left_out(monkeypatch):
    """Its STORE has no gradient of its own, whatever a kernel could have made."""

    def made(self, first, second, arguments):
        raise AssertionError("a kernel was asked for")

    monkeypatch.setattr(GroupedTraining, "_made", made)
    x, w, *_ = given("cpu").values()
    op = fo.GroupedLinear([fo.Bias("b", optional=True)], ["b"])
    offsets = offsets_of((4, 0, 5, 2), "cpu")
    op(x, w, offsets=offsets).sum().backward()
    torch.testing.assert_close(x.grad[0], w[0].sum(0))


@pytest.mark.thorough
def test_a_functor_that_waits_for_its_module(tmp_path):
    """An import waits for the trace, and the trace for the import: an error, and no deadlock.

    In a process of its own: a trace that has not ended has torch's modules in its hands.
    """
    (tmp_path / "waiting_functor.py").write_text(
        "import fusedops as fo\n\n@fo.functor\ndef own(v):\n"
        "    import waiting_functor\n    return v * 2\n\n"
        "OP = fo.Map([own()])\n"
    )
    program = (
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "from fusedops.functors import trace\n"
        "trace._LONGEST = 2\n"
        "with FakeTensorMode():\n    import waiting_functor\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "UnsupportedError" in done.stderr
    assert "has not ended after 2 s" in done.stderr


def test_numbers_of_numpy():
    assert repr(fo.Window(np.int64(3))) == repr(fo.Window(3))
    assert fo.nn.Experts(np.int64(2), 4, np.int32(4)).down_proj.shape == (2, 4, 4)
    with raises(TypeError, "Experts: activation must be one of"):
        fo.nn.Experts(2, 4, 4, activation=np.array(["silu", "x"]))
