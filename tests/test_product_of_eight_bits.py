# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""One kernel for a product of 8-bit factors and its functors: its code, its choice, its values."""

import pytest
import torch
from cases import randn, same_bits, thorough_points
from products import (
    HOPPER,
    check_resources,
    forced,
    may_be_one,
    needs_hopper,
    on_hopper,
    recording,
)
from test_product_compiled import own, watched
from test_tuning_products import as_if_on_a_gpu

import fusedops as fo
from fusedops import _runtime
from fusedops._runtime import Delegate
from fusedops.jit import nvrtc
from fusedops.plan.planner import plan
from fusedops.prebuild.recording import Signature
from fusedops.product import choice as choices
from fusedops.product import recorded
from fusedops.product.product_kernel import Product
from fusedops.testing import check, last_schedule
from fusedops.tuning import product as tuning

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BF16 = torch.bfloat16
SCALES = [fo.Scale("sx"), fo.Scale("sw")]
STORES = {
    "scales": SCALES,
    "gelu": [*SCALES, fo.Bias("b"), fo.GELU()],
    "gate": [*SCALES, fo.Gate("r", "silu")],
    "saving": [*SCALES, fo.Bias("b"), fo.Dropout("p"), fo.Residual("r", save="stream")],
}
OPS = {name: fo.Linear(store) for name, store in STORES.items()}


def given(op, shape=(300, 208), outputs=264, kind=E4M3, device="cpu"):
    """The factors of a call, with a scale a row each, and its other operands by name."""
    quantise = fo.Map(store=[fo.DynamicQuantize(kind)])
    x, sx = quantise(randn(*shape, device=device))
    w, sw = quantise(randn(outputs, shape[-1], device=device, seed=1) / shape[-1] ** 0.5)
    y = (*shape[:-1], outputs)
    tensors = {
        "sx": sx,
        "sw": sw[:, 0],
        "b": randn(outputs, device=device, dtype=BF16, seed=2),
        "r": randn(*y, device=device, dtype=BF16, seed=3),
        "p": 0.25,
    }
    return x, w, {name: tensors[name] for name in op.slots}


def chosen(op, x, w, operands, by="Together"):
    """What runs a call on an H200, where this implementation is forced; None leaves it open."""
    if by is None:
        return choices.chosen(op.epilogue, x, w, operands, HOPPER)
    with forced(by):
        return choices.chosen(op.epilogue, x, w, operands, HOPPER)


def described(op, x, w, operands):
    """One kernel of a call, for a device that need not be there, or None."""
    tiling = chosen(op, x, w, operands).tiling
    bound = choices.bind_store(op.epilogue, x, w, operands)
    return plan(Product(bound, x, w, tiling), HOPPER)


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ("gelu", E4M3),
        *thorough_points(*((store, kind) for store in STORES for kind in (E4M3, E5M2))),
    ],
)
def test_registers_do_not_spill_and_products_are_not_serialized(store, kind):
    op = OPS[store]
    (variant,) = described(op, *given(op, kind=kind)).variants
    assert variant.arch == "sm_90a"
    _, ptx, _ = nvrtc._compile(variant.source, variant.arch, [])
    name = "e4m3" if kind is E4M3 else "e5m2"
    assert ptx.count(b"wgmma.mma_async") == ptx.count(f"m64n128k32.f32.{name}.{name}".encode()) == 4
    assert ptx.count(b"cvt.rn.bf16x2.f32") >= 32, "the sums are rounded to bfloat16"
    check_resources(variant)


def test_the_sum_of_each_stage_is_added_in_float32():
    """After the products of a stage, and before all are handed over, there are additions of 64."""
    op = OPS["scales"]
    (variant,) = described(op, *given(op)).variants
    _, ptx, _ = nvrtc._compile(variant.source, variant.arch, [])
    after = ptx[ptx.rindex(b"wgmma.mma_async") :]
    assert after[: after.index(b"stmatrix")].count(b"add.f32") == 64


