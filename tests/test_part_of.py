# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`part_of`: a part of a tensor has the draws and masks of the same elements of the whole."""

import pytest
import torch
from cases import randn
from test_functor_kernels import operands_of
from test_gradient_variants import backward_of
from test_gradient_variants import check_compiles as check_gradient_compiles
from test_variants import check_compiles, tensor

import fusedops as fo
from fusedops.bind.bind import bind
from fusedops.generate.target import Target
from fusedops.plan import forward as plan

SHAPE = (5, 3, 7, 16)
DRAW = (7, 3)

ATTENTION = fo.Softmax(
    load=[
        fo.Scale("scale"),
        fo.Bias("bias"),
        fo.Alibi("slopes", align="bottom-right"),
        fo.Causal(align="bottom-right"),
        fo.Window(9, offset=3),
    ],
    store=[fo.Dropout("p"), fo.Dropout("q", shared=(1,)), fo.Dropout("r", shared=(-1, 0))],
)
NUMBERS = {"scale": 0.5, "p": 0.3, "q": 0.2, "r": 0.1}

#: Parts of x, by the slices of its rows.
PARTS = {
    "a corner": (slice(0, 2), slice(0, 1), slice(0, 3)),
    "the middle": (slice(2, 4), slice(1, 3), slice(3, 6)),
    "one row": (slice(4, 5), slice(2, 3), slice(6, 7)),
    "all": (slice(0, 5), slice(0, 3), slice(0, 7)),
}


def operands(device, where=(slice(None),) * 3):
    bias = randn(3, 7, 16, device=device, seed=1)[where[1], where[2]]
    slopes = randn(3, 1, 1, device=device, seed=2)[where[1]]
    return {**NUMBERS, "bias": bias, "slopes": slopes}


@pytest.mark.thorough
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("memory", [False, True], ids=["numbers", "memory"])
def test_a_part_has_the_bits_of_the_whole(part, memory, device):
    x, dy, where = randn(*SHAPE, device=device), randn(*SHAPE, device=device, seed=3), PARTS[part]
    draw = torch.tensor(DRAW, device=device) if memory else DRAW
    whole, here = x.clone().requires_grad_(), x[where].clone().requires_grad_()
    want = ATTENTION(whole, **operands(device), generator=draw)
    want.backward(dy)
    first = [*(one.start for one in where), 0]
    given = {**operands(device, where), "generator": draw, "part_of": (SHAPE, first)}
    got = ATTENTION(here, **given)
    got.backward(dy[where])
    assert torch.equal(got, want[where])
    assert torch.equal(here.grad, whole.grad[where])
    torch.testing.assert_close(ATTENTION.unfused(here, **given), want[where])
    if part in ("the middle", "one row"):  # the counts do matter
        alone = ATTENTION(here, **{**given, "part_of": None})
        assert not torch.equal(alone, got)


def test_a_norm_over_dimensions_that_do_not_merge(device):
    op = fo.LayerNorm(load=[fo.Dropout("p")], store=[fo.Dropout("q", shared=(2,))])
    x = randn(4, 6, 5, 3, device=device)
    given = {"p": 0.4, "q": 0.3, "dim": (1, 3), "generator": DRAW}
    want = op(x, **given)
    got = op(x[1:3, :, 2:], **given, part_of=(x.shape, (1, 0, 2, 0)))
    assert torch.equal(got, want[1:3, :, 2:])


@pytest.mark.thorough
def test_the_same_under_torch_compile(device):
    x, where = randn(*SHAPE, device=device), PARTS["the middle"]
    want = ATTENTION(x, **operands(device), generator=DRAW)[where]
    compiled = torch.compile(ATTENTION, fullgraph=True, backend="aot_eager")
    part = {"part_of": (SHAPE, (2, 1, 3, 0))}
    got = compiled(x[where], **operands(device, where), generator=DRAW, **part)
    assert torch.equal(got, want)


def test_parts_share_their_kernels(device):
    op = fo.Softmax(store=[fo.Dropout("p")])
    for first in ((0, 0), (1, 0), (2, 0)):
        op(randn(2, 8, device=device), p=0.5, generator=DRAW, part_of=((4, 8), first))
    x = randn(2, 8, device=device)
    before = [op(x, p=0.5, generator=DRAW, part_of=((4, 8), (at, 0))) for at in (0, 2)]
    assert not torch.equal(*before)  # no plan is found for the wrong part


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        (4, TypeError, r"part_of must be \(sizes, first\)"),
        (((4, 8),), TypeError, r"part_of must be \(sizes, first\)"),
        (((4, 8), (0, 0.5)), TypeError, "part_of"),
        (((4, 8), (3, 0)), ValueError, "x of shape \\(2, 8\\) must lie within"),
        (((4, 8), (-1, 0)), ValueError, "must lie within"),
        (((4, 8, 8), (0, 0, 0)), ValueError, "one number each for each dimension"),
        (((4, 16), (0, 8)), ValueError, "whole rows.*gather the columns"),
        (((1 << 50, 8), (0, 0)), ValueError, r"at most 2\*\*48 rows"),
    ],
)
def test_what_is_no_part_is_refused(given, error, match):
    op = fo.Softmax(store=[fo.Dropout("p")])
    for call in (op, op.unfused, op.explain):
        with pytest.raises(error, match=match):
            call(randn(2, 8), p=0.5, part_of=given)


def test_a_group_norm_has_no_parts():
    with pytest.raises(TypeError, match="part_of is no option of this op"):
        fo.GroupNorm(2)(randn(2, 4, 3), part_of=((4, 4, 3), (0, 0, 0)))


@pytest.mark.thorough
def test_kernels_of_parts_compile_for_a_gpu():
    op = fo.LayerNorm(
        load=[fo.Dropout("p"), fo.Residual("r")], store=[fo.Affine("gamma", None), fo.Dropout("q")]
    )
    x = tensor(3, 5, 1024, dtype=torch.float16)
    given, options = operands_of(op, x.shape), {"part_of": ((6, 5, 1024), (3, 0, 0))}
    info = plan.describe(bind(op, x, given, options), Target.named("sm_90"))
    assert "PartRowMap<" in info.variant.source
    check_compiles(info)
    check_gradient_compiles(backward_of(op, x, given, "sm_90", options=options))
