# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""One kernel for a product and its functors, without a GPU: its code, and when it is chosen."""

import dataclasses
import functools

import pytest
import torch
from cases import Seen, randn, thorough_points
from products import (
    GOING_BACK,
    HALF,
    HIDDEN,
    HOPPER,
    OFFSET,
    OPS,
    PAIRS,
    SCORES,
    SEED,
    SEVERAL,
    STORES,
    all_same,
    apart,
    call,
    check_resources,
    forced,
    gelu,
    given,
    gradients,
    kept_beside,
    learning,
    on_hopper,
)
from test_variants import covering

import fusedops as fo
from fusedops.generate.target import Target
from fusedops.generate.views import STORAGE
from fusedops.jit import nvrtc
from fusedops.plan.planner import plan
from fusedops.product import choice as choices
from fusedops.product import factors, product_backward
from fusedops.product.autograd import factor_gradients
from fusedops.product.factors import matrices_of, torch_copies
from fusedops.product.product_kernel import Product
from fusedops.run.autograd import differentiate_product
from fusedops.run.backward import ProductInput
from fusedops.schedule.architectures import TILINGS

HALVES = [HALF, torch.bfloat16]
LARGE = {"rows": (3, 100), "n": 264, "k": 200, "r": (100, 264)}
SEEDED = {"generator": (SEED, OFFSET)}


def tiling_of(name, dtype):
    return dataclasses.replace(TILINGS[name], dtype=STORAGE[dtype])


def described(op, tensors, tiling="Together", **options):
    """One kernel of a call, for a device that need not be there."""
    (x, other), operands = apart(op, tensors)
    op, w = op.that_adds(other, operands), op.turned(other)
    bound = choices.bind_store(op.epilogue, x, w, {**operands, **options})
    return plan(Product(bound, x, w, tiling_of(tiling, x.dtype)), HOPPER)


def between(hidden, tiling="Together", dtype=HALF, wanted=None):
    """The kernels of the gradient of what stands between the products of an MLP."""
    op = fo.MLP(hidden=HIDDEN[hidden], store=[fo.Bias("b2")])
    tensors = given(op, dtype, rows=(3, 100), n=200, h=264, k=136)
    epilogue = op.epilogues[0]
    own = {name: tensors[name] for name in epilogue.slots}
    if wanted is None:
        wanted = {name for name, one in own.items() if isinstance(one, torch.Tensor)}
    z, dy = (tensors["x"].new_empty(3, 100, size) for size in (264, 200))
    bound = epilogue.bind(z, own | (SEEDED if epilogue.dropouts else {}))
    return planned(bound, wanted, dy, tensors["w2"], tiling_of(tiling, dtype))


def planned(bound, wanted, dy, w, tiling):
    """The plan of the gradient as one kernel, or None."""
    one = product_backward.ProductGradient(bound, frozenset(wanted), dy, w, tiling)
    return plan(one, HOPPER)


def kernel_of(kind, store, layout, tiling, dtype):
    """The launch of a product, or of a gradient between two."""
    if kind == "between":
        return between(store, tiling, dtype).launches[0]
    if kind == "layer":
        op, sizes = fo.Linear(STORES[store]), LARGE
    else:
        op, sizes = fo.Matmul(SCORES[store]), {"pair": PAIRS["heads share keys"]}
    (launch,) = described(op, given(op, dtype, layout=layout, **sizes), tiling).launches
    assert len(launch.words) == 8 * launch.variant.words
    if kind == "product":
        assert ("kMN" in launch.variant.source) == (layout == "values")
    return launch


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("kind", "store", "layout", "tiling", "dtype"),
    [
        ("layer", "gelu", "rows", "Together", HALF),
        ("layer", "saving", "rows", "InTurns", HALF),
        ("layer", "saving", "rows", "Together192", HALF),
        *thorough_points(
            *covering(2, ["layer"], STORES, ["rows"], SEVERAL, HALVES),
            *covering(2, ["product"], SCORES, ["keys", "values"], SEVERAL, HALVES),
            *covering(2, ["between"], HIDDEN, ["rows"], GOING_BACK, HALVES),
        ),
    ],
)
def test_registers_do_not_spill_and_products_are_not_serialized(kind, store, layout, tiling, dtype):
    variant = kernel_of(kind, store, layout, tiling, dtype).variant
    assert variant.arch == "sm_90a"
    check_resources(variant, fewer=kind == "between")


