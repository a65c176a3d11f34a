# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Operands with one element for several neighbouring columns, such as gamma of a group norm.

They are read in place, and their gradients are summed over these columns as well.
"""

import contextlib
import dataclasses
import itertools
import math

import pytest
import torch
from cases import exhaustive, randn, thorough
from test_gradient_variants import backward_of, check_compiles
from test_variants import tensor

import fusedops as fo
from fusedops.bind.bind import bind
from fusedops.bind.geometry import place
from fusedops.generate.target import Target
from fusedops.jit import compile_cuda
from fusedops.plan.forward import describe
from fusedops.plan.placing import columns_apart
from fusedops.schedule import Schedule
from fusedops.schedule.launch import LaunchConfig
from fusedops.schedule.row_partition import piece_columns
from fusedops.schedule.tiling import Tile
from fusedops.testing import check, force_schedule

DIMS = (-3, -2, -1)
AFFINE = fo.LayerNorm(store=[fo.Affine("gamma", "beta")])
#: Channel operands on both sides, beside operands of every other kind.
MIXED = fo.LayerNorm(
    load=[fo.Scale("a"), fo.Residual("full", save="z"), fo.Bias("a")],
    store=[fo.Affine("gamma", "row"), fo.Scale("gamma"), fo.Bias("column")],
)

#: Rows (N, G) and columns (C / G, H, W) by what is particular about them.
SHAPES = {
    "odd": (2, 3, 5, 7, 9),
    "whole packs": (3, 2, 4, 8, 16),
    "parts of packs": (2, 3, 6, 2, 6),
    "one group": (3, 1, 6, 4, 4),
    "one channel": (2, 4, 1, 6, 4),
    "one pixel": (2, 3, 5, 1, 1),
    "one sample": (1, 4, 3, 5, 8),
    "long": (2, 2, 3, 80, 72),
    "wide": (2, 1, 2, 16, 32),
}


def operands_of(names, shape, device, dtype=torch.float32):
    n, g, c, h, w = shape
    sizes = {
        "gamma": (g, c, 1, 1),
        "beta": (g, c, 1, 1),
        "a": (n, 1, c, 1, 1),
        "full": (n, g, c, h, w),
        "row": (n, 1, 1, 1, 1),
        "column": (c, h, w),
    }
    return {
        name: randn(*sizes[name], dtype=dtype, device=device, seed=i)
        for i, name in enumerate(names, 1)
    }


@pytest.mark.thorough
@pytest.mark.parametrize("name", SHAPES)
def test_a_norm_with_a_number_for_each_channel(name, device):
    """Outputs and gradients, in all of `check`'s variations."""
    shape = SHAPES[name]
    x = randn(*shape, device=device)
    check(AFFINE, x, dim=DIMS, **operands_of(AFFINE.slots, shape, device))


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, *thorough(torch.float16), torch.float64])
@pytest.mark.parametrize("name", ["odd", "whole packs", *thorough("parts of packs", "long")])
def test_other_dtypes(name, dtype, device):
    shape = SHAPES[name]
    x = randn(*shape, device=device).to(dtype)
    check(AFFINE, x, dim=DIMS, **operands_of(AFFINE.slots, shape, device, dtype))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["whole packs", *thorough("odd"), *exhaustive("parts of packs", "one sample")]
)
def test_beside_operands_of_every_other_kind(name, device):
    shape = SHAPES[name]
    x = randn(*shape, device=device)
    check(MIXED, x, dim=DIMS, **operands_of(MIXED.slots, shape, device))


