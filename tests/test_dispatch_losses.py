# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy as a C++ dispatch, on threads of the CPU and on a GPU, against float64."""

import ctypes

import pytest
import torch
from cases import poisoned, randn, same_bits
from cpptest import place

SUCCESS, INVALID = 0, 1
EPS = torch.finfo(torch.float32).eps
SMOOTHING, Z_LOSS, CAP = 0.1, 1e-3, 3.0
COLUMNS = (1, 3, 8, 24, 65, 512, 1000, 4096, 20001)
MORE = [
    pytest.param(cols, marks=pytest.mark.exhaustive)
    for cols in (64, 256, 257, 2048, 3000, 8192, 16384, 16385, 50257, 128256)
]

pytestmark = pytest.mark.thorough


def labels_of(rows, cols, device, dtype=torch.int64):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, cols, (rows,), generator=generator).to(device, dtype)


def poisoned_all(shapes, device):
    made = [poisoned(shape, dtype, device) for shape, dtype in shapes]
    return [one for one, _ in made], [intact for _, intact in made]


def truth_of(v, labels, smoothing=0.0, z_loss=0.0):
    """Losses of rows of float64 logits, of which -inf are no classes."""
    lse = v.logsumexp(-1)
    at = v.gather(-1, labels[:, None])[:, 0]
    there = v > -torch.inf
    mean = v.masked_fill(~there, 0.0).sum(-1) / there.sum(-1)
    return (1 - smoothing) * (lse - at) + smoothing * (lse - mean) + z_loss * lse.square(), lse


@pytest.mark.parametrize(("rows", "pitch"), [(0, 0), (1, 0), (7, 5), (130, 0)])
@pytest.mark.parametrize("cols", [*COLUMNS, *MORE])
def test_losses_and_gradients(device, rows, cols, pitch):
    rows = min(rows, 7) if cols > 4096 else rows
    library = place("losses", device)
    x = randn(rows, cols + pitch, dtype=torch.float16, device=device)
    shift, labels = randn(cols, device=device, seed=1), labels_of(rows, cols, device)
    labels[2::3] = -100
    shapes = [((rows,), torch.float32)] * 2 + [((rows, 3), torch.float32)]
    (loss, lse, kept), intact = poisoned_all(shapes, device)
    given, numbers = (x, shift, CAP, labels), (SMOOTHING, Z_LOSS, rows, cols, cols + pitch)
    assert library.losses(*given, loss, lse, kept, *numbers) == SUCCESS
    assert all(one() for one in intact)

    dloss = randn(rows, device=device, seed=2)
    # What lies between the rows of dx stays.
    dx = torch.full((rows, cols + pitch), torch.nan, dtype=torch.float16, device=device)
    (dshift,), intact = poisoned_all([((cols,), torch.float32)], device)

    def gradient(*rest):
        return library.losses_gradient(*given, kept, dloss, dx, dshift, *numbers, *rest)

    needed = ctypes.c_size_t(12345)
    assert gradient(None, 0, ctypes.byref(needed)) == SUCCESS
    space = torch.full((needed.value,), 255, dtype=torch.uint8, device=device)
    assert gradient(space, needed.value, None) == SUCCESS
    assert all(one() for one in intact)
    assert dx[:, cols:].isnan().all()

    leaf = x[:, :cols].double().requires_grad_()
    moved = shift.double().requires_grad_()
    v = CAP * torch.tanh((leaf + moved) / CAP)
    ignored = labels == -100
    wanted, wanted_lse = truth_of(v, labels.masked_fill(ignored, 0), SMOOTHING, Z_LOSS)
    wanted, wanted_lse = (one.masked_fill(ignored, 0.0) for one in (wanted, wanted_lse))
    (of_x, of_shift) = torch.autograd.grad((wanted * dloss.double()).sum(), (leaf, moved))
    # Logits are off by a few roundings of numbers up to the cap, and of a tanh; sums of n terms by
    # their logarithm in tiles, and losses by a few roundings of lse.
    bound = EPS * (16 * CAP + 4 * wanted_lse.abs() + 8) * (1 + 2 * Z_LOSS * wanted_lse.abs())
    for found, true in ((loss, wanted), (lse, wanted_lse)):
        assert ((found.double() - true).abs() <= bound).all()
    assert not loss[ignored].any()
    # p is off by what lse and v are off, relative to itself; the gradient is rounded to a half.
    part = torch.softmax(v, -1).detach() + SMOOTHING / cols
    part = part + torch.nn.functional.one_hot(labels.masked_fill(ignored, 0), cols)
    loose = dloss.double().abs()[:, None] * part * (2 * bound[:, None] + 16 * EPS)
    allowed = loose + 2.0**-11 * of_x.abs() + 2.0**-25
    assert ((dx[:, :cols].double() - of_x).abs() <= allowed).all()
    assert not dx[ignored][:, :cols].any()
    largest = loose.sum(0) + 4 * EPS * rows * of_x.abs().sum(0)
    assert ((dshift.double() - of_shift).abs() <= largest + 1e-12).all()


