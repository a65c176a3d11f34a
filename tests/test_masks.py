# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Masks: what takes part, what cannot leak, and what an empty row is."""

import pytest
import torch
from cases import declare, exhaustive, forced, raises, randn, thorough, verify
from references import Chain

import fusedops as fo
from fusedops.testing import check

SHAPE = (2, 3, 7, 37)

#: Whatever may lie under a mask.
POISONS = [torch.nan, torch.inf, -torch.inf, 3e38]


# A mask is part of the LOAD, which does not know the operator.
@pytest.fixture(params=["softmax", *thorough("log_softmax")])
def op(request):
    return request.param


def random_mask(*shape, device, seed=3, share=0.4):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) < share).to(device)


@pytest.mark.parametrize("word", ["mask", "keep"])
@pytest.mark.parametrize("shape", [SHAPE, (2, 1, 1, 37), (7, 37), (3, 7, 1), (1,), ()], ids=str)
def test_either_polarity(op, word, shape, device):
    mask = random_mask(*shape, device=device)
    verify(Chain(op, ((word, "m"),)), randn(*SHAPE, device=device), {"m": mask})


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [1, 2, 31, 37, 1024, 5000])
def test_masks_of_every_share(op, columns, device):
    chain = Chain(op, (("mask", "m"),))
    x = randn(6, columns, device=device)
    for share in (0.0, 0.01, 0.99, 1.0):
        verify(chain, x, {"m": random_mask(6, columns, device=device, share=share)})


def test_an_empty_row(op, device):
    """Zero (or -inf for the logarithm) by default, NaN on request; other rows are untouched."""
    x = randn(5, 40, device=device)
    mask = random_mask(5, 40, device=device)
    mask[2] = True
    got = verify(Chain(op, (("mask", "m"),)), x, {"m": mask})["y"]
    assert got[2].eq(0.0 if op == "softmax" else -torch.inf).all()
    torch_like = verify(Chain(op, (("mask", "m"),), empty_row="nan"), x, {"m": mask})["y"]
    assert torch_like[2].isnan().all()
    others = [0, 1, 3, 4]
    assert torch.equal(got[others], torch_like[others])


@pytest.mark.parametrize("empty_row", ["zero", "nan"])
def test_a_row_is_empty_whoever_emptied_it(op, empty_row, device):
    """x, a bias or a mask may put the last -inf."""
    chain = Chain(op, (("bias", "b"), ("mask", "m")), empty_row=empty_row)
    x, b = torch.zeros(3, 8, device=device), torch.zeros(3, 8, device=device)
    m = torch.zeros(3, 8, dtype=torch.bool, device=device)
    x[0] = b[1] = -torch.inf
    x[2, :3], b[2, 3:6], m[2, 6:] = -torch.inf, -torch.inf, True
    got = verify(chain, x, {"b": b, "m": m})["y"]
    if empty_row == "nan":
        assert got.isnan().all()
    else:
        assert got.eq(0.0 if op == "softmax" else -torch.inf).all()


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("columns", [37, 1024])
def test_nothing_under_a_mask_leaks(op, poison, columns, device):
    chain = Chain(op, (("scale", "s"), ("bias", "b"), ("mask", "m")))
    mask = random_mask(6, columns, device=device)
    mask[4] = True
    x, b = (randn(6, columns, device=device, seed=i) for i in range(2))
    clean = declare(chain)(x, s=0.5, b=b, m=mask)
    bad = [t.masked_fill(mask, poison) for t in (x, b)]
    for dirty in ({"x": bad[0], "b": b}, {"x": x, "b": bad[1]}, {"x": bad[0], "b": bad[1]}):
        assert torch.equal(declare(chain)(dirty["x"], s=0.5, b=dirty["b"], m=mask), clean)
        assert torch.equal(
            declare(chain).unfused(dirty["x"], s=0.5, b=dirty["b"], m=mask),
            declare(chain).unfused(x, s=0.5, b=b, m=mask),
        )


@pytest.mark.thorough
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("index_mask", ["causal", "lengths", "window"])
def test_nothing_beyond_an_index_mask_leaks(op, index_mask, poison, device):
    step = {
        "causal": ("causal", "top-left", 0),
        "lengths": ("lengths", "n"),
        "window": ("window", 2, 0, "top-left", 0),
    }[index_mask]
    n = torch.tensor([[0], [1], [5], [40], [17]], device=device)
    operands = {"n": n} if index_mask == "lengths" else {}
    x = randn(5, 40, device=device)
    column = torch.arange(40, device=device)
    beyond = column >= (n if operands else torch.arange(1, 6, device=device)[:, None])
    if index_mask == "window":
        beyond |= column < torch.arange(-2, 3, device=device)[:, None]
    fused = declare(Chain(op, (step,)))
    bad = x.masked_fill(beyond, poison)
    assert torch.equal(fused(bad, **operands), fused(x, **operands))


