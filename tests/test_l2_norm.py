# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""L2Norm: against float64, below eps, where squares overflow, and over several dimensions."""

import dataclasses

import pytest
import torch
from cases import FLOATS, L2_NORM, gradients_of, randn, thorough, verify, verify_gradients
from torch.nn import functional

import fusedops as fo
from fusedops.testing import check

STATS = dataclasses.replace(L2_NORM, stats=True)


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [1, 33, *thorough(1024, 3000), 16400])
def test_columns_and_dtypes(columns, dtype, device):
    x = randn(7, columns, dtype=dtype, device=device)
    verify(STATS, x, {})
    verify_gradients(STATS, x, {})


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", ["register", "shared", "streaming", "cluster"])
def test_schedules(schedule):
    x = randn(31, 20000 if schedule == "cluster" else 3001, dtype=torch.float16, device="cuda")
    verify(STATS, x, {}, schedule=schedule)
    verify_gradients(STATS, x, {}, schedule=schedule)


@pytest.mark.thorough
def test_with_functors(device):
    chain = dataclasses.replace(
        STATS,
        load=(("bias", "b"), ("residual", "r", 0.5, "stream")),
        store=(("affine", "gamma", "beta"),),
    )
    x = randn(6, 40, dtype=torch.float64, device=device)
    operands = {
        name: randn(*shape, dtype=torch.float64, device=device, seed=seed)
        for seed, (name, shape) in enumerate(
            {"b": (40,), "r": (6, 40), "gamma": (40,), "beta": (40,)}.items()
        )
    }
    verify(chain, x.float(), {name: one.float() for name, one in operands.items()})
    verify_gradients(chain, x, operands, unfused=True)


@pytest.mark.thorough
def test_it_is_that_of_torch(device):
    x = randn(5, 3, 24, device=device)
    dy = randn(5, 3, 24, device=device, seed=1)
    for dim in (-1, 0, 1):
        _, got = gradients_of(fo.L2Norm(), x, {}, {"y": dy}, dim=dim)
        leaf = x.clone().requires_grad_()
        wanted = functional.normalize(leaf, dim=dim)
        torch.testing.assert_close(fo.L2Norm()(x, dim=dim), wanted.detach())
        torch.testing.assert_close(got["x"], torch.autograd.grad(wanted, leaf, dy)[0])
    y, norm = fo.L2Norm(stats=True)(x, dim=(1, 2))
    torch.testing.assert_close(norm, torch.linalg.vector_norm(x, dim=(1, 2)))
    torch.testing.assert_close(y, x / norm[:, None, None])


def test_rows_below_eps(device):
    """They are divided by eps, a constant, and so are their gradients; so is a row of zeros."""
    chain = dataclasses.replace(STATS, eps=0.5)
    x = randn(4, 16, device=device) * torch.tensor([[1.0], [1e-3], [0.0], [2.0]], device=device)
    verify(chain, x, {})
    got = verify_gradients(chain, x, {}, {"y": torch.ones_like(x)})
    assert torch.equal(got["x"][2], torch.full((16,), 2.0, device=device))


def test_eps_whose_reciprocal_overflows(device):
    """1 / eps is no float: a row of zeros and its gradient stay free of NaN all the same."""
    op = fo.L2Norm(eps=1e-40)
    x = randn(2, 16, device=device)
    x[0] = 0
    dy = torch.ones_like(x)
    dy[0, ::2] = 0
    y, got = gradients_of(op, x, {}, {"y": dy})
    assert torch.equal(y["y"][0], torch.zeros(16, device=device))
    assert not got["x"].isnan().any()
    assert torch.equal(got["x"][0, ::2], torch.zeros(8, device=device))
    assert (got["x"][0, 1::2] > 1e38).all()
    torch.testing.assert_close(y["y"][1], functional.normalize(x[1], dim=0))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_a_row_that_diverges_is_nan(value, device):
    x = randn(3, 70, device=device)
    x[1, 5] = value
    y, norm = fo.L2Norm(stats=True)(x)
    assert y[1].isnan().all()
    assert norm[1].isnan()
    assert y[[0, 2]].isfinite().all()
    _, got = gradients_of(fo.L2Norm(), x, {}, {"y": randn(3, 70, device=device, seed=1)})
    assert got["x"][1].isnan().all()
    assert got["x"][[0, 2]].isfinite().all()


@pytest.mark.thorough
def test_check_says_so(device):
    op = fo.L2Norm(store=[fo.Affine("gamma")], stats=True)
    gamma = randn(16, device=device, seed=1)
    assert check(op, randn(2, 5, 16, device=device), gamma=gamma).passed
