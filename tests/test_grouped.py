# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""GroupedLinear: products of groups of rows, their operands by expert, and what is refused."""

import pickle

import pytest
import torch
from cases import raises, randn, same_bits, thorough
from torch import nn

import fusedops as fo
from fusedops.product import grouped_product
from fusedops.testing import check

BIASED = fo.GroupedLinear(
    store=[fo.Bias("b"), fo.Scale("router"), fo.Residual("r", save="stream")], by_expert=["b"]
)

SWIGLU = fo.GroupedLinear(
    store=[fo.Bias("b"), fo.Gate("up", of="value"), fo.Scale("router")],
    by_expert=["b"],
    halves="up",
)
INTERLEAVED = fo.GroupedLinear(SWIGLU.store, ["b"], "up", interleaved=True)

#: The rows of each group.
COUNTS = {
    "some": [4, 0, 5, 2],
    "empty ends": [0, 6, 5, 0],
    "all in one": [0, 0, 11, 0],
    "none": [0, 0, 0, 0],
}


def given(device, dtype=torch.float32, counts=(4, 0, 5, 2), k=16, n=24):
    rows, groups = sum(counts), len(counts)
    tensors = {
        "x": randn(rows, k, dtype=dtype, device=device, seed=1),
        "w": randn(groups, n, k, dtype=dtype, device=device, seed=2),
        "b": randn(groups, n, dtype=dtype, device=device, seed=3),
        "router": randn(rows, 1, dtype=dtype, device=device, seed=4),
        "r": randn(rows, n, dtype=dtype, device=device, seed=5),
    }
    return {name: one.requires_grad_() for name, one in tensors.items()}


def offsets_of(counts, device, dtype=torch.int64):
    return torch.tensor([0, *counts], device=device, dtype=dtype).cumsum(0).to(dtype)


def by_loop(x, w, b, router, r, counts):
    """The op, group by group."""
    parts = [rows @ one.mT + bias for rows, one, bias in zip(x.split(counts), w, b, strict=True)]
    return torch.cat(parts) * router + r


def step(call, tensors, upstream=None):
    """The output and the gradients of all tensors, from a random upstream gradient."""
    y = call(**tensors)
    if upstream is None:
        upstream = randn(*y.shape, device=y.device, seed=9).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [*tensors.values()], upstream)]


def run(tensors, offsets, op=BIASED, **options):
    x, w, *_ = tensors.values()
    others = {key: one for key, one in tensors.items() if key not in "xw"}
    return op(x, w, offsets=offsets, **others, **options)


def near(found, want, dtype, counts, k=16, n=24):
    """Within what sums of so many terms may be off that are no larger than four times the sum."""
    terms = max(k, n, *counts) + 2
    for one, exact in zip(found, want, strict=True):
        assert one.dtype is dtype
        assert torch.isfinite(one).all()
        if one.numel():
            size = 1 + exact.abs().max()
            assert (one.double() - exact).abs().max() <= 4 * torch.finfo(dtype).eps * terms * size