class TestChoice:
    def test_a_tile_has_the_registers_of_two_sums(self):
        op = OPS["gelu"]
        call = given(op)
        tiling = chosen(op, *call).tiling
        assert (tiling.rows, tiling.cols, tiling.stage_columns) == (128, 128, 128)
        assert tiling.cpp == (
            "gemm::Tiling<float8_e4m3, 128, 128, 6, false, kPacks, gemm::Major::kK>"
        )
        assert tiling.shared_bytes <= HOPPER.gpu.shared_limit
        (launch,) = described(op, *call).launches
        assert len(launch.words) == 8 * launch.variant.words

    def test_what_two_kernels_run(self):
        op = OPS["gelu"]
        x, w, operands = given(op)
        assert "not faster" in chosen(op, x, w, operands, None).why
        for by in ("Together192", "InTurns", "FewRows", "two_kernels"):
            assert chosen(op, x, w, operands, by).tiling is None
        assert "factors of one dtype" in chosen(op, x, given(op, kind=E5M2)[1], operands).why
        odd = given(op, shape=(300, 200))  # rows that no bulk copy reads
        assert "multiples of 16 columns and 8 rows" in chosen(op, *odd).why
        few = given(op, shape=(127, 208))
        assert "128 x 128" in chosen(op, *few).why

    def test_a_weight_that_is_not_contiguous_along_k(self):
        op = OPS["gelu"]
        x, w, operands = given(op)
        assert described(op, x, w, operands) is not None
        assert described(op, x, w.t().contiguous().t(), operands) is None

    def test_what_explain_says(self, monkeypatch):
        op = OPS["gelu"]
        x, w, operands = given(op)
        on_hopper(monkeypatch)
        with forced("Together"):
            told = op.explain(x, w, **operands)
            assert "(Together), with tiles of 128 x 128" in told.implementation
            assert "rounded to bfloat16" in told.notes[0]
            assert told.kernels == 1
            scaled = fo.Linear([fo.GELU()], scales=("u", "v"))
            own = {"u": operands["sx"], "v": operands["sw"][:, None]}
            told = scaled.explain(x, w, **own)
            assert "(Together), with tiles of 128 x 128" in told.implementation
            assert "one kernel multiplies by u and v, before the STORE" in told.notes
            assert told.bytes == x.nbytes + w.nbytes + 2 * 300 * 264 + 4 * (300 + 264)
            own = {"u": torch.ones(300, 2), "v": torch.ones(264, 2)}
            assert "scales of rows, or of 128 x 128" in scaled.explain(x, w, **own).implementation

    def test_what_is_tuned(self, monkeypatch):
        op = OPS["gelu"]
        x, w, operands = given(op)
        as_if_on_a_gpu(monkeypatch)
        bound = choices.bind_store(op.epilogue, x, w, operands)
        factors = {"x": x, "w": w}
        problem = tuning.of_product(op, bound, factors, torch.device("cuda"), {})
        assert problem.kernel.features.dtype == "float8_e4m3fn"
        assert problem.kernel.names == ("two_kernels", "Together")


@pytest.mark.thorough
def test_recorded_on_a_cpu_and_built_for_a_gpu(tmp_path, monkeypatch):
    file, op = recording(monkeypatch, tmp_path), OPS["gelu"]
    x, w, operands = given(op)
    op.clear()
    with torch.no_grad(), forced("Together"):
        op(x, w, **operands)
        lines = [Signature.parse(line) for line in file.read_text().splitlines()]
        (one,) = [each for each in lines if each.factors]
        assert one.factors == {"x": "float8_e4m3fn:300,208", "w": "float8_e4m3fn:264,208"}
        (variant,) = recorded.variants([one], HOPPER)
    op.clear()
    (want,) = described(op, x, w, operands).variants
    assert (variant.key, variant.source) == (want.key, want.source)


@pytest.mark.thorough
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("store", ["gelu", "bias"])
def test_in_compiled_code(store, learns, monkeypatch):
    """One operator, which chooses when it runs; the gradient of "gelu" reads the product."""
    may_be_one(monkeypatch)
    op = OPS["gelu"] if store == "gelu" else fo.Linear([*SCALES, fo.Bias("b")])
    x, w, operands = given(op)
    run, graph = watched(op)
    found = []
    for function in (run, op):
        bias = operands["b"].detach().requires_grad_(learns)
        y = function(x, w, **{**operands, "b": bias})
        found.append([y.detach()])
        if learns:
            found[-1] += torch.autograd.grad(y.float().sum(), bias)
    assert all(same_bits(*pair) for pair in zip(*found, strict=True))
    assert own(graph) == ["forward of Linear"]


