# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows by one kernel: its code, when it is chosen, and its values."""

import functools
import itertools

import pytest
import torch
from cases import randn, same_bits, thorough_points
from products import HALF, HOPPER, forced, needs_hopper, on_hopper, recording
from test_product_kernels import tiling_of

import fusedops as fo
from fusedops.jit import nvrtc
from fusedops.product.grouped_kernel import chosen_for_groups
from fusedops.testing import last_schedule

BFLOAT16 = torch.bfloat16
OPS = {
    "plain": fo.GroupedLinear([fo.Bias("c")]),
    "swiglu": fo.GroupedLinear([fo.Gate("up", of="value")], halves="up"),
    "interleaved": fo.GroupedLinear(
        [fo.Bias("b"), fo.Gate("up", of="value")], ["b"], "up", interleaved=True
    ),
    "by expert": fo.GroupedLinear(
        [fo.Bias("b"), fo.Scale("router"), fo.Residual("r", save="stream")], by_expert=["b"]
    ),
    "all": fo.GroupedLinear(
        [fo.Bias("b"), fo.Gate("up", of="value"), fo.Scale("router")], by_expert=["b"], halves="up"
    ),
}
#: The rows of each group, about the sizes of tiles.
COUNTS = {
    "few": [1, 0, 2],
    "ragged": [5, 0, 64, 65, 130, 0, 257, 1, 128, 300],
    "all in one": [0, 0, 511, 0],
    "many groups": [7 * i % 23 for i in range(200)],
}


def given(op, counts, k, n, dtype=BFLOAT16, device="cpu", major="rows"):
    """x, w, and the operands of a call by name."""
    rows, groups, columns = sum(counts), len(counts), n // 2 if op.halves else n
    make = functools.partial(randn, dtype=dtype, device=device)
    w = make(groups, n, k, seed=2) * k**-0.5
    made = {
        "b": make(groups, columns, seed=3),
        "c": make(columns, seed=4),
        "router": make(rows, 1, seed=5),
        "r": make(rows, columns, seed=6),
    }
    own = {name: one for name, one in made.items() if name in op.slots}
    return make(rows, k, seed=1), w if major == "rows" else w.mT.contiguous().mT, own


def exact(op, x, w, counts, b=0.0, c=0.0, router=1.0, r=0.0):
    """The result of rounded inputs in float64, group by group."""
    ends = list(itertools.accumulate(counts))
    z = torch.cat([x[e - n : e].double() @ one.double().mT
                   for one, n, e in zip(w, counts, ends, strict=True)])  # fmt: skip
    if isinstance(b, torch.Tensor):
        b = b.double().repeat_interleave(torch.tensor(counts, device=x.device), 0)
    if op.halves is None:
        return (z + b + c) * router + r
    value, up = (z[:, ::2], z[:, 1::2]) if op.interleaved else z.chunk(2, 1)
    return torch.nn.functional.silu(value + b) * up * router


def planned(name, counts="ragged", k=200, n=528, major="rows", dtype=BFLOAT16, **more):
    """A call as one kernel, for a device that need not be there."""
    op = OPS[name]
    x, w, own = given(op, COUNTS[counts], k, n, dtype, major=major)
    own["offsets"] = torch.tensor(COUNTS[counts])
    return op.planned(x, w, {**own, **more}, tiling_of("Together", dtype), HOPPER)


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("name", "major", "dtype"),
    [
        ("swiglu", "rows", BFLOAT16),
        *thorough_points(
            *itertools.product(OPS, ["rows", "columns"], [torch.float16, BFLOAT16]),
        ),
    ],
)
def test_registers_do_not_spill_and_products_are_not_serialized(name, major, dtype):
    (launch,) = planned(name, major=major, dtype=dtype).launches
    assert len(launch.words) == 8 * launch.variant.words
    source = launch.variant.source
    assert ("kMN" in source) == (major == "columns")
    assert ("OtherHalf" in source) == (OPS[name].halves is not None)
    _, log = nvrtc.compile_cuda(source, launch.variant.arch, [nvrtc.RESOURCES])
    assert "0 bytes spill stores, 0 bytes spill loads" in log, log
    assert "C75" not in log, log


