# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of what stands between two products, in the epilogue of one: code and results."""

import dataclasses

import pytest
import torch
from cases import raises, randn, same_bits
from test_linear_fused import forced, gelu
from test_variants import covering

import fusedops as fo
from fusedops.generate.target import Target
from fusedops.generate.views import STORAGE
from fusedops.jit import nvrtc
from fusedops.plan.planner import plan
from fusedops.prebuild.build_all import variants
from fusedops.prebuild.recording import Signature
from fusedops.product import product_backward, recorded
from fusedops.schedule.architectures import TILINGS
from fusedops.testing import check, last_schedule


@fo.functor
def gated(v, gate):
    return v * torch.sigmoid(v) * gate


HIDDEN = {
    "gelu": [fo.Bias("b1"), gelu()],
    "dropout": [fo.Bias("b1"), gelu(), fo.Dropout("p")],
    "gate": [fo.Scale("s"), gated("g")],
    "bare": [gelu()],
}
HALVES = [torch.float16, torch.bfloat16]
HOPPER = Target.named("sm_90")


def case(hidden, dtype=torch.float16, device="cpu", shape=(3, 100), n=200, h=264, k=136):
    """The op, its factors and operands."""
    op = fo.MLP(hidden=HIDDEN[hidden], store=[fo.Bias("b2")])
    factors = [
        randn(*size, dtype=dtype, device=device, seed=seed)
        for seed, size in enumerate(((*shape, k), (h, k), (n, h)))
    ]
    factors[1] /= k**0.5
    operands = {
        "b1": randn(h, dtype=dtype, device=device, seed=4),
        "b2": randn(n, dtype=dtype, device=device, seed=5),
        "s": randn(h, dtype=torch.float32, device=device, seed=6),
        "g": randn(*shape, h, dtype=dtype, device=device, seed=7),
        "p": 0.3,
    }
    return op, factors, {name: operands[name] for name in op.slots}


def described(hidden, tiling="Together", dtype=torch.float16, wanted=None, **sizes):
    """The kernels of the gradient, for a device that need not be there."""
    op, (x, _, w2), operands = case(hidden, dtype, **sizes)
    epilogue = op.epilogues[0]
    own = {name: operands[name] for name in epilogue.slots}
    if epilogue.dropouts:
        own["generator"] = (5, 64)
    if wanted is None:
        wanted = {name for name, one in own.items() if isinstance(one, torch.Tensor)}
    z = x.new_empty(*x.shape[:-1], w2.shape[1])
    dy = x.new_empty(*x.shape[:-1], w2.shape[0])
    made = dataclasses.replace(TILINGS[tiling], dtype=STORAGE[dtype], mn_major=True)
    return planned(epilogue.bind(z, own), wanted, dy, w2, made)


def planned(bound, wanted, dy, w, tiling):
    """The plan of the gradient as one kernel, or None."""
    one = product_backward.ProductGradient(bound, frozenset(wanted), dy, w, tiling)
    return plan(one, HOPPER)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("hidden", "tiling", "dtype"),
    covering(2, ["gelu", "dropout", "gate", "bare"], TILINGS, [torch.float16, torch.bfloat16]),
)
def test_registers_do_not_spill_and_products_are_not_serialized(hidden, tiling, dtype):
    variant = described(hidden, tiling, dtype).variants[0]
    _, log = nvrtc.compile_cuda(variant.source, variant.arch, [nvrtc.RESOURCES])
    assert "registers" in log, "no report, so that nothing would be found"
    assert "C75" not in log, log
    spilled = [line for line in log.splitlines() if "bytes spill" in line]
    assert spilled, log
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in spilled), log


def test_what_it_writes():
    """dz, h, the gradients of operands; sums of each tile, four for 128 rows, pairs of tiles."""
    made = described("gate")
    half, single, product = torch.float16, torch.float32, (3, 100, 264)
    assert made.results.outputs == [
        (half, product),
        (half, product),
        (single, (264,)),
        (half, product),
        (single, (16, 264)),
    ]
    first, sums = made.variants
    assert "gemm::OfTile<0, 0, View<float, 1, Column::kContiguous, 4>>" in first.source
    assert "targets(a.of_load0_0, a.of_load1_0)" in first.source
    assert sums.entry == "sums"
    frozen = described("gate", wanted=["g"])
    assert len(frozen.launches) == 1
    assert len(frozen.results.outputs) == 3


