# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of a grouped product's matrices by one kernel: its code, its choice, its values."""

import itertools

import pytest
import torch
from cases import randn, same_bits, thorough_points
from products import HALF, HOPPER, check_resources, forced, needs_hopper, on_hopper, recording
from test_product_kernels import tiling_of
from torch._subclasses.fake_tensor import FakeTensorMode

import fusedops as fo
from fusedops._runtime import Reason
from fusedops.generate.product import MOST_GROUPS
from fusedops.product import grouped_weights, kernel_or_torch
from fusedops.product.grouped_weights import (
    chosen_for_weights,
    gradient_of_weights,
    planned_for_weights,
)
from fusedops.testing import last_schedule

BFLOAT16 = torch.bfloat16
#: The rows of each group, about the rows of an instruction and of a stage.
COUNTS = {
    "ragged": [5, 0, 64, 65, 130, 0, 257, 1, 128, 300],
    "instructions": [16, 32, 48, 15, 17, 31, 33, 47, 49, 63],
    "all in one": [0, 0, 511, 0],
    "many groups": [7 * i % 23 for i in range(200)],
}


def given(counts, n, k, dtype=BFLOAT16, device="cpu"):
    """dz, x, and where the groups end."""
    made = [randn(sum(counts), size, dtype=dtype, device=device, seed=size) for size in (n, k)]
    ends = torch.tensor([*itertools.accumulate(counts)], dtype=torch.int32, device=device)
    return (*made, ends)


def spans(counts):
    """Where each group begins and ends."""
    return [*itertools.pairwise([0, *itertools.accumulate(counts)])]


class TestPlan:
    @pytest.mark.grid(strength=1)
    @pytest.mark.parametrize(
        ("name", "dtype"),
        [
            ("Together", BFLOAT16),
            *thorough_points(("Together", HALF), ("Together192", BFLOAT16)),
        ],
    )
    def test_registers_do_not_spill_and_products_are_not_serialized(self, name, dtype):
        dz, x, ends = given(COUNTS["ragged"], 136, 264, dtype)
        (launch,) = planned_for_weights(dz, x, ends, tiling_of(name, dtype), HOPPER).launches
        assert len(launch.words) == 8 * launch.variant.words
        assert "gemm::Major::kMN, gemm::Major::kMN>" in launch.variant.source
        check_resources(launch.variant)

    def test_blocks_and_rows(self):
        """Two blocks for each pair of tiles, of all groups, as far as there are multiprocessors."""
        for groups, blocks in ((3, 2 * 3 * 2 * 2), (200, 132)):
            dz, x, ends = given([1] * groups, 264, 264)
            planned = planned_for_weights(dz, x, ends, tiling_of("Together", BFLOAT16), HOPPER)
            assert planned.launches[0].grid == blocks
            assert planned.launches[0].rows == 264 * groups
            assert planned.results.outputs == [(BFLOAT16, (groups, 264, 264))]

    def test_a_half_of_the_columns_is_read_as_it_lies(self):
        dz, x, ends = given(COUNTS["ragged"], 272, 264)
        tiling = tiling_of("Together", BFLOAT16)
        for half in (dz[:, :136], dz[:, 136:]):
            assert planned_for_weights(half, x, ends, tiling, HOPPER) is not None
        for other in (dz[:, 1:137], dz[:1].expand(len(x), -1), dz.mT.contiguous().mT):
            assert planned_for_weights(other, x, ends, tiling, HOPPER) is None


class TestChoice:
    def told(self, n=2816, k=2048, groups=64, rows=512, dtype=BFLOAT16, of_x=None):
        dz, x = (
            torch.empty(rows, size, dtype=one, device="meta")
            for size, one in ((n, dtype), (k, of_x or dtype))
        )
        return chosen_for_weights(dz, x, groups, HOPPER)

    def test_the_shipped_rows(self):
        assert self.told().tiling.name == "Together"
        assert self.told(groups=1, n=256, k=256).tiling is None

    @pytest.mark.parametrize(
        "more",
        [
            {"dtype": torch.float32},
            {"of_x": HALF},
            {"k": 2052},
            {"k": 248},
            {"n": 120},
            {"rows": 0},
            {"groups": 0},
            {"groups": MOST_GROUPS + 1},
            {"n": 2**24, "groups": 128},
        ],
        ids=str,
    )
    def test_torch_has_the_others(self, more):
        with forced("Together"):
            assert self.told().tiling is not None
            assert self.told(**more).tiling is None

    @pytest.mark.parametrize("name", ["InTurns", "FewRows", "two_kernels"])
    def test_tilings_without_such_a_kernel(self, name):
        with forced(name):
            assert self.told().tiling is None

    def test_a_kernel_that_cannot_be_had_is_asked_for_once(self, monkeypatch):
        on_hopper(monkeypatch)
        op, asked = grouped_weights._OfWeights(), []
        monkeypatch.setattr(grouped_weights, "_of_weights", op)
        monkeypatch.setattr(kernel_or_torch, "build_or_warn", lambda *args: asked.append(args))
        for rows in (7, 9, 11):
            dz, x, ends = given([rows, 1], 256, 256)
            with forced("Together"):
                made = op._slow(Reason.MISS, dz, {"x": x, "ends": ends}, {})
                assert made(dz, x=x, ends=ends) is None if callable(made) else made is not None
            assert len(asked) == 1
        assert not op.available
        monkeypatch.setattr(op, "call", None)
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        assert gradient_of_weights(dz, x, ends) is None
        assert "as a warning said" in self.told().why

    def test_nothing_outlives_a_recording(self, monkeypatch, tmp_path):
        recording(monkeypatch, tmp_path)
        dz, x, ends = given([3, 4], 256, 256)
        op = grouped_weights._OfWeights()
        assert op._slow(Reason.MISS, dz, {"x": x, "ends": ends}, {}) is None
        assert "calls are recorded" in self.told().why

    def test_a_cpu_and_tracers_have_torch_s(self):
        assert gradient_of_weights(*given([3, 4], 256, 256)) is None
        with FakeTensorMode(), forced("Together"):
            traced = [torch.empty(7, 256, dtype=BFLOAT16, device="cuda") for _ in range(2)]
            ends = torch.empty(2, dtype=torch.int32, device="cuda")
            assert gradient_of_weights(*traced, ends) is None


