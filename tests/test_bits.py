# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A row's bits are its own: not those of its neighbours, its place, its alignment or the run."""

import contextlib

import pytest
import torch
from cases import ADD_NORM, MAP, OPERATORS, declare, forced, named, parameters, randn, thorough
from references import Chain

COLUMNS = [1, 7, 32, 129, 1000, 1024, 4097, 12289, 50257]


@pytest.fixture(params=[*OPERATORS, "map"])
def chain(request):
    return {**OPERATORS, "map": MAP}[request.param]


def assert_same_bits(got, wanted):
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    assert torch.equal(got.contiguous().view(width), wanted.contiguous().view(width))


@pytest.mark.parametrize("dtype", [torch.float32, *thorough(torch.float16)], ids=str)
@pytest.mark.parametrize("columns", COLUMNS)
def test_the_number_and_place_of_rows(chain, dtype, columns, device):
    rows = 300 if device == "cuda" else 20
    x = randn(rows, columns, dtype=dtype, device=device)
    operands = parameters(chain, columns, dtype, device)
    fused = declare(chain)
    wanted = fused(x, **operands)
    for count in (1, 2, 3, 5, 17):
        assert_same_bits(fused(x[:count], **operands), wanted[:count])
        assert_same_bits(fused(x[-count:], **operands), wanted[-count:])
    shuffled = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).to(device)
    assert_same_bits(fused(x[shuffled], **operands), wanted[shuffled])
    assert_same_bits(fused(x.view(2, rows // 2, columns), **operands).view_as(x), wanted)


@pytest.mark.gpu
def test_many_rows(chain):
    """From fewer rows than multiprocessors to more than any grid holds at once."""
    x = randn(65537, 256, dtype=torch.float16, device="cuda")
    operands = parameters(chain, 256, torch.float16, "cuda")
    wanted = declare(chain)(x, **operands)
    for count in (1, 100, 1000, 33333):
        assert_same_bits(declare(chain)(x[-count:], **operands), wanted[-count:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("columns", [32, 1000, 1024, 4097])
def test_alignment(chain, dtype, columns, device):
    x = randn(6, columns, dtype=dtype, device=device)
    operands = parameters(chain, columns, dtype, device)
    wanted = declare(chain)(x, **operands)
    for shift in (1, 2, 3, 4):
        moved = torch.empty(x.numel() + shift, dtype=dtype, device=device)[shift:].view_as(x)
        assert_same_bits(declare(chain)(moved.copy_(x), **operands), wanted)
        spaced = torch.empty(6, columns + shift, dtype=dtype, device=device)[:, :columns]
        assert_same_bits(declare(chain)(spaced.copy_(x), **operands), wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [33, 1000])
def test_strides(chain, columns, device):
    x = randn(6, columns, device=device)
    operands = parameters(chain, columns, device=device)
    wanted = declare(chain)(x, **operands)
    apart = torch.stack([x, x], -1)[..., 0]
    assert_same_bits(declare(chain)(apart, **operands), wanted)
    expanded = declare(chain)(x[2].expand(5, columns), **operands)
    assert_same_bits(expanded, wanted[2].expand(5, columns))


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("columns", COLUMNS)
def test_two_runs(chain, columns, device):
    x = randn(199, columns, device=device)
    operands = parameters(chain, columns, device=device)
    first = declare(chain)(x, **operands)
    for _ in range(3):
        assert_same_bits(declare(chain)(x, **operands), first)


def test_two_runs_of_everything_at_once(device):
    x, residual = (randn(64, 1000, device=device, seed=i) for i in range(2))
    vectors = {name: randn(1000, device=device) for name in ("bias", "gamma", "beta")}
    runs = [
        named(
            declare(ADD_NORM)(
                *(x,),
                **vectors,
                residual=residual,
                p=0.3,
                generator=torch.Generator(device).manual_seed(5),
            )
        )
        for _ in range(3)
    ]
    for name in runs[0]:
        for run in runs[1:]:
            assert_same_bits(run[name], runs[0][name])


def test_threads_of_the_cpu(chain):
    x = randn(501, 300)
    operands = parameters(chain, 300)
    wanted = declare(chain)(x, **operands)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            assert_same_bits(declare(chain)(x, **operands), wanted)
    finally:
        torch.set_num_threads(threads)


def test_the_broadcast_of_an_operand(device):
    """A shared bias, read in another order or not, and its copy give the same bits."""
    chain = Chain("softmax", (("bias", "b"),))
    x = randn(3, 4, 256, 256, device=device)
    b = randn(1, 4, 256, 256, device=device, seed=1)
    assert_same_bits(declare(chain)(x, b=b), declare(chain)(x, b=b.repeat(3, 1, 1, 1)))


@pytest.fixture(params=OPERATORS)
def reduction(request):
    return OPERATORS[request.param]


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [20001, 50257, 65536, 128256, 153600, 262144, 300001])
def test_who_shares_a_long_row_is_no_part_of_how_it_is_added_up(reduction, columns):
    """One block that meets the chunks in turn, or the blocks of a cluster."""
    x = randn(7, columns, device="cuda").half()
    operands = parameters(reduction, columns, torch.float16, "cuda")
    with forced("cluster"):
        wanted = declare(reduction)(x, **operands)
    for schedule in ("streaming", "shared"):
        with contextlib.suppress(ValueError), forced(schedule):
            assert_same_bits(declare(reduction)(x, **operands), wanted)
    assert_same_bits(declare(reduction)(x[-1:], **operands), wanted[-1:])


@pytest.mark.parametrize("columns", [129, 1000, 4096])
def test_every_schedule_gives_the_same_bits(reduction, columns, scheduled):
    """Where a row is kept is no part of how it is added up."""
    device, schedule = scheduled
    x = randn(300, columns, device=device)
    operands = parameters(reduction, columns, device=device)
    wanted = declare(reduction)(x, **operands)
    with forced(schedule):
        assert_same_bits(declare(reduction)(x, **operands), wanted)
        for count in (1, 2, 3, 133):
            assert_same_bits(declare(reduction)(x[-count:], **operands), wanted[-count:])
        odd = torch.empty(x.numel() + 1, dtype=x.dtype, device=device)[1:].view_as(x).copy_(x)
        assert_same_bits(declare(reduction)(odd, **operands), wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [5, 49])
def test_what_lies_beside_a_short_row(chain, columns, device):
    """A row that its last pack exceeds: what lies behind it is neither used nor written."""
    x, dy = randn(2, 9, columns, device=device)
    operands = parameters(chain, columns, device=device)
    fused = declare(chain)
    wide = torch.full((3, 9, columns + 11), torch.nan, device=device)
    spaced_x, spaced_dy, out = wide[..., :columns]
    spaced_x.copy_(x)
    spaced_dy.copy_(dy)
    wanted = fused(x, **operands)
    assert_same_bits(fused(spaced_x, **operands, out=out), wanted)
    assert_same_bits(out, wanted)
    assert wide[..., columns:].isnan().all()
    with torch.enable_grad():
        leaf, spaced_leaf = x.requires_grad_(), spaced_x.detach().requires_grad_()
        (dx,) = torch.autograd.grad(fused(leaf, **operands), leaf, dy)
        (spaced_dx,) = torch.autograd.grad(fused(spaced_leaf, **operands), spaced_leaf, spaced_dy)
    assert dx.isfinite().all()
    assert_same_bits(spaced_dx, dx)