class TestSource:
    @pytest.mark.thorough
    def test_seed_and_offset_in_memory_are_read_once(self):
        """As in a captured graph: before the tiles, so that no pack waits for them."""
        op = fo.Linear(STORES["saving"])
        seed = {"generator": torch.tensor([SEED, OFFSET])}
        (variant,) = described(op, given(op, HALF, **LARGE), **seed).variants
        assert variant.source.count(".drawn()") == 1
        _, log = nvrtc.compile_cuda(variant.source, variant.arch, [nvrtc.RESOURCES])
        assert "0 bytes spill stores, 0 bytes spill loads" in log

    @pytest.mark.thorough
    def test_few_integers_are_multiplied_to_64_bits(self):
        """Beside tensor cores these are dear: rows share those of draws and addresses."""
        op = fo.Linear(STORES["saving"])
        (variant,) = described(op, given(op, HALF, rows=(300,), n=264, k=200)).variants
        _, ptx, _ = nvrtc._compile(variant.source, variant.arch, [])
        packs = 4  # that share a column; two such sets are written out
        draws = 2 * (4 + packs * 16)
        assert draws <= ptx.count(b"mul.wide.u32") <= draws + 4
        assert ptx.count(b"st.global.v4") == 2 * packs * 2  # y and the stream, none in pieces

    @pytest.mark.parametrize("dtype", [None, torch.float32], ids=str)
    def test_short_functions_where_all_is_rounded_to_16_bits(self, dtype):
        """Not for an output of float32, which would show that they are less exact."""
        op = OPS["layer"]
        options = {} if dtype is None else {"dtype": dtype}
        (variant,) = described(op, given(op, HALF, **LARGE), **options).variants
        assert ("FUSEDOPS_ROUNDED_ARGUMENTS" in variant.source) is (dtype is None)
        assert "FUSEDOPS_ROUNDED_ARGUMENTS" not in between("gate").launches[0].variant.source

    def test_rows_stay_in_the_order_of_the_product(self):
        """Where a Map would have rows that share a large operand come one after another."""
        op = OPS["saving"]
        tensors = given(op, HALF, rows=(5, 999), n=1000, k=8, r=(999, 1000))
        (launch,) = described(op, tensors).launches
        assert "RowSpace<2>" in launch.variant.source
        operands = apart(op, tensors)[1]
        z = torch.empty(5, 999, 1000, dtype=HALF)
        order = op.epilogue.explain(z, **operands).visited[0]
        assert order == (1, 0), "or this shape shows nothing"
        words = torch.frombuffer(bytearray(launch.words), dtype=torch.int64).tolist()
        rows = words.index(5 * 999)
        assert words[rows + 1] & 0xFFFFFFFF == 999, "rows of the inner dimension come after it"

    @pytest.mark.parametrize(
        ("store", "text"),
        [
            ("window", "store(a.load2, a.load0, a.load1, a.y)"),
            ("tap", "store(a.load0, a.load1, a.store0, a.y)"),
        ],
    )
    def test_masks_run_after_the_functors_of_their_side(self, store, text):
        op = fo.Matmul(SCORES[store])
        assert text in described(op, given(op, HALF, pair=PAIRS["plain"])).variants[0].source

    def test_what_a_gradient_writes(self):
        """dz, h, gradients of operands; sums of each tile, four for 128 rows, pairs of tiles."""
        made = between("gate")
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
        frozen = between("gate", wanted=["g"])
        assert len(frozen.launches) == 1
        assert len(frozen.results.outputs) == 3


