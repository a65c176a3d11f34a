# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A product and its loss as one kernel that writes no logits: its code, its choice, its numbers."""

import dataclasses
import re

import pytest
import torch
from cases import randn, thorough_points
from products import GOING_BACK, HOPPER, check_resources, forced, needs_hopper, on_hopper
from torch.nn import functional

import fusedops as fo
from fusedops.errors import CompilerNotFound
from fusedops.generate.views import STORAGE
from fusedops.plan.planned import Planned
from fusedops.plan.planner import plan
from fusedops.product import linear_loss_kernel as kernel
from fusedops.product import linear_loss_logits as logits
from fusedops.product.linear_loss_kernel import LossOfTiles, ProductRowSums, numbers_of
from fusedops.run.autograd import without_memory
from fusedops.schedule.architectures import TILINGS
from fusedops.testing import last_schedule

LOADS = {
    "none": [],
    "bias and softcap": [fo.Bias("b"), fo.Softcap("cap")],
    "scale and mask": [fo.Scale("s"), fo.Mask("m", keep=True)],
}
ALL = {"lse": True, "log_prob": True, "entropy": True, "largest": True, "correct": True}
SMOOTHING = {"label_smoothing": 0.2, "z_loss": 1e-3, **ALL}


def given(load, rows, classes, device="cpu"):
    """The operands of a load, of which each row keeps its target."""
    made = {
        "b": randn(classes, device=device, seed=2),
        "cap": 7.0,
        "s": randn(*rows, 1, device=device, seed=3).abs() + 0.5,
        "m": randn(classes, device=device, seed=4) > -1,
    }
    names = [operand.name for one in LOADS[load] for operand in one.operands()]
    return {name: made[name] for name in names}


def described(load, tiling, dtype, rows=(300,), classes=1000, features=200, **options):
    """The kernel of a call, for a device that need not be there."""
    op = fo.LinearCrossEntropy(LOADS[load], **options)
    x, w = torch.empty(300, features, dtype=dtype), torch.empty(classes, features, dtype=dtype)
    operands = given(load, rows, classes)
    operands["target"] = torch.zeros(*rows, 1, dtype=torch.int64)
    bound = op.of_part.whole.bind(without_memory(x, (*rows, classes)), operands)
    tile = dataclasses.replace(TILINGS[tiling], dtype=STORAGE[dtype])
    return plan(ProductRowSums(bound, x, w, tile), HOPPER)


@pytest.mark.parametrize(
    ("load", "tiling", "dtype", "options"),
    [
        ("bias and softcap", "Together", torch.bfloat16, SMOOTHING),
        *thorough_points(
            *[(load, "Together", torch.bfloat16, {}) for load in LOADS],
            *[(load, "InTurns", torch.float16, ALL) for load in LOADS],
            ("none", "Together", torch.float16, SMOOTHING),
        ),
    ],
)
def test_registers_do_not_spill(load, tiling, dtype, options):
    (launch,) = described(load, tiling, dtype, **options).launches
    assert launch.variant.arch == "sm_90a"
    assert len(launch.words) == 8 * launch.variant.words
    check_resources(launch.variant)


class TestSource:
    def test_masks_come_before_the_target_is_kept(self):
        (variant,) = described("scale and mask", "Together", torch.bfloat16).variants
        text = "store(a.load0, a.load1, gemm::keep_target(a.op.target, a.at), Absent{})"
        assert text in variant.source
        assert "RowNumbers<false, false, false>" in variant.source
        assert "FUSEDOPS_ROUNDED_ARGUMENTS" not in variant.source, "numbers are of 32 bits"

    def test_numbers_that_options_need(self):
        made = described("none", "Together", torch.bfloat16, **SMOOTHING)
        assert "RowNumbers<true, true, true>" in made.variants[0].source
        assert made.results.outputs == [
            (torch.float32, (4, 4, 300)),
            (torch.float32, (300,)),
        ]

    def test_rows_of_several_dimensions(self):
        made = described("scale and mask", "InTurns", torch.float16, rows=(3, 100))
        assert made.results.outputs[0] == (torch.float32, (1, 8, 300))


