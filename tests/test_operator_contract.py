# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What an operator says of itself, and that nothing else has to know it by name."""

import pytest
import torch

import fusedops as fo
from fusedops.declare.operator import own_operators
from fusedops.declare.text import read, spell


class Elsewhere(fo.RMSNorm):
    """An operator of somebody else's module."""


def test_a_class_of_the_package_is_known_by_its_definition():
    assert own_operators["Softmax"] is fo.Softmax
    assert own_operators["RMSNorm"] is fo.RMSNorm
    assert "RowOp" not in own_operators
    assert "Elsewhere" not in own_operators


def test_a_text_says_where_another_class_is():
    op = Elsewhere(load=[fo.Scale("s")])
    text = spell(op)
    assert f"{__name__}:Elsewhere@" in text
    assert read(text) == op


def test_a_text_of_another_operator_of_that_name_is_refused():
    text = spell(Elsewhere())
    place, _, digest = text.rpartition("@")
    with pytest.raises(fo.UnsupportedError, match="the operator of that name computes something"):
        read(f"{place}@{'0' * len(digest)}")


def test_a_text_of_an_operator_that_is_not_there_says_what_to_import():
    text = spell(Elsewhere()).replace(f"{__name__}:", "not_imported:")
    with pytest.raises(fo.UnsupportedError, match="import not_imported before the program is run"):
        read(text)


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ({"header": ""}, "an operator says where its C"),
        ({"gradient_header": ""}, "an operator says where its C"),
        ({"kept": 0}, "how many numbers of a row its gradient reads"),
        ({"gradient_schedule": "rows"}, "'softmax' or 'norm', got 'rows'"),
        ({"numbers": ("eps", "power")}, "numbers names 'power'"),
    ],
)
def test_what_an_operator_leaves_out_is_named(members, match):
    kind = type("Lacking", (fo.LayerNorm,), members)
    with pytest.raises(TypeError, match=match):
        kind()


class Broken(fo.RMSNorm):
    """An operator whose text does not compile, beside a functor whose text does."""

    header = gradient_header = ""
    definition = """
namespace broken {
template <class Compute_>
struct Forward : fusedops::RmsNorm<nonsense> {};
}  // namespace broken
"""

    def cpp(self, compute, *operands):
        return f"broken::Forward<{compute}>"


def test_a_class_that_computes_something_else_says_anew_how_ranks_share_a_row():
    assert Elsewhere().row_parts == fo.RMSNorm().row_parts
    assert Broken().row_parts is None
    assert fo.LogSoftmax(load=[fo.Mask("m")]).row_parts is None


def test_a_compilers_error_names_the_operator(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
    right = fo.cpp_functor("right", forward="v * a", operands=["a"])
    with pytest.raises(fo.CompileError) as caught:
        Broken(load=[right("a")])(torch.zeros(2, 3), a=1.0)
    assert caught.value.culprit == "the operator Broken"


@pytest.mark.parametrize("kind", [fo.LayerNorm, fo.RMSNorm])
def test_names_of_statistics_are_reserved_where_there_are_some(kind):
    with pytest.raises(ValueError, match=r"choose another name than .*mean, rstd"):
        kind(load=[fo.Scale("mean")])
    assert fo.Softmax(load=[fo.Scale("mean")]).slots == {"mean": 1}


class KeepsLess(fo.L2Norm):
    """Says that its gradient reads one number of a row; its C++ keeps two."""

    kept = 1


def test_what_is_kept_is_what_python_says(device):
    x = torch.randn(3, 8, device=device, requires_grad=True)
    with pytest.raises(fo.CompileError, match="must be kKept of its Finish"):
        KeepsLess()(x)
