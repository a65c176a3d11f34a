# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a call returns fits for type checkers where a tensor or a named tuple is wanted."""

from pathlib import Path

import pytest
import torch

import fusedops as fo

PROGRAM = """
import torch
from torch import Tensor
from typing_extensions import assert_type

import fusedops as fo

x = torch.zeros(2, 8)


def tensor(y: Tensor) -> Tensor:
    return y


tensor(fo.nn.LayerNorm([2, 8], bias=False, device="cpu", dtype=torch.half)(x.half()))
tensor(fo.nn.LayerNorm(8).unfused(x))
tensor(fo.nn.RMSNorm(8, unit_offset=True)(x))
tensor(fo.nn.GroupNorm(2, 8, bias=False)(x))
tensor(fo.nn.Linear(8, 8, p=0.1)(x, x))
torch.nn.Sequential(fo.nn.LayerNorm(8))

tensor(fo.nn.ResidualLayerNorm(8, 1e-6, p=0.1)(x, x, input_bias=x))
saving = fo.nn.ResidualRMSNorm(8, return_stream=True)
assert_type(saving.forward(x, x).stream, Tensor)
assert_type(saving.unfused(x, x).y, Tensor)
y, stream = saving(x, x)
assert_type(stream, Tensor)

tensor(fo.nn.AttentionSoftmax(scale=0.5, causal=fo.Causal())(x))
assert_type(fo.nn.AttentionSoftmax(lse=True, window=3)(x, sink=x[:, :1]).lse, Tensor)
assert_type(fo.nn.AttentionSoftmax(probs=True, lse=True, p=0.1)(x).probs, Tensor)

tensor(fo.Softmax(load=[fo.Scale("s"), fo.Causal()])(x, s=0.5))
assert_type(fo.Softmax()(x).shape, torch.Size)
assert_type(fo.Softmax()(x) + 1, Tensor)
assert_type(fo.LogSoftmax([fo.Scale("s")], lse=True)(x, s=0.5).lse, Tensor)
tensor(fo.LayerNorm(store=[fo.Affine("g", None)])(x, g=1.0))
tensor(fo.L2Norm()(x))
tensor(fo.Map(load=[fo.Bias("b")])(x, b=x))
tensor(fo.Linear(store=[fo.Bias("b")])(x, x, b=1.0))
assert_type(fo.Linear([fo.Residual("r", save="kept")])(x, x, r=x @ x.mT).kept, Tensor)
tensor(fo.Matmul(store=[fo.Scale("s"), fo.Causal()]).unfused(x, x.mT, s=0.5))
mlp = fo.MLP(hidden=[fo.Bias("b")], store=[fo.Dropout("p")])
tensor(mlp(x, x, x.mT, b=1.0, p=0.1))
tensor(fo.L2Norm(stats=True)(x).norm)
tensor(fo.LayerNorm(stats=True)(x).mean)
tensor(fo.GroupNorm(2)(x))
tensor(fo.InstanceNorm()(x[None]))


@fo.functor
def halved(x: Tensor) -> Tensor:
    return x / 2


class Mine(fo.Functor):
    pass


def mine(one: Mine, functors: list[fo.Functor]) -> None:
    tensor(fo.Softmax(store=[one])(x))
    tensor(fo.Softmax(functors)(x))


class Doubled(fo.RMSNorm):
    pass


tensor(Doubled()(x))
tensor(fo.Softmax(load=[halved()])(x))
y, kept = fo.RMSNorm(load=[fo.Bias("b"), fo.Residual("r", save="kept")])(x, b=x, r=x)
assert_type(kept, Tensor)
op: fo.LayerNorm = fo.LayerNorm(stats=True)


def run(op: fo.LayerNorm, x: Tensor) -> fo.NormResult:
    return op(x)


run(op, x)


def sees(op: fo.LayerNorm, x: Tensor) -> Tensor:
    found = op(x)
    if isinstance(found, fo.NormResult):
        return found.rstd
    return found


sees(op, x)
"""

WRONG = """
import torch
import fusedops as fo

x = torch.zeros(2, 8)
fo.nn.ResidualLayerNorm(8)(x)
fo.nn.AttentionSoftmax(causal="yes")
fo.Softmax(stats=True)
fo.Softmax(load=["scale"])
fo.Softmax()(x).shape.rows
fo.Residual("r", save=1)
fo.Linear()("x")
"""


NAMES = """
import fusedops as fo
from fusedops import Softmax, functor
from fusedops.functors import Affine, Role

for one in (fo.Scale, Affine, fo.Functor, Role, Softmax, functor, fo.nn, fo.export):
    pass
reveal_type(fo.Scale("s"))
reveal_type(Affine("g"))
reveal_type(Role.VALUE)
reveal_type(Softmax())
reveal_type(functor)
reveal_type(fo.UnsupportedError)
"""


@pytest.mark.thorough
def test_type_checkers(tmp_path, monkeypatch):
    """One run of mypy of all programs: it reads torch in ten seconds."""
    api = pytest.importorskip("mypy.api")
    monkeypatch.chdir(tmp_path)
    programs = {"right.py": PROGRAM, "wrong.py": WRONG, "names.py": NAMES}
    for name, text in programs.items():
        Path(name).write_text(text)
    options = ["--strict", "--no-error-summary", "--python-version", "3.11", "--cache-dir", "cache"]
    printed, errors, _ = api.run([*options, *programs])
    assert not errors
    lines = {name: [] for name in programs}
    for line in printed.splitlines():
        lines[line.split(":")[0]].append(line)
    assert lines["right.py"] == []
    wrong = [line.split(":")[1] for line in lines["wrong.py"] if "error" in line]
    assert wrong == ["6", "7", "8", "9", "10", "11", "12"]
    assert len(lines["names.py"]) == 6
    for line in lines["names.py"]:
        assert "Revealed type" in line
        assert '"Any"' not in line


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
