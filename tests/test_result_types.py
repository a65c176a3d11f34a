# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a call returns is known to type checkers: a tensor or a named tuple, never Any."""

import pytest
import torch

import fusedops as fo
from fusedops.functors import shipped

PROGRAM = """
import torch
from torch import Tensor
from typing_extensions import assert_type

import fusedops as fo

x = torch.zeros(2, 8)

assert_type(fo.nn.LayerNorm(8)(x), Tensor)
assert_type(fo.nn.LayerNorm([2, 8], bias=False, device="cpu", dtype=torch.half)(x), Tensor)
assert_type(fo.nn.LayerNorm(8).unfused(x), Tensor)
assert_type(fo.nn.RMSNorm(8, unit_offset=True)(x), Tensor)
assert_type(fo.nn.GroupNorm(2, 8, bias=False)(x), Tensor)

assert_type(fo.nn.ResidualLayerNorm(8)(x, x), Tensor)
assert_type(fo.nn.ResidualLayerNorm(8, 1e-6, p=0.1)(x, x, input_bias=x), Tensor)
assert_type(fo.nn.ResidualLayerNorm(8, return_stream=True)(x, x), fo.StreamResult)
assert_type(fo.nn.ResidualRMSNorm((8,), unit_offset=True)(x, x), Tensor)
saving = fo.nn.ResidualRMSNorm(8, return_stream=True)
assert_type(saving(x, x), fo.StreamResult)
assert_type(saving.forward(x, x).stream, Tensor)
assert_type(saving.unfused(x, x).y, Tensor)
y, stream = saving(x, x)
assert_type(stream, Tensor)

assert_type(fo.nn.AttentionSoftmax(scale=0.5, causal=fo.Causal())(x), Tensor)
assert_type(fo.nn.AttentionSoftmax(lse=True, window=3)(x, sink=x[:, :1]), fo.SoftmaxResult)
assert_type(fo.nn.AttentionSoftmax(lse=True)(x).lse, Tensor)
assert_type(fo.nn.AttentionSoftmax(probs=True)(x), fo.ProbsResult)
assert_type(fo.nn.AttentionSoftmax(probs=True, lse=True, p=0.1)(x).probs, Tensor)


class Block(torch.nn.Module):
    norm: fo.nn.ResidualLayerNorm  # of a tensor, as a module that nothing more was asked of
    saving: fo.nn.ResidualRMSNorm[fo.StreamResult]

    def __init__(self, keep: bool) -> None:
        super().__init__()
        self.norm = fo.nn.ResidualLayerNorm(8)
        self.saving = saving
        self.either = fo.nn.AttentionSoftmax(lse=keep)

    def forward(self, x: Tensor) -> Tensor:
        assert_type(self.norm(x, x), Tensor)
        assert_type(self.saving(x, x), fo.StreamResult)
        assert_type(self.either(x), Tensor | fo.SoftmaxResult)
        return self.norm(x, x)


torch.nn.Sequential(fo.nn.LayerNorm(8))

assert_type(fo.Softmax()(x), Tensor)
assert_type(fo.Softmax(load=[fo.Scale("s"), fo.Causal()])(x, s=0.5), Tensor)
assert_type(fo.Softmax(lse=True)(x), fo.SoftmaxResult)
assert_type(fo.LogSoftmax([fo.Scale("s")], lse=True)(x, s=0.5).lse, Tensor)
assert_type(fo.LayerNorm(store=[fo.Affine("g", None)])(x, g=1.0), Tensor)
assert_type(fo.LayerNorm(stats=True).unfused(x), fo.NormResult)
assert_type(fo.RMSNorm(stats=True)(x), fo.NormResult)
assert_type(fo.L2Norm()(x), Tensor)
assert_type(fo.Map(load=[fo.Bias("b")])(x, b=x), Tensor)
assert_type(fo.Linear(store=[fo.Bias("b")])(x, x, b=1.0), Tensor)
assert_type(fo.Linear([fo.Residual("r", save="kept")])(x, x, r=x @ x.mT).kept, Tensor)
assert_type(fo.Matmul(store=[fo.Scale("s"), fo.Causal()]).unfused(x, x.mT, s=0.5), Tensor)
mlp = fo.MLP(hidden=[fo.Bias("b")], store=[fo.Dropout("p")])
assert_type(mlp(x, x, x.mT, b=1.0, p=0.1), Tensor)
assert_type(fo.nn.Linear(8, 8, p=0.1)(x, x), Tensor)
assert_type(fo.L2Norm(stats=True)(x), fo.L2NormResult)
assert_type(fo.GroupNorm(2)(x), Tensor)
assert_type(fo.GroupNorm(2, stats=True)(x), fo.NormResult)
assert_type(fo.InstanceNorm()(x[None]), Tensor)


@fo.functor
def halved(x: Tensor) -> Tensor:
    return x / 2


class Mine(fo.Functor):  # which might save a stream
    pass


def mine(one: Mine) -> None:
    assert not isinstance(fo.Softmax(store=[one])(x), tuple)


assert_type(fo.Softmax(load=[halved()])(x), Tensor)
assert_type(fo.LayerNorm(load=[fo.Bias("b"), fo.Residual("r", 0.5)])(x, b=x, r=x), Tensor)
saved = fo.RMSNorm(load=[fo.Bias("b"), fo.Residual("r", save="kept")])(x, b=x, r=x)
assert_type(saved.kept, Tensor)
assert_type(saved.y, Tensor)
y, kept = saved
assert_type(kept, Tensor)
either = fo.LayerNorm(stats=bool(len(x)))
assert_type(either(x), Tensor | fo.NormResult)
op: fo.Softmax = fo.Softmax()
assert_type(op(x), Tensor)


def run(op: fo.LayerNorm[fo.NormResult], x: Tensor) -> Tensor:
    return op(x).rstd


run(fo.LayerNorm(stats=True), x)
functors: list[fo.Functor] = [fo.Scale("s")]
assert not isinstance(fo.Softmax(functors)(x, s=1.0), tuple)
"""