@pytest.mark.thorough
@pytest.mark.parametrize("op", [fo.RMSNorm(store=[fo.Affine("gamma")]), AFFINE])
@pytest.mark.parametrize("name", ["odd", "whole packs", "long"])
def test_every_storage(op, name, scheduled):
    """Where a row is kept changes no bit of y; on a CPU none of the gradients either.

    On a GPU what is read twice is another text to the compiler, which may contract other products.
    """
    device, storage = scheduled
    shape = SHAPES[name]
    given = operands_of(op.slots, shape, device)
    leaves = [randn(*shape, device=device), *given.values()]
    found = []
    for force in (contextlib.nullcontext(), force_schedule(storage)):
        fresh = type(op)(op.load, op.store)
        with force:
            for leaf in leaves:
                leaf.requires_grad_()
            try:
                y = fresh(leaves[0], dim=DIMS, **dict(zip(given, leaves[1:], strict=True)))
                gradients = torch.autograd.grad(y, leaves, randn(*shape, device=device, seed=9))
            except ValueError as error:
                pytest.skip(str(error))
        found.append([y.detach(), *gradients])
    for one, other in zip(*(run[:1] if device == "cuda" else run for run in found), strict=True):
        assert torch.equal(one, other)
    if device == "cuda":
        with force_schedule(storage):
            known = {key: value.detach() for key, value in given.items()}
            check(type(op)(op.load, op.store), leaves[0].detach(), dim=DIMS, **known)


def test_a_piece_lies_within_a_chunk():
    """Its lanes add up with a shuffle, which waits for all of them."""
    tile = Tile(threads=224, packs=5, width=2, chunks=8, chunk=2160)
    schedule = Schedule("cluster", tile, LaunchConfig(), False, 8, pieces=False, cluster=8)
    assert piece_columns(schedule, 80 * 72) == 16
    alone = dataclasses.replace(schedule, tile=tile._replace(chunks=1), cluster=1)
    assert piece_columns(alone, 80 * 72) == 64