def test_what_a_tile_cannot_add_up_is_left_to_two_kernels():
    op = fo.MLP(hidden=[fo.Scale("s"), gelu()])
    z, dy, w = (randn(*size, dtype=torch.float16) for size in ((300, 264), (300, 200), (200, 264)))
    made = dataclasses.replace(TILINGS["Together"], mn_major=True)
    for s, able in ((z[0], True), (z, True), (z[:, :1], False), (z[0, 0], False)):
        bound = op.epilogues[0].bind(z, {"s": s.float()})
        told = planned(bound, {"s"}, dy, w, made)
        assert (told is not None) is able
        assert planned(bound, (), dy, w, made) is not None
    bound = op.epilogues[0].bind(z, {"s": 2.0})
    assert planned(bound, (), dy, w, made) is not None
    for left, right in ((dy[:, 1:], w[1:]), (dy, w.new_empty(264, 200).mT)):
        assert planned(bound, (), left, right, made) is None
    twice = fo.MLP(hidden=[fo.Bias("b"), gelu(), fo.Bias("b")])
    bound = twice.epilogues[0].bind(z, {"b": z[0]})
    assert planned(bound, {"b"}, dy, w, made) is None


def test_where_it_is_chosen():
    def implementation(op, rows=16384, n=1024, h=4096, dtype=torch.float16, **own):
        dy, w = torch.empty(rows, n, dtype=dtype), torch.empty(n, h, dtype=dtype)
        return product_backward.chosen(op.epilogues[0], dy, w, own, HOPPER).tiling

    op = fo.MLP(hidden=HIDDEN["gelu"])
    b1 = torch.empty(4096, dtype=torch.float16)
    assert implementation(op, b1=b1).mn_major
    assert implementation(op, b1=b1, dtype=torch.float32) is None
    assert implementation(op, b1=b1, n=1023) is None
    assert implementation(op, b1=b1, rows=100) is None
    masked = fo.MLP(hidden=[fo.Mask("m"), gelu()])
    assert implementation(masked, m=torch.ones(4096, dtype=torch.bool)) is None
    with forced("two_kernels"):
        assert implementation(op, b1=b1) is None


def gradients(op, factors, operands, dy, **options):
    """Those of all floating tensors, by name."""
    given = {**dict(zip(op.inputs, factors, strict=True)), **operands}
    leaves = {
        name: one.detach().requires_grad_()
        for name, one in given.items()
        if isinstance(one, torch.Tensor)
    }
    all_of = {**given, **leaves}
    first = [all_of.pop(name) for name in op.inputs]
    y = op(*first, **all_of, **options)
    return dict(zip(leaves, torch.autograd.grad(y, [*leaves.values()], dy), strict=True))


@pytest.mark.thorough
def test_a_second_derivative_is_refused(device):
    op, factors, operands = case("gelu", torch.float32, device, shape=(2, 3), n=8, h=16, k=8)
    x, w1, w2 = (one.requires_grad_() for one in factors)
    y = op(x, w1, w2, **operands)
    (dx,) = torch.autograd.grad(y, [x], randn(*y.shape, device=device), create_graph=True)
    with raises(fo.UnsupportedError, "first derivative only"):
        dx.sum().backward()


class TestRecorded:
    @pytest.mark.thorough
    def test_a_run_on_a_cpu_names_the_kernels_of_a_gpu(self, tmp_path, monkeypatch):
        file = tmp_path / "calls.jsonl"
        monkeypatch.setenv("FUSEDOPS_RECORD", str(file))
        monkeypatch.setattr("fusedops.prebuild.recording._seen", set())
        op, factors, operands = case("dropout", shape=(1024,), h=2112, n=64, k=8)
        dy = randn(1024, 64, dtype=torch.float16)
        for _ in range(2):
            gradients(op, factors, operands, dy)
        every = [Signature.parse(line) for line in file.read_text().splitlines()]
        (one,) = [each for each in every if each.factors and each.wanted]
        assert not one.backward
        assert one.factors == {"x": "float16:1024,64", "w": "float16:64,2112"}
        assert one.wanted == ("b1", "x")
        assert str(Signature.parse(str(one))) == str(one)
        training, sums, evaluation = recorded.variants([one], HOPPER)
        assert [training.entry, sums.entry, evaluation.entry] == [
            "product_gradient",
            "sums",
            "product_gradient",
        ]
        assert "Dropout<" in training.source
        assert "Dropout<" not in evaluation.source
        assert not recorded.variants([one], Target.named("sm_100"))
        assert variants([one], HOPPER), "what two kernels need"

    def test_the_layer_that_keeps_its_product_is_recorded_too(self, tmp_path, monkeypatch):
        file = tmp_path / "calls.jsonl"
        monkeypatch.setenv("FUSEDOPS_RECORD", str(file))
        monkeypatch.setattr("fusedops.prebuild.recording._seen", set())
        op, factors, operands = case("gelu", shape=(1024,), h=2112, n=64, k=8)
        gradients(op, factors, operands, randn(1024, 64, dtype=torch.float16))
        every = [Signature.parse(line) for line in file.read_text().splitlines()]
        (one,) = [each for each in every if each.factors and not each.wanted]
        assert "Save(name='z'" in one.op
        (variant,) = recorded.variants([one], HOPPER)
        assert variant.entry == "product"


def test_what_explain_says():
    op, (x, w1, w2), operands = case("gelu", shape=(4,))
    told = op.explain(x, w1.requires_grad_(), w2.requires_grad_(), **operands)
    assert told.recomputed
    assert "made again from z in the backward pass, by a kernel that moves" in str(told)
    assert "one kernel for both needs sm_90" in str(told)