class TestWhatIsLeftToTwoKernels:
    @pytest.mark.parametrize("kind", ["layer", "product"])
    def test_factors_that_bulk_copies_cannot_read(self, kind):
        op = OPS["layer"] if kind == "layer" else OPS["causal"]
        sizes = LARGE if kind == "layer" else {"pair": ((3, 100, 200), (3, 200, 264))}
        tensors = given(op, HALF, **sizes)
        x = tensors["x"]
        assert described(op, tensors) is not None
        for wrong in (
            x.new_empty(3, 100, 400)[..., ::2],
            x.new_empty(3, 100, 201)[..., :200],
            x.new_empty(300 * 200 + 1)[1:].view(3, 100, 200),
            *([x.new_empty(3, 104, 200)[:, :100]] if kind == "layer" else []),  # uneven
            *([x[:, :1].expand(3, 100, 200)] if kind == "product" else []),  # rows that are one
        ):
            assert described(op, tensors | {"x": wrong}) is None
        (x, w), operands = apart(op, tensors)
        z = torch.empty(3, 100, 264, dtype=torch.float64)
        double = op.epilogue.bind(z, operands)
        assert plan(Product(double, x, op.turned(w), TILINGS["Together"]), HOPPER) is None

    def test_operands_whose_rows_lie_far_apart(self):
        kind = {"dtype": HALF, "device": "meta"}
        for op, *shapes in (
            (fo.Linear([fo.Residual("r")]), (300, 200), (264, 200)),
            (fo.Matmul([fo.Residual("r")]), (1, 300, 200), (1, 200, 264)),
        ):
            tensors = dict(zip(op.inputs, (torch.empty(s, **kind) for s in shapes), strict=True))
            for far, is_one in ((264, True), ((1 << 28) - 8, True), (1 << 28, False)):
                r = torch.empty_strided((300, 264), (far, 1), **kind)
                told = described(op, tensors | {"r": r})
                assert (told is not None) is is_one

    def test_functors(self):
        for store in (STORES["saving"], [fo.Mask("m"), fo.Bias("b")]):
            assert choices.able(fo.Linear(store=store).epilogue)
        for kind in (fo.Linear, fo.Matmul):
            op = kind(store=[fo.Quantize("s", torch.float8_e4m3fn)])
            assert not choices.able(op.epilogue)

    def test_gradients_that_a_tile_cannot_add_up(self):
        op = fo.MLP(hidden=[fo.Scale("s"), gelu()])
        z, dy, w = (randn(*size, dtype=HALF) for size in ((300, 264), (300, 200), (200, 264)))

        def describe(bound, wanted, dy=dy, w=w):
            return planned(bound, wanted, dy, w, TILINGS["Together"])

        for s, able in ((z[0], True), (z, True), (z[:, :1], False), (z[0, 0], False)):
            bound = op.epilogues[0].bind(z, {"s": s.float()})
            assert (describe(bound, "s") is not None) is able
            assert describe(bound, "") is not None
        bound = op.epilogues[0].bind(z, {"s": 2.0})
        assert describe(bound, "") is not None
        for left, right in ((dy[:, 1:], w[1:]), (dy, w.new_empty(264, 200).mT)):
            assert describe(bound, "", left, right) is None
        twice = fo.MLP(hidden=[fo.Bias("b"), gelu(), fo.Bias("b")])
        assert describe(twice.epilogues[0].bind(z, {"b": z[0]}), "b") is None


