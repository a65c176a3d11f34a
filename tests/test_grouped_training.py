# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of products of groups: what one kernel writes and reads for them, and their values."""

import itertools

import pytest
import torch
from cases import raises, randn, same_bits, thorough, thorough_points
from products import HOPPER, forced, needs_hopper, on_hopper, recording
from test_grouped import BIASED, INTERLEAVED, SWIGLU, near, offsets_of, run
from test_grouped import given as given_small
from test_grouped_kernel import BFLOAT16, COUNTS, OPS, exact, given
from test_product_kernels import tiling_of

import fusedops as fo
from fusedops.errors import UnsupportedError
from fusedops.generate.target import Target
from fusedops.generate.views import STORAGE
from fusedops.jit import nvrtc
from fusedops.plan.planner import plan
from fusedops.prebuild.build_all import variants
from fusedops.prebuild.recording import Signature
from fusedops.product.grouped_kernel import GroupedProduct, bind_groups
from fusedops.product.grouped_plain import chosen_without_store, without_store
from fusedops.product.grouped_product import (
    ends_of,
    grouped_product,
    product_of_tokens,
    summed_product,
)
from fusedops.product.grouped_training import GroupedTraining
from fusedops.product.routing import combine, dispatch, route
from fusedops.testing import last_schedule

EMPTY = fo.GroupedLinear()
OPS = {**OPS, "empty": EMPTY}


def planned(name, major, dtype, keeps, moves=False):
    op, offsets = OPS[name], torch.tensor(COUNTS["ragged"])
    x, w, own = given(op, COUNTS["ragged"], 264, 528, dtype, major=major)
    tiling = tiling_of("Together", dtype)
    if keeps:
        return op.planned(x, w, {**own, "offsets": offsets}, tiling, HOPPER, keeps=True)
    bound, slots = bind_groups(op.epilogue, x, w, {}, (), None), {"offsets": 1, "to": 2, "w": 3}
    asked = bound, x, w, offsets.int(), slots, None, False, tiling
    return plan(GroupedProduct(*asked, ends=True, moves=moves), HOPPER)


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("name", "major", "dtype"),
    [
        ("swiglu", "rows", BFLOAT16),
        ("empty", "columns", BFLOAT16),
        *thorough_points(
            *itertools.product(
                ["by expert", "interleaved", "all", "empty", "plain"],
                ["rows", "columns"],
                [torch.float16, BFLOAT16],
            ),
        ),
    ],
)
def test_registers_do_not_spill(name, major, dtype):
    """Of kernels that write the product too, and of the one that makes the gradient of x."""
    (launch,) = planned(name, major, dtype, name != "empty").launches
    source = launch.variant.source
    assert ("a.z" in source) == (name != "empty")
    assert ("kMN" in source) == (major == "columns")
    _, log = nvrtc.compile_cuda(source, launch.variant.arch, [nvrtc.RESOURCES])
    assert "0 bytes spill stores, 0 bytes spill loads" in log, log
    assert "C75" not in log, log


@pytest.mark.parametrize("major", ["rows", *thorough("columns")])
@pytest.mark.parametrize("dtype", [BFLOAT16, *thorough(torch.float16)])
def test_registers_of_a_kernel_that_moves_rows(major, dtype):
    (launch,) = planned("empty", major, dtype, keeps=False, moves=True).launches
    assert "a.places" in launch.variant.source
    _, log = nvrtc.compile_cuda(launch.variant.source, launch.variant.arch, [nvrtc.RESOURCES])
    assert "0 bytes spill stores, 0 bytes spill loads" in log, log


def by_kernel():
    """Whether one kernel of ours was the last to multiply, be it the gradient of w."""
    return (last_schedule() or "").startswith("Together")


