# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Ops in packages of AOTInductor, which is torch's way to run a model without Python's compiler."""

import pytest
import torch
from cases import exhaustive
from torch import nn

import fusedops as fo


class Calls(nn.Module):
    """One op, and the operands of its call."""

    def __init__(self, op, **operands):
        super().__init__()
        self.op, self.operands = op, operands

    def forward(self, x):
        return self.op(x, **self.operands)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "model",
    [
        *exhaustive(Calls(fo.Softmax())),
        Calls(fo.LayerNorm(load=[fo.Scale("s")], store=[fo.Bias("b")]), s=0.5, b=torch.ones(8)),
    ],
    ids=["no tensor operand", "a tensor and a number"],
)
def test_a_package_runs(model, tmp_path):
    x = torch.randn(4, 8)
    program = torch.export.export(model, (x,))
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "op.pt2")
    )
    loaded = torch._inductor.aoti_load_package(package)
    assert torch.equal(loaded(x), model(x))
    assert torch.equal(loaded(2 * x), model(2 * x))


def test_a_program_without_tensor_operands_may_lack_the_list_of_them():
    """As programs that were exported by the first version do."""
    op = fo.Softmax()
    x = torch.randn(4, 8)
    for names, tensors in (([], []), (["x"], [x])):
        (y,) = torch.ops.fusedops.forward(
            x, tensors, names, [], [], None, op.text, [1], torch.float32, False
        )
        assert torch.equal(y, op(x))


def test_gradients_without_tensor_operands_are_those_of_the_eager_call():
    op = fo.Softmax()
    dy = torch.randn(4, 8)
    eager, traced = (torch.linspace(-1, 1, 32).view(4, 8).requires_grad_() for _ in range(2))
    op(eager).backward(dy)
    torch.compile(lambda x: op(x), fullgraph=True, backend="aot_eager")(traced).backward(dy)
    assert torch.equal(traced.grad, eager.grad)