class TestValues:
    @pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
    @pytest.mark.parametrize("dtype", [torch.float32, *thorough(torch.float64)])
    def test_against_a_loop(self, device, dtype, counts):
        tensors = given(device, dtype, counts)
        offsets = offsets_of(counts, device)
        found = step(lambda **given: run(given, offsets).y, tensors)
        exact = {name: one.detach().double().requires_grad_() for name, one in tensors.items()}
        near(found, step(lambda **given: by_loop(**given, counts=counts), exact), dtype, counts)

    @pytest.mark.grid(strength=1)
    @pytest.mark.parametrize("sizes", thorough((16, 24), (9, 11), (1, 1), (8, 3)))
    @pytest.mark.parametrize("dtype", [torch.bfloat16, *thorough(torch.float16)])
    def test_check(self, device, dtype, sizes):
        """Every case of `check`, in 16 bits, odd columns among them."""
        k, n = sizes
        tensors = given(device, dtype, k=k, n=n)
        x, w, b, router, r = tensors.values()
        check(BIASED, x, w, offsets=offsets_of((4, 0, 5, 2), device), b=b, router=router, r=r)

    def test_counts_and_padding(self, device):
        """Offsets or counts, of either integer; rows after the last offset are the last group's."""
        tensors = given(device)
        want = run(tensors, offsets_of((4, 0, 5, 2), device))
        for dtype in (torch.int32, torch.int64):
            counts = torch.tensor([4, 0, 5, 2], dtype=dtype, device=device)
            short = torch.tensor([0, 4, 4, 9, 9], dtype=dtype, device=device)
            for groups in (counts, short, counts.expand(2, 4)[1]):
                assert same_bits(run(tensors, groups).y, want.y)

    def test_sums_by_expert_keep_their_bits(self, device):
        counts = (300, 0, 1, 700)
        tensors = given(device, counts=counts)
        offsets = offsets_of(counts, device)
        first, again = (step(lambda **given: run(given, offsets).y, tensors) for _ in range(2))
        assert all(map(same_bits, first, again))

    @pytest.mark.parametrize("shape", [(4,), *thorough((4, 1))])
    def test_a_number_for_each_expert(self, device, shape):
        op = fo.GroupedLinear([fo.Scale("s")], by_expert="s")
        x, w, *_ = (one.detach() for one in given(device).values())
        s = randn(*shape, device=device).requires_grad_()
        y = op(x, w, offsets=offsets_of((4, 0, 5, 2), device), s=s)
        plain = fo.GroupedLinear()(x, w, offsets=offsets_of((4, 0, 5, 2), device))
        rows = s.detach().view(-1).repeat_interleave(torch.tensor([4, 0, 5, 2], device=device))
        assert same_bits(y.detach(), plain * rows[:, None])
        (of_s,) = torch.autograd.grad(y.sum(), s)
        assert of_s.shape == s.shape
        assert of_s.view(-1)[1] == 0

    def test_dropout_counts_rows_of_x(self, device):
        op = fo.GroupedLinear([fo.Dropout("p")])
        x, w, *_ = given(device).values()
        y = op(x, w, offsets=offsets_of((4, 0, 5, 2), device), p=0.5, generator=(3, 0))
        kept = op.dropout_mask((11, 24), 3, 0, 0.5).to(device)
        assert torch.equal(y != 0, kept)

    def test_odd_layouts(self, device):
        """Rows that no bulk copy could read, and an upstream gradient that has no memory."""
        tensors = given(device)
        want = step(lambda **given: run(given, offsets_of((4, 0, 5, 2), device)).y, tensors)
        x, w, *others = (one.detach() for one in tensors.values())
        wide = torch.full((11, 34), torch.nan, device=device)[:, 1::2][:, :16].copy_(x)
        turned = w.mT.contiguous().mT
        odd = dict(zip(tensors, (wide, turned, *others), strict=True))
        odd = {name: one.requires_grad_() for name, one in odd.items()}
        found = step(lambda **given: run(given, offsets_of((4, 0, 5, 2), device)).y, odd)
        near(found, [one.double() for one in want], torch.float32, (11,))
        op = fo.GroupedLinear()
        y = op(odd["x"], odd["w"], offsets=offsets_of((4, 0, 5, 2), device))
        of_w = torch.autograd.grad(y.sum(), odd["w"])[0]
        assert torch.allclose(of_w[0], x[:4].sum(0).expand(24, 16), atol=1e-5)

    @pytest.mark.parametrize("sizes", [(16, 24), (9, 11)])
    def test_layouts_of_16_bits(self, device, sizes):
        """Upstream gradients without memory, or of columns, for groups that begin at any row."""
        counts, (k, n) = (3, 0, 5, 1), sizes
        x, w, *_ = given(device, torch.bfloat16, counts, k, n).values()
        y = fo.GroupedLinear()(x, w, offsets=offsets_of(counts, device))
        columns = randn(n, sum(counts), dtype=torch.bfloat16, device=device, seed=6).mT
        for upstream in (columns[:, :1].expand(y.shape), columns, columns.contiguous()):
            found = torch.autograd.grad(y, (x, w), upstream, retain_graph=True)
            parts = zip(x.split(counts), w, upstream.split(counts), strict=True)
            exact = [(dz.double() @ one.double(), dz.double().mT @ rows.double())
                     for rows, one, dz in parts]  # fmt: skip
            want = torch.cat([one for one, _ in exact]), torch.stack([one for _, one in exact])
            near(found, want, torch.bfloat16, counts, k, n)

    def test_nan_stays_in_its_group(self, device):
        x, w, *_ = (one.detach().clone() for one in given(device).values())
        w[2, 0, 0] = torch.nan
        y = fo.GroupedLinear()(x, w, offsets=offsets_of((4, 0, 5, 2), device))
        assert y.isnan().sum() == 5
        assert y[4:9, 0].isnan().all()

    def test_second_derivative(self, device):
        """Of the unfused chain, through products of groups in both directions."""
        x, w, b, *_ = given(device, torch.float64, (2, 0, 1), 2, 3).values()
        op = fo.GroupedLinear([fo.Bias("b")], by_expert=["b"])

        def call(*tensors):
            x, w, b = tensors
            return op.unfused(x, w, offsets=offsets_of((2, 0, 1), device), b=b)

        assert torch.autograd.gradcheck(call, (x, w, b))
        assert torch.autograd.gradgradcheck(call, (x, w, b))