#: Of every functor but Residual it is known that it saves nothing.
PLAIN = """
import torch
from torch import Tensor
from typing_extensions import assert_type

import fusedops as fo

x = torch.zeros(2, 8)
"""

WRONG = """
import torch
import fusedops as fo

x = torch.zeros(2, 8)
fo.nn.ResidualLayerNorm(8)(x)
fo.nn.ResidualLayerNorm(8)(x, x).stream
norm: fo.nn.ResidualRMSNorm = fo.nn.ResidualRMSNorm(8, return_stream=True)
fo.nn.AttentionSoftmax(causal="yes")
fo.Softmax()(x).lse
op: fo.Softmax = fo.Softmax(lse=True)
fo.Softmax(stats=True)
"""


def checked(text, folder):
    """What mypy prints of a program."""
    api = pytest.importorskip("mypy.api")
    program = folder / "program.py"
    program.write_text(text)
    options = ["--strict", "--no-error-summary", "--python-version", "3.11"]
    printed, errors, _ = api.run([*options, "--cache-dir", str(folder), str(program)])
    assert not errors
    return printed


@pytest.mark.thorough
def test_types(tmp_path):
    assert checked(PROGRAM, tmp_path) == ""


@pytest.mark.thorough
def test_every_functor_that_saves_nothing_is_listed(tmp_path):
    """By fusedops/_typed_ops.pyi; Residual says by its arguments whether it saves."""
    text = PLAIN
    saving = {
        name for name in shipped.__all__ if {"saves", "taps"} & vars(getattr(shipped, name)).keys()
    }
    assert saving == {"Residual", "Save", "Tap"}
    for name in sorted({*shipped.__all__} - saving):
        text += f"""

def with_{name}(one: fo.{name}) -> None:
    assert_type(fo.Softmax(load=[one])(x), Tensor)
"""
    assert checked(text, tmp_path) == ""


@pytest.mark.thorough
def test_what_is_wrong_is_found(tmp_path):
    found = [
        line.split(":")[1] for line in checked(WRONG, tmp_path).splitlines() if "error" in line
    ]
    assert found == ["6", "7", "8", "9", "10", "11", "12"]


@pytest.mark.thorough
def test_the_program_of_types_runs():
    exec(compile(PROGRAM, "program", "exec"), {"__name__": "program"})


class Saving(torch.nn.Module):
    """A layer whose declaration names an output itself."""

    def __init__(self):
        super().__init__()
        self.op = fo.LayerNorm(load=[fo.Residual("r", save="kept_for_later")])

    def forward(self, x, r):
        return self.op(x, r=r)


def test_a_saved_program_may_return_outputs_of_ones_own(tmp_path):
    """It is loaded where an op with outputs of these names is declared."""
    module, x = Saving(), torch.randn(2, 3)
    torch.export.save(torch.export.export(module, (x, x)), tmp_path / "program.pt2")
    found = torch.export.load(tmp_path / "program.pt2").module()(x, x)
    assert found._fields == ("y", "kept_for_later")
    assert all(map(torch.equal, found, module(x, x)))


def test_a_saved_program_may_return_a_result(tmp_path):
    module, x = fo.nn.AttentionSoftmax(lse=True), torch.ones(2, 3)
    program = torch.export.export(module, (x,))
    torch.export.save(program, tmp_path / "program.pt2")
    found = torch.export.load(tmp_path / "program.pt2").module()(x)
    assert isinstance(found, fo.SoftmaxResult)
    assert all(map(torch.equal, found, module(x)))