class TestChoice:
    @staticmethod
    def told(rows=8192, classes=128256, features=4096, dtype=torch.bfloat16, **options):
        """What runs a call, and why."""
        part = fo.LinearCrossEntropy(**options).of_part.whole
        sizes = ((rows, features), (classes, features))
        x, w = (torch.empty(one, dtype=dtype, device="meta") for one in sizes)
        return kernel.chosen(part, x, w, {}, HOPPER)

    def test_large_products(self):
        for options in ({}, {"dtype": torch.float16}, SMOOTHING, {"rows": 512, "features": 8192}):
            assert self.told(**options).tiling.name == "Together", options

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"rows": 100}, "not faster"),
            ({"rows": 257}, "not faster"),
            ({"classes": 4096, "rows": 512}, "not faster"),
            ({"features": 1016}, "not faster"),
            ({"classes": 50257}, "multiples of 8"),
            ({"dtype": torch.float32}, "float16 and bfloat16 alone"),
        ],
        ids=str,
    )
    def test_what_is_left_to_blocks(self, options, why):
        choice = self.told(**options)
        assert choice.tiling is None
        assert why in choice.why

    def test_tilings_whose_lanes_share_no_row(self):
        with forced("Together192"):
            assert "no sums of rows" in self.told().why

    def test_factors_that_bulk_copies_cannot_read(self):
        part = fo.LinearCrossEntropy().of_part.whole
        x, w = (torch.empty(512, size, dtype=torch.bfloat16) for size in (64, 65))
        target = {"target": torch.zeros(512, 1, dtype=torch.int64)}
        with forced("Together"):
            good = kernel.pass_of(part, x, w[:, :64].contiguous(), target, HOPPER)
            assert plan(good, HOPPER) is not None
            assert plan(kernel.pass_of(part, x, w[:, :64], target, HOPPER), HOPPER) is None

    def test_a_recorded_call_runs_the_losses_of_blocks(self, monkeypatch, tmp_path):
        """They are built for any GPU, and for calls that bulk copies cannot read."""
        on_hopper(monkeypatch)
        part, target = fo.LinearCrossEntropy().of_part.whole, {"target": torch.zeros(8192, 1)}
        sizes = ((8192, 4096), (128256, 4096))
        x, w = (torch.empty(one, dtype=torch.bfloat16, device="meta") for one in sizes)
        assert kernel.chosen(part, x, w, target).tiling is not None
        monkeypatch.setenv("FUSEDOPS_RECORD", str(tmp_path / "calls.jsonl"))
        assert "calls are recorded" in kernel.chosen(part, x, w, target).why
        assert kernel.chosen(part, x, w, target, HOPPER).tiling is not None, "it is built ahead"

    def test_explain_of_factors_that_bulk_copies_cannot_read(self, monkeypatch):
        on_hopper(monkeypatch)
        w = torch.zeros(4096, 65, dtype=torch.bfloat16)[:, :64]
        target, op = torch.zeros(512, dtype=torch.int64), fo.LinearCrossEntropy()
        with forced("Together"):
            for x, of_w, told in (
                (w[:512].contiguous(), w.contiguous(), "one kernel that multiplies"),
                (w[:512].contiguous(), w, "by bulk copies"),
                (w[:512], w.contiguous(), "by bulk copies"),
            ):
                assert told in op.explain(x, of_w, target=target).implementation

    def test_explain(self, monkeypatch):
        on_hopper(monkeypatch)
        sizes = ((2, 512, 1024), (16384, 1024))
        x, w = (torch.empty(one, dtype=torch.bfloat16, device="meta") for one in sizes)
        target = torch.zeros(2, 512, dtype=torch.int64, device="meta")
        cap = {"load": [fo.Softcap("cap")]}
        told = fo.LinearCrossEntropy(**cap).explain(x, w, target=target, cap=3.0)
        assert told.kernels == 1
        assert "one kernel that multiplies and writes one number a row" in told.implementation
        assert "64 tiles, 262144 bytes" in told.implementation
        few = fo.LinearCrossEntropy(**cap).explain(x[:, :8], w, target=target[:, :8], cap=3.0)
        assert "blocks of" in few.implementation
        assert "not faster" in few.implementation