class TestHalves:
    @pytest.mark.parametrize("op", [SWIGLU, *thorough(INTERLEAVED)], ids=["halves", "interleaved"])
    def test_against_two_products(self, device, op):
        """Both halves are columns of one product, and w has one gradient."""
        counts = (4, 0, 5, 2)
        x, w, b, router, _ = given(device, counts=counts).values()
        tensors = {"x": x, "w": w, "b": b.detach()[:, :12].requires_grad_(), "router": router}
        offsets = offsets_of(counts, device)

        def by_parts(x, w, b, router):
            gate, up = (w[:, ::2], w[:, 1::2]) if op.interleaved else w.chunk(2, 1)
            z, other = (by_loop(x, one, 0 * b, 1, 0, counts) for one in (gate, up))
            return nn.functional.silu(z + b.repeat_interleave(sizes, 0)) * other * router

        sizes = torch.tensor(counts, device=device)
        found = step(lambda **given: run(given, offsets, op), tensors)
        exact = {name: one.detach().double().requires_grad_() for name, one in tensors.items()}
        near(found, step(by_parts, exact), torch.float32, counts)
        unfused = step(lambda **given: run(given, offsets, op.unfused), tensors)
        near(unfused, [one.double() for one in found], torch.float32, counts)

    @pytest.mark.parametrize("op", thorough(SWIGLU, INTERLEAVED))
    def test_check(self, device, op):
        x, w, b, router, _ = given(device, torch.bfloat16, n=22).values()
        offsets = offsets_of((4, 0, 5, 2), device)
        check(op, x, w, offsets=offsets, b=b[:, :11], router=router)

    def test_an_operand_that_is_left_out(self, device):
        x, w, *_ = given(device).values()
        offsets = offsets_of((4, 0, 5, 2), device)
        chain = [fo.Bias("b", optional=True), fo.Gate("up", of="value", optional=True)]
        found, want = (
            step(lambda x, w, op=op: op(x, w, offsets=offsets), {"x": x, "w": w})
            for op in (
                fo.GroupedLinear(chain, ["b"], "up"),
                fo.GroupedLinear([fo.Gate("up", of="value")], halves="up"),
            )
        )
        assert all(map(same_bits, found, want))

    def test_explain(self, device):
        x, w, b, router, _ = given(device).values()
        offsets = offsets_of((4, 0, 5, 2), device)
        told = SWIGLU.explain(x, w, offsets=offsets, b=b[:, :12], router=router)
        assert told.flops == 2 * 11 * 16 * 24
        assert "(11, 16) and (4, 24, 16) -> z (11, 24)" in str(told)
        assert told.store.rows == 11
        assert "11 of 12 columns" in str(told)
        kept = {one.name: (one.bytes, one.own) for one in told.kept}
        assert kept["z"] == (11 * 24 * 4,) * 2  # both halves, which no one gave
        assert "up" not in kept

    def test_refusals(self, device):
        x, w, b, router, _ = given(device).values()
        offsets = offsets_of((4, 0, 5, 2), device)
        with raises(ValueError, "even number", "'up'", "(4, 23, 16)"):
            SWIGLU(x, w[:, 1:], offsets=offsets, b=b, router=router)
        with raises(TypeError, "unknown operand 'up'"):
            SWIGLU(x, w, offsets=offsets, b=b, router=router, up=b)
        with raises(ValueError, "(4, 12), (4, 1) or (4,)", "(4, 24)"):
            SWIGLU(x, w, offsets=offsets, b=b, router=router)
        with raises(ValueError, "halves names 'other'", "'up'"):
            fo.GroupedLinear([fo.Gate("up")], halves="other")
        with raises(ValueError, "interleaved", "halves"):
            fo.GroupedLinear([fo.Gate("up")], interleaved=True)
        with raises(ValueError, "'up' is a half", "by_expert"):
            fo.GroupedLinear([fo.Gate("up")], by_expert=["up"], halves="up")


