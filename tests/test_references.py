# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The references against torch in float64, and the bound against results that must not pass."""

import pytest
import torch
from philox import keep_mask
from references import Chain, bound, check, evaluate, exact, precise, ulp
from torch.nn import functional

EPS = 1e-5

TORCH64 = {
    "softmax": lambda v: torch.softmax(v, -1),
    "log_softmax": lambda v: torch.log_softmax(v, -1),
    "layer_norm": lambda v: functional.layer_norm(v, v.shape[-1:], eps=EPS),
    "rms_norm": lambda v: functional.rms_norm(v, v.shape[-1:], eps=EPS),
    "l2_norm": lambda v: functional.normalize(v, dim=-1, eps=EPS),
}


@pytest.fixture
def x():
    return torch.randn(5, 33, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("op", TORCH64)
def test_formulas_agree_with_torch(op, x):
    ours = evaluate(Chain(op, eps=EPS), x, {}, torch.float64)["y"]
    torch.testing.assert_close(ours, TORCH64[op](x.double()), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("op", TORCH64)
def test_high_precision_agrees_with_torch(op, x):
    high, low = precise(op, exact(x), EPS)
    torch.testing.assert_close(high, TORCH64[op](x.double()), rtol=1e-13, atol=1e-15)
    assert low.abs().max() < 1e-15


def test_stats_are_those_of_torch(x):
    outputs = evaluate(Chain("layer_norm", eps=EPS, stats=True), x, {}, torch.float64)
    _, mean, rstd = torch.native_layer_norm(x.double(), (33,), None, None, EPS)
    torch.testing.assert_close(outputs["mean"], mean[..., 0])
    torch.testing.assert_close(outputs["rstd"], rstd[..., 0])


def test_attention_is_the_chain_that_people_write(x):
    chain = Chain("softmax", (("scale", "s"), ("bias", "b"), ("mask", "m")), (("dropout", "p"),))
    operands = {"s": 0.125, "b": torch.randn(33), "m": torch.rand(5, 33) < 0.4, "p": 0.25}
    ours = evaluate(chain, x, operands, torch.float64, draw=(3, 4))["y"]
    scores = x.double() * 0.125 + operands["b"].double()
    wanted = torch.softmax(scores.masked_fill(operands["m"], -torch.inf), -1)
    wanted = wanted * keep_mask((5, 33), 3, 4, 0.25) / 0.75
    torch.testing.assert_close(ours, wanted, rtol=1e-13, atol=0)


def test_residual_norm_is_the_chain_that_people_write(x):
    chain = Chain(
        "layer_norm",
        (("bias", "b"), ("dropout", "p"), ("residual", "r", 2.0, "stream")),
        (("affine", "g", "be"),),
        eps=EPS,
    )
    operands = {name: torch.randn(33) for name in ("b", "g", "be")}
    operands |= {"r": torch.randn(5, 33), "p": 0.5}
    kept = keep_mask((5, 33), 3, 4, 0.5)
    stream = (x + operands["b"]).double() * kept * 2 + 2 * operands["r"].double()
    rounded = stream.half()
    outputs = evaluate(chain, x, operands, torch.float64, (3, 4), {"stream": rounded})
    torch.testing.assert_close(outputs["stream"], stream, rtol=1e-6, atol=1e-6)
    wanted = functional.layer_norm(
        rounded.double(), (33,), operands["g"].double(), operands["be"].double(), EPS
    )
    torch.testing.assert_close(outputs["y"], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("align", "corner"), [("top-left", 0), ("bottom-right", 3)])
def test_causal_is_tril(align, corner):
    chain = Chain("softmax", (("causal", align, 1),))
    x = torch.randn(2, 4, 7)
    kept = torch.ones(4, 7, dtype=torch.bool).tril(1 + corner)
    wanted = torch.softmax(x.double().masked_fill(~kept, -torch.inf), -1)
    torch.testing.assert_close(evaluate(chain, x, {}, torch.float64)["y"], wanted)


@pytest.mark.parametrize(("align", "corner"), [("top-left", 0), ("bottom-right", -3)])
@pytest.mark.parametrize(("left", "right"), [(2, 1), (0, 0), (None, 2), (3, None)])
def test_a_window_is_a_band(left, right, align, corner):
    chain = Chain("softmax", (("window", left, right, align, 1),))
    x = torch.randn(2, 7, 4)
    inf = float("inf")
    for row, kept in enumerate(evaluate(chain, x, {}, torch.float64)["y"][1] != 0):
        position = row + 1 + corner
        low, high = (inf if size is None else size for size in (left, right))
        assert kept.tolist() == [position - low <= k <= position + high for k in range(4)]


def test_alibi_is_that_of_the_paper():
    """Causal, and in the paper's form with a bias of slope * k: the same up to one constant a row.

    What is not causal is symmetric, and counts from either corner.
    """
    x, slopes = torch.randn(2, 3, 5, 5), torch.tensor([0.5, 0.25, 2**-8])[:, None, None]
    chain = Chain("softmax", (("alibi", "m", "top-left", 0), ("causal", "top-left", 0)))
    kept = torch.ones(5, 5, dtype=torch.bool).tril()
    scores = (x.double() + slopes.double() * torch.arange(5)).masked_fill(~kept, -torch.inf)
    ours = evaluate(chain, x, {"m": slopes}, torch.float64)["y"]
    torch.testing.assert_close(ours, torch.softmax(scores, -1), rtol=1e-13, atol=0)

    wide = Chain("log_softmax", (("alibi", "m", "bottom-right", 1),))
    bias = [[-float(abs(q + 2 + 1 - k)) for k in range(4)] for q in range(2)]
    wanted = torch.log_softmax(torch.tensor(bias, dtype=torch.float64), -1)
    got = evaluate(wide, torch.zeros(2, 4), {"m": 1.0}, torch.float64)["y"]
    torch.testing.assert_close(got, wanted, rtol=1e-13, atol=0)


def test_lengths_and_both_polarities_take_the_same_columns():
    x, n = torch.randn(3, 6), torch.tensor([[6], [2], [0]])
    kept = torch.arange(6) < n
    by_length = evaluate(Chain("softmax", (("lengths", "n"),)), x, {"n": n}, torch.float64)["y"]
    by_keep = evaluate(Chain("softmax", (("keep", "m"),)), x, {"m": kept}, torch.float64)["y"]
    by_mask = evaluate(Chain("softmax", (("mask", "m"),)), x, {"m": ~kept}, torch.float64)["y"]
    assert torch.equal(by_length, by_keep)
    assert torch.equal(by_keep, by_mask)
    assert by_length[2].eq(0).all(), "an empty row is zero"
    torch.testing.assert_close(by_length[:2].sum(-1), torch.ones(2, dtype=torch.float64))


def test_an_empty_row_may_be_nan():
    chain = Chain("log_softmax", (("mask", "m"),), empty_row="nan")
    operands = {"m": torch.tensor([[True], [False]])}
    for compute in (torch.float32, torch.float64):
        y = evaluate(chain, torch.zeros(2, 4), operands, compute)["y"]
        assert y[0].isnan().all()
        assert y[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ulp_is_the_distance_to_the_neighbour(dtype):
    tiny = torch.finfo(dtype).tiny
    values = torch.tensor([1.0, 1.5, 0.9, 3e4, -7.0, tiny, tiny / 2, 0.0], dtype=dtype)
    above = torch.nextafter(values.abs(), torch.tensor(torch.inf, dtype=dtype))
    assert torch.equal(ulp(values, dtype), above.double() - values.abs().double())


class TestTheBoundCanFail:
    """Each result here is wrong in a way that a kernel can be wrong."""

    @pytest.fixture
    def truth(self, x):
        chain = Chain("layer_norm", eps=EPS)
        return [evaluate(chain, x, {}, t)["y"] for t in (torch.float64, torch.float32)]

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_the_rounded_truth_passes(self, truth, dtype):
        ref, chain = truth
        assert check(ref.to(dtype), ref, chain) <= 1
        assert check(chain, ref, chain) <= 1

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 0.0, 1e30])
    @pytest.mark.parametrize("at", [(0, 0), (2, 17), (4, 32)])
    def test_one_bad_value(self, truth, bad, at):
        ref, chain = truth
        got = ref.float()
        got[at] = bad
        with pytest.raises(AssertionError, match=rf"y\[{at[0]}, {at[1]}\].*1 of 165 elements"):
            check(got, ref, chain)

    def test_two_ulp_of_half(self, truth):
        ref, chain = truth
        got = ref.half()
        got[3, 3] = torch.nextafter(torch.nextafter(got[3, 3], got[3, 3] * 2), got[3, 3] * 2)
        with pytest.raises(AssertionError, match=r"y\[3, 3\]"):
            check(got, ref, chain)

    def test_an_element_that_was_never_written(self, truth):
        ref, chain = truth
        poisoned = torch.full(ref.shape, torch.nan)
        poisoned[:, :-1] = ref[:, :-1]
        with pytest.raises(AssertionError, match="5 of 165"):
            check(poisoned, ref, chain)

    def test_a_number_where_nan_belongs(self, truth):
        ref, chain = truth
        got = ref.float()
        ref, chain = ref.clone(), chain.clone()
        ref[1] = chain[1] = torch.nan
        with pytest.raises(AssertionError, match="33 of 165"):
            check(got, ref, chain)

    def test_a_number_where_infinity_belongs(self):
        ref = torch.tensor([[-torch.inf, 0.0]], dtype=torch.float64)
        assert check(ref.float(), ref, ref.float()) == 0
        for wrong in (-3e38, torch.inf, torch.nan):
            with pytest.raises(AssertionError):
                check(torch.tensor([[wrong, 0.0]]), ref, ref.float())

    def test_a_wrong_shape(self, truth):
        ref, chain = truth
        with pytest.raises(AssertionError, match="shape"):
            check(ref[:1].float(), ref, chain)

    def test_overflow_is_infinite_and_only_there(self):
        ref = torch.tensor([[1e5, 65472.0, -1e5]], dtype=torch.float64)
        inf = torch.inf
        assert check(torch.tensor([[inf, 65472.0, -inf]]).half(), ref, ref.float()) <= 1
        for wrong in ([inf, inf, -inf], [-inf, 65472.0, -inf], [65472.0, 65472.0, -inf]):
            with pytest.raises(AssertionError):
                check(torch.tensor([wrong]).half(), ref, ref.float())

    def test_a_chain_that_overflows_counts_as_zero(self):
        ref = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
        chain = torch.tensor([[torch.nan, torch.inf]])
        assert bound(ref, chain, torch.float32).max() < 4 * 2.1
        for wrong in (torch.nan, torch.inf, 20.0):
            with pytest.raises(AssertionError):
                check(torch.tensor([[1.0, wrong]]), ref, chain)

    def test_double_is_held_to_double(self, x):
        high, low = precise("softmax", exact(x))
        chain = torch.softmax(x.double(), -1)
        assert check(high, high, chain, low=low) <= 1
        with pytest.raises(AssertionError):
            check(torch.softmax(x, -1).double(), high, chain, low=low)
