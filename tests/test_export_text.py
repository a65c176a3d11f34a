# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What an exported header says, what is refused, and the command."""

import re
import sys

import pytest
import torch
from exported import described, meta
from typer.testing import CliRunner

import fusedops as fo
from fusedops import cli
from fusedops.commands.words import signature
from fusedops.jit import host


def test_the_head_says_what_it_is():
    op, x, operands = described("add_norm")
    text = fo.export(op, x, arch="sm_90", name="norm", multiprocessors=114, **operands).text
    head = re.sub(r"\s*\n//\s*", " ", text[: text.index("#pragma once")])
    assert re.sub(r"\s+", " ", op.declaration) in head
    assert "nvcc -std=c++17 -gencode arch=compute_90,code=sm_90" in head
    assert "114 multiprocessors" in head
    assert "Forward: any number of rows" in head
    assert "Sums over fewer than 2 rows" in head
    assert "// float16 (4096, 1024)" in text
    op, x, operands = described("attention")
    header = fo.export(op, x, arch="x86-64-v3", **operands)
    assert header.name == "softmax"
    assert "Forward: the shapes are fixed" in header.text
    for exported in (text, header.text):  # asked after the headers that say it
        asked = exported.index("#if FUSEDOPS_VERSION / 100 != 0 * 100 + 1\n#error")
        assert exported.rindex("#include <fusedops/") < asked
    assert set(header.command) - {"g++", *host.GCC} < set(host.flags("x86-64-v3"))


def test_what_is_exported_follows_the_call():
    op, x, operands = described("add_norm")

    def parameters(function="forward", **options):
        header = fo.export(op, x, arch="sm_90", name="n", **{**operands, **options})
        return header.parameters.get(f"n_{function}")

    assert {"p", "seed", "offset", "kept"} < set(parameters())
    for left_out in ({"p": 0.0}, {"training": False}):
        assert not {"p", "seed", "offset"} & set(parameters(**left_out))
    assert "kept" not in parameters(backward=False)
    assert parameters("backward", backward=False) is None
    some = parameters("backward", backward=["x", "gamma"])
    assert {"dx", "dgamma"} < set(some)
    assert not {"dbias", "dbeta", "dresidual"} & set(some)
    assert "double" in fo.export(op, x, arch="cpu", dtype=torch.float64, **operands).text


@pytest.mark.parametrize(
    ("shape", "table", "several"), [((16, 128), (64,), False), ((2, 16, 8, 128), (16, 1, 64), True)]
)
def test_any_number_of_rows_is_one_by_one(shape, table, several):
    """An odd number, too, so no thread has two rows at a time but where shapes are fixed."""
    op = fo.RMSNorm(store=[fo.Affine("g", None), fo.Rotate("cos", "sin")])
    operands = {"g": meta(128), "cos": meta(*table), "sin": meta(*table)}
    header = fo.export(op, meta(*shape), arch="sm_90", name="n", **operands)
    for function in ("forward", "backward"):
        assert ("rows" in header.parameters[f"n_{function}"]) is not several
    assert ("abreast_kernel" in header.text) is several
    assert ("abreast_gradient_kernel" in header.text) is several


def test_names_that_cpp_has_itself():
    op = fo.Softmax(load=[fo.Scale("double"), fo.Bias("rows"), fo.Bias("ä")])
    operands = {"double": 0.5, "rows": meta(8), "ä": meta(8)}
    header = fo.export(op, meta(4, 8), arch="cpu", **operands)
    found = header.parameters["softmax_forward"]
    assert found[:5] == ("rows", "x", "double_", "rows_", "u00e4")


def test_what_is_refused(tmp_path):
    op, x, operands = described("add_norm")
    export = {"arch": "sm_90", **operands}
    with pytest.raises(ValueError, match=r"arch must be one of .*sm_90.*got 'sm_999'"):
        fo.export(op, x, **{**export, "arch": "sm_999"})
    with pytest.raises(fo.UnsupportedError, match=r"sm_80 or newer .*got sm_35; use a newer GPU"):
        fo.export(op, x, **{**export, "arch": "sm_35"})
    with pytest.raises(ValueError, match="do not say what to export for: pass arch="):
        fo.export(op, x, **operands)
    with pytest.raises(ValueError, match=r"must end in one of \.h, .*, \.cuh, got .*norm\.cpp"):
        fo.export(op, x, path=tmp_path / "norm.cpp", **export)
    with pytest.raises(ValueError, match="name must be an identifier"):
        fo.export(op, x, name="2norm", **export)
    with pytest.raises(ValueError, match=r"backward must name what has a gradient, x, .*got 'p'"):
        fo.export(op, x, backward=["p"], **export)
    with pytest.raises(TypeError, match="out belongs to a call"):
        fo.export(op, x, out=x, **export)
    with pytest.raises(TypeError, match="operand 'gamma' is missing"):
        fo.export(op, x, arch="sm_90", bias=meta(1024), p=0.1, residual=x, beta=meta(1024))
    with pytest.raises(ValueError, match="x must have elements"):
        fo.export(fo.Softmax(), meta(0, 4), arch="sm_90")
    with pytest.raises(TypeError, match="operand 'path' of Softmax has the name of an option"):
        fo.export(fo.Softmax(load=[fo.Bias("path")]), meta(2, 4), arch="cpu")
    with pytest.raises(fo.UnsupportedError, match="copies of operands"):
        fo.export(fo.LayerNorm(), meta(4, 5, 6).transpose(0, 1), arch="cpu", dim=(0, 2))