class TestFactors:
    """Batch dimensions are merged, and along each a factor has its matrices apart, or one."""

    def found(self, x, other):
        both = matrices_of((x, other), (0, 1), (128, 128))
        return None if both is None else [one.batch for one in both]

    def test_dimensions_merge_where_they_do_for_both(self):
        x, w = torch.empty(2, 3, 16, 8).half(), torch.empty(2, 3, 24, 8).half()
        assert self.found(x, w) == [
            ((6, 16 * 8 * 2), (1, 0), (1, 0)),
            ((6, 24 * 8 * 2), (1, 0), (1, 0)),
        ]
        shared = w[:, :1]
        assert self.found(x, shared) == [
            ((3, 256), (2, 3 * 256), (1, 0)),
            ((3, 0), (2, 3 * 24 * 8 * 2), (1, 0)),
        ]

    def test_heads_that_lie_within_rows(self):
        x = torch.empty(2, 16, 3, 8).half().transpose(1, 2)
        w = torch.empty(3, 24, 8).half()
        (of_x, of_w) = self.found(x, w)
        assert of_x == ((3, 16), (2, 16 * 3 * 8 * 2), (1, 0))
        assert of_w == ((3, 384), (2, 0), (1, 0))

    def test_what_bulk_copies_cannot_read(self):
        x, w = torch.empty(4, 16, 8).half(), torch.empty(4, 24, 8).half()
        assert self.found(x, w)
        assert self.found(x[..., ::2], w) is None  # columns apart
        assert self.found(torch.empty(4, 16 * 8 + 4).half()[:, :128].view(4, 16, 8), w) is None
        assert self.found(torch.empty(4 * 128 + 1).half()[1:].view(4, 16, 8), w) is None
        assert self.found(x[:, :1].expand(4, 16, 8), w) is None  # rows that are one
        far = torch.empty(2, 2, 3, 2, 3, 2, 16, 8).half()[:, 0, :, 0, :, 0]
        assert self.found(far, torch.empty(3, 1, 24, 8).half()) is not None
        four = torch.empty(2, 2, 2, 2, 16, 8).half()
        assert self.found(four, torch.empty(2, 1, 2, 1, 24, 8).half()) is None

    def test_what_torch_copies(self):
        """It makes one batch dimension of all."""
        x = torch.empty(2, 3, 16, 8)
        for w, copies in (
            (torch.empty(2, 3, 24, 8), False),
            (torch.empty(24, 8).expand(2, 3, 24, 8), False),  # one for all
            (torch.empty(3, 24, 8), True),
            (torch.empty(2, 1, 24, 8), True),
            (torch.empty(2, 24, 3, 8).transpose(1, 2), True),
            (torch.empty(1, 3, 24, 8).expand(2, 3, 24, 8), True),
        ):
            assert torch_copies(x, w) is copies, w.shape
            both = [one.expand(2, 3, *one.shape[-2:]) for one in (x, w)]
            moved = [one.reshape(6, *one.shape[-2:]).data_ptr() != one.data_ptr() for one in both]
            assert any(moved) is copies
        assert not torch_copies(x[:1].transpose(1, 2).contiguous().transpose(1, 2), x[:1])

    @staticmethod
    def of_a_gradient(batch, heads, dtype=torch.float64, device="cpu"):
        """The gradient of scores, and keys as a projection leaves them: heads within rows."""
        dz = randn(batch, heads, 5, 7, dtype=dtype, device=device, seed=30)
        keys = randn(batch, 7, heads, 3, dtype=dtype, device=device, seed=31)
        return dz, keys.transpose(1, 2)

    @pytest.mark.parametrize("dim", [0, 1])
    def test_heads_within_rows_are_multiplied_in_turns(self, dim, monkeypatch):
        monkeypatch.setattr(factors, "_along", lambda *factors: dim)
        dz, keys = self.of_a_gradient(4, 3)
        made = factors.multiply(dz, keys)
        torch.testing.assert_close(made, torch.matmul(dz, keys), rtol=1e-14, atol=1e-14)
        assert made.is_contiguous()

    @pytest.mark.gpu
    @torch.no_grad()
    def test_which_are_multiplied_in_turns(self):
        for batch, heads, products in ((20, 3, 3), (2, 40, 2), (40, 9, 1), (1, 3, 1)):
            dz, keys = self.of_a_gradient(batch, heads, HALF, "cuda")
            with Seen() as seen:
                made = factors.multiply(dz, keys)
            ran = [name.removeprefix("aten::").split(".")[0] for name in seen.names]
            assert ran.count("bmm") == products
            assert ("clone" in ran) == ((batch, heads) == (40, 9))
            truth = torch.matmul(dz.double(), keys.double())
            torch.testing.assert_close(made.double(), truth, rtol=2.0**-10, atol=1e-5)
        dz, keys = self.of_a_gradient(20, 3, HALF, "cuda")
        for first, second in (dz, keys.contiguous()), (dz[:, 0], keys[:, 0]), (dz, keys[:1]):
            assert factors._along(first, second) is None
        with torch.enable_grad():
            assert factors._along(dz, keys) is None
        with torch.autocast("cuda", torch.bfloat16):
            assert factors._along(dz, keys) is None