def test_upstream_gradients_that_pixels_share(device):
    """What a mean over pixels hands back has stride 0 over them, and is read in place as well."""
    shape = SHAPES["odd"]
    x = randn(*shape, device=device).requires_grad_()
    given = {k: v.requires_grad_() for k, v in operands_of(AFFINE.slots, shape, device).items()}
    leaves = [x, *given.values()]
    pooled = AFFINE(x, dim=DIMS, **given).mean((-1, -2))
    wanted = AFFINE.unfused(x.double(), dim=DIMS, **given).mean((-1, -2))
    upstream = randn(*shape[:-2], device=device, seed=7)
    found = torch.autograd.grad(pooled, leaves, upstream)
    for one, other in zip(found, torch.autograd.grad(wanted, leaves, upstream), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_an_x_that_pixels_share(device):
    x = randn(2, 3, 5, 1, 1, device=device).expand(2, 3, 5, 4, 6)
    given = operands_of(AFFINE.slots, x.shape, device)
    assert not columns_apart(bind(AFFINE, x, given, {"dim": DIMS}))
    wanted = AFFINE(x.contiguous(), dim=DIMS, **given)
    assert torch.equal(AFFINE(x, dim=DIMS, **given), wanted)


@pytest.mark.thorough
def test_columns_that_share_and_are_no_neighbours(device):
    """A number for each pixel, whatever the channel: copied dense, also where torch traces."""
    shape = SHAPES["odd"]
    x, given = randn(*shape, device=device), operands_of(AFFINE.slots, shape, device)
    given["beta"] = randn(7, 1, device=device)
    apart = fo.LayerNorm(store=[fo.Affine("gamma", "beta")])
    wanted = apart(x, dim=DIMS, **{k: v.expand(shape).contiguous() for k, v in given.items()})
    assert torch.equal(apart(x, dim=DIMS, **given), wanted)
    compiled = torch.compile(lambda x, **v: apart(x, dim=DIMS, **v), backend="aot_eager")
    assert torch.equal(compiled(x, **given), wanted)


def test_strided_channels(device):
    """Every second channel of a longer vector."""
    shape = SHAPES["odd"]
    x, given = randn(*shape, device=device), operands_of(AFFINE.slots, shape, device)
    apart = {name: torch.stack([v, v * math.nan], 1)[:, 0] for name, v in given.items()}
    apart |= {"beta": torch.stack([given["beta"]] * 2, 2)[:, :, 0]}
    assert torch.equal(AFFINE(x, dim=DIMS, **apart), AFFINE(x, dim=DIMS, **given))


def test_results_do_not_depend_on_the_batch(device):
    """Neither y and dx, nor the tree of the sums over a row's columns."""
    shape = SHAPES["whole packs"]
    x, given = randn(*shape, device=device), operands_of(AFFINE.slots, shape, device)
    y = AFFINE(x, dim=DIMS, **given)
    for n in range(shape[0]):
        assert torch.equal(AFFINE(x[n : n + 1], dim=DIMS, **given), y[n : n + 1])


def test_gradients_of_rows_without_columns(device):
    """Of several dimensions of which one has size 0: no strides of such rows merge."""
    x = torch.empty(2, 3, 0, 5, device=device, requires_grad=True)
    y = fo.LayerNorm()(x, dim=DIMS)
    assert torch.autograd.grad(y.sum(), x)[0].shape == y.shape == x.shape


class TestGeometry:
    def test_the_innermost_dimensions_may_be_shared(self):
        shape = (2, 3, 4, 5)
        x = (shape, (60, 20, 5, 1))
        placed = place(
            shape, (1, 2, 3), [x, ((3, 1, 1), (1, 1, 1)), ((3, 4, 1), (4, 1, 1))], [4] * 3
        )
        assert placed.placed == (((60,), 1, 1), ((0,), 1, 20), ((0,), 1, 5))

    @pytest.mark.parametrize("own", [(1, 4, 1), (1, 1, 5), (3, 1, 5)])
    def test_others_may_not(self, own):
        shape = (2, 3, 4, 5)
        strides = tuple(math.prod(own[dim + 1 :]) for dim in range(3))
        assert place(shape, (1, 2, 3), [(own, strides)], [4]).placed == (None,)

    def test_sizes_of_one_count_for_nothing(self):
        shape = (2, 3, 1, 5, 1)
        placed = place(shape, (1, 2, 3, 4), [((3, 1, 1, 1), (7, 9, 9, 9))], [4]).placed
        assert placed == (((0,), 7, 5),)


#: Columns of a channel, and the columns of a row's pieces in float16 on a GPU.
PIECES = {(64, 64): 256, (8, 8): 64, (28, 28): 16, (14, 14): 4, (7, 7): 1, (6, 1): 2}


@pytest.mark.parametrize("image", PIECES)
def test_the_bytes_of_partial_sums(image):
    shape = (8, 32, 8, *image)
    x = tensor(*shape, dtype=torch.float16)
    given = {name: tensor(*shape[1:3], 1, 1, dtype=torch.float16) for name in AFFINE.slots}
    told = backward_of_channels(AFFINE, x, given, "sm_90")
    (_, output), parts = next(iter(told.results.parts_of.values()))
    dtype, (rows, pieces) = told.results.outputs[output]
    assert (dtype, rows, parts) == (torch.float32, 8 * 32, 8 * 32)
    assert pieces == 8 * math.prod(image) // PIECES[image]


def backward_of_channels(op, x, operands, arch, storage=None):
    return backward_of(op, x, operands, arch, storage, {"dim": DIMS})


#: A dtype and a shape.
COMPILED = [
    (torch.float16, (8, 32, 10, 64, 64)),
    (torch.float32, (8, 32, 4, 28, 28)),
    (torch.float32, (8, 32, 10, 64, 64)),
    (torch.bfloat16, (8, 32, 4, 28, 28)),
    (torch.float16, (8, 32, 4, 14, 14)),
    (torch.float16, (8, 32, 3, 7, 7)),
    (torch.float64, (8, 32, 3, 16, 16)),
    (torch.bfloat16, (4, 2, 4, 128, 128)),
]


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("arch", "dtype", "shape"),
    [
        (arch, *case)
        for case, other in zip(COMPILED, itertools.cycle(["sm_80", "sm_100", "sm_120"]))
        for arch in ("sm_90", other)
    ],
)
def test_both_passes_compile_without_spills(arch, dtype, shape):
    """Each for one more architecture beside sm_90."""
    x = tensor(*shape, dtype=dtype)
    given = {name: tensor(*shape[1:3], 1, 1, dtype=dtype) for name in AFFINE.slots}
    info = describe(bind(AFFINE, x, given, {"dim": DIMS}), Target.named(arch))
    assert "RepeatedView<" in info.variant.source
    _, log = compile_cuda(info.variant.source, arch, ["--ptxas-options=-v"])
    assert "warning" not in log, log
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log, log
    check_compiles(backward_of_channels(AFFINE, x, given, arch))
