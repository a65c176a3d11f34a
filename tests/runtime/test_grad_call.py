# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a dispatcher hands to its callee for gradients, and when."""

from __future__ import annotations

import sys

import pytest
import torch
from dispatchers import Affine

from fusedops import _runtime
from fusedops.bind.generator import draw


class Grad:
    """Keeps what it was given; a class, to be told from a function by a bound method."""

    def __init__(self):
        self.calls = []

    def __call__(self, *arguments, **keywords):
        self.calls.append((arguments, keywords))
        return "gradients"

    def method(self, *arguments):
        return self(*arguments)


@pytest.fixture
def grad():
    return Grad()


@pytest.fixture
def affine(library, grad):
    return Affine(library, grad=grad)


@pytest.fixture
def wanted(x):
    return x.clone().requires_grad_()


def same(one, other):
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def test_operands_come_in_the_order_of_the_slots(affine, grad, x, wanted):
    b, b_wanted = torch.randn(6), torch.nn.Parameter(torch.randn(6))
    scale, p = 2.0, 0.5
    assert affine(wanted, p=p, s=scale, b=b) == "gradients"
    assert affine(x, s=scale, b=b_wanted) == "gradients"
    assert affine(wanted, **{"".join(["p"]): p}) == "gradients"
    assert affine(wanted) == "gradients"
    expected = [
        (None, wanted, b, scale, p),
        (None, x, b_wanted, scale, None),
        (None, wanted, None, None, p),
        (None, wanted, None, None, None),
    ]
    for (arguments, keywords), right in zip(grad.calls, expected, strict=True):
        assert same(arguments, right)
        assert keywords == {}
    assert affine.reasons == []
    assert (affine.dispatch.misses, affine.dispatch.launches) == (0, 0)


def test_options_are_those_given(affine, grad, wanted):
    out = torch.empty(4, 6)
    given = dict(dim=-1, dtype=torch.half, training=False, generator=(1, 2), out=out)
    affine(wanted, s=1.0, **given)
    affine(wanted, dim=None, dtype=None, out=None, generator=None, normalized_shape=None)
    affine(wanted, training=True)
    got = [arguments[0] for arguments, _ in grad.calls]
    assert got == [given, None, {"training": True}]


def test_without_grad_mode_nothing_changes(affine, grad, x, wanted):
    for off in (torch.no_grad(), torch.inference_mode()):
        with off:
            assert torch.equal(affine(wanted, s=2.0), x * 2)
    assert torch.equal(affine(x, s=2.0), x * 2)
    assert grad.calls == []


@pytest.mark.parametrize(
    "bad", [dict(unknown=1), dict(training=1), dict(generator=(1,)), dict(dim=1.0), dict(out=())]
)
def test_wrong_names_and_options_go_to_slow(affine, grad, wanted, bad):
    assert affine(wanted, **bad) == "arguments"
    assert grad.calls == []


def test_other_reasons_go_to_slow(affine, grad, x, wanted):
    assert affine(torch._neg_view(wanted)) == "neg"
    assert affine(x.to("meta"), b=wanted) == "device"
    with torch.autograd.forward_ad.dual_level():
        assert affine(wanted) == "dual"
    assert grad.calls == []


def test_what_comes_after_the_first_is_not_looked_at(affine, grad, wanted):
    assert affine(wanted, b="no tensor", s="no number", p=2.0) == "gradients"
    assert grad.calls[0][0][2:] == ("no tensor", "no number", 2.0)


def test_an_out_that_requires_grad(affine, grad, x, wanted):
    assert affine(x, out=wanted) == "gradients"
    assert grad.calls[0][0][0] == {"out": wanted}


def test_a_bound_method(library, grad, wanted):
    affine = Affine(library, grad=grad.method)
    assert affine(wanted, dim=-1) == "gradients"
    assert same(grad.calls[0][0][1:], (wanted, None, None, None))


def test_without_a_callee_slow_is_told(library, wanted):
    for none in ({}, {"grad": None}):
        assert Affine(library, **none)(wanted) == "grad"
    by_name = _runtime.Dispatcher("op", [], print, draw, grad=lambda *call: call)
    assert by_name(wanted) == (None, wanted)


def test_an_exception_comes_through(library, wanted):
    def fail(options, x, *values):
        raise LookupError("no gradient")

    with pytest.raises(LookupError, match="no gradient"):
        Affine(library, grad=fail)(wanted, dim=-1)


def test_only_a_callable_will_do():
    with pytest.raises(TypeError, match="grad must be callable or None"):
        _runtime.Dispatcher("op", [], print, draw, None, 5)


def test_another_callee_takes_its_place(library, wanted):
    def first(options, x, *values):
        affine.dispatch.grad = lambda *call: "second"
        return "first"

    affine = Affine(library, grad=first)
    assert affine.dispatch.grad is first
    assert [affine(wanted), affine(wanted)] == ["first", "second"]
    for none in (None, 5):
        with pytest.raises(TypeError, match="grad must be callable"):
            affine.dispatch.grad = none
    with pytest.raises(TypeError, match="grad must be callable"):
        del affine.dispatch.grad
    assert affine(wanted) == "second"


def test_no_reference_leaks(library, wanted):
    affine = Affine(library, grad=lambda *call: None)
    b, options = torch.randn(6), (1, 2)
    before = [sys.getrefcount(thing) for thing in (wanted, b, options, None)]
    for _ in range(100):
        affine(wanted, b=b, generator=options)
    after = [sys.getrefcount(thing) for thing in (wanted, b, options, None)]
    assert after[:3] == before[:3]
    assert abs(after[3] - before[3]) < 50