def test_nan_that_takes_part_shows(op, device):
    chain = Chain(op, (("mask", "m"),))
    x = randn(3, 40, device=device)
    x[1, 5] = torch.nan
    mask = random_mask(3, 40, device=device)
    mask[:, 5] = False
    y = declare(chain)(x, m=mask)
    assert y[1][~mask[1]].isnan().all()
    assert y[[0, 2]].isnan().sum() == 0


def test_masks_are_sticky(op, device):
    """Nothing after a mask brings an element back: neither a bias of +inf nor 0 * -inf."""
    x, b = randn(4, 40, device=device), randn(4, 40, device=device, seed=1)
    mask = random_mask(4, 40, device=device)
    after = Chain(op, (("mask", "m"), ("scale", "s"), ("bias", "b")))
    before = Chain(op, (("scale", "s"), ("bias", "b"), ("mask", "m")))
    for s in (1.0, -2.0, 0.0):
        operands = {"s": s, "b": b.masked_fill(mask, torch.inf), "m": mask}
        got = verify(after, x, operands)["y"]
        assert torch.equal(got, declare(before)(x, **operands))


def test_several_masks_are_their_union(op, device):
    chain = Chain(op, (("mask", "m"), ("keep", "k"), ("causal", "top-left", 3), ("lengths", "n")))
    operands = {
        "m": random_mask(37, device=device, share=0.2),
        "k": random_mask(2, 1, 7, 1, device=device, share=0.9),
        "n": torch.tensor([30, 4], device=device)[:, None, None, None],
    }
    verify(chain, randn(*SHAPE, device=device), operands)


@pytest.mark.parametrize("align", ["top-left", "bottom-right"])
@pytest.mark.parametrize("shape", [(2, 9, 9), (3, 5, 12), (2, 12, 5), (1, 1, 33), (2, 200, 129)])
def test_causal(op, align, shape, device):
    x = randn(*shape, device=device)
    for offset in (0, 1, -1, 4, -40, 1000):
        verify(Chain(op, (("causal", align, offset),)), x, {})


@pytest.mark.parametrize("align", ["top-left", "bottom-right"])
@pytest.mark.parametrize("shape", [(2, 9, 9), (3, 5, 12), (2, 12, 5), (1, 1, 33), (2, 200, 129)])
def test_window(op, align, shape, device):
    """Windows that reach beyond the row on either side, and rows that no window reaches."""
    x = randn(*shape, device=device)
    for left, right in ((0, 0), (3, 0), (0, 2), (4, 1), (1000, 2), (2, 1000), (None, 1), (5, None)):
        for offset in (0, 2, -7, 1000):
            verify(Chain(op, (("window", left, right, align, offset),)), x, {})


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [64, 128, 1024])
def test_windows_beyond_rows_of_whole_packs(op, columns, device):
    """Nothing outside the row is read, however far away a window lies."""
    x = randn(2, 600, columns, device=device)
    for left, right in ((0, 0), (3, 1)):
        for offset in (0, columns - 1, 1 << 40, -(1 << 40)):
            verify(Chain(op, (("window", left, right, "top-left", offset),)), x, {})


def test_lengths_of_any_64_bits(op, device):
    """Beside a saved stream, where the row is not skipped."""
    op = declare(Chain(op, (("residual", "r", 1.0, "s"), ("lengths", "n"))))
    x = randn(5, 64, device=device)
    n = torch.tensor([-(2**63), -1, 0, 3, 2**63 - 1], device=device)[:, None]
    got, wanted = op(x, r=x, n=n), op.unfused(x, r=x, n=n)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_a_window_without_a_left_limit_is_causal(op, device):
    x = randn(2, 20, 33, device=device)
    for align, offset in (("top-left", 0), ("bottom-right", -2)):
        window = declare(Chain(op, (("window", None, 0, align, offset),)))
        causal = declare(Chain(op, (("causal", align, offset),)))
        assert torch.equal(window(x), causal(x))
    far = declare(Chain(op, (("window", 1 << 60, 1 << 60, "top-left", -(1 << 60)),)))
    assert torch.equal(far(x), declare(Chain(op, (("causal", "top-left", 0),)))(x))