@pytest.mark.parametrize("other", [torch.float16, BFLOAT16], ids=str)
def test_a_backward_pass_has_the_dtype_of_its_product(other, monkeypatch):
    """Under autocast, too, whose dtype the thread of a backward pass may not even have."""
    on_hopper(monkeypatch)
    mine = BFLOAT16 if other is torch.float16 else torch.float16
    x, w = randn(4096, 1024).to(mine), randn(8, 512, 1024).to(mine)
    with torch.autocast("cpu", other):
        tiling = chosen_without_store(x, w).tiling
    assert tiling.dtype == STORAGE[mine]
    bound = bind_groups(EMPTY.epilogue, x, w, {}, (), None)
    asked = bound, x, w, torch.zeros(9, dtype=torch.int32), {"offsets": 1, "w": 2}, None, False
    assert plan(GroupedProduct(*asked, tiling), HOPPER)
    assert plan(GroupedProduct(*asked, tiling_of("Together", other)), HOPPER) is None


def test_the_gradient_of_tokens_keeps_its_dtype_under_autocast():
    """Of bfloat16 it may be larger than float16 has numbers."""
    tokens, index = (randn(6, 8) * 1e5).bfloat16().requires_grad_(), torch.tensor([[0, 1]] * 6)
    w = randn(2, 16, 8, seed=1).bfloat16()
    found, _, rows = route(index, torch.ones(index.shape), tokens, 2)
    z = product_of_tokens(tokens, rows, w, found, None)
    with torch.autocast("cpu", torch.float16):
        (dx,) = torch.autograd.grad(z, tokens, z.detach())
    assert dx.dtype is BFLOAT16
    assert dx.abs().max() > 1e5
    assert dx.isfinite().all()


def test_products_of_tokens_have_second_derivatives():
    index = torch.tensor([[0, 1], [1, 2], [0, 2]])
    tokens = randn(3, 4, dtype=torch.float64).requires_grad_()
    found, *_ = route(index, torch.ones(index.shape), tokens, 3)
    w = randn(3, 5, 4, dtype=torch.float64, seed=1).requires_grad_()

    def made(tokens, w):
        return product_of_tokens(tokens, dispatch(tokens, found), w, found, None)

    assert torch.autograd.gradcheck(made, (tokens, w))
    assert torch.autograd.gradgradcheck(made, (tokens, w))


def step(call, tensors, wanted=None):
    """The outputs, and the gradients of tensors, of all by default, from random ones of y."""
    made = call(**tensors)
    made = (made,) if isinstance(made, torch.Tensor) else tuple(made)
    upstream = [randn(*one.shape, device=one.device, seed=9 + at).to(BFLOAT16).to(one.dtype)
                for at, one in enumerate(made)]  # fmt: skip
    inputs = [tensors[name] for name in wanted or tensors]
    return [*(one.detach() for one in made), *torch.autograd.grad(made, inputs, upstream)]


def small(op, counts, dtype=torch.float32):
    tensors = given_small("cpu", dtype, counts)
    if op.halves:
        tensors["b"] = tensors["b"].detach()[:, :12].requires_grad_()
    return {name: one for name, one in tensors.items() if name in ("x", "w", *op.slots)}


