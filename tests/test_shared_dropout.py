# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Draws that elements share along dimensions of x: the documented map, and what it is made of."""

import pickle

import pytest
import torch
from cases import forced, raises, randn, thorough
from philox import drawn, keep_mask, keep_scale
from torch._subclasses.fake_tensor import FakeTensorMode

import fusedops as fo
from fusedops.declare.text import read
from fusedops.testing import check

SHAPE = (3, 4, 5, 24)


def wanted(shape, shared, seed, p, slot=0, device="cpu", dims=1):
    """The documented map: the mask of a tensor with one element along each shared dimension."""
    drawing = [
        1 if dim in {one % len(shape) for one in shared} else n for dim, n in enumerate(shape)
    ]
    return keep_mask(drawing, *drawn(device, seed), p, slot, dims, device=device).expand(shape)


def kept(op, x, seed=11, p=0.4, **options):
    generator = torch.Generator(x.device).manual_seed(seed)
    return op(x, p=p, generator=generator, **options) != 0


@pytest.mark.parametrize("shared", [(-1,), (-2,), (1, 2), (1, 2, 3), (0, 1, 2, 3), (0, -1)])
@pytest.mark.parametrize("columns", [7, 24, *thorough(1, 33)])
def test_kernels_draw_the_documented_mask(shared, columns, device):
    shape = (*SHAPE[:3], columns)
    mask = wanted(shape, shared, 11, 0.4, device=device)
    x = torch.ones(shape, device=device)
    before = fo.RMSNorm(load=[fo.Dropout("p", shared=shared)])
    assert torch.equal(kept(before, x), mask)
    after = fo.Softmax(store=[fo.Dropout("p", shared=shared)])
    assert torch.equal(kept(after, x), mask)
    assert torch.equal(kept(after.unfused, x), mask)
    told = after.dropout_mask(shape, *drawn(device, 11), 0.4)
    assert torch.equal(told.to(device), mask)


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("columns", [31, 128, 1001, 4096])
def test_every_schedule_draws_the_same_mask(dtype, columns, scheduled):
    device, schedule = scheduled
    x = torch.ones(7, 29, columns, dtype=dtype, device=device)
    for shared in ((-1,), (1,), (0,)):
        op = fo.RMSNorm(load=[fo.Dropout("p", shared=shared)])
        with forced(schedule):
            got = kept(op, x)
        assert torch.equal(got, wanted(x.shape, shared, 11, 0.4, device=device))


