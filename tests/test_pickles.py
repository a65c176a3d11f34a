# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Ops, modules, results and reports can be pickled; the package shows its public names alone."""

import pickle

import pytest
import torch

import fusedops as fo
from fusedops.explain.forward import explain
from fusedops.generate.target import Target
from fusedops.prebuild.recording import of_call
from fusedops.testing.report import Compared, Report

OPS = {
    "an op with masks": fo.Softmax(
        load=[fo.Scale("s"), fo.Mask("m", keep=True), fo.Causal()], store=[fo.Dropout("p")]
    ),
    "another": fo.LogSoftmax(
        load=[fo.Window(2, 0), fo.Lengths("n"), fo.Alibi("a")], store=[fo.Cast(torch.bfloat16)]
    ),
    "a norm": fo.LayerNorm(
        load=[fo.Bias("b"), fo.Residual("r", save="z")],
        store=[fo.Affine("gamma", "beta")],
        stats=True,
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_an_op(name):
    again = pickle.loads(pickle.dumps(OPS[name]))
    assert again == OPS[name]
    assert again.text == OPS[name].text


X = torch.randn(3, 8)
SCALED = fo.Softmax(load=[fo.Scale("s")])
RESULTS = {
    "a report of check": lambda: Report(
        SCALED.text, (Compared("as given", "y", 24, (0, 1), 0.5, 0.5, 0.25),)
    ),
    "an explanation": lambda: SCALED.explain(X, s=0.5),
    "an explanation for a GPU": lambda: explain(SCALED.bind(X, {"s": 0.5}), Target.named("sm_90")),
    "a signature": lambda: of_call(SCALED.bind(X, {"s": 0.5})),
}


@pytest.mark.parametrize("name", RESULTS)
def test_what_is_said_of_a_call(name):
    found = RESULTS[name]()
    assert str(pickle.loads(pickle.dumps(found))) == str(found)


MODULES = {
    "norm": lambda: fo.nn.ResidualLayerNorm(2, 1e-6, p=0.25, alpha=2.0, return_stream=True),
    "softmax": lambda: fo.nn.AttentionSoftmax(
        scale=0.125, p=0.25, causal=fo.Causal("bottom-right")
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module(name):
    module = MODULES[name]().eval()
    again = pickle.loads(pickle.dumps(module))
    assert type(again) is type(module)
    assert repr(again) == repr(module)
    assert again.op() is module.op()
    x = torch.randn(3, 2)
    given = (x, x) if name == "norm" else (x,)
    for got, want in zip(again(*given), module(*given), strict=True):
        assert torch.equal(got, want)


def test_results_of_several_outputs():
    """Their class is made for each declaration, so it is none that pickle could import."""
    result = fo.Softmax(lse=True)(torch.randn(3, 8))
    again = pickle.loads(pickle.dumps(result))
    assert type(again) is type(result)
    assert torch.equal(again.y, result.y)
    assert torch.equal(again.lse, result.lse)


def test_only_public_names_are_shown():
    import fusedops.explain.forward
    import fusedops.testing

    assert fusedops.testing.check
    shown = {name for name in dir(fo) if not name.startswith("__")}
    assert shown == set(fo.__all__)
    assert "__version__" in dir(fo)