class TestRecordedForAutograd:
    @pytest.mark.parametrize("counts", [(4, 0, 5, 2), *thorough((0, 1, 0, 0), (0, 0, 11, 0))])
    @pytest.mark.parametrize("op", [SWIGLU, BIASED, *thorough(INTERLEAVED)], ids=str)
    def test_what_a_kernel_made(self, monkeypatch, op, counts):
        """The gradients are those of the chain, from the outputs and the product of a kernel."""
        tensors, offsets = small(op, counts), offsets_of(counts, "cpu")
        want = step(lambda **given: run(given, offsets, op.unfused), tensors)
        apart = step(lambda **given: run(given, offsets, op), tensors)

        @torch.no_grad()
        def made(self, x, w, arguments):
            z = grouped_product(x, w, ends_of(arguments["offsets"], len(x), len(w)))
            y = op.run_apart(x, w, **arguments)
            return (y,) if isinstance(y, torch.Tensor) else tuple(y), z

        monkeypatch.setattr(GroupedTraining, "_made", made)
        found = step(lambda **given: run(given, offsets, op), tensors)
        for one in (apart, found):
            near(one, [each.double() for each in want], torch.float32, counts)

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_gradients_of_halves_are_one_tensor(self, interleaved):
        """No copy joins them: the kernel writes to both halves."""
        op = fo.GroupedLinear([fo.Gate("up")], halves="up", interleaved=interleaved)
        x, w = (one.detach() for one in (*small(op, (4, 0, 5, 2), BFLOAT16).values(),))
        y = op(x.requires_grad_(), w, offsets=offsets_of((4, 0, 5, 2), "cpu"))
        with torch.profiler.profile() as profile:
            torch.autograd.grad(y, x, torch.ones_like(y))
        names = [event.name for event in profile.events()]
        assert any("gradient of GroupedLinear" in name for name in names)
        assert not {"aten::cat", "aten::stack", "aten::copy_"} & {*names}

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_recorded_gradients_can_be_built_ahead(self, monkeypatch, tmp_path, interleaved):
        """The kernels of recorded calls are those that ran, which write into halves."""
        op = fo.GroupedLinear([fo.Gate("up")], halves="up", interleaved=interleaved)
        tensors, file = small(op, (4, 0, 5, 2)), recording(monkeypatch, tmp_path)
        step(lambda **given: run(given, offsets_of((4, 0, 5, 2), "cpu"), op), tensors)
        built = variants(map(Signature.parse, file.read_text().splitlines()), Target.named("cpu"))
        assert len(built) == 2
        assert all(variant.loaded for variant in built)

    def test_a_half_that_two_functors_read(self):
        """Its gradient is a sum, which is copied to its half."""
        op = fo.GroupedLinear([fo.Gate("up", of="value"), fo.Residual("up")], halves="up")
        tensors, offsets = small(op, (4, 0, 5, 2)), offsets_of((4, 0, 5, 2), "cpu")
        found = step(lambda **given: run(given, offsets, op), tensors)
        want = step(lambda **given: run(given, offsets, op.unfused), tensors)
        near(found, [each.double() for each in want], torch.float32, (4, 0, 5, 2))

    def test_once(self):
        """A second derivative is refused, also in what the gradient reads of the product."""
        tensors, offsets = small(SWIGLU, (4, 0, 5, 2)), offsets_of((4, 0, 5, 2), "cpu")
        y = run(tensors, offsets, SWIGLU)
        (of_b,) = torch.autograd.grad(y.sum(), tensors["b"], create_graph=True)
        with raises(UnsupportedError, "first derivative only"):
            torch.autograd.grad(of_b.sum(), tensors["x"])


class TestChoice:
    def test_by_sizes(self, monkeypatch):
        """The gradient of x is a product with as many columns as x has."""
        on_hopper(monkeypatch)
        w = torch.empty(4, 528, 512, dtype=BFLOAT16)
        dz = torch.empty(11, 528, dtype=BFLOAT16)
        assert chosen_without_store(dz, w.mT).tiling is not None
        assert "tiles of 256 columns" in chosen_without_store(dz, w[..., :240].mT).why
        told = EMPTY.explain(dz, w.mT, offsets=torch.tensor([4, 0, 5, 2]))
        assert "one kernel (Together) alone: the STORE is empty" in str(told)

    def test_left_to_torch_on_a_cpu(self):
        x, w = randn(11, 512, dtype=BFLOAT16), randn(4, 528, 512, dtype=BFLOAT16)
        ends = torch.tensor([4, 4, 9, 11], dtype=torch.int32)
        assert without_store(x, w, ends, ends=True) is None