@pytest.mark.parametrize("empty_row", ["zero", "nan"])
def test_a_row_that_no_window_reaches_is_empty(op, empty_row, device):
    """Queries beyond the last key, and before the first: their windows hold no column."""
    x = randn(30, 10, device=device)
    for offset, empty in ((0, slice(13, 30)), (-17, slice(0, 17))):
        chain = Chain(op, (("window", 3, 0, "top-left", offset),), empty_row=empty_row)
        y = verify(chain, x, {})["y"]
        hollow = y.isnan() if empty_row == "nan" else y == (0 if op == "softmax" else -torch.inf)
        assert hollow[empty].all()
        assert hollow.all(-1).sum() == len(range(30)[empty])


@pytest.mark.thorough
@pytest.mark.parametrize("step", [("causal", "bottom-right", 0), ("window", 9, 4, "top-left", 0)])
def test_queries_are_counted_by_their_dimension_not_by_their_place(step, device):
    """In a transposed x, and under a bias whose sharing changes the order of the rows."""
    chain = Chain("softmax", (step, ("bias", "b")))
    x = randn(3, 256, 2, 256, device=device).transpose(1, 2)
    assert x.shape == (3, 2, 256, 256)
    bias = randn(2, 256, 256, device=device, seed=1).repeat(1, 1, 1)
    verify(chain, x, {"b": bias.double().float()[None]})
    wide = randn(3, 8, 256, 256, device=device)
    verify(chain, wide, {"b": randn(1, 8, 256, 256, device=device, seed=1)})


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_lengths(op, dtype, device):
    chain = Chain(op, (("lengths", "n"),))
    x = randn(2, 3, 5, 40, device=device)
    n = torch.tensor([0, 1, 7, 8, 40], dtype=dtype, device=device)[:, None]
    verify(chain, x, {"n": n})
    verify(chain, x, {"n": torch.tensor([3, 100], dtype=dtype, device=device)[:, None, None, None]})
    for number in (0, 1, 39, 40, 41):
        verify(chain, x, {"n": number})