def chosen(op, m, n, k, target=HOPPER, dtype=HALF, **operands):
    """What is chosen for a call whose factors are contiguous."""
    made = {"dtype": dtype, "device": "meta"}
    x, w = (torch.empty(shape, **made) for shape in ((m, k), (n, k)))
    own = {
        name: torch.empty(one, **made) if isinstance(one, tuple) else one
        for name, one in operands.items()
    }
    choice = choices.chosen(op.that_adds(w, own).epilogue, x, w, own, target)
    return choice.tiling and choice.tiling.name, choice.why


def chosen_scores(op, m=1024, n=1024, target=HOPPER, dtype=HALF, **operands):
    """The same of the scores of many heads."""
    x, w = (torch.empty(4, 8, size, 64, dtype=dtype, device="meta") for size in (m, n))
    choice = choices.chosen(op.epilogue, x, w, operands, target)
    return choice.tiling and choice.tiling.name, choice.why


def chosen_between(op, rows=16384, n=1024, h=4096, target=HOPPER, dtype=HALF, **own):
    """The same of the gradient between two products."""
    dy, w = (torch.empty(s, dtype=dtype, device="meta") for s in ((rows, n), (n, h)))
    choice = product_backward.chosen(op.epilogues[0], dy, w, own, target)
    return choice.tiling and choice.tiling.name, choice.why


