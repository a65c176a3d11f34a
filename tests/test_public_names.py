# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a functor of the library has beside its class: exports, a header, references by hand."""

import pytest
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


@pytest.mark.thorough
def test_type_checkers_see_them(tmp_path):
    api = pytest.importorskip("mypy.api")
    program = tmp_path / "program.py"
    program.write_text(
        "import fusedops as fo\n"
        "from fusedops import Softmax, functor\n"
        "from fusedops.functors import Affine, Role\n"
        "for one in (fo.Scale, Affine, fo.Functor, Role, Softmax, functor, fo.nn, fo.export):\n"
        "    pass\n"
        "reveal_type(fo.Scale('s'))\n"
        "reveal_type(Affine('g'))\n"
        "reveal_type(Role.VALUE)\n"
        "reveal_type(Softmax())\n"
        "reveal_type(functor)\n"
        "reveal_type(fo.UnsupportedError)\n"
    )
    printed, errors, _ = api.run(["--strict", "--cache-dir", str(tmp_path), str(program)])
    assert not errors
    revealed = [line for line in printed.splitlines() if "Revealed type" in line]
    assert len(revealed) == 6
    assert not [line for line in revealed if '"Any"' in line]


def test_every_functor_has_references_by_hand():
    elsewhere = {"Quantize"}  # y has 8 bits and no gradient: tests/test_quantize.py
    elsewhere |= {"GELU", "SiLU", "ReLU", "SquaredReLU", "Sigmoid", "Tanh", "LeakyReLU", "Rotate"}
    assert {step.functor for step in STEPS.values()} | elsewhere == {*shipped.__all__}
    assert all(step.examples for step in STEPS.values())


def test_cpp_projects_get_every_functor():
    text = (env.include_dir() / "fusedops" / "functors.cuh").read_text(encoding="utf-8")
    for name in shipped.__all__:
        assert f"#include <fusedops/functor/{getattr(shipped, name).header}>" in text, name