class TestCalls:
    def test_in_turn_where_torch_has_no_product(self, device, monkeypatch):
        tensors, offsets = given(device), offsets_of((4, 0, 5, 2), device)
        want = step(lambda **given: run(given, offsets).y, tensors)
        monkeypatch.setattr(grouped_product, "_BY_TORCH", None)
        found = step(lambda **given: run(given, offsets).y, tensors)
        near(found, [one.double() for one in want], torch.float32, (11,))

    def test_transforms(self, device):
        """torch.func sees into `unfused`, as every error about it says, and a product alone."""
        tensors, offsets = given(device), offsets_of((4, 0, 5, 2), device)
        x, w, b, router, r = (one.detach() for one in tensors.values())
        several = torch.stack([x, 2 * x])

        def unfused(x, w, b):
            return BIASED.unfused(x, w, offsets=offsets, b=b, router=router, r=r).y

        found = torch.vmap(unfused, in_dims=(0, None, None))(several, w, b)
        exact = [one.double().requires_grad_() for one in (x, w, b)]
        others = router.double(), r.double(), (4, 0, 5, 2)
        want = [by_loop(one, *exact[1:], *others) for one in several.double()]
        near(found, want, torch.float32, (4, 0, 5, 2))
        found = torch.func.grad(lambda *given: unfused(*given).sum(), (0, 1, 2))(x, w, b)
        want = torch.autograd.grad(by_loop(*exact, *others).sum(), exact)
        near(found, want, torch.float32, (4, 0, 5, 2))
        _, along = torch.func.jvp(lambda x: unfused(x, w, b), (x,), (x,))
        linear = by_loop(*exact[:2], 0 * exact[2], router.double(), 0 * r.double(), (4, 0, 5, 2))
        near([along], [linear], torch.float32, (4, 0, 5, 2))
        alone = fo.GroupedLinear()
        each = torch.vmap(lambda x: alone(x, w, offsets=offsets))(several)
        want = [alone(one.double(), w.double(), offsets=offsets) for one in several]
        near(each, want, torch.float32, (4, 0, 5, 2))
        y = by_loop(*exact, *others)
        upstream = randn(3, *y.shape, device=device, seed=9)
        leaves = [one.clone().requires_grad_() for one in (x, w, b)]
        found = torch.autograd.grad(unfused(*leaves), leaves, upstream, is_grads_batched=True)
        want = torch.autograd.grad(y, exact, upstream.double(), is_grads_batched=True)
        near(found, want, torch.float32, (4, 0, 5, 2))
        with raises(fo.UnsupportedError, "GroupedLinear: torch.func transforms", "unfused"):
            torch.vmap(lambda x: BIASED(x, w, offsets=offsets, b=b, router=router, r=r).y)(several)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_without_contents(self, dtype):
        x, w, *_ = (one.to("meta") for one in given("cpu", dtype).values())
        y = fo.GroupedLinear()(x, w, offsets=offsets_of((4, 0, 5, 2), "meta"))
        assert y.is_meta
        assert y.shape == (11, 24)

    def test_compiled(self, device):
        dtype = torch.bfloat16 if device == "cuda" else torch.float32  # older torch traces no other
        tensors, offsets = given(device, dtype), offsets_of((4, 0, 5, 2), device)
        compiled = torch.compile(
            lambda **given: run(given, offsets).y, fullgraph=True, backend="aot_eager"
        )
        found, want = step(compiled, tensors), step(lambda **given: run(given, offsets).y, tensors)
        assert all(map(same_bits, found, want))

    def test_autocast(self, device):
        tensors, offsets = given(device), offsets_of((4, 0, 5, 2), device)
        with torch.autocast(device, torch.bfloat16):
            y = run(tensors, offsets).y
        assert y.dtype is torch.bfloat16
        assert tensors["w"].grad is None
        assert torch.autograd.grad(y.sum(), tensors["w"])[0].dtype is torch.float32

    def test_explain(self, device):
        tensors, offsets = given(device), offsets_of((4, 0, 5, 2), device)
        told = BIASED.explain(
            tensors["x"], tensors["w"], offsets=offsets, b=tensors["b"],
            router=tensors["router"], r=tensors["r"],
        )  # fmt: skip
        assert told.flops == 2 * 11 * 16 * 24
        assert "one kernel for both" in str(told)
        x, w = (tensors[name].double() for name in "xw")
        told = fo.GroupedLinear([fo.Scale("s")]).explain(x, w, offsets=offsets, s=0.5)
        assert "whose ends the host reads" in str(told)

    def test_explain_of_gradients(self, device, monkeypatch):
        """Entries by group are saved as they are, and nothing has memory for a note about sizes."""
        op = fo.GroupedLinear([fo.Bias("b"), fo.Gate("g")], by_expert=["b"])
        x, w, b, _, r = given(device).values()
        called = {"offsets": offsets_of((4, 0, 5, 2), device), "b": b, "g": r}
        told = op.explain(x, w, **called)
        for kept in (told.kept, told.store.kept):
            assert {one.name: one.bytes for one in kept}["b"] == b.nbytes
        assert "the gradient of x is a product of groups by torch: " in str(told)
        assert "the gradient of w is a product of each group's rows by torch: " in str(told)
        told = op.explain(x.detach(), w, **called)
        assert "the gradient of x" not in str(told)
        assert "the gradient of w" in str(told)

    def test_is_a_value(self):
        assert pickle.loads(pickle.dumps(BIASED)) == BIASED
        assert fo.GroupedLinear(BIASED.store) != BIASED
        assert "by_expert=('b',)" in repr(BIASED)

    @pytest.mark.gpu
    def test_in_a_cuda_graph(self):
        """Captured once, replayed with other groups; the host never waits."""
        tensors = {
            name: one.detach().requires_grad_()
            for name, one in given("cuda", torch.bfloat16, (64, 0, 40, 24)).items()
        }
        offsets = offsets_of((64, 0, 40, 24), "cuda")
        upstream = randn(128, 24, dtype=torch.bfloat16, device="cuda", seed=7)

        def whole():
            return step(lambda **given: run(given, offsets).y, tensors, upstream)

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(2):
                whole()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = whole()
        for counts in ((64, 0, 40, 24), (0, 128, 0, 0), (1, 2, 3, 122)):
            offsets.copy_(offsets_of(counts, "cuda"))
            for one in found:
                one.fill_(torch.nan)
            graph.replay()
            assert all(map(same_bits, found, whole()))