class TestChoice:
    def test_one_kernel_where_it_was_measured_to_win(self):
        light, heavy = (fo.Linear(store=STORES[key]) for key in ("gelu", "saving"))
        of_heavy = {"b": (1024,), "p": 0.1, "r": (16384, 1024)}
        assert chosen(heavy, 16384, 1024, 1024, **of_heavy)[0] == "Together"
        for m, n, k, wanted in (
            (16384, 1024, 1024, "Together"),
            (10007, 3000, 1024, "Together192"),
            (10007, 3000, 1000, "Together"),  # rows are no whole cache lines
            (512, 4096, 4096, "InTurns"),  # too few large tiles
            (512, 2048, 4096, None),
            (16, 4096, 14336, "FewRows"),
            (64, 4096, 4096, "FewRows"),
            (17, 4096, 4096, "FewRows"),
            (192, 4096, 4096, "FewRows"),
            (128, 14336, 4096, "FewRows"),
            (128, 11008, 4096, None),
            (256, 14336, 4096, None),
            (16384, 1024, 4104, None),  # not measured
        ):
            name, why = chosen(light, m, n, k, b=(n,))
            assert name == wanted, (m, n, k)
            said = "faster than two" if wanted else "not faster"
            assert f"{said} (docs/explanation/products.md)" in why
        for m, k in ((16384, 1004), (16, 1028)):
            name, why = chosen(light, m, 1024, k, b=(1024,))
            assert name is None
            assert "multiples of 8" in why

    @pytest.mark.parametrize("kind", ["layer", "product", "between"])
    def test_why_there_are_two_kernels(self, kind):
        """Another architecture, float32, few rows, what is forced."""
        ask, op, own = {
            "layer": (
                lambda op, **how: chosen(op, how.pop("rows", 16384), 1024, 1024, **how),
                OPS["layer"],
                {"b": (1024,)},
            ),
            "product": (
                lambda op, **how: chosen_scores(op, how.pop("rows", 1024), **how),
                OPS["causal"],
                {"s": 0.5},
            ),
            "between": (
                chosen_between,
                fo.MLP(hidden=HIDDEN["gelu"]),
                {"b1": torch.empty(4096, dtype=HALF, device="meta")},
            ),
        }[kind]
        assert ask(op, **own)[0] is not None
        for name in ("sm_80", "sm_100", "x86-64-v3"):
            tiling, why = ask(op, target=Target.named(name), **own)
            assert tiling is None
            assert name in why
        assert "float16 and bfloat16" in ask(op, dtype=torch.float32, **own)[1]
        assert ask(op, rows=300 if kind == "layer" else 100, **own)[0] is None
        with forced("two_kernels"):
            tiling, why = ask(op, **own)
            assert tiling is None
            assert "forced" in why
        with forced("InTurns"):
            assert ask(op, **own)[0] == "InTurns"

    def test_sizes_that_no_tile_has(self):
        op = OPS["layer"]
        with forced("InTurns"):
            assert chosen(op, 512, 256, 1024, b=(256,))[0] == "InTurns"
            assert chosen(op, 512, 256, 0, b=(256,))[0] is None  # no copy is awaited, none comes
        op = fo.MLP(hidden=HIDDEN["gelu"])
        assert chosen_between(op, n=1023, b1=torch.empty(4096).half())[0] is None
        masked = fo.MLP(hidden=[fo.Mask("m"), gelu()])
        assert chosen_between(masked, m=torch.ones(4096, dtype=torch.bool))[0] is None

    def test_of_many_products(self, monkeypatch):
        on_hopper(monkeypatch)
        op = fo.Matmul(SCORES["scores"])
        (x, other), operands = apart(op, given(op, HALF, pair=PAIRS["plain"]))
        with forced("Together"):
            assert op.choice(x, other, operands).tiling.name == "Together"
            few = op.choice(x[:, :120], other, {"s": 0.5})
            assert few.tiling is None
            assert "tiles of 128 x 256" in few.why
            assert op.choice(x[:0], other[:0], {"s": 0.5}).tiling is None
        told = choices.features_of(op.epilogue, x, other.mT, operands, HOPPER)
        assert (told.rows, told.columns, told.depth, told.batches) == (256, 256, 64, 4)
        assert told.wave_percent == 6

    def test_a_call_that_keeps_its_product_has_one_of_its_own(self, monkeypatch):
        """Of many products of little depth two kernels, which write the product in any case."""
        on_hopper(monkeypatch)
        op, scaled = fo.Matmul([fo.Softcap("c")]), fo.Matmul([fo.Scale("s")])
        x = torch.empty(4, 8, 1024, 64, dtype=HALF, device="meta")
        other = x.mT.contiguous()
        assert op.choice(x, other, {"c": 30.0}).tiling is not None
        assert op.choice(x.requires_grad_(), other, {"c": 30.0}).tiling is None
        assert scaled.choice(x, other, {"s": 0.5}).tiling is not None, "it keeps nothing"

    def test_what_explain_says_of_strides(self, monkeypatch):
        on_hopper(monkeypatch)
        masked = fo.Linear(store=[fo.Mask("m")])
        flags = torch.zeros(264, dtype=torch.bool)
        (x, w), operands = apart(OPS["layer"], given(OPS["layer"], HALF, rows=(300,), n=264, k=200))
        with forced("Together"):
            for op, own in ((OPS["layer"], operands), (masked, {"m": flags})):
                assert op.choice(x, w, own).tiling.name == "Together"
            choice = OPS["layer"].choice(x.new_empty(300, 400)[:, ::2], w, operands)
        assert choice.tiling is None
        assert "bulk copies" in choice.why