class TestChoice:
    def told(self, monkeypatch, name="swiglu", counts="ragged", k=200, n=528, **more):
        on_hopper(monkeypatch)
        op = OPS[name] if isinstance(name, str) else name
        x, w, own = given(op, COUNTS[counts], k, n, more.pop("dtype", BFLOAT16))
        offsets = torch.tensor(COUNTS[counts])
        with forced("Together"):
            return str(op.explain(x, w, offsets=offsets, **{**own, **more}))

    def test_one_kernel(self, monkeypatch):
        told = self.told(monkeypatch)
        assert "one kernel for product and STORE (Together)" in told
        assert "z again" not in told

    @pytest.mark.parametrize(
        ("more", "why"),
        [
            ({"dtype": torch.float32}, "float16 and bfloat16 alone"),
            ({"k": 201}, "multiples of 8"),
            ({"n": 240}, "tiles of 128 columns"),
            ({"name": fo.GroupedLinear([fo.Dropout("p")]), "p": 0.5}, "draws nothing"),
        ],
        ids=str,
    )
    def test_two_kernels(self, monkeypatch, more, why):
        told = self.told(monkeypatch, **more)
        assert "torch's product, then one kernel" in told
        assert why in " ".join(told.split())

    def test_deep_products_are_left_to_torch(self, monkeypatch):
        on_hopper(monkeypatch)
        op, offsets = OPS["swiglu"], torch.tensor([1, 2])
        for k, one in ((4096, True), (4104, False)):
            told = str(op.explain(torch.ones(3, k, dtype=HALF), torch.ones(2, 256, k, dtype=HALF),
                                  offsets=offsets))  # fmt: skip
            assert ("one kernel for product and STORE" in told) == one

    def test_columns_are_numbers_of_32_bits(self):
        x, w = (torch.empty(*size, 8, dtype=HALF, device="meta") for size in ((2,), (2, 2**31)))
        choice = chosen_for_groups(OPS["plain"].epilogue, x, w, {}, 1, HOPPER, HALF)
        assert choice.tiling is None

    def test_recorded_calls_can_be_built_ahead(self, monkeypatch, tmp_path):
        """As those of a Map: no list of kernels has those of groups."""
        recording(monkeypatch, tmp_path)
        assert "torch's product, then one kernel" in self.told(monkeypatch)

    def test_gradients_keep_the_product(self, monkeypatch):
        on_hopper(monkeypatch)
        op = OPS["swiglu"]
        x, w, _ = given(op, COUNTS["ragged"], 200, 528)
        told = op.explain(x.requires_grad_(), w, offsets=torch.tensor(COUNTS["ragged"]))
        assert "one kernel for product and STORE (Together)" in str(told)
        assert sum(bar.written for bar in told.fused if bar.name == "z") == 2 * 950 * 528
        assert "the gradient of x is a product of groups by torch: " in str(told)

    def test_explain_has_no_copies_of_factors(self, monkeypatch):
        """Not even under autocast, of w in another dtype."""
        on_hopper(monkeypatch)
        x, w = randn(64, 512).requires_grad_(), randn(16, 512, 512).requires_grad_()
        offsets = torch.tensor([4] * 16)
        with forced("Together"), torch.autocast("cpu", BFLOAT16):
            OPS["swiglu"].explain(x, w, offsets=offsets)
            with torch.profiler.profile(profile_memory=True) as profile:
                told = OPS["swiglu"].explain(x, w, offsets=offsets)
        assert "one kernel for product and STORE (Together)" in str(told)
        assert "of each group's rows by one kernel (Together)" in str(told)
        assert max(one.self_cpu_memory_usage for one in profile.events()) < w.nbytes // 8

    def test_operands_by_group_are_read_as_they_are(self, monkeypatch):
        on_hopper(monkeypatch)
        op, counts = OPS["by expert"], COUNTS["ragged"]
        x, w, own = given(op, counts, 200, 528)
        with forced("Together"):
            told = op.explain(x, w, offsets=torch.tensor(counts), **own)
        read = {bar.name: bar.read for bar in told.fused}
        assert [read[name] for name in op.by_expert] == [own[name].nbytes for name in op.by_expert]
        assert told.bytes == sum(bar.bytes for bar in told.fused)


