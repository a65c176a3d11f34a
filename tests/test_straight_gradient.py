# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of a loss of bare logits, which has a kernel of its own on a GPU.

Behind a functor that changes nothing the loss has the kernel of every operator, so the two must
agree to the bit. test_losses.py holds both to torch's in float64.
"""

import pytest
import torch
from cases import randn, same_bits, thorough

import fusedops as fo

INF = torch.inf
MORE = {"label_smoothing": 0.1, "z_loss": 1e-2, "lse": True, "log_prob": True, "entropy": True}


def rows_of_all_kinds(columns, dtype, device="cpu"):
    """Logits, targets and gradients of the losses, with NaN and infinite numbers in many places."""
    x = randn(11, columns, dtype=dtype, device=device) * 4
    target = torch.arange(11, device=device) * 7919 % columns
    target[0], target[1], target[2] = 0, columns - 1, -100
    x[2] = torch.nan
    x[3, columns // 2] = torch.nan
    x[3, ::3] = -INF
    x[4] = -INF
    x[5, target[5]] = -INF
    x[6, columns // 3] = INF
    x[7, ::2] = -INF
    x[8] = -3e38 if dtype != torch.float16 else -6e4
    x[8, columns // 2] = -x[8, 0]
    upstream = randn(11, device=device, seed=5)
    upstream[9], upstream[10] = INF, torch.nan
    return x, target, upstream


def verify(columns, dtype, options, device="cpu"):
    """The gradient of x is that of a loss behind a functor."""
    x, target, upstream = rows_of_all_kinds(columns, dtype, device)
    found = []
    for load, operands in (((), {}), ((fo.Scale("one"),), {"one": 1.0})):
        leaf = x.clone().requires_grad_()
        op = fo.CrossEntropy(load, reduction="none", **options)
        results = op(leaf, target=target, **operands)
        results = results if isinstance(results, tuple) else (results,)
        terms = [one @ upstream for one in results]
        found += torch.autograd.grad(torch.stack(terms).sum(), leaf)
    straight, general = found
    assert torch.equal(straight.isnan(), general.isnan())  # a NaN may have any bits
    assert same_bits(*[one.masked_fill(one.isnan(), 7.0) for one in found])


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("options", [{}, MORE], ids=["loss", "more"])
@pytest.mark.parametrize("columns", [33, 1024, *thorough(1, 8200, 20001)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, *thorough(torch.float16)])
def test_bare_logits_have_the_gradient_of_those_behind_a_functor(dtype, columns, options, device):
    verify(columns, dtype, options, device)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [32000, 50257, 128256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_long_rows(dtype, columns):
    verify(columns, dtype, {}, "cuda")