def test_nothing_is_filled_with_zeros(device):
    """As torch would for the hidden tensor, to which no gradient goes back by itself."""
    op, factors, operands = case("gelu", torch.float32, device, shape=(32,), n=8, h=64, k=8)
    y = op(*(one.requires_grad_() for one in factors), **operands)
    with torch.profiler.profile(record_shapes=True) as profile:
        torch.autograd.grad(y, factors, randn(32, 8, device=device))
    made = [(one.key, one.input_shapes) for one in profile.key_averages(group_by_input_shape=True)]
    assert [name for name, _ in made if name == "aten::mm"], "nothing was recorded"
    assert not [one for one in made if one[0] in ("aten::zeros", "aten::zero_", "aten::fill_")]


@pytest.mark.gpu
@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
    reason="one kernel for both is for sm_90",
)
class TestOnAGpu:
    @pytest.mark.parametrize("dtype", HALVES, ids=str)
    @pytest.mark.parametrize("tiling", TILINGS)
    @pytest.mark.parametrize("hidden", HIDDEN)
    def test_against_float64(self, hidden, tiling, dtype):
        """Tiles that begin earlier, whose sums may not be counted twice; a depth with a rest."""
        op, factors, operands = case(hidden, dtype, "cuda")
        with forced(tiling):
            report = check(op, *factors, **operands)
            run = gradients(op, factors, operands, randn(3, 100, 200, dtype=dtype, device="cuda"))
        assert last_schedule() == f"{tiling}, gradient"
        assert {"in double"} <= {one.case for one in report.compared}
        assert all(one.isfinite().all() for one in run.values())

    @pytest.mark.parametrize(
        "sizes",
        [
            {"shape": (128,), "h": 256, "n": 8},
            {"shape": (257,), "h": 1000, "n": 72},
            {"shape": (1000,), "h": 264, "n": 1000},
            {"shape": (5, 513), "h": 1032, "n": 64},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("tiling", TILINGS)
    def test_sizes(self, tiling, sizes):
        op, factors, operands = case("gelu", torch.bfloat16, "cuda", **sizes)
        with forced(tiling):
            assert check(op, *factors, **operands).passed

    def test_many_tiles_a_cluster_twice(self):
        """Persistent blocks; two runs have the same bits, and poison in memory reaches nothing."""
        op, factors, operands = case(
            "dropout", torch.float16, "cuda", shape=(4999,), h=2056, n=520, k=64
        )
        for one in (*factors[:2], operands["b1"]):  # so that x @ w1.T + b1 is exact in any order
            one.data = (one.data * 64).round() / 64
        dy = randn(4999, 520, dtype=torch.float16, device="cuda", seed=9)
        runs = []
        for tiling in TILINGS:
            with forced(tiling):
                for _ in range(2):
                    for size in ((4999, 2056), (8 << 20,)):
                        torch.full(size, torch.nan, dtype=torch.float16, device="cuda")
                    runs.append(gradients(op, factors, operands, dy, generator=(7, 8)))
        for first, second in (runs[:2], runs[2:]):
            assert all(same_bits(first[name], second[name]) for name in first)
        with forced("two_kernels"):
            want = gradients(op, factors, operands, dy, generator=(7, 8))
        for run in runs:
            assert same_bits(run["w2"], want["w2"]), "h has the bits that it had"
            for name, one in want.items():
                far = (run[name].double() - one.double()).norm() / one.double().norm()
                assert far < 2e-3, name  # a wrong tile of 600 would be 4e-2

    def test_infinities_and_nans_are_seen(self):
        op, factors, operands = case("gelu", torch.float16, "cuda")
        dy = randn(3, 100, 200, dtype=torch.float16, device="cuda", seed=9)
        dy[1, 7, 3] = torch.nan
        with forced("Together"):
            run = gradients(op, factors, operands, dy)
        assert run["b1"].isnan().all(), "a NaN that reaches each column of one row"
        assert run["x"][1, 7].isnan().all()
        assert run["x"][0].isfinite().all()

    def test_under_autocast_and_in_a_captured_graph(self):
        op, factors, operands = case("dropout", torch.float32, "cuda", shape=(300,))
        leaves = [one.requires_grad_() for one in factors]
        bias = operands.pop("b1").float().requires_grad_()
        operands["b2"] = operands["b2"].float()

        def step():
            with torch.autocast("cuda", torch.bfloat16), forced("Together"):
                y = op(*leaves, b1=bias, **operands)
                return torch.autograd.grad(y.float().square().mean(), [*leaves, bias])

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        assert last_schedule() == "Together, gradient"
        graph.replay()
        torch.cuda.synchronize()
        first = [one.clone() for one in captured]
        graph.replay()
        torch.cuda.synchronize()
        assert all(one.dtype is torch.float32 and one.isfinite().all() for one in first)
        assert not same_bits(first[0], captured[0]), "another draw"