class TestRefusals:
    def test_groups(self, device):
        x, w, *_ = given(device).values()
        op = fo.GroupedLinear()
        offsets = offsets_of((4, 0, 5, 2), device)
        for kind, parts, groups in (
            (TypeError, ["offsets", "int32 or int64", "list", "bincount"], [0, 4, 4, 9, 11]),
            (TypeError, ["offsets", "float32"], offsets.float()),
            (ValueError, ["(5,)", "(4,)", "(3,)"], offsets[:3]),
            (ValueError, ["offsets", "(1, 5)"], offsets[None]),
        ):
            with raises(kind, "GroupedLinear", *parts):
                op(x, w, offsets=groups)
        distributed = offsets.as_subclass(type("DTensor", (torch.Tensor,), {}))
        with raises(TypeError, "offsets must be a DTensor where x is one", "to_local"):
            op(x, w, offsets=distributed)
        with raises(TypeError, "'offsets' is missing", "offsets=..."):
            op(x, w)
        with raises(TypeError, "2 positional arguments", "offsets="):
            op(x, w, offsets)
        with raises(TypeError, "unknown operand 'counts'", "did you mean 'offsets'?"):
            op(x, w, counts=offsets)

    def test_groups_that_a_cpu_sees(self):
        x, w, *_ = given("cpu").values()
        offsets = [0, 4, 3, 9, 11], [0, 4, 4, 9, 12], [-1, 4, 4, 9, 11]
        for groups in (*offsets, [4, -1, 5, 3], [4, 0, 5, 3]):
            op = fo.GroupedLinear()
            for call in (op, op.unfused, op.explain):
                with raises(ValueError, "offsets must be", "11 rows", str(groups)):
                    call(x, w, offsets=torch.tensor(groups))
        ends = torch.tensor([4, 4, 9, 11])
        with raises(ValueError, "as for torch's grouped_mm, put a 0 before the first"):
            fo.GroupedLinear()(x, w, offsets=ends)
        fo.GroupedLinear()(x, w, offsets=torch.nn.functional.pad(ends, (1, 0)))  # the cure

    def test_factors(self, device):
        x, w, *_ = given(device).values()
        offsets = offsets_of((4, 0, 5, 2), device)
        op = fo.GroupedLinear()
        for parts, factors in (
            (["x must have shape (T, K)", "flatten"], (x[None], w)),
            (["w must have shape (E, N, 16)", "w.mT"], (x, w.mT)),
            (["w must have shape (E, N, 16)", "Linear"], (x, w[0])),
        ):
            with raises(ValueError, *parts):
                op(*factors, offsets=offsets)

    def test_operands(self, device):
        x, w, b, *_ = given(device).values()
        offsets = offsets_of((4, 0, 5, 2), device)
        op = fo.GroupedLinear([fo.Bias("b")], by_expert=["b"])
        with raises(ValueError, "'b'", "by_expert", "(4, 24), (4, 1) or (4,)", "(24,)"):
            op(x, w, offsets=offsets, b=b[0])
        with raises(ValueError, "'b' of shape (4, 24) does not broadcast"):
            fo.GroupedLinear([fo.Bias("b")])(x, w, offsets=offsets, b=b)
        with raises(ValueError, "by_expert names 'c'", "'b'"):
            fo.GroupedLinear([fo.Bias("b")], by_expert=["c"])
        with raises(TypeError, "by_expert must hold names of operands, got None"):
            fo.GroupedLinear([fo.Bias("b")], by_expert=None)
        with raises(TypeError, "interleaved must be True or False, got 'no'"):
            fo.GroupedLinear([fo.Gate("up")], halves="up", interleaved="no")
        with raises(ValueError, "cannot be named 'offsets'"):
            fo.GroupedLinear([fo.Bias("offsets")])
