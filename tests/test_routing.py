# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens and their experts by kernels of ours and by torch: order, copies, sums, and the choice."""

import itertools

import pytest
import torch
from cases import randn, same_bits, thorough_points
from products import HOPPER, check_resources, on_hopper, recording
from test_waits import check
from torch._subclasses.fake_tensor import FakeTensorMode

import fusedops as fo
from fusedops._runtime import Delegate, Reason
from fusedops.product import kernel_or_torch, routing, routing_kernels
from fusedops.product.routing import combine, dispatch, route
from fusedops.product.routing_kernels import planned_copy, planned_route, planned_sum

BFLOAT16 = torch.bfloat16

#: Where 8 experts' rows begin and end, described.
OFFSETS = torch.int32, (9,)
#: Tokens, choices and experts, and which are chosen.
CHOICES = {
    "even": (64, 8, 64, "even"),
    "random": (150, 7, 33, "random"),
    "skewed": (301, 4, 16, "skewed"),
    "all in one": (600, 1, 5, "all in one"),
    "none chosen": (41, 2, 3, "none"),
    "some of none": (530, 2, 40, "numbers of none"),
    "one token": (1, 16, 100, "random"),
    "one expert": (9, 3, 1, "random"),
    "many experts": (70, 16, 1024, "random"),
}


def chosen(name, dtype=torch.int64, device="cpu", tokens=None):
    """The experts of each token, and how many there are."""
    of, choices, experts, kind = CHOICES[name]
    shape, draw = (tokens or of, choices), torch.Generator().manual_seed(len(name))
    numbers = torch.randint(experts, shape, generator=draw)
    if kind == "even":
        numbers = torch.arange(numbers.numel()).remainder(experts).view(shape)
    elif kind == "skewed":
        numbers = (torch.rand(shape, generator=draw) ** 4 * experts).long()
    elif kind == "all in one":
        numbers = torch.full(shape, experts - 2)
    elif kind == "none":
        numbers = torch.full(shape, experts)
    elif kind == "numbers of none":
        others = torch.tensor([-1, experts, experts + 1, 2**31 - 1, -(2**31), 65536, -65536])
        of_none = torch.rand(shape, generator=draw) < 0.3
        picked = others[torch.randint(len(others), shape, generator=draw)]
        numbers = torch.where(of_none, picked, numbers)
    return numbers.to(device, dtype), experts


def sorted_by_hand(expert, experts):
    """The order of rows, the place of each choice, and offsets; numbers of none come last."""
    numbers = [one if 0 <= one < experts else experts for one in expert.flatten().tolist()]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)  # it is stable
    place = [0] * len(order)
    for row, choice in enumerate(order):
        place[choice] = row
    counts = torch.tensor(numbers).bincount(minlength=experts)[: experts - 1].tolist()
    offsets = [0, *itertools.accumulate(counts), len(order)]
    tensors = torch.tensor(order), torch.tensor(place), torch.tensor(offsets, dtype=torch.int32)
    return tuple(one.to(expert.device) for one in tensors)


def check_sums(y, terms):
    """One rounding of each result, and one of each partial sum in float32 or double."""
    of_y = torch.finfo(y.dtype)
    u, of_sums = of_y.eps / 2, torch.finfo(torch.promote_types(y.dtype, torch.float32)).eps / 2
    want, sizes = terms.double().sum(1), terms.double().abs().sum(1)
    # What float64 rounds as it sums is as much again, where y is of float64.
    off = 2 * terms.shape[1] * of_sums * sizes
    assert (
        (y.double() - want).abs().le(off + u * (want.abs() + off) + of_y.smallest_normal * u).all()
    )


