# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Rows abreast: neighbours that share all operands are a thread's at a time, with the same bits."""

import itertools

import pytest
import torch
from cases import randn
from test_rotate import norm_of, tables
from test_variants import check_compiles, described

import fusedops as fo
from fusedops.bind.bind import bind
from fusedops.explain.forward import explain
from fusedops.generate.target import Target
from fusedops.run import gradient
from fusedops.schedule.launch import LaunchConfig
from fusedops.testing import force_launch

KINDS = [fo.Map, fo.RMSNorm, fo.LayerNorm, fo.L2Norm]
HALVES, NEIGHBOURS = fo.Rotate("cos", "sin"), fo.Rotate("cos", "sin", interleaved=True)
THOROUGH = pytest.mark.thorough
BFLOAT16 = {"dtype": torch.bfloat16, "device": "meta"}


def given(op, columns, *shape):
    """A weight, and tables of `shape` and half of the columns, without memory."""
    sizes = {"cos": (*shape, columns // 2), "sin": (*shape, columns // 2), "g": (columns,)}
    return {name: torch.empty(sizes[name], **BFLOAT16) for name in op.slots if name in sizes}


def passes(op, x, operands, arch="sm_90"):
    """What both passes of a call would run, of a norm, or the forward pass."""
    if not op.reduces:
        return (described(op, x, operands, arch),)
    dense = bind(op, torch.empty_like(x, memory_format=torch.contiguous_format), operands, {})
    back = gradient.gradient_of(dense, frozenset({"x", "g"}), frozenset())
    call = gradient.described(dense, back)
    return described(op, x, operands, arch), back.describe(*call, Target.named(arch))


@pytest.mark.parametrize(
    ("heads", "columns", "shape", "wanted"),
    [
        (32, 128, (16, 1), (2, 2)),
        (6, 64, (16, 1), (2, 2)),
        (5, 64, (16, 1), (1, 1)),
        (8, 128, (16, 8), (1, 1)),  # each head has an angle of its own
        (8, 192, (16, 1), (1, 1)),  # columns do not fill a tile
        (8, 1024, (16, 1), (1, 1)),  # a row is several warps'
    ],
)
def test_how_many_there_are(heads, columns, shape, wanted):
    """As many as share all operands, of queries in a packed projection."""
    x = torch.empty(2, 16, heads + 2, columns, **BFLOAT16)[:, :, 1:-1]
    for rotate in (HALVES, NEIGHBOURS):
        norm = fo.RMSNorm(store=[fo.Affine("g", None), rotate])
        found = passes(norm, x, given(norm, columns, *shape))
        assert tuple(one.tile.launch.abreast for one in found) == wanted
        for one, count in zip(found, wanted, strict=True):
            assert ("abreast_" in str(one.variant.source)) == (count > 1)


def test_explain_tells_of_them():
    x, op = torch.empty(2, 16, 8, 128), fo.Map(load=[HALVES])
    told = explain(op.bind(x, tables(16, 1, dims=128)), Target.named("sm_90"))
    assert "2 rows at a time, which share all operands but x" in told.why


def test_where_some_columns_have_no_partner():
    x = torch.empty(2, 16, 8, 128, **BFLOAT16)
    for interleaved in (False, True):
        op = fo.Map(load=[fo.Rotate("cos", "sin", interleaved, dims=64)])
        assert described(op, x, given(op, 64, 16, 1), "sm_90").tile.launch.abreast == 1


def test_slices_have_whole_groups_of_rows():
    """Also where slices would take rows in turns, one at a time."""
    x = torch.empty(3, 37, 8, 128, **BFLOAT16)
    norm = fo.RMSNorm(store=[fo.Affine("g", None), HALVES])
    turns = LaunchConfig(persistent=True, abreast=2, interleaved=True)
    with force_launch(backward=turns):
        _, back = passes(norm, x, given(norm, 128, 37, 1))
    assert back.tile.launch.abreast == 2
    assert back.call.sums.slices.rows % 2 == 0


def test_sums_in_memory_are_of_single_rows():
    x = torch.empty(3, 37, 8, 128, **BFLOAT16)
    norm = fo.RMSNorm(store=[fo.Affine("g", None), HALVES])
    with force_launch(backward=LaunchConfig(persistent=True, abreast=2, sum_storage="memory")):
        _, back = passes(norm, x, given(norm, 128, 37, 1))
    assert back.tile.launch.abreast == 1


EVERYWHERE = itertools.product(
    ("sm_80", "sm_90", "sm_100", "sm_120"), (64, 128, 256), (HALVES, NEIGHBOURS)
)


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("arch", "columns", "rotate"),
    [("sm_90", 128, HALVES), *(pytest.param(*one, marks=THOROUGH) for one in EVERYWHERE)],
)
def test_they_compile(arch, columns, rotate):
    x = torch.empty(2, 16, 10, columns, **BFLOAT16)[:, :, 1:-1]
    norm = fo.RMSNorm(store=[fo.Affine("g", None), rotate])
    for op in (norm, fo.Map(load=[rotate])):
        for one in passes(op, x, given(op, columns, 16, 1), arch):
            assert one.tile.launch.abreast > 1
            check_compiles(one)


def test_a_tap_is_a_tensor_of_each_row():
    x = torch.empty(2, 16, 8, 128, **BFLOAT16)
    op = fo.RMSNorm(store=[HALVES, fo.Tap("turned")])
    assert described(op, x, given(op, 128, 16, 1), "sm_90").tile.launch.abreast == 1


@pytest.mark.gpu
@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(("columns", "dtype"), [(64, torch.bfloat16), (128, torch.float32)])
@pytest.mark.parametrize("kind", KINDS)
def test_they_have_the_bits_of_single_rows(kind, columns, dtype, count):
    """Values, statistics and gradients of x; sums over rows are those of as many slices."""
    rows = {"rows_per_block": 16, "abreast": count}
    many = {"forward": LaunchConfig(**rows)}
    many["backward"] = LaunchConfig(**rows, persistent=True, persistent_threads_per_sm=128)
    single = {pass_: config._replace(abreast=1) for pass_, config in many.items()}
    x = randn(3, 37, 10, columns, dtype=dtype, device="cuda")[:, :, 1:-1]
    g = randn(columns, dtype=dtype, device="cuda", seed=1)
    for interleaved in (False, True):
        full = (KINDS.index(kind) + count.bit_length() + interleaved) % 2 == 1
        rotate = fo.Rotate("cos", "sin", interleaved)
        op = fo.Map(load=[rotate]) if kind is fo.Map else norm_of(kind, interleaved)
        operands = tables(37, 1, dims=columns, full=full, dtype=dtype, device="cuda")
        if "g" in op.slots:
            operands["g"] = g
        found = []
        for launch in (single, many):
            leaf = x.detach().clone().requires_grad_()
            with force_launch(**launch):
                y = op(leaf, **operands)
                upstream = randn(*y.shape, dtype=dtype, device="cuda", seed=5)
                found.append((y, *torch.autograd.grad(y, leaf, upstream)))
                within = x.clone()
                assert torch.equal(op(within, **operands, out=within), y)
        assert all(map(torch.equal, *found))
