# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of logits as the epilogue of their product, by each implementation of a product."""

import pytest
import torch
from cases import randn
from products import HALF
from test_product_kernels import described
from torch.nn import functional

import fusedops as fo
from fusedops.jit import nvrtc
from fusedops.product import torch_op_linear_cross_entropy as blocks
from fusedops.product import torch_op_linear_one_loss as sweeps
from fusedops.product.class_gradient import product_with_gradient
from fusedops.schedule import override
from fusedops.schedule.architectures import TILINGS


def numbers(rows, classes, device="cpu"):
    """A logarithm, a gradient and a label of each row; row 1 is ignored, some labels are none."""
    label = torch.arange(rows, device=device)[:, None] * 7 % (classes + 20) - 10
    lse = randn(rows, 1, device=device, seed=3).abs() + 4
    lse[1] = torch.inf
    return {"lse": lse, "of_loss": randn(rows, 1, device=device, seed=4), "label": label}


@pytest.mark.parametrize("dtype", [torch.bfloat16, HALF])
def test_against_float64(product_on, dtype):
    rows, classes = 200, 328
    x, w = (randn(n, 64, dtype=dtype, device=product_on, seed=n) / 4 for n in (rows, classes))
    x[1], x[2], w[5] = torch.nan, 0.0, 1.0
    given = numbers(rows, classes, product_on)
    given["of_loss"] = given["of_loss"][:1].expand(rows, 1)
    op = product_with_gradient()
    found = op(x, w, **given)
    z = functional.linear(x.double(), w.double())
    hot = torch.arange(classes, device=product_on) == given["label"]
    p = torch.exp(z - given["lse"].double())
    wanted = (given["of_loss"].double() * (p - hot.double())).masked_fill(given["lse"].isinf(), 0.0)
    unit = torch.finfo(dtype).eps / 2
    # z is rounded, and so is the result.
    off = given["of_loss"].abs() * p * unit * (z.abs() + 1) + wanted.abs() * unit + 1e-6
    off = off.masked_fill(given["lse"].isinf(), 0.0)
    assert ((found.double() - wanted).abs() <= 2 * off).all()
    assert not found[1].any(), "it is ignored, whatever it holds"


def test_a_masked_class_has_no_gradient():
    """Not even where it is the label."""
    x = torch.tensor([[torch.inf, 1.0]])
    w = torch.tensor([[-1.0, 0.0], [0.0, 1.0]])
    given = {"lse": torch.tensor([[1.5]]), "of_loss": torch.ones(1, 1)}
    made = product_with_gradient()(x, w, **given, label=torch.tensor([[0]]))
    assert made[0, 0] == 0


@pytest.mark.parametrize("tiling", TILINGS)
def test_registers_do_not_spill(tiling):
    tensors = {"x": randn(300, 200, dtype=HALF), "w": randn(264, 200, dtype=HALF)}
    (launch,) = described(product_with_gradient(), tensors | numbers(300, 264), tiling).launches
    _, log = nvrtc.compile_cuda(launch.variant.source, "sm_90a", [nvrtc.RESOURCES])
    assert "0 bytes spill stores, 0 bytes spill loads" in log
    assert "C75" not in log, log


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_backward_pass_runs_it(product_on, reduction, monkeypatch):
    """Where one kernel is chosen, and with the gradients of two."""
    monkeypatch.setattr(blocks, "_FEWEST", 512)
    monkeypatch.setattr(blocks, "_MOST", 512)
    made, inner = [], sweeps.gradient_of_product
    monkeypatch.setattr(
        sweeps, "gradient_of_product", lambda *a: made.append(inner(*a)) or made[-1]
    )
    x = randn(300, 64, dtype=torch.bfloat16, device=product_on).requires_grad_()
    w = (randn(1000, 64, dtype=torch.bfloat16, device=product_on, seed=1) / 4).requires_grad_()
    target = torch.arange(300, device=product_on) * 3
    target[::7] = -100
    loss = fo.LinearCrossEntropy(reduction=reduction)(x, w, target=target)
    upstream = randn(*loss.shape, device=product_on, seed=2)
    (found,) = torch.autograd.grad(loss, w, upstream)
    if product_on == "cuda":
        fused = override.current().product.implementation != "two_kernels"
        assert len(made) == 2
        assert all((one is not None) == fused for one in made)
    wide = [one.detach().double().requires_grad_() for one in (x, w)]
    losses = functional.cross_entropy(functional.linear(*wide), target, reduction=reduction)
    (exact,) = torch.autograd.grad(losses, wide[1], upstream.double())
    assert (found.double() - exact).norm() <= 8e-3 * exact.norm()