class TestByTorch:
    @pytest.mark.parametrize("name", [name for name in CHOICES if name != "some of none"])
    def test_order(self, name):
        expert, experts = chosen(name)
        weight, x = randn(*expert.shape), randn(len(expert), 3, seed=1)
        way, ordered, rows = route(expert, weight, x, experts)
        for one, right in zip(way, sorted_by_hand(expert, experts), strict=True):
            assert torch.equal(one, right)
            assert one.dtype is right.dtype
        assert same_bits(ordered, weight.view(-1, 1)[way.order])
        assert same_bits(rows, x.repeat_interleave(expert.shape[1], 0)[way.order])

    @pytest.mark.parametrize("at_once", [routing._SORTED_AT_ONCE, 0])
    @pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
    def test_numbers_of_none(self, monkeypatch, dtype, at_once):
        """Those that 16 bits would take for an expert's, and those below 0."""
        monkeypatch.setattr(routing, "_SORTED_AT_ONCE", at_once)
        expert, experts = chosen("some of none", dtype)
        expert[0, 0], expert[1, 1], expert[2, 0] = 65537, -3, -65535
        way, *_ = route(expert, randn(*expert.shape), randn(len(expert), 3), experts)
        numbers, begins = expert.flatten().tolist(), way.offsets.tolist()
        assert begins[0] == sum(one < 0 for one in numbers)
        for one in range(experts):
            rows = way.order[begins[one] : begins[one + 1]].tolist()
            wanted = [at for at, number in enumerate(numbers) if number == one]
            assert rows[: len(wanted)] == wanted
            beyond = [numbers[row] for row in rows[len(wanted) :]]
            assert len(beyond) == (one == experts - 1) * sum(n >= experts for n in numbers)
            assert all(number >= experts for number in beyond)
        assert torch.equal(way.place[way.order], torch.arange(len(numbers)))

    def test_no_tokens(self):
        index, x = torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 5)
        way, ordered, rows = route(index, torch.zeros(0, 2), x, 3)
        assert way.order.shape == way.place.shape == (0,)
        assert way.offsets.tolist() == [0, 0, 0, 0]
        assert ordered.shape == (0, 1)
        assert rows.shape == dispatch(x, way).shape == (0, 5)
        assert combine(torch.zeros(0, 5), way, 0).shape == (0, 5)

    def test_gradients(self):
        expert, experts = chosen("random", tokens=5)
        weight = randn(*expert.shape, dtype=torch.float64).requires_grad_()
        x = randn(5, 3, dtype=torch.float64, seed=1).requires_grad_()

        def both(x, weight):
            way, ordered, rows = route(expert, weight, x, experts)
            return combine(rows * ordered, way, 5)

        assert torch.autograd.gradcheck(both, (x, weight))
        assert torch.autograd.gradgradcheck(both, (x, weight))
        want = x * weight.sum(1, keepdim=True)
        torch.testing.assert_close(both(x, weight), want)