@pytest.mark.thorough
@pytest.mark.parametrize("store", ["gelu", "bias"])
def test_a_call_that_one_kernel_would_run_trains(store, monkeypatch):
    """The bias has a gradient, which reads the product or not; two kernels are in place of one."""
    op, found = OPS["gelu"] if store == "gelu" else fo.Linear([*SCALES, fo.Bias("b")]), []
    x, w, operands = given(op)
    for fuses in (False, True):
        op.clear()
        monkeypatch.setattr(fo.Linear, "fuses", lambda *call, fuses=fuses: fuses)
        monkeypatch.setattr(fo.Linear, "_plan", lambda *call: None)
        bias = operands["b"].detach().requires_grad_()
        y = op(x, w, **{**operands, "b": bias})
        found.append((y.detach(), *torch.autograd.grad(y.float().sum(), bias)))
    op.clear()
    assert all(same_bits(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_scales_of_rows_go_before_the_store(layout, monkeypatch):
    """As `Scale`, in an op that one kernel may run; scales of blocks and of no STORE do not."""
    asked = []
    x, w, operands = given(OPS["gelu"], (2, 3, 256))
    u, v = operands["sx"], operands["sw"][:, None]
    if layout == "columns":
        u = u.movedim(-1, 0)
    op = fo.Linear(STORES["gelu"][2:], scales=("sx", "sw"), layout=layout)
    monkeypatch.setattr(fo.Linear, "by_one_kernel", lambda op, *call: asked.append(op))
    blocks = {"sx": torch.ones(2, 3, 2), "sw": torch.ones(3, 2)}
    if layout == "columns":
        blocks["sx"] = blocks["sx"].movedim(-1, 0)
    op(x, w, **blocks, b=operands["b"])
    fo.Linear(scales=("u", "v"), layout=layout)(x, w, u=u, v=v)
    assert not asked
    op(x, w, sx=u, sw=v, b=operands["b"])
    assert [one.text for one in asked] == [OPS["gelu"].text]
    monkeypatch.setattr(fo.Linear, "by_one_kernel", lambda op, *call: Delegate(op.run_apart))
    op.clear()
    assert torch.equal(op(x, w, sx=u, sw=v, b=operands["b"]), OPS["gelu"](x, w, **operands))
    monkeypatch.undo()
    op.clear()
    assert check(op, x, w, sx=u, sw=v, b=operands["b"]).passed


def scaled(layout, shape=(5, 60, 336), outputs=384, device="cpu"):
    """A layer with scales of blocks, its factors, and its operands by name."""
    op = fo.Linear([fo.Bias("b"), fo.GELU()], scales=("u", "v"), layout=layout)
    x, w, operands = given(OPS["gelu"], shape, outputs, device=device)
    across = -(-shape[-1] // 128)
    u, v = (
        randn(*size, device=device, seed=seed).abs() + 0.1
        for seed, size in enumerate(((*shape[:-1], across), (-(-outputs // 128), across)), 5)
    )
    if layout == "columns":
        u = u.movedim(-1, 0).contiguous()
    return op, x, w, {"b": operands["b"], "u": u, "v": v}


class TestScalesAlongK:
    @pytest.mark.parametrize("layout", ["rows", "columns"])
    def test_the_kernel_and_its_arguments(self, layout):
        op, x, w, operands = scaled(layout)
        scales = op.scales.of_blocks(x, w, operands.pop("u"), operands.pop("v"))
        assert [tuple(one.shape) for one in scales] == [(300, 3), (3, 3)]
        tiling = chosen(op, x, w, operands).tiling
        bound = choices.bind_store(op.epilogue, x, w, operands)
        (launch,) = plan(Product(bound, x, w, tiling, scales), HOPPER).launches
        _, ptx, _ = nvrtc._compile(launch.variant.source, "sm_90a", [])
        after = ptx[ptx.rindex(b"wgmma.mma_async") :]
        assert after[: after.index(b"stmatrix")].count(b"fma.rn.f32") == 64
        _, log = nvrtc.compile_cuda(launch.variant.source, "sm_90a", [nvrtc.RESOURCES])
        assert "C75" not in log, log
        assert "0 bytes spill stores, 0 bytes spill loads" in log
        words = torch.frombuffer(bytearray(launch.words), dtype=torch.int64).tolist()
        named = [name for name, _ in op.called_with] + ["w"]
        slots = {kind: [] for kind in (_runtime.POINTER, _runtime.TENSOR_MAP)}
        for word, kind, slot in launch.patches:
            slots.setdefault(kind, []).append(slot)
            name = named[slot - 1]
            if kind == _runtime.POINTER and name in "uv":
                assert tuple(words[word + 1 : word + 3]) == scales["uv".index(name)].stride()
        assert [named[slot - 1] for slot in slots[_runtime.POINTER]] == ["b", "u", "v"]
        assert slots[_runtime.TENSOR_MAP] == [0, 1 + named.index("w")]

    def test_what_explain_says(self, monkeypatch):
        calls = [scaled("columns"), scaled("columns", outputs=392)]
        on_hopper(monkeypatch)
        with forced("Together"):
            one, other = (op.explain(x, w, **operands) for op, x, w, operands in calls)
        assert "(Together), with tiles of 128 x 128" in one.implementation
        assert "one kernel multiplies by u and v, before the STORE" in one.notes
        assert "multiples of 128 rows" in other.implementation

    def test_what_two_kernels_run(self):
        op, x, w, operands = scaled("rows")
        u, v = operands["u"], operands["v"]
        assert op.scales.of_blocks(x, w, u, v) is not None
        assert op.scales.of_blocks(x, w, u, v.repeat_interleave(128, 0)) is None
        apart = torch.ones(5, 64, 3)[:, :60]  # not evenly
        assert op.scales.of_blocks(x, w, apart, v) is None


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def hopper(self):
        needs_hopper()

    @pytest.mark.parametrize("kind", [E4M3, E5M2], ids=str)
    @pytest.mark.parametrize("store", STORES)
    def test_against_float64(self, store, kind):
        """Whole and ragged shapes, more tiles than clusters, and K that no stage divides."""
        op = OPS[store]
        for shape, outputs in (
            ((128, 16), 128),
            ((3, 100, 208), 264),
            ((4096, 1024), 1024),
            ((4995, 1040), 1000),
        ):
            x, w, operands = given(op, shape, outputs, kind, "cuda")
            with torch.no_grad(), forced("Together"):
                op(x, w, **operands)
                assert last_schedule() == "Together"
                assert check(op, x, w, **operands).passed

    def test_long_sums_of_one_sign(self):
        """Tensor cores alone would lose terms of a sum that is 2^14 times as large."""
        x = torch.full((256, 32768), 1.125, device="cuda").to(E4M3)
        w = torch.full((256, 32768), 1.625, device="cuda").to(E4M3)
        op = fo.Linear([fo.Scale("s")])
        with torch.no_grad(), forced("Together"):
            y = op(x, w, s=1.0, dtype=torch.float32)
            assert last_schedule() == "Together"
        exact = 32768 * 1.125 * 1.625
        assert ((y.double() - exact).abs() <= (2.0**-8 + 2.0**-12) * exact).all()

    def test_scales_of_rows(self):
        x, w, operands = given(OPS["gelu"], (700, 512), 520, E4M3, "cuda")
        op = fo.Linear(STORES["gelu"][2:], scales=("sx", "sw"))
        operands["sw"] = operands["sw"][:, None]
        with torch.no_grad(), forced("Together"):
            op(x, w, **operands)
            assert last_schedule() == "Together"
            assert check(op, x, w, **operands).passed

    @pytest.mark.parametrize("layout", ["rows", "columns"])
    def test_scales_along_k(self, layout):
        for shape, outputs in (((128, 128), 128), ((5, 60, 336), 384), ((4995, 2064), 1024)):
            op, x, w, operands = scaled(layout, shape, outputs, "cuda")
            with torch.no_grad(), forced("Together"):
                op(x, w, **operands)
                assert last_schedule() == "Together"
                assert check(op, x, w, **operands).passed

    def test_rows_that_lie_apart(self):
        op = OPS["scales"]
        x, w, operands = given(op, (256, 512), 256, E4M3, "cuda")
        with torch.no_grad(), forced("Together"):
            y = op(x[:, :256], w[:, :256], **operands)
            assert last_schedule() == "Together"
            assert same_bits(y, op(x[:, :256].clone(), w[:, :256].clone(), **operands))
