# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Declarations as text: read back as they were, in this process and without it."""

import gc
import sys
import types
import weakref

import numpy as np
import pytest
import torch

import fusedops as fo
from fusedops.declare import text as spelling


@fo.functor
def softcap(x, cap):
    return cap * torch.tanh(x / cap)


DECLARED = [
    fo.Softmax(),
    fo.Softmax(load=[fo.Scale("s"), fo.Mask("m", keep=True)], empty_row="nan"),
    fo.LogSoftmax(load=[fo.Causal("bottom-right", -3), fo.Window(None, 2), fo.Lengths("n")]),
    fo.Softmax(load=[fo.Alibi("slopes")], store=[fo.Cast(torch.bfloat16), fo.Dropout("p")]),
    fo.LayerNorm(load=[fo.Residual("r", alpha=-0.1, save="z")], store=[fo.Affine(None, "b")]),
    fo.RMSNorm(load=[fo.Bias("b")], eps=0.0, stats=True),
    fo.LayerNorm(load=[softcap(2.5), softcap("cap")]),
    fo.LayerNorm(load=[softcap(float("inf")), softcap(-1)]),
]


@pytest.mark.parametrize("op", DECLARED, ids=lambda op: op.text)
def test_what_is_read_is_what_was_spelled(op):
    again = spelling._read(op.text)  # as where there is no such op
    assert again == op
    assert again.text == op.text


@pytest.mark.parametrize("number", [np.float64(0.5), np.float32(0.5), np.int64(2)], ids=repr)
def test_numbers_of_numpy_are_those_of_python(number):
    """Their repr names numpy, which whoever reads a declaration does not know."""
    one, other = (
        fo.LayerNorm(load=[fo.Residual("r", alpha=alpha), softcap(alpha)], eps=alpha)
        for alpha in (number, number.item())
    )
    assert one == other == spelling._read(one.text)
    assert one.text == other.text
    whole = {"ignore_index": np.int64(3), "memory": np.int64(64)}
    assert repr(fo.LinearCrossEntropy(**whole)) == repr(
        fo.LinearCrossEntropy(ignore_index=3, memory=64)
    )


def test_functors_of_modules_of_the_package(monkeypatch):
    """A process that reads a declaration need not have imported the module that made it."""
    text = fo.nn.Experts(2, 4, 4, bias=True).op().epilogue.text
    assert "fusedops.nn.expert_form" in text
    monkeypatch.setattr(fo.nn, "expert_form", fo.nn.expert_form)
    monkeypatch.delitem(sys.modules, "fusedops.nn.expert_form")
    monkeypatch.setattr(spelling, "_classes", weakref.WeakValueDictionary())
    assert spelling._read.__wrapped__(text).text == text


@fo.functor
def blended(x, by):
    return x + torch.tanh(x) * torch.tensor(2.0) / by


def test_a_functor_is_made_where_a_compiler_traces():
    """As where a saved program is compiled, whose process has not seen the functor."""
    x, op = torch.randn(3, 4), fo.Map(load=[blended(1.25)])
    text, want = op.text, op(x)
    del op
    gc.collect()
    spelling._read.cache_clear()
    blended.derived.clear()

    def program(x):
        forward = torch.ops.fusedops.forward.default
        return forward(x, [x], ["x"], [], None, None, text, [1], x.dtype, False)[0]

    assert torch.equal(torch.compile(program, fullgraph=True, backend="aot_eager")(x), want)


def test_a_functor_is_made_under_a_transform_or_a_device():
    x = torch.randn(3, 4)

    def loss(x):
        return fo.Map(load=[blended(2.5)]).unfused(x).sum()

    grad = 1 + (1 - x.tanh() ** 2) * 2 / 2.5
    torch.testing.assert_close(torch.func.grad(loss)(x), grad)
    with torch.device("meta"):
        op = fo.Map(load=[blended(2.75)])
    torch.testing.assert_close(op(x), x + x.tanh() * 2 / 2.75)


def test_an_op_that_is_there_is_taken():
    op = fo.Softmax(load=[fo.Scale("only_here")])
    assert spelling.read(op.text) is op


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Softmax(",
        "3",
        "Scale(scale='s')",
        "Softmax(load=[__import__('os')])",
        "Softmax(load=[functor('f')])",
        "Softmax(load=[check_name(1, 2, 3)])",
        "Softmax(empty_row=open('x'))",
        "torch.ones(3)",
        "(lambda: 1)()",
        "Softmax(load=[thing('s')])  # - os:system@0123456789abcdef",
        "Softmax(load=[thing('s')])  # - no_such_module:thing@0123456789abcdef",
        "Softmax(load=[Scale('s')])  # - - -",
        "Softmax(x=1)",
        "Softmax(load=3)",
        "Softmax(load=[Scale(1, 2, 3, 4)])",
        "-" * 5000 + "1",
    ],
)
def test_what_is_no_declaration_is_refused(text):
    with pytest.raises(fo.UnsupportedError):
        spelling.read(text)


def test_nothing_is_imported(monkeypatch):
    """Not even by a module that imports on being asked for a name."""
    asked = []
    lazy = types.ModuleType("lazy")
    lazy.__getattr__ = asked.append
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    with pytest.raises(fo.UnsupportedError):
        spelling.read("x()  # lazy:child.x")
    assert not asked


def another():
    @fo.functor
    def softcap(x, cap):
        return x * cap

    return softcap


def test_functors_of_one_name_stay_apart():
    op = fo.Softmax(load=[softcap("a"), another()("b")])
    again = spelling._read(op.text)
    assert again == op
    assert [type(one) for one in again.load] == [type(one) for one in op.load]


def test_an_op_is_found_whoever_of_its_equals_is_gone():
    kind = another()
    first, second = (fo.Softmax(load=[kind("s")]) for _ in range(2))
    del first
    x = torch.randn(2, 3)
    assert torch.equal(spelling.read(second.text)(x, s=2.0), second(x, s=2.0))


def test_a_functor_that_has_changed_is_noticed():
    text = fo.Softmax(load=[softcap("c")]).text
    place = text.partition("@")[2].split()[0]
    with pytest.raises(fo.UnsupportedError, match="something else"):
        spelling.read(text.replace(place, "0" * len(place)))