class TestKernels:
    @pytest.mark.parametrize(
        ("index", "dtype"),
        [(torch.int64, BFLOAT16), *thorough_points((torch.int32, torch.float64))],
    )
    def test_resources(self, index, dtype, tmp_path):
        """No register spills, and nothing is read before the kernel before has ended."""
        expert, weight = torch.zeros(512, dtype=index), torch.zeros(512, dtype=dtype)
        x, rows = torch.zeros(64, 72, dtype=dtype), torch.zeros(512, 72, dtype=dtype)
        for one in (
            planned_route(expert, weight, x, (torch.int32, (65,)), HOPPER),
            planned_copy(x, expert, HOPPER),
            planned_sum(rows, expert, 64, HOPPER),
            planned_sum(rows, None, 64, HOPPER),
        ):
            assert len(one.launch.words) == 8 * one.launch.variant.words
            check_resources(one.launch.variant)
            check(one.launch.variant, tmp_path)

    def test_blocks(self):
        """A token each, as long as there are few enough blocks; all tokens are some block's."""
        for tokens, grid, each in ((1, 1, 3), (64, 64, 3), (129, 65, 6), (20000, 128, 471)):
            expert, x = torch.zeros(3 * tokens, dtype=torch.int32), torch.zeros(tokens, 8)
            one = planned_route(expert, torch.zeros(3 * tokens), x, OFFSETS, HOPPER)
            assert one.launch.grid == grid <= routing_kernels._MOST_BLOCKS
            assert int.from_bytes(one.launch.words[32:40], "little") == each
            assert grid * each >= 3 * tokens > (grid - 1) * each

    def test_torch_has_the_others(self):
        def routes(rows=8, index=torch.int64, dtype=BFLOAT16, x=None, offsets=OFFSETS):
            expert, weight = torch.zeros(rows, dtype=index), torch.zeros(rows, dtype=dtype)
            x = torch.zeros(rows, 1) if x is None else x
            return planned_route(expert, weight, x, offsets, HOPPER) is not None

        assert routes()
        assert routes(x=torch.zeros(4, 3)[:, :0])
        assert not routes(rows=0)
        assert not routes(rows=routing_kernels._MOST_CHOICES + 1)
        assert not routes(offsets=(torch.int32, (routing_kernels._MOST_EXPERTS + 2,)))
        assert not routes(index=torch.int16)
        assert not routes(dtype=torch.int32)
        assert not routes(x=torch.zeros(3, 4))
        assert not routes(x=torch.zeros(3, 4).T)
        assert not routes(x=torch.zeros(4, 3, dtype=torch.int32))
        expert, alike = torch.zeros(8, dtype=torch.int64), torch.zeros(1).expand(8)
        assert planned_route(expert, alike, torch.zeros(8, 1), OFFSETS, HOPPER) is None
        place = torch.zeros(8, dtype=torch.int64)
        assert planned_copy(torch.zeros(4, 16), place, HOPPER) is not None
        for x in (torch.zeros(0, 16), torch.zeros(16, 4).T, torch.zeros(4, 16, dtype=torch.int32)):
            assert planned_copy(x, place, HOPPER) is None
        assert planned_sum(torch.zeros(1, 1).expand(8, 16), None, 4, HOPPER) is None

    def test_packs(self):
        """Of 16 bytes, where all rows begin at multiples of these."""

        def width(x):
            place = torch.zeros(8, dtype=torch.int64)
            return planned_copy(x, place, HOPPER).launch.variant.tile.cpp.split(", ")[2]

        x = torch.zeros(4, 64, dtype=BFLOAT16)
        assert width(x) == "8>"
        assert width(x[:, 8:40]) == "8>"
        assert {width(one) for one in (x[:, 1:33], x[:, :12], x.view(2, 128)[:, :60])} == {"1>"}

    def test_a_kernel_that_cannot_be_had_is_asked_for_once(self, monkeypatch):
        on_hopper(monkeypatch)
        kernels, asked = routing_kernels._Kernels(), []
        monkeypatch.setattr(routing_kernels, "_kernels", kernels)
        monkeypatch.setattr(kernel_or_torch, "build_or_warn", lambda *args: asked.append(args))
        x, place = torch.zeros(4, 16), torch.zeros(8, dtype=torch.int64)
        assert isinstance(kernels._slow(Reason.MISS, x, {"place": place}, {}), Delegate)
        assert len(asked) == 1
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        monkeypatch.setattr(kernels, "copy", None)
        assert routing_kernels.copied_tokens(x, place) is None

    def test_nothing_outlives_a_recording(self, monkeypatch, tmp_path):
        recording(monkeypatch, tmp_path)
        given = torch.zeros(4, 16), {"place": torch.zeros(8, dtype=torch.int64)}
        assert routing_kernels._Kernels()._slow(Reason.MISS, *given, {}) is None

    def test_a_cpu_and_tracers_have_torch_s(self):
        place = torch.arange(8)
        assert routing_kernels.copied_tokens(torch.zeros(4, 16), place) is None
        with FakeTensorMode():
            x = torch.empty(4, 16, device="cuda")
            place = torch.empty(8, dtype=torch.int64, device="cuda")
            assert routing_kernels.copied_tokens(x, place) is None