@pytest.mark.gpu
class TestOnGpu:
    @pytest.mark.parametrize(
        ("name", "counts", "k", "n", "major", "dtype"),
        [
            ("swiglu", "ragged", 264, 528, "rows", BFLOAT16),
            ("by expert", "many groups", 264, 512, "columns", torch.float16),
            *thorough_points(
                ("swiglu", "all in one", 512, 1024, "rows", BFLOAT16),
                ("swiglu", "few", 256, 512, "columns", torch.float16),
                ("interleaved", "ragged", 264, 528, "rows", BFLOAT16),
                ("interleaved", "many groups", 256, 560, "columns", torch.float16),
                ("all", "ragged", 520, 528, "rows", BFLOAT16),
                ("plain", "ragged", 1000, 264, "columns", BFLOAT16),
                ("empty", "ragged", 264, 528, "rows", torch.float16),
                ("empty", "many groups", 512, 264, "columns", BFLOAT16),
            ),
        ],
    )
    def test_against_float64(self, name, counts, k, n, major, dtype):
        """As near as torch's products and two kernels, NaN in the memory that outputs get."""
        needs_hopper()
        op, counts = OPS[name], COUNTS[counts]
        x, w, own = given(op, counts, k, n, dtype, "cuda", major)
        tensors = {"x": x, "w": w, **own}
        tensors = {key: one.detach().requires_grad_() for key, one in tensors.items()}
        offsets = torch.tensor(counts, device="cuda")
        found = []
        for how in ("torch", "Together", "Together"):
            torch.full((4, *x.shape), torch.nan, dtype=x.dtype, device="cuda")
            with forced(how):
                run(tensors, offsets, op)
                assert name == "empty" or by_kernel() == (how == "Together")
                found.append(step(lambda **given: run(given, offsets, op), tensors))
                step(lambda **given: run(given, offsets, op), tensors, ["x"])
                if how != "torch" or name != "empty":  # of which torch leaves no schedule
                    assert by_kernel() == (how == "Together")
        double = {key: one.detach().double().requires_grad_() for key, one in tensors.items()}

        def reference(x, w, **own):
            made = exact(op, x, w, counts, **own)
            return (made, made) if len(op.outputs) > 1 else made

        want = step(reference, double)
        for by_torch, ours, again, one in zip(*found, want, strict=True):
            off = [((each.double() - one).abs() / (1 + one.abs())).max()
                   for each in (by_torch, ours)]  # fmt: skip
            assert off[1] <= 2 * off[0] + torch.finfo(dtype).eps
            assert same_bits(ours, again)

    def test_nan_stays_in_its_group(self):
        needs_hopper()
        op, counts = OPS["swiglu"], COUNTS["ragged"]
        x, w, _ = given(op, counts, 264, 528, device="cuda")
        mine = torch.zeros(len(x), dtype=torch.bool, device="cuda")
        mine[sum(counts[:4]) : sum(counts[:5])] = True
        x[mine] = torch.nan
        tensors = {"x": x.requires_grad_(), "w": w.requires_grad_()}
        offsets = torch.tensor(counts, device="cuda")
        with forced("Together"):
            y, of_x, of_w = step(lambda **given: run(given, offsets, op), tensors)
        for one in (y, of_x):
            assert torch.equal(one.isnan().any(1), mine)
        assert of_w.isnan().flatten(1).any(1).tolist() == [at == 4 for at in range(len(counts))]

    def test_steps_in_a_cuda_graph(self):
        """Captured once, replayed with other groups."""
        needs_hopper()
        op, counts = OPS["swiglu"], COUNTS["ragged"]
        x, w, _ = given(op, counts, 264, 528, device="cuda")
        tensors = {"x": x.requires_grad_(), "w": w.requires_grad_()}
        offsets = torch.tensor(counts, device="cuda")

        upstream = randn(len(x), 264, dtype=BFLOAT16, device="cuda", seed=9)

        def whole():
            y = run(tensors, offsets, op)
            return [y.detach(), *torch.autograd.grad(y, [*tensors.values()], upstream)]

        with forced("Together"):
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(2):
                    whole()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = whole()
            for order in (counts, counts[::-1], [0, sum(counts), *[0] * 8]):
                offsets.copy_(torch.tensor(order))
                for one in found:
                    one.fill_(torch.nan)
                graph.replay()
                assert all(map(same_bits, found, whole()))

    @pytest.mark.parametrize("dtype", [BFLOAT16, torch.float32], ids=str)
    def test_a_backward_pass_inside_autocast(self, dtype):
        """It has the bits of one outside, whatever dtype its thread has for autocast."""
        needs_hopper()
        op, counts = OPS["swiglu"], COUNTS["ragged"]
        x, w, _ = given(op, counts, 264, 528, device="cuda")
        tensors = {"x": x.to(dtype).requires_grad_(), "w": w.to(dtype).requires_grad_()}
        offsets, made = torch.tensor(counts, device="cuda"), []
        upstream = randn(len(x), 264, dtype=BFLOAT16, device="cuda", seed=9)
        for inside in (True, False):
            with forced("Together"):
                with torch.autocast("cuda", BFLOAT16):
                    y = run(tensors, offsets, op)
                with torch.autocast("cuda", BFLOAT16, enabled=inside):
                    made.append(torch.autograd.grad(y, [*tensors.values()], upstream))
        assert [one.dtype for one in made[0]] == [dtype, dtype]
        assert all(map(same_bits, *made))

    def test_rows_of_tokens(self):
        """Rows are written in the order of tokens: the bits are those of a copy afterwards."""
        needs_hopper()
        counts = COUNTS["ragged"]
        h, w, _ = given(EMPTY, counts, 264, 520, device="cuda")
        expert = torch.arange(len(counts), device="cuda").repeat_interleave(
            torch.tensor(counts, device="cuda")
        )
        index = expert[torch.randperm(len(h), device="cuda")].view(-1, 2)
        weight, x = (torch.ones(len(index), n, device="cuda") for n in (2, 1))
        way, *_ = route(index, weight, x, len(counts))
        with forced("Together"):
            rows = without_store(h, w, way.offsets, ends=False)
            moved = without_store(h, w, way.offsets, way.order, ends=False)
            assert last_schedule() == "Together"
            assert same_bits(moved[way.order], rows)
            tensors = {"h": h.requires_grad_(), "w": w.requires_grad_()}

            def apart(h, w):
                return combine(EMPTY(h, w, offsets=way.offsets), way, len(h) // 2)

            def together(h, w):
                return summed_product(h, w, way, len(h) // 2)

            assert all(map(same_bits, step(together, tensors), step(apart, tensors)))

    def test_experts(self):
        """All gradients as near to float64 as by torch's products."""
        needs_hopper()
        torch.manual_seed(0)
        experts = fo.nn.Experts(16, 512, 384, device="cuda", dtype=BFLOAT16)
        exactly = fo.nn.Experts(16, 512, 384, device="cuda", dtype=torch.float64)
        exactly.load_state_dict({k: v.double() for k, v in experts.state_dict().items()})
        tokens = randn(300, 512, dtype=BFLOAT16, device="cuda")
        weight, index = randn(300, 16, device="cuda", seed=1).sigmoid().topk(4)

        def stepped(module, dtype):
            given = {"x": tokens.to(dtype), "weight": weight.to(BFLOAT16).to(dtype)}
            leaves = {name: one.requires_grad_() for name, one in given.items()}
            leaves |= dict(module.named_parameters())
            return step(lambda x, weight, **_: module(x, index, weight), leaves)

        want, found = stepped(exactly, torch.float64), []
        for how in ("torch", "Together"):
            with forced(how):
                found.append(stepped(experts, BFLOAT16))
        for by_torch, ours, one in zip(*found, want, strict=True):
            off = [((each.double() - one).abs() / (one.abs() + one.abs().mean())).max()
                   for each in (by_torch, ours)]  # fmt: skip
            assert off[1] <= 2 * off[0] + torch.finfo(BFLOAT16).eps
