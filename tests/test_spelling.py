# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Declarations as text: read back as they were, in this process and without it."""

import pytest
import torch

import fusedops as fo
from fusedops import spelling


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
    assert spelling.read(op.text) is not None
    again = spelling._read(op.text)  # as where there is no such op
    assert again == op
    assert again.text == op.text


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
        "Softmax(load=[thing('s')])  # os:system@0123456789abcdef",
        "Softmax(load=[thing('s')])  # no_such_module:thing@0123456789abcdef",
    ],
)
def test_what_is_no_declaration_is_refused(text):
    with pytest.raises(fo.UnsupportedError):
        spelling.read(text)


def test_a_functor_that_has_changed_is_noticed():
    text = fo.Softmax(load=[softcap("c")]).text
    place = text.partition("@")[2]
    with pytest.raises(fo.UnsupportedError, match="something else"):
        spelling.read(text.replace(place, "0" * len(place)))
