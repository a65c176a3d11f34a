# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Matmul: scores of attention and batched products, against torch in float64 and their bound."""

import math

import pytest
import torch
from cases import raises, randn, same_bits, thorough

import fusedops as fo
from fusedops.testing import check

SCORES = fo.Matmul(
    store=[fo.Scale("scale"), fo.Bias("b"), fo.Mask("m"), fo.Lengths("n"), fo.Causal()]
)


def scores_case(dtype=torch.float32, device="cpu"):
    """Queries of two batches and three heads, keys that the heads share."""
    q = randn(2, 3, 7, 16, dtype=dtype, device=device)
    k = randn(2, 1, 9, 16, dtype=dtype, device=device, seed=1)
    b = randn(3, 7, 9, dtype=dtype, device=device, seed=2)
    m = randn(2, 1, 1, 9, device=device, seed=3) > 1
    n = torch.tensor([5, 9], device=device).view(2, 1, 1, 1)
    return q, k, {"scale": 0.25, "b": b, "m": m, "n": n}


def test_scores_by_hand(device):
    """Masked elements are -inf and have no gradient, whatever comes in; heads share their keys."""
    q, k, operands = scores_case(torch.float64, device)
    leaves = [one.clone().requires_grad_() for one in (q, k, operands["b"])]
    y = SCORES(leaves[0], leaves[1].mT, **{**operands, "b": leaves[2]})
    gone = operands["m"] | (torch.arange(9, device=device) >= operands["n"])
    gone = gone | (torch.arange(9, device=device) > torch.arange(7, device=device)[:, None])
    want = (leaves[0] @ leaves[1].mT * 0.25 + leaves[2]).masked_fill(gone, -math.inf)
    torch.testing.assert_close(y, want, rtol=1e-13, atol=1e-13)
    dy = torch.where(
        want == -math.inf, math.inf, randn(*y.shape, dtype=torch.float64, seed=5).to(y)
    )
    got = torch.autograd.grad(y, leaves, dy)
    kept = torch.where(want == -math.inf, 0.0, dy)
    wanted = torch.autograd.grad(torch.where(gone, 0.0, want), leaves, kept)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "dtype", [torch.float16, *thorough(torch.bfloat16, torch.float32)], ids=str
)
def test_within_the_bound(dtype, device):
    q, k, _ = scores_case(dtype, device)
    assert check(fo.Matmul(store=[fo.Scale("s"), fo.Causal()]), q, k.mT, s=0.25).passed


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_scores_within_the_bound(dtype, device):
    q, k, operands = scores_case(dtype, device)
    assert check(SCORES, q, k.mT, **operands).passed


def test_a_product_alone_is_torchs(device):
    q, k, _ = scores_case(torch.float16, device)
    assert same_bits(fo.Matmul()(q, k.mT), torch.matmul(q, k.mT))
    assert "torch's product alone" in str(fo.Matmul().explain(q, k.mT))
    told = SCORES.explain(q, k.mT, **scores_case(torch.float16, device)[2])
    assert told.flops == 2 * 2 * 3 * 7 * 9 * 16
    assert told.store.rows == 42


def test_refusals(device):
    q, k, operands = scores_case(device=device)
    for kind, parts, call in (
        (ValueError, ("other must have shape (..., 16, N)", "other.mT"), lambda: SCORES(q, k)),
        (ValueError, ("other must have shape (..., rows",), lambda: SCORES(q, k[0, 0, 0])),
        (ValueError, ("batch dimensions", "(2, 3)"), lambda: SCORES(q, q[:, :2].mT)),
        (TypeError, ("other must have x's dtype",), lambda: SCORES(q, k.half().mT)),
        (TypeError, ("'mm'", "did you mean"), lambda: SCORES(q, k.mT, mm=0, **operands)),
        (ValueError, ("name of a factor",), lambda: fo.Matmul(store=[fo.Bias("other")])),
        (ValueError, ("than x, other, w",), lambda: fo.Matmul(store=[fo.Scale("w")])),
        (TypeError, ("unknown argument 'load'",), lambda: fo.Matmul(load=[])),
    ):
        with raises(kind, "Matmul: ", *parts):
            call()