@pytest.mark.parametrize("cols", [2, 40, 1032, 16390])
def test_masks_classes_and_memory(device, cols):
    """A mask, another class that does not count, labels of 32 bits, dx in the memory of x."""
    library, rows = place("losses", device), 9
    x = randn(rows, cols, device=device)
    gone = torch.zeros(cols, dtype=torch.bool, device=device)
    gone[cols // 2 :: 3] = True
    labels = labels_of(2 * rows, cols, device, torch.int32)[::2]
    labels.masked_fill_(gone[labels.long()], 0)
    labels[3] = 0
    (loss, kept), intact = poisoned_all(
        [((rows,), torch.float32), ((rows, 2), torch.float32)], device
    )
    x[3] = torch.nan  # it does not count
    assert library.masked_losses(x, gone, labels, loss, kept, rows, cols) == SUCCESS
    ignored = labels == 0
    leaf = x.double().masked_fill(ignored[:, None], 0.0).requires_grad_()
    wanted, _ = truth_of(leaf.masked_fill(gone, -torch.inf), labels.long())
    wanted = wanted.masked_fill(ignored, 0.0)
    torch.testing.assert_close(loss.double(), wanted.detach(), rtol=8 * EPS, atol=8 * EPS)
    (of_x,) = torch.autograd.grad(0.5 * wanted.sum(), leaf)
    (dx,), more = poisoned_all([((rows, cols), torch.float32)], device)
    half = torch.tensor(0.5, device=device)
    given = (x, gone, labels, kept)
    assert library.masked_losses_gradient(*given, half, dx, rows, cols) == SUCCESS
    torch.testing.assert_close(dx.double(), of_x, rtol=64 * EPS, atol=64 * EPS)
    assert not dx[:, gone].any()
    assert not dx[ignored].any()
    assert library.masked_losses_gradient(*given, None, x, rows, cols) == SUCCESS
    assert same_bits(x, dx)
    assert all(one() for one in (*intact, *more))


def test_double_is_added_to_what_is_there(device):
    library, rows, cols = place("losses", device), 5, 77
    x, before = (randn(rows, cols, dtype=torch.float64, device=device, seed=s) for s in (0, 1))
    labels, dloss = labels_of(rows, cols, device), randn(rows, dtype=torch.float64, device=device)
    (loss, kept), intact = poisoned_all(
        [((rows,), torch.float64), ((rows, 2), torch.float64)], device
    )
    assert library.double_losses(x, labels, loss, kept, rows, cols) == SUCCESS
    leaf = x.clone().requires_grad_()
    wanted, _ = truth_of(leaf, labels)
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-14, atol=1e-14)
    dx = before.clone()
    given = (x, labels, kept, dloss, dx, rows, cols)
    assert library.double_losses_gradient(*given) == SUCCESS
    (of_x,) = torch.autograd.grad((wanted * dloss).sum(), leaf)
    torch.testing.assert_close(dx, before + of_x, rtol=1e-13, atol=1e-14)
    assert all(one() for one in intact)


def test_what_is_no_class(device):
    """NaN, where torch would raise or read elsewhere; a row of masks; an infinite logit."""
    library, rows, cols = place("losses", device), 5, 50
    x = randn(rows, cols, dtype=torch.float64, device=device)
    labels = torch.tensor([cols, -1, 1 << 40, 3, 4], device=device)
    x[3] = -torch.inf
    x[4, 7] = torch.inf
    loss, kept = (torch.empty(rows, n, dtype=torch.float64, device=device) for n in (1, 2))
    assert library.double_losses(x, labels, loss, kept, rows, cols) == SUCCESS
    assert loss[:, 0].isnan().tolist() == [True, True, True, True, True]
    dx = torch.zeros_like(x)
    dloss = torch.ones(rows, dtype=torch.float64, device=device)
    assert library.double_losses_gradient(x, labels, kept, dloss, dx, rows, cols) == SUCCESS
    assert dx[:3].isnan().any(-1).all()


def test_refusals(device):
    library = place("losses", device)
    x = torch.zeros(2, 400, dtype=torch.float64, device=device)
    labels = torch.zeros(2, dtype=torch.int64, device=device)
    loss = torch.full((2,), torch.nan, dtype=torch.float64, device=device)
    for rows, cols in ((2, 301), (2, 0), (-1, 4)):
        assert library.double_losses(x, labels, loss, None, rows, cols) == INVALID
    assert library.double_losses(x, None, loss, None, 2, 4) == INVALID
    assert library.double_losses(None, labels, loss, None, 2, 4) == INVALID
    assert loss.isnan().all()
    assert library.double_losses(None, None, None, None, 0, 4) == SUCCESS
    assert library.double_losses(x, labels, None, None, 2, 4) == SUCCESS
