# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The kernels around products of experts, run on the CPU: order, copies and sums of tokens."""

import platform
import shutil

import pytest
import torch
from cases import randn, same_bits, thorough_points
from emulate import ORDERS, emulated
from test_routing import CHOICES, check_sums, chosen, sorted_by_hand

import fusedops as fo
from fusedops.product import routing_kernels
from fusedops.product.routing_kernels import _Kernels

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("g++") is None,
    reason="threads are switched by x86-64 code, and kernels built by g++",
)
KERNELS = _Kernels()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CHOICES)
def test_the_order_of_rows(monkeypatch, name, order):
    """By many blocks, by two whose threads have several rows, and by one; and copies of tokens."""
    expert, experts = chosen(name)
    weight, x = randn(expert.numel(), seed=1).bfloat16(), randn(len(expert), 20, seed=2)[:, :12]
    want = sorted_by_hand(expert, experts)
    given = {"weight": weight, "x": x, "offsets": (torch.int32, (experts + 1,))}
    for most in (128, 2, 1):
        monkeypatch.setattr(routing_kernels, "_MOST_BLOCKS", most)
        KERNELS.route.clear()
        with emulated("sm_90", order):
            *found, ordered, rows = KERNELS.route(expert.view(-1), **given)
        assert same_bits(rows, x.repeat_interleave(expert.shape[1], 0)[want[0]])
        for one, right in zip(found, want, strict=True):
            assert torch.equal(one, right)
            assert one.dtype is right.dtype
        assert same_bits(ordered, weight[want[0]].view(-1, 1))


@pytest.mark.parametrize("order", ORDERS[:2])
@pytest.mark.parametrize(
    ("tokens", "choices", "columns", "dtype"),
    [
        (5, 8, 264, torch.bfloat16),
        (7, 3, 3, torch.float16),
        *thorough_points((3, 11, 1028, torch.float32), (4, 1, 514, torch.float64)),
    ],
)
def test_copies_and_sums(tokens, choices, columns, dtype, order):
    rows = tokens * choices
    place = torch.randperm(rows, generator=torch.Generator().manual_seed(rows))
    x = randn(tokens, columns + 8, dtype=dtype)[:, :columns]  # whose rows lie apart
    with emulated("sm_90", order):
        found = KERNELS.copy(x, place=place)
    want = torch.empty(rows, columns, dtype=dtype)
    want[place] = x.repeat_interleave(choices, 0)
    assert same_bits(found, want)
    each = randn(rows, columns + 8, dtype=dtype, seed=1)[:, :columns]
    described = dtype, (tokens, columns)
    with emulated("sm_90", order):
        y = KERNELS.sum(each, place=place, y=described)
        in_order = KERNELS.sum(each[place], y=described)
    assert same_bits(y, in_order)
    check_sums(y, each[place].view(tokens, choices, columns))


@pytest.mark.parametrize("bias", [False, True])
def test_a_step_of_experts(monkeypatch, bias):
    """Outputs and gradients are those by torch's calls, but for the order of sums."""
    experts = fo.nn.Experts(4, 8, 12, bias=bias)
    x, upstream = randn(20, 8).requires_grad_(), randn(20, 8, seed=2)
    weight, index = randn(20, 4, seed=1).sigmoid().topk(3)
    leaves, made = [x, weight.requires_grad_(), *experts.parameters()], []
    monkeypatch.setattr(routing_kernels, "_kernels", KERNELS)
    for by_kernels in (True, False):
        launches = [one.launches for one in (KERNELS.route, KERNELS.copy, KERNELS.sum)]
        monkeypatch.setattr(routing_kernels, "_runs", lambda tensor, runs=by_kernels: runs)
        with emulated():
            y = experts(x, index, weight)
            made.append([y, *torch.autograd.grad(y, leaves, upstream)])
        ran = [one.launches - launches.pop(0) for one in (KERNELS.route, KERNELS.copy, KERNELS.sum)]
        assert ran == ([1, 1, 2] if by_kernels else [0, 0, 0])
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(one, other)