@pytest.mark.gpu
class TestOnGpu:
    @pytest.mark.parametrize(
        ("counts", "n", "k", "dtype", "tiling"),
        [
            ("ragged", 528, 512, BFLOAT16, "Together"),
            ("instructions", 136, 264, HALF, "Together"),
            *thorough_points(
                ("ragged", 136, 264, HALF, "Together192"),
                ("instructions", 528, 520, BFLOAT16, "Together192"),
                ("all in one", 264, 1000, BFLOAT16, "Together"),
                ("many groups", 200, 304, HALF, "Together"),
            ),
        ],
    )
    def test_against_float64(self, counts, n, k, dtype, tiling):
        """Within the bound of docs/explanation/products.md, NaN in the memory that it gets."""
        needs_hopper()
        counts = COUNTS[counts]
        dz, x, ends = given(counts, n, k, dtype, "cuda")
        pairs = [(dz[a:b].double(), x[a:b].double()) for a, b in spans(counts)]
        want = torch.stack([one.mT @ other for one, other in pairs])
        size = torch.stack([one.abs().mT @ other.abs() for one, other in pairs])
        found = []
        for _ in range(2):
            torch.full(want.shape, torch.nan, dtype=dtype, device="cuda")
            with forced(tiling):
                found.append(gradient_of_weights(dz, x, ends))
            assert last_schedule() == f"{tiling}, gradient of w"
        u, least = torch.finfo(dtype).eps / 2, torch.finfo(dtype).smallest_normal
        bound = u * (want.abs() + least) + max(counts) ** 0.5 * 2.0**-23 * size
        assert (found[0].double() - want).abs().le(bound).all()
        assert same_bits(*found)

    @pytest.mark.parametrize("counts", ["ragged", "instructions"])
    def test_nothing_of_other_groups_enters(self, counts):
        """Not even what makes NaN of a zero."""
        needs_hopper()
        counts = COUNTS[counts]
        dz, x, ends = given(counts, 136, 264, device="cuda")
        with forced("Together"):
            want = gradient_of_weights(dz, x, ends)
            for group, (begin, end) in enumerate(spans(counts)):
                others = dz.clone(), x.clone()
                for one, number in zip(others, (torch.nan, torch.inf), strict=True):
                    one[:begin], one[end:] = number, -number
                assert same_bits(gradient_of_weights(*others, ends)[group], want[group])

    def test_in_a_step(self):
        """Of an op with halves: as near to float64 as torch's, and replayed with other groups."""
        needs_hopper()
        op, counts = fo.GroupedLinear([fo.Gate("up", of="value")], halves="up"), COUNTS["ragged"]
        x = randn(sum(counts), 264, dtype=BFLOAT16, device="cuda", seed=1)
        w = randn(len(counts), 272, 264, dtype=BFLOAT16, device="cuda", seed=2) * 264**-0.5
        up = randn(sum(counts), 136, dtype=BFLOAT16, device="cuda", seed=3)
        offsets = torch.tensor(counts, device="cuda")

        def step(x, w, up):
            (dw,) = torch.autograd.grad(op(x, w.requires_grad_(), offsets=offsets), w, up)
            return dw

        exact = step(x.double(), w.detach().double(), up.double())
        off = []
        for how in ("two_kernels", "Together"):
            with forced(how):
                dw = step(x, w.detach(), up)
            off.append((dw.double() - exact).norm() / exact.norm())
        assert last_schedule() == "Together, gradient of w"
        assert off[1] <= 1.1 * off[0]
        assert off[0] <= 0.01
        dz, x, ends = given(counts, 272, 264, device="cuda")
        with forced("Together"):
            gradient_of_weights(dz, x, ends)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                dw = gradient_of_weights(dz, x, ends)
            for order in (counts, counts[::-1], [0] * 9 + [sum(counts)]):
                ends.copy_(torch.tensor([*itertools.accumulate(order)]))
                dw.fill_(torch.nan)
                graph.replay()
                assert same_bits(dw, gradient_of_weights(dz, x, ends))