def test_gradients_that_the_caller_would_sum_are_refused():
    twice = fo.Softmax(load=[fo.Bias("b"), fo.Scale("s"), fo.Bias("b")])
    operands = {"b": meta(64), "s": meta(64)}
    with pytest.raises(fo.UnsupportedError, match=r"of b, which several functors use.*name x, s"):
        fo.export(twice, meta(32, 64), arch="sm_90", **operands)
    assert fo.export(twice, meta(32, 64), arch="sm_90", backward=["x", "s"], **operands)
    # Two biases that ask for different orders of the rows.
    apart = fo.Softmax(load=[fo.Bias("a"), fo.Bias("b")])
    operands = {"a": meta(64, 1, 512), "b": meta(1, 64, 512)}
    with pytest.raises(fo.UnsupportedError, match="whose rows are no neighbours"):
        fo.export(apart, meta(64, 64, 512), arch="cpu", **operands)
    forward_only = fo.cpp_functor("squared", forward="v * v")
    with pytest.raises(fo.UnsupportedError, match="pass backward=False"):
        fo.export(fo.Softmax(load=[forward_only()]), meta(4, 8), arch="cpu")


@pytest.mark.parametrize("suffix", ["h", "hh", "hpp", "hxx", "cuh"])
def test_names_of_headers(tmp_path, suffix):
    path = tmp_path / f"norm.{suffix}"
    header = fo.export(fo.LayerNorm(), meta(4, 8), arch="cpu", path=path)
    assert path.read_text() == header.text


def command(*words):
    return CliRunner().invoke(cli.app, ["export", *words], env={"COLUMNS": "1000"})


def test_the_command(tmp_path, monkeypatch):
    """A declaration from a module of the working directory."""
    (tmp_path / "declared.py").write_text(
        "import fusedops as fo\nnorm = fo.LayerNorm(store=[fo.Affine('gamma')])\n"
    )
    monkeypatch.chdir(tmp_path)
    operands = ["--operand", "x=float16:64,100", "--operand", "gamma=float32:100"]
    done = command("declared:norm", "--arch", "sm_90", *operands, "-o", "norm.cuh")
    assert done.exit_code == 0, done.output
    op = sys.modules.pop("declared").norm
    x = meta(64, 100, dtype=torch.float16)
    want = fo.export(op, x, gamma=meta(100), arch="sm_90", name="norm").text
    assert (tmp_path / "norm.cuh").read_text() == want
    done = command("declared:norm", "--arch", "sm_90", *operands)
    assert done.output == want
    done = command("declared:norm", "--arch", "sm_90", *operands, "--backward", "none")
    assert "backward" not in done.output.lower().replace("backward pass", "")
    sys.modules.pop("declared", None)


def test_the_command_for_a_product(tmp_path, monkeypatch):
    (tmp_path / "of_products.py").write_text(
        "import fusedops as fo\nlayer = fo.Linear(store=[fo.Bias('b')])\nblock = fo.MLP()\n"
    )
    monkeypatch.chdir(tmp_path)
    operands = ["--operand", "x=float16:64,100", "--operand", "b=float16:100"]
    for name in ("layer", "block"):
        done = command(f"of_products:{name}", "--arch", "sm_90", *operands)
        assert done.exit_code == 2
        for part in (f"of_products:{name} must be a row op", "cannot be exported", ".epilogue"):
            assert part in done.output
    done = command("of_products:layer.epilogue", "--arch", "sm_90", *operands)
    assert done.exit_code == 0, done.output
    assert "epilogue_backward" in done.output
    sys.modules.pop("of_products", None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["flagship"], "MODULE:ATTRIBUTE, got 'flagship'"),
        (["fusedops.flagship:NONE"], "has no 'NONE'"),
        (["fusedops.flagship:Case"], "must be a row op"),
        (["nowhere.to.be:found"], "no module 'nowhere.to.be'"),
        (["fusedops.flagship:ATTENTION"], "missing; give --operand scale=DTYPE:"),
        (
            ["fusedops.flagship:ATTENTION", "--backward", "p"],
            "missing; give --operand scale=DTYPE:",
        ),
    ],
)
def test_what_the_command_refuses(words, message):
    done = command(*words, "--arch", "cpu", "--operand", "x=float16:8,64")
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("x", "must be NAME=DTYPE:SIZES"),
        ("x=half", "must be NAME=DTYPE:SIZES"),
        ("x=float17:8", "a dtype must be one of float16"),
        ("x=float16:8x8", "DTYPE:SIZES, got 'float16:8x8'"),
        ("x=float16:8,8@8", "2 sizes and 1 stride"),
        ("2=1", "must be NAME=DTYPE:SIZES"),
    ],
)
def test_what_a_signature_is_not(word, message):
    with pytest.raises(ValueError, match=message):
        signature([word])


def test_a_signature():
    found = signature(["x=torch.float16:2,3@1,2", "s=float32:", "n=-7", "p=0.5"])
    assert found["x"].stride() == (1, 2)
    assert found["x"].dtype is torch.float16
    assert found["s"].shape == ()
    assert (found["n"], found["p"]) == (-7, 0.5)
    with pytest.raises(ValueError, match="'n' is given twice"):
        signature(["n=1", "n=2"])