@pytest.mark.gpu
class TestOnGpu:
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    @pytest.mark.parametrize("name", CHOICES)
    def test_order(self, name, dtype):
        for tokens in (None, 1, 5000):
            expert, experts = chosen(name, dtype, "cuda", tokens)
            weight = randn(*expert.shape, device="cuda").bfloat16()
            x = randn(len(expert), 40, device="cuda", seed=1)[:, :24]
            want = sorted_by_hand(expert, experts)
            for _ in range(2):
                *found, ordered, rows = routing_kernels.routed(
                    expert.view(-1), weight.view(-1), x, experts
                )
                assert all(map(torch.equal, found, want))
                assert same_bits(ordered, weight.view(-1, 1)[want[0]])
                assert same_bits(rows, x.repeat_interleave(expert.shape[1], 0)[want[0]])

    def test_many(self):
        """More rows than blocks have threads, beside torch's stable sort."""
        expert = torch.randint(-1, 65, (25000, 8), device="cuda")
        numbers = torch.where(expert < 0, 64, expert).flatten()
        x = torch.ones(len(expert), 1, device="cuda")
        way, *_ = route(expert, torch.ones(expert.shape, device="cuda"), x, 64)
        assert torch.equal(way.order, numbers.sort(stable=True).indices)
        assert torch.equal(way.place, way.order.argsort())
        counts = numbers.bincount(minlength=65)[:64]
        assert torch.equal(way.offsets[:-1].long(), counts.cumsum(0) - counts)

    @pytest.mark.parametrize("dtype", [BFLOAT16, torch.float16, torch.float32, torch.float64])
    @pytest.mark.parametrize("columns", [2048, 264, 7])
    def test_copies_and_sums(self, columns, dtype):
        """The bits of torch's copies, and sums within the bound."""
        expert, experts = chosen("skewed", device="cuda")
        x = randn(expert.shape[0], columns, dtype=dtype, device="cuda")
        way, _, copied = route(expert, torch.ones(expert.shape, device="cuda"), x, experts)
        rows = dispatch(x, way)
        assert same_bits(rows, x[way.order // expert.shape[1]])
        assert same_bits(rows, copied)
        each = randn(*rows.shape, dtype=dtype, device="cuda", seed=1)
        y = combine(each, way, len(x))
        check_sums(y, each[way.place].view(*expert.shape, columns))

    def test_of_experts(self, monkeypatch):
        """A step by these kernels and by torch's: the same bits but for the sums of choices."""
        torch.manual_seed(0)
        experts = fo.nn.Experts(16, 256, 136, device="cuda", dtype=BFLOAT16)
        x = randn(300, 256, dtype=BFLOAT16, device="cuda").requires_grad_()
        weight, index = randn(300, 16, device="cuda", seed=1).sigmoid().topk(4)
        weight = weight.to(BFLOAT16).requires_grad_()
        upstream, made = randn(300, 256, dtype=BFLOAT16, device="cuda", seed=2), []
        launches = routing_kernels._kernels.route.launches
        for by_torch in (False, True):
            monkeypatch.setattr(routing_kernels._kernels, "available", not by_torch)
            y = experts(x, index, weight)
            leaves = [x, weight, *experts.parameters()]
            made.append([y.detach(), *torch.autograd.grad(y, leaves, upstream)])
        assert routing_kernels._kernels.route.launches == launches + 1
        (y, dx, *others), (y_of_torch, dx_of_torch, *others_of_torch) = made
        torch.testing.assert_close([y, dx], [y_of_torch, dx_of_torch], rtol=2**-7, atol=1e-6)
        assert all(map(same_bits, others, others_of_torch))

    def test_in_a_cuda_graph(self):
        """Captured once, replayed with other choices."""
        expert, experts = chosen("even", device="cuda")
        weight, x = torch.rand(expert.shape, device="cuda"), randn(64, 264, device="cuda")

        def all_three():
            way, ordered, rows = route(expert, weight, x, experts)
            return [*way, combine(rows * ordered, way, len(x))]

        all_three()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = all_three()
        for shift in (0, 3, 64):
            expert.copy_((expert + shift) % (experts + 1))
            graph.replay()
            assert all(map(same_bits, found, all_three()))