class TestCalls:
    @staticmethod
    def call(op, columns):
        """One call by its kernel, of rows that lie this far apart."""
        x, w = torch.zeros(2, 4096, columns, dtype=torch.bfloat16)[..., :64]
        with forced("Together"):
            return op.of_tiles._call(x[:512], w=w, target=torch.zeros(512, 1, dtype=torch.int64))

    def test_one_that_has_no_kernel_is_planned_once(self, monkeypatch):
        on_hopper(monkeypatch)
        op, planned = fo.LinearCrossEntropy(z_loss=0.125), []
        monkeypatch.setattr(kernel, "plan", lambda one: planned.append(plan(one, HOPPER)))
        assert [self.call(op, 65) for _ in "xyz"] == [None] * 3
        assert planned == [None]

    def test_a_warning_says_what_runs_instead(self, monkeypatch):
        def missing(planned):
            raise CompilerNotFound("there is no compiler")

        on_hopper(monkeypatch)
        op = fo.LinearCrossEntropy(z_loss=0.125)
        monkeypatch.setattr(kernel, "plan", lambda one: plan(one, HOPPER))
        monkeypatch.setattr(Planned, "build", missing)
        says = re.escape(f"{op!r}: the product and the loss of each block of classes run")
        with pytest.warns(RuntimeWarning, match=says):
            assert self.call(op, 64) is None
        assert not op.of_tiles.able

    @pytest.mark.parametrize("classes", [2049, 4096, 32008, 128256])
    def test_columns_are_those_of_the_kernel_that_ran(self, classes):
        for cols in (128, 256):
            assert kernel.columns_of(-(-classes // cols), classes) == cols


def of_tiles(part, x, w, operands, cols):
    """What the kernel writes, by torch: the last tile begins earlier, so that it ends with w."""
    z = functional.linear(x, w).view(*operands["target"].shape[:-1], w.shape[0])
    label = operands["target"].clamp(0, w.shape[0] - 1)
    z = fo.Map(part.load)(z, **{k: one for k, one in operands.items() if k != "target"}).float()
    parts = {name: [] for name in numbers_of(part)}
    for begin in range(0, w.shape[0], cols):
        v = z[..., begin : begin + cols]
        lse = v.logsumexp(-1)
        p = (v - lse[..., None]).exp()
        of = {"lse": lse, "mean": v.mean(-1), "largest": v.amax(-1)}
        of["entropy"] = lse - (p * v.masked_fill(v == -torch.inf, 0.0)).sum(-1)
        for name, made in parts.items():
            made.append(of[name])
    at = z.gather(-1, label)[..., 0]
    return {name: torch.stack(made) for name, made in parts.items()}, at


@pytest.mark.parametrize("options", [{}, SMOOTHING, {"correct": True, "ignore_index": 0}], ids=str)
@pytest.mark.parametrize("rows", [(40,), (5, 8)], ids=str)
def test_tiles_are_joined_as_blocks_are(rows, options, monkeypatch):
    """The same results and gradients, whoever makes the numbers of some columns."""
    monkeypatch.setattr(logits, "_FEWEST_CLASSES", 64)
    x = randn(*rows, 24, seed=1).requires_grad_()
    w = randn(333, 24, seed=2).requires_grad_()
    target = torch.randint(0, 333, rows, generator=torch.Generator().manual_seed(3))
    target.view(-1)[::7] = options.get("ignore_index", -100)
    operands = given("bias and softcap", rows, 333)
    if len(rows) == 2:
        operands["b"] = randn(rows[-1], 333, seed=5)  # which rows of the batch share
    options = {**options, "reduction": "none", "lse": True}
    op = fo.LinearCrossEntropy(LOADS["bias and softcap"], **options)
    made, calls = [], []

    def by_tiles(self, x, w, operands):
        calls.append(x.shape)
        parts, at = of_tiles(self._part, x, w, operands, 32)
        if "correct" in self._part.outputs:
            parts["correct"] = kernel.hits_of(at, parts["largest"])
        return parts, at, 32

    for way in (LossOfTiles.__call__, by_tiles):
        monkeypatch.setattr(LossOfTiles, "__call__", way)
        found = op(x, w, target=target, **operands)
        made.append([*found, *torch.autograd.grad(found.loss.sum() + found.lse.sum(), (x, w))])
    assert calls == [(40, 24)]
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


def truth(x, w, target, load, operands, options):
    """Results of a call in float64 of the same rounded factors."""
    z = functional.linear(x.double(), w.double())
    if "b" in operands:
        z = z + operands["b"].double()
    if "s" in operands:
        z = z * operands["s"].double()
    if "cap" in operands:
        z = operands["cap"] * torch.tanh(z / operands["cap"])
    if "m" in operands:
        z = z.masked_fill(~operands["m"], -torch.inf)
    lse, eps = z.logsumexp(-1), options.get("label_smoothing", 0.0)
    at = z.gather(-1, target.clamp(0, w.shape[0] - 1)[..., None])[..., 0]
    loss = (1 - eps) * (lse - at) + (eps * (lse - z.mean(-1)) if eps else 0)
    loss = loss + options.get("z_loss", 0.0) * lse.square()
    p = (z - lse[..., None]).exp()
    entropy = lse - (p * z.masked_fill(z == -torch.inf, 0.0)).sum(-1)
    return {"loss": loss, "lse": lse, "log_prob": at - lse, "entropy": entropy}


def test_entropies_of_peaked_rows_are_joined(monkeypatch):
    """They are small beside the logits, and no difference of numbers as large as these."""
    monkeypatch.setattr(logits, "_FEWEST_CLASSES", 64)
    x, w, target = 4 * randn(200, 8), 4 * randn(3000, 8, seed=1), torch.zeros(200).long()
    op = fo.LinearCrossEntropy(reduction="none", **ALL)
    with torch.no_grad():
        found = op(x, w, target=target).entropy
    exact = truth(x, w, target, "none", {}, {})
    wanted, lse = exact["entropy"], exact["lse"]
    assert wanted.min() < 1e-3
    # A part's lse is rounded, and an error of a logit moves the entropy by a share of itself.
    eps = torch.finfo(torch.float32).eps
    off = eps * functional.linear(x.abs(), w.abs()).amax(-1) * 4
    assert ((found - wanted).abs() <= 2 * eps * lse.abs() + 4 * off * wanted).all()


def test_a_row_without_classes_has_no_hit():
    """Neither joined of tiles nor by the op of a whole row."""
    x, w, target = randn(3, 8), randn(64, 8, seed=1), torch.tensor([5, 40, 60])
    m = torch.ones(3, 64, dtype=torch.bool)
    m[0], m[1, :32] = False, False
    op = fo.LinearCrossEntropy([fo.Mask("m", keep=True)], reduction="none", **ALL)
    parts, at = of_tiles(op.of_part.whole, x, w, {"m": m, "target": target[:, None]}, 32)
    hits = kernel.hits_of(at, parts["largest"]).amax(0)
    whole = op(x, w, target=target, m=m)
    assert hits[0] == whole.correct[0] == 0
    assert hits[1] == whole.correct[1]


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", GOING_BACK)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(
    "sizes", [(257, 4104, 72), (640, 6000, 512), (1000, 4097 * 8, 200)], ids=str
)
def test_against_float64(sizes, load, dtype, tiling):
    needs_hopper()
    rows, classes, features = sizes
    options = {} if load == "scale and mask" else {"label_smoothing": 0.2, "z_loss": 1e-3}
    options |= {"lse": True, "log_prob": True, "entropy": True}
    x = randn(rows, features, dtype=dtype, device="cuda")
    w = (randn(classes, features, device="cuda", seed=1) * 2 * features**-0.5).to(dtype)
    operands = given(load, (rows,), classes, "cuda")
    target = torch.randint(0, classes, (rows,), device="cuda")
    target[:4] = torch.tensor([0, classes - 1, classes - 256, classes - 257])
    if "m" in operands:
        operands["m"][target] = True
    target[5] = -100
    target[6:9] = torch.tensor([classes, -1, 2**40 + 1])  # which are no classes
    op = fo.LinearCrossEntropy(LOADS[load], reduction="none", **options)
    with forced(tiling), torch.no_grad():
        found = op(x, w, target=target, **operands)._asdict()
        assert last_schedule() == f"{tiling}, sums of rows"
        again = op(x, w, target=target, **operands)._asdict()
    wanted = truth(x, w, target, load, operands, options)
    # Each logit is off by its rounding and by that of its sum, and a scale multiplies both.
    unit, single = torch.finfo(dtype).eps / 2, torch.finfo(torch.float32).eps
    grows = float(operands["s"].max()) if "s" in operands else 1.0
    z = functional.linear(x.double(), w.double()).abs().amax(-1) * grows
    off = 2 * unit * z + single * (4 * features**0.5 + 32)
    known = torch.ones(rows, dtype=torch.bool, device="cuda")
    known[5:9] = False
    for name, one in wanted.items():
        slope = 1 + 2 * options.get("z_loss", 0.0) * wanted["lse"].abs()
        slope = slope + 2 * wanted["lse"].abs().max() * (name == "entropy")
        error = (found[name].double() - one).abs()[known]
        assert (error <= (2 * slope * off)[known]).all(), name
        assert torch.equal(found[name][known], again[name][known])
        assert found[name][5] == 0
    assert found["loss"][6:9].isnan().all()
    assert found["log_prob"][6:9].isnan().all()
    assert found["lse"][6:9].isfinite().all()


@pytest.mark.gpu
def test_it_is_as_two_kernels_where_logits_are_not_finite():
    needs_hopper()
    x = randn(300, 128, dtype=torch.bfloat16, device="cuda")
    w = randn(4104, 128, dtype=torch.bfloat16, device="cuda", seed=1)
    b = randn(4104, device="cuda", seed=2)
    x[10, 3], x[11], x[21] = torch.nan, 0, torch.nan
    b[5], b[1000:1600] = torch.inf, -torch.inf
    target = torch.randint(0, 1000, (300,), device="cuda")
    target[21], target[30] = -100, 1200
    op = fo.LinearCrossEntropy([fo.Bias("b")], reduction="none", **ALL)
    masked = b.clamp(max=10).repeat(300, 1)
    masked[40], masked[41, :256], target[40:42] = -torch.inf, -torch.inf, 300
    for bias in (b, b.clamp(max=10), masked):
        made = []
        for way in ("two_kernels", *GOING_BACK):
            with forced(way), torch.no_grad():
                made.append(op(x, w, target=target, b=bias))
        for other in made[1:]:
            for first, second in zip(made[0], other, strict=True):
                # What is smaller than lse is off by a few roundings of that, which is below 128.
                torch.testing.assert_close(first, second, equal_nan=True, rtol=1e-5, atol=3e-5)
    assert made[0].loss[30] == torch.inf
    assert made[0].correct[40] == 0


@pytest.mark.gpu
def test_no_logits_are_in_memory_and_the_host_does_not_wait():
    needs_hopper()
    x = randn(4096, 256, dtype=torch.bfloat16, device="cuda")
    w = randn(32768, 256, dtype=torch.bfloat16, device="cuda", seed=1)
    target = torch.randint(0, 32768, (4096,), device="cuda")
    op = fo.LinearCrossEntropy()
    with forced("Together"), torch.no_grad():
        op(x, w, target=target)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            op(x, w, target=target)
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    numbers = 4096 * 128 * 4
    assert torch.cuda.max_memory_allocated() - before <= 4 * numbers


@pytest.mark.gpu
def test_gradients_that_are_made_late_need_no_logits_before():
    needs_hopper()
    x = randn(1024, 256, dtype=torch.float16, device="cuda").requires_grad_()
    w = (randn(8192, 256, device="cuda", seed=1) / 8).half().requires_grad_()
    target = torch.randint(0, 8192, (1024,), device="cuda")
    op, made = fo.LinearCrossEntropy(label_smoothing=0.1, lse=True), []
    for way in ("two_kernels", "Together"):
        with forced(way):
            found = op(x, w, target=target)
            made.append(torch.autograd.grad(found.loss * 512 + found.lse.mean() * 512, (x, w)))
    for one, other in zip(*made, strict=True):
        error = (one.double() - other.double()).norm() / one.double().norm()
        assert error <= 2 * torch.finfo(torch.float16).eps