@pytest.mark.gpu
class TestOnGpu:
    @pytest.mark.parametrize(
        ("name", "counts", "k", "n", "major", "form"),
        [
            ("swiglu", "ragged", 200, 272, "rows", "counts"),
            ("by expert", "ragged", 136, 512, "columns", "offsets"),
            *thorough_points(
                ("plain", "few", 64, 256, "rows", "offsets"),
                ("plain", "ragged", 1000, 264, "columns", "counts"),
                ("swiglu", "all in one", 512, 1024, "rows", "offsets"),
                ("swiglu", "many groups", 72, 304, "columns", "counts"),
                ("by expert", "many groups", 8, 1000, "rows", "counts"),
                ("all", "ragged", 520, 528, "rows", "offsets"),
                ("interleaved", "ragged", 136, 560, "rows", "counts"),
            ),
        ],
    )
    def test_against_float64(self, name, counts, k, n, major, form):
        """As near as torch's product and a kernel, NaN in the memory that it gets."""
        needs_hopper()
        op, counts = OPS[name], COUNTS[counts]
        x, w, own = given(op, counts, k, n, device="cuda", major=major)
        ends = [0, *itertools.accumulate(counts)]
        offsets = torch.tensor(counts if form == "counts" else ends, device="cuda")
        want, found = exact(op, x, w, counts, **own), []
        for how in ("torch", "Together", "Together"):
            torch.full(want.shape, torch.nan, dtype=x.dtype, device="cuda")
            with forced(how), torch.no_grad():
                made = op(x, w, offsets=offsets, **own)
            found.append(made if isinstance(made, torch.Tensor) else made[0])
            assert (last_schedule() == "Together") == (how == "Together")
        off = [((one.double() - want).abs() / (1 + want.abs())).max() for one in found]
        assert off[1] <= 2 * off[0]
        assert off[0] <= 0.05
        assert same_bits(found[1], found[2])

    def test_nan_and_replays_stay_in_their_groups(self):
        """Captured once, replayed with other groups, of which one has a NaN in its weight."""
        needs_hopper()
        op, counts = OPS["swiglu"], COUNTS["ragged"]
        x, w, _ = given(op, counts, 200, 272, device="cuda")
        w[4, 3, 5] = torch.nan
        offsets = torch.tensor(counts, device="cuda")
        with forced("Together"), torch.no_grad():
            op(x, w, offsets=offsets)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = op(x, w, offsets=offsets)
            for order in (counts, counts[::-1], [0, 0, 0, 0, sum(counts), 0, 0, 0, 0, 0]):
                offsets.copy_(torch.tensor(order))
                y.fill_(2)
                graph.replay()
                begin = sum(order[:4])
                assert y[begin : begin + order[4], 3].isnan().all()
                assert y.isnan().sum() == order[4]
                assert same_bits(y, op(x, w, offsets=offsets))

    @pytest.mark.parametrize("wrong", ["negative", "falling", "beyond"])
    def test_wrong_offsets_reach_nothing_outside(self, wrong):
        """No error is raised, since nothing waits for the device; the next call is right."""
        needs_hopper()
        op, counts = OPS["plain"], COUNTS["ragged"]
        x, w, own = given(op, counts, 200, 272, device="cuda")
        ends = [0, *itertools.accumulate(counts)]
        offsets = {
            "negative": [-5] * len(counts) + [10**12],
            "falling": ends[::-1],
            "beyond": [10**12] * len(ends),
        }[wrong]
        with forced("Together"), torch.no_grad():
            want = op(x, w, offsets=torch.tensor(ends, device="cuda"), **own)
            op(x, w, offsets=torch.tensor(offsets, device="cuda"), **own)
            torch.cuda.synchronize()
            assert same_bits(op(x, w, offsets=torch.tensor(ends, device="cuda"), **own), want)
