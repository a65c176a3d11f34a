# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a functor of the library has beside its class: exports, a header, references by hand."""

from steps import STEPS

import fusedops as fo
from fusedops import functors
from fusedops.functors import shipped
from fusedops.jit import env


def test_functors_are_exported_as_their_modules_list_them():
    assert {"Scale", "Causal", "Dropout", "Residual"} <= {*shipped.__all__}
    for name in shipped.__all__:
        assert getattr(fo, name) is getattr(functors, name) is getattr(shipped, name)
    assert {*shipped.__all__} < {*fo.__all__}
    assert {*shipped.__all__, "Functor", "Role", "functor"} < {*functors.__all__}
    for package in (fo, functors):
        assert len(package.__all__) == len({*package.__all__})


def test_every_functor_has_references_by_hand():
    elsewhere = {"Quantize"}  # y has 8 bits and no gradient: tests/test_quantize.py
    elsewhere |= {"GELU", "SiLU", "ReLU", "SquaredReLU", "Sigmoid", "Tanh", "LeakyReLU", "Rotate"}
    assert {step.functor for step in STEPS.values()} | elsewhere == {*shipped.__all__}
    assert all(step.examples for step in STEPS.values())


def test_cpp_projects_get_every_functor():
    text = (env.include_dir() / "fusedops" / "functors.cuh").read_text(encoding="utf-8")
    for name in shipped.__all__:
        assert f"#include <fusedops/functor/{getattr(shipped, name).header}>" in text, name