#: Ops whose gradients read no product that is not an output, and the sizes of a call.
TRAINED = {
    "saving": (OPS["saving"], LARGE),
    "gelu of a stream": (fo.Linear([fo.Save("z"), *STORES["gelu"], fo.Dropout("p")]), LARGE),
    "row of a stream": (
        fo.Linear([fo.Save("z"), fo.Scale("row"), fo.Tap("act"), fo.Residual("r")]),
        LARGE,
    ),
    **{
        name: (fo.Matmul([fo.Bias("b"), fo.Dropout("p")]), {"pair": PAIRS[name]})
        for name in ("plain", "heads share keys", "a batch of keys")
    },
}


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("wanted", ["all", "first", "second", "operands"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in TRAINED),
        *((name, HALF) for name, (op, _) in TRAINED.items() if isinstance(op, fo.Linear)),
    ],
)
def test_gradients_of_one_kernel_are_those_of_two(name, wanted, dtype):
    """The function that records a call of one kernel, around two, which a CPU has."""
    op, sizes = TRAINED[name]
    names = {"all": None, "first": op.inputs[:1], "second": op.inputs[1:], "operands": ["b", "row"]}
    tensors = given(op, dtype, **sizes)
    results = []
    for one in (True, False):
        leaves = learning(tensors, names[wanted])
        (x, other), operands = apart(op, leaves)

        def run(x, w, arguments):
            assert not torch.is_grad_enabled()
            found = op(x, op.turned(w), **arguments)
            return (found,) if isinstance(found, torch.Tensor) else found

        options = SEEDED if op.dropouts else None
        if one:
            values, size = [operands[key] for key in op.slots], op.shape(x, other)
            w = op.turned(other)
            made = ProductInput(run, size, factor_gradients)
            outputs = differentiate_product(op.epilogue, options, made, x, w, *values)
        else:
            outputs = call(op, leaves, **(options or {}))
        found = gradients(leaves, outputs)
        results.append([*(y.detach() for y in outputs), *found])
    if isinstance(op, fo.Linear):
        assert all_same(*results)
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-5)


@pytest.mark.thorough
def test_a_second_derivative_of_one_kernel_is_refused():
    op = fo.Linear(store=[fo.Save("z"), gelu()])
    x, w = learning(given(op), ["x"]).values()
    made = ProductInput(lambda x, w, _: op(x, w), op.shape(x, w), factor_gradients)
    y, _ = differentiate_product(op.epilogue, None, made, x, w)
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(fo.UnsupportedError, match="first derivative only"):
        dx.sum().backward()


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*STORES, "gelu, dropout", "scores", "capped"])
def test_a_call_that_one_kernel_would_run_trains(name, monkeypatch):
    """From the gate on, with two kernels in place of the one, which a CPU has not."""
    stores = {**STORES, "gelu, dropout": [*STORES["gelu"], fo.Dropout("p")]}
    op = fo.Linear(stores[name]) if name in stores else OPS[name]
    heads = {"rows": (2, 3)} if isinstance(op, fo.Matmul) else {}
    tensors, results, kept = given(op, HALF, **heads), [], []
    for fuses in (False, True):
        op.clear()
        monkeypatch.setattr(type(op), "fuses", lambda *call, fuses=fuses: fuses)
        monkeypatch.setattr(type(op), "_plan", lambda *call: None)
        leaves = learning(tensors)
        factors, operands = apart(op, leaves)
        run = functools.partial(op, *factors, **operands, **SEEDED)
        sizes, y = kept_beside(leaves, run)
        outputs = [y] if isinstance(y, torch.Tensor) else [*y]
        several = len(op.outputs) > 1
        assert type(y).__name__ == (op.epilogue.result_type.__name__ if several else "Tensor")
        assert len(outputs) == len(op.outputs)
        kept.append(sizes)
        results.append([*(one.detach() for one in outputs), *gradients(leaves, outputs)])
    op.clear()
    assert all_same(*results)
    assert kept[0] == kept[1], "as little"