@pytest.mark.parametrize("columns", [129, 4096, 20000])
def test_a_few_columns_of_a_long_row(op, columns, device):
    """Most of the row is neither loaded nor computed, and comes out as if it had been."""
    lengths = torch.tensor([[1], [columns // 3], [columns - 1], [columns], [0]], device=device)
    x = randn(5, columns, device=device)
    verify(Chain(op, (("lengths", "n"),)), x, {"n": lengths})
    for align in ("top-left", "bottom-right"):
        verify(Chain(op, (("causal", align, 0),)), x, {})
        for middle in (0, columns // 2):
            verify(Chain(op, (("window", 7, 2, align, middle),)), x, {})


@pytest.mark.parametrize("number", [-1, -100])
def test_a_negative_length_is_an_empty_row(op, number, device):
    n = torch.tensor([[number], [3]], device=device)
    y = verify(Chain(op, (("lengths", "n"),)), randn(2, 9, device=device), {"n": n})["y"]
    assert y[0].eq(0.0 if op == "softmax" else -torch.inf).all()


def test_masked_is_as_if_removed(op, device):
    """The same bits as a row of what is left, where nothing is added up in another order."""
    x = randn(3, 8, device=device)
    mask = torch.zeros(3, 8, dtype=torch.bool, device=device)
    mask[:, 1:] = True
    y = declare(Chain(op, (("mask", "m"),)))(x, m=mask)
    assert y[:, 0].eq(1.0 if op == "softmax" else 0.0).all()


@pytest.mark.parametrize("dtype", [torch.float32, *thorough(torch.float16)], ids=str)
@pytest.mark.parametrize("columns", [33, 1000, 4096])
def test_masks_on_every_schedule(op, dtype, columns, scheduled):
    device, schedule = scheduled
    x = randn(2, 40, columns, dtype=dtype, device=device)
    mask = random_mask(40, columns, device=device)
    mask[3] = True
    n = torch.tensor([columns, columns // 2], device=device)[:, None, None]
    steps = (
        ("mask", "m"),
        ("causal", "bottom-right", 5),
        ("lengths", "n"),
        ("window", columns * 3 // 4, None, "bottom-right", 0),
    )
    clean = verify(Chain(op, steps), x, {"m": mask, "n": n}, schedule=schedule)["y"]
    with forced(schedule):
        dirty = declare(Chain(op, steps))(x.masked_fill(mask, torch.nan), m=mask, n=n)
    assert torch.equal(clean, dirty)


@pytest.mark.parametrize("columns", [33, 1000, 4096, 16384])
@pytest.mark.parametrize(("left", "right"), [(5, 0), (300, 20), (None, 2), (0, None)])
def test_windows_on_every_schedule(op, left, right, columns, scheduled):
    """In the first, the middle and the last chunk of a row, and beyond its end."""
    device, schedule = scheduled
    x = randn(2, 6, columns, device=device)
    for offset in (0, columns // 2, columns - 4):
        chain = Chain(op, (("window", left, right, "top-left", offset),))
        verify(chain, x, {}, schedule=schedule)


@pytest.mark.thorough
@pytest.mark.parametrize("level", [-100.0, -1000.0, -1e30])
@pytest.mark.parametrize("columns", [2048, 16384])
def test_parts_without_an_element_far_below_zero(op, level, columns, scheduled):
    """Whole warps and chunks are masked, and exp(-level) overflows: not into their zeros."""
    device, schedule = scheduled
    x = randn(3, columns, device=device) + level
    mask = torch.zeros(3, columns, dtype=torch.bool, device=device)
    mask[0, : columns // 2] = True
    mask[1, columns // 2 :] = True
    mask[2, 1:] = True
    verify(Chain(op, (("mask", "m"),)), x, {"m": mask}, schedule=schedule)
    verify(Chain(op, (("causal", "top-left", 0),)), x, {}, schedule=schedule)
    verify(Chain(op, (("window", 3, 0, "bottom-right", 0),)), x, {}, schedule=schedule)


@pytest.mark.parametrize("columns", [20000, 70001])
def test_chunks_without_an_element_far_below_zero(op, columns, device):
    x = randn(4, columns, device=device) - 500
    n = torch.tensor([0, 1, columns // 2, columns], device=device)[:, None]
    verify(Chain(op, (("lengths", "n"),)), x, {"n": n})
    for middle in (0, columns // 2, columns - 4):
        verify(Chain(op, (("window", 40, 0, "top-left", middle),)), x, {})


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [37, 3000])
def test_a_stream_is_saved_under_the_mask_as_well(op, columns, scheduled):
    device, schedule = scheduled
    x, r = randn(5, columns, device=device), randn(5, columns, device=device, seed=1)
    steps = (("residual", "r", 1.0, "stream"), ("causal", "top-left", 0), ("lengths", "n"))
    verify(Chain(op, steps), x, {"r": r, "n": columns // 2}, schedule=schedule)
    steps = (("window", 2, 1, "bottom-right", 0), ("residual", "r", 1.0, "stream"))
    verify(Chain(op, steps), x, {"r": r}, schedule=schedule)


@pytest.mark.parametrize(
    "step",
    [
        fo.Causal(offset=2),
        fo.Causal("bottom-right"),
        fo.Window(1, 3),
        fo.Alibi("slopes", offset=4),
    ],
    ids=repr,
)
def test_an_x_without_queries_is_refused(step, device):
    """It would be taken for the first query; x[None], the cure, is a single query by its shape."""
    op = fo.Softmax(load=[step], lse=True)
    x = randn(9, device=device)
    given = {"slopes": 0.5} if isinstance(step, fo.Alibi) else {}
    compiled = torch.compile(op, backend="eager", dynamic=False)
    for call in (op, op.unfused, op.explain, compiled):
        with raises((ValueError, RuntimeError), "Softmax: ", repr(step), "(9,)", "x[None]"):
            call(x, **given)
    torch.testing.assert_close(op(x[None], **given), op.unfused(x[None], **given))
    compiled(x[None], **given)


def test_what_compares_no_queries_takes_one_row(device):
    """Nor does a row of several dimensions have queries."""
    x, ids = randn(4, device=device), torch.tensor([1, 1, 0, 2], device=device)
    op = fo.Softmax(load=[fo.Segments("one", "ids"), fo.Alibi("slopes", optional=True)])
    got = op(x, one=ids[:1], ids=ids)
    torch.testing.assert_close(got, torch.cat([torch.softmax(x[:2], 0), torch.zeros_like(x[2:])]))
    with raises(ValueError, "LayerNorm: ", "(3, 4)"):
        fo.LayerNorm(load=[fo.Causal()])(randn(3, 4, device=device), dim=(0, 1))


@pytest.mark.thorough
@pytest.mark.parametrize("op", [fo.Softmax, *exhaustive(fo.LogSoftmax)])
def test_an_empty_row_of_nan_has_its_gradients(op, device):
    """Those of the STORE's operands are the unfused chain's: none of a log-softmax's elements."""
    mask = torch.tensor([[True, True, True], [False, True, False]], device=device)
    given = {"g": torch.ones(2, 3, device=device), "b": torch.zeros(2, 3, device=device)}
    x = torch.zeros(2, 3, device=device)
    for store in ([fo.Affine("g", "b")], [fo.Bias("b")]):
        made = op(load=[fo.Mask("m")], store=store, empty_row="nan")
        own = {key: one for key, one in given.items() if key in made.slots}
        check(made, x, m=mask, **own)