def test_two_draws_share_apart_in_one_call(device):
    """Each functor has a map and a slot of its own."""
    op = fo.LayerNorm(
        load=[fo.Dropout("p", shared=-1), fo.Bias("b")],
        store=[fo.Dropout("q", shared=(0, 1)), fo.Dropout("r")],
    )
    x, b = torch.full(SHAPE, 3.0, device=device), randn(24, device=device) + 10
    generator = torch.Generator(device).manual_seed(4)
    y = op(x, p=0.5, q=0.25, r=0.5, b=b, generator=generator)
    masks = [
        wanted(SHAPE, shared, 4, p, slot, device)
        for slot, (shared, p) in enumerate([((-1,), 0.5), ((0, 1), 0.25), ((), 0.5)])
    ]
    assert torch.equal(y != 0, masks[1] & masks[2])
    v = torch.where(masks[0], 6.0, 0.0) + b
    norm = torch.nn.functional.layer_norm(v, (24,))
    scale = keep_scale(0.25) * keep_scale(0.5)
    torch.testing.assert_close(y, norm * (masks[1] & masks[2]) * scale, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_the_dimensions_are_those_of_x_whatever_is_reduced(dim, device):
    x = torch.zeros(6, 10, 4, device=device)
    for shared in ((0,), (1,), (2,), (0, 1)):
        if {dim} & {*shared} and not {*shared} >= {dim}:
            continue
        op = fo.Softmax(store=[fo.Dropout("p", shared=shared)])
        ones = [1 if at in shared else n for at, n in enumerate(x.shape)]
        order = [*[at for at in range(3) if at != dim], dim]
        moved = keep_mask([ones[at] for at in order], *drawn(device, 11), 0.4, device=device)
        mask = moved.permute([order.index(at) for at in range(3)]).expand(x.shape)
        assert torch.equal(kept(op, x, dim=dim), mask)


def test_several_reduced_dimensions_that_are_copied_first(device):
    """X of rows that do not merge is run on a copy, whose dimensions come in another order."""
    x = torch.ones(6, 5, 4, 7, device=device).transpose(1, 2)
    for shared in ((1,), (0, 2), (1, 3)):
        op = fo.RMSNorm(load=[fo.Dropout("p", shared=shared)])
        got = kept(op, x, dim=(0, 2))
        ones = [1 if at in shared else n for at, n in enumerate(x.shape)]
        moved = keep_mask([ones[at] for at in (1, 3, 0, 2)], *drawn(device, 11), 0.4, 0, 2, device)
        assert torch.equal(got, moved.permute(2, 0, 3, 1).expand(x.shape))
        assert torch.equal(kept(op.unfused, x, dim=(0, 2)), got)


@pytest.mark.thorough
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_nothing_of_what_is_dropped_shows(value, device):
    """Neither in the result nor in a gradient, be it Inf or NaN."""
    op = fo.RMSNorm(load=[fo.Dropout("p", shared=-1), fo.Residual("r")], eps=1e-6)
    x, r = randn(40, 24, device=device), randn(40, 24, device=device)
    mask = wanted(x.shape, (-1,), 3, 0.5, device=device)
    x = torch.where(mask, x, value).requires_grad_()
    for call in (op, op.unfused):
        y = call(x, p=0.5, r=r, generator=torch.Generator(device).manual_seed(3))
        assert y.isfinite().all()
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        assert dx.isfinite().all()
        assert (dx[~mask] == 0).all()


def test_sharing_takes_no_other_part_of_the_random_stream(device):
    """A call draws as much as it does without: one offset for each dropout of the declaration."""
    for shared in ((), (-1,), (0, 1, 2, 3)):
        generator = torch.Generator(device).manual_seed(5)
        op = fo.Softmax(store=[fo.Dropout("p", shared=shared)])
        op(torch.zeros(SHAPE, device=device), p=0.5, generator=generator)
        other = torch.Generator(device).manual_seed(5)
        fo.Softmax(store=[fo.Dropout("p")])(
            torch.zeros(SHAPE, device=device), p=0.5, generator=other
        )
        assert torch.equal(generator.get_state(), other.get_state())


def test_a_draw_in_memory_gives_the_mask_of_its_numbers(device):
    """As a captured graph has it."""
    op = fo.RMSNorm(load=[fo.Dropout("p", shared=-1)], store=[fo.Dropout("q", shared=(0, 1))])
    x = torch.ones(SHAPE, device=device)
    numbers = (-5, (1 << 47) + 1)
    draw = torch.tensor(numbers, device=device)
    wanted = op(x, p=0.4, q=0.3, generator=numbers)
    assert torch.equal(op(x, p=0.4, q=0.3, generator=draw), wanted)
    torch.testing.assert_close(op.unfused(x, p=0.4, q=0.3, generator=draw), wanted)


@pytest.mark.gpu
def test_a_captured_graph_draws_anew():
    op = fo.RMSNorm(load=[fo.Dropout("p", shared=-1)])
    x = torch.ones(64, 24, device="cuda")
    op(x, p=0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = op(x, p=0.5)
    masks = []
    for _ in range(2):
        graph.replay()
        masks.append((y != 0).clone())
        assert torch.equal(masks[-1], masks[-1][:, :1].expand(64, 24))
    assert not torch.equal(*masks)


@pytest.mark.thorough
def test_check_compares_it(device):
    op = fo.LayerNorm(
        load=[fo.Dropout("p", shared=(-2,)), fo.Residual("r", save="stream")],
        store=[fo.Dropout("q", shared=(-1, -2))],
    )
    x, r = randn(3, 5, 24, device=device), randn(3, 5, 24, device=device, seed=1)
    assert check(op, x, p=0.3, q=0.2, r=r).passed


def test_declarations_round_trip():
    op = fo.Softmax(store=[fo.Dropout("p", shared=[-1, 0])])
    assert repr(op) == "Softmax(store=[Dropout(p='p', shared=(-1, 0))], empty_row='zero')"
    assert repr(fo.Dropout("p")) == "Dropout(p='p')"
    assert pickle.loads(pickle.dumps(op)) == op == read(op.text)
    assert fo.Dropout("p", shared=1) == fo.Dropout("p", shared=(1,)) != fo.Dropout("p")
    assert "shared=(-1, 0)" in str(op.explain(torch.ones(4, 8), p=0.5))


def test_under_torch_compile():
    op = fo.LayerNorm(load=[fo.Dropout("p", shared=-1)])
    x = torch.ones(40, 24)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(x):
        return op(x, p=0.5, generator=(3, 0), dim=-1)

    assert torch.equal(call(x), op(x, p=0.5, generator=(3, 0)))


def test_what_is_refused():
    with raises(TypeError, "shared", "tuple of ints", "'rows'"):
        fo.Dropout("p", shared="rows")
    with raises(TypeError, "shared"):
        fo.Dropout("p", shared=True)
    with raises(ValueError, "once"):
        fo.Dropout("p", shared=(1, 1))
    op = fo.LayerNorm(load=[fo.Dropout("p", shared=(-1,))])
    with raises(ValueError, "LayerNorm", "some of the reduced dimensions"):
        op(torch.ones(3, 4, 5), p=0.5, dim=(1, 2))
    op = fo.Softmax(store=[fo.Dropout("p", shared=(3,))])
    for call in (op, op.unfused):
        with raises(ValueError, "Softmax", "dimension 3", "x has 2"):
            call(torch.ones(4, 5), p=0.5)
    with raises(ValueError, "dimension 3"):
        op.dropout_mask((4, 5), 1, 0, 0.5)
    with raises(ValueError, "GroupNorm", "shared"):
        fo.GroupNorm(2, load=[fo.Dropout("p", shared=(1,))])
    op = fo.LayerNorm(load=[fo.Dropout("p", shared=(2,))])
    with FakeTensorMode(), raises(fo.UnsupportedError, "LayerNorm", "tracing", "movedim"):
        op(torch.ones(3, 4, 5), p=0.5, dim=(0, 1))
