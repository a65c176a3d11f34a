# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Matmul as one kernel: its code for sm_90a, how it finds its factors, results against float64."""

import dataclasses
import math

import pytest
import torch
from captured import target_of
from cases import Seen, randn, same_bits
from test_variants import covering
from torch._dynamo.backends.debugging import aot_eager

import fusedops as fo
from fusedops.generate.target import Target
from fusedops.generate.views import STORAGE
from fusedops.jit import nvrtc
from fusedops.plan.planner import plan
from fusedops.product import choice as choices
from fusedops.product import factors, torch_op
from fusedops.product.autograd import factor_gradients
from fusedops.product.factors import matrices_of, product_sizes, torch_copies
from fusedops.product.product_kernel import Product
from fusedops.run.autograd import ProductInput, differentiate_product
from fusedops.schedule.architectures import TILINGS
from fusedops.schedule.launch import IMPLEMENTATIONS, ProductConfig
from fusedops.testing import force_launch, last_schedule
from fusedops.tuning.product import of_product

SEED, OFFSET, P = 5, 64, 0.3
STORES = {
    "scores": [fo.Scale("scale"), fo.Bias("b"), fo.Mask("m"), fo.Causal()],
    "window": [fo.Causal(), fo.Window(100, 30), fo.Scale("scale")],
    "lengths": [fo.Lengths("n"), fo.Softcap("cap"), fo.Causal(align="bottom-right")],
    "dropout": [fo.Scale("scale"), fo.Dropout("p")],
    "saving": [fo.Scale("scale"), fo.Residual("b", save="stream"), fo.Causal()],
    "tap": [fo.Scale("scale"), fo.Causal(), fo.Tap("act")],
}
HOPPER = Target.named("sm_90")


def forced(implementation):
    return force_launch(product=ProductConfig(implementation))


#: Shapes of x and other, by what is odd about them: batches, rows, depth; then columns.
SHAPES = {
    "plain": ((4, 256, 64), (4, 64, 256)),
    "heads share keys": ((2, 3, 5, 200, 72), (2, 3, 1, 72, 264)),
    "one for all": ((3, 300, 128), (1, 128, 520)),
    "a batch of keys": ((384, 64), (5, 64, 384)),
    "many": ((150, 128, 40), (150, 40, 256)),
}


def case(shape, dtype, device="cpu", layout="keys"):
    """x, other and operands; `layout`: how the tensors lie."""
    of_x, of_other = SHAPES[shape]
    x = randn(*of_x, dtype=dtype, device=device, seed=1)
    other = randn(*of_other, dtype=dtype, device=device, seed=2) * of_x[-1] ** -0.5
    if layout == "keys":
        other = other.mT.contiguous().mT  # as k.mT is
    elif layout == "heads" and len(of_x) > 2:  # (batch, rows, heads, columns), seen as heads first
        x = x.transpose(-3, -2).contiguous().transpose(-3, -2)
        other = other.mT.transpose(-3, -2).contiguous().transpose(-3, -2).mT
    *batch, rows, columns = product_sizes(x, other.mT)[0]
    operands = {
        "scale": 0.5,
        "b": randn(batch[-1], rows, columns, dtype=dtype, device=device, seed=3),
        "m": randn(*batch[:-1], 1, 1, columns, device=device, seed=4) > 1.5,
        "n": torch.arange(batch[-1], device=device).view(-1, 1, 1) * 40 + 100,
        "cap": 2.0,
        "p": P,
    }
    return x, other, operands


def of(op, operands):
    return {key: operands[key] for key in op.slots}


def described(op, x, other, operands, tiling, dtype):
    made = dataclasses.replace(TILINGS[tiling], dtype=STORAGE[dtype])
    bound = choices.bind_store(op.epilogue, x, other.mT, of(op, operands))
    return plan(Product(bound, x, other.mT, made), HOPPER)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("store", "layout", "tiling", "dtype"),
    covering(
        2,
        ["scores", "dropout", "window", "lengths", "saving", "tap"],
        ["keys", "values"],
        TILINGS,
        [torch.float16, torch.bfloat16],
    ),
)
def test_registers_do_not_spill_and_products_are_not_serialized(store, layout, tiling, dtype):
    op = fo.Matmul(store=STORES[store])
    x, other, operands = case("heads share keys", dtype, layout=layout)
    (launch,) = described(op, x, other, operands, tiling, dtype).launches
    variant = launch.variant
    assert len(launch.words) == 8 * variant.words
    assert ("kMN" in variant.source) == (layout == "values")
    _, log = nvrtc.compile_cuda(variant.source, variant.arch, [nvrtc.RESOURCES])
    assert "C75" not in log, log
    spilled = [line for line in log.splitlines() if "bytes spill" in line]
    assert spilled, log
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in spilled), log


def test_masks_run_after_the_functors_of_their_side():
    op = fo.Matmul(store=STORES["window"])
    x, other, operands = case("plain", torch.float16)
    source = described(op, x, other, operands, "Together", torch.float16).variants[0].source
    assert "store(a.load2, a.load0, a.load1, a.y)" in source
    op = fo.Matmul(store=STORES["tap"])
    source = described(op, x, other, operands, "Together", torch.float16).variants[0].source
    assert "store(a.load0, a.load1, a.store0, a.y)" in source


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
        apart = torch.empty(2, 2, 3, 2, 3, 2, 16, 8).half()[:, 0, :, 0, :, 0]
        assert self.found(apart, torch.empty(3, 1, 24, 8).half()) is not None
        four = torch.empty(2, 2, 2, 2, 16, 8).half()
        assert self.found(four, torch.empty(2, 1, 2, 1, 24, 8).half()) is None


def test_what_torch_copies():
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


def test_what_is_chosen_and_why(monkeypatch):
    op = fo.Matmul(store=STORES["scores"])
    x, other, operands = case("plain", torch.float16)
    monkeypatch.setattr(choices.Target, "of", classmethod(lambda cls, device: HOPPER))
    with forced("Together"):
        choice = op.choice(x, other, of(op, operands))
        assert choice.tiling.name == "Together"
        few = op.choice(x[:, :120], other, {"scale": 0.5})
        assert few.tiling is None
        assert "tiles of 128 x 256" in few.why
        none = op.choice(x[:0], other[:0], {"scale": 0.5})
        assert none.tiling is None
    told = choices.features_of(op.epilogue, x, other.mT, of(op, operands))[0]
    assert (told.rows, told.columns, told.depth, told.batches) == (256, 256, 64, 4)
    assert told.wave_percent == 6
    with forced("two_kernels"):
        assert op.choice(x, other, of(op, operands)).tiling is None


def test_a_call_that_keeps_its_product_has_an_implementation_of_its_own(monkeypatch):
    """Of many products of little depth two kernels, which write the product in any case."""
    monkeypatch.setattr(choices.Target, "of", classmethod(lambda cls, device: HOPPER))
    op = fo.Matmul(store=[fo.Softcap("c")])
    x = torch.empty(4, 8, 1024, 64, dtype=torch.float16, device="meta")
    other = x.mT.contiguous()
    assert op.choice(x, other, {"c": 30.0}).tiling is not None
    assert op.choice(x.requires_grad_(), other, {"c": 30.0}).tiling is None
    scaled = fo.Matmul(store=[fo.Scale("s")])
    assert scaled.choice(x, other, {"s": 0.5}).tiling is not None, "it keeps nothing"


@pytest.mark.thorough
@pytest.mark.parametrize("learning", ["both", "x", "other"])
@pytest.mark.parametrize("shape", ["plain", "heads share keys", "a batch of keys"])
def test_gradients_of_one_kernel_are_those_of_two(shape, learning):
    """The function that records a call of one kernel, around two, which a CPU has."""
    op = fo.Matmul(store=[fo.Bias("b"), fo.Dropout("p")])
    results = []
    for one in (True, False):
        x, other, operands = case(shape, torch.float32)
        leaves = {"x": x, "other": other, "b": operands["b"]}
        for name, leaf in leaves.items():
            leaf.requires_grad_(learning == "both" or name == learning)
        leaves = [leaf for leaf in leaves.values() if leaf.requires_grad]
        options = {"generator": (SEED, OFFSET)}
        if one:

            def run(x, w, arguments):
                return (op(x, w.mT, **arguments),)

            values = [operands[name] for name in op.slots]
            shape_of_y = op.shape(x, other)
            made = ProductInput(run, shape_of_y, factor_gradients)
            (y,) = differentiate_product(op.epilogue, options, made, x, other.mT, *values)
        else:
            y = op(x, other, **of(op, operands), **options)
        upstream = randn(*y.shape, dtype=y.dtype, seed=20)
        results.append([y.detach(), *torch.autograd.grad(y, leaves, upstream)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-5)


def needs_hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is an instruction of sm_90a")


def allowed(op, x, other, operands):
    """The outputs in float64, and the bound of docs/explanation/products.md for each element."""
    u = torch.finfo(x.dtype).eps / 2
    double = {
        k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in operands.items()
    }
    z = x.double() @ other.double()
    off = u * z.abs()
    off += math.sqrt(x.shape[-1]) * 2.0**-23 * (x.double().abs() @ other.double().abs())
    run = [
        op.epilogue.unfused(at, **double, generator=(SEED, OFFSET)) for at in (z, z + off, z - off)
    ]
    truth, *ends = [(one,) if isinstance(one, torch.Tensor) else one for one in run]
    bounds = []
    for i, at in enumerate(truth):
        apart = torch.stack([(end[i] - at).nan_to_num(0.0).abs() for end in ends]).amax(0)
        size = torch.where(at.isinf(), 0.0, at.abs())
        bounds.append(apart + (u + 4e-6) * (1 + 1e-3) * size + 4e-6)
    return truth, bounds


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("layout", ["keys", "values", "heads"])
@pytest.mark.parametrize("store", STORES)
def test_against_float64(store, layout, tiling, dtype):
    """What is masked is -inf everywhere and nowhere else, whatever the product is there."""
    needs_hopper()
    op = fo.Matmul(store=STORES[store])
    for shape in SHAPES:
        x, other, operands = case(shape, dtype, "cuda", layout)
        operands = of(op, operands)
        truth, bounds = allowed(op, x, other, operands)
        out = [torch.full(one.shape, math.nan, dtype=dtype, device="cuda") for one in truth]
        with forced(tiling), torch.no_grad():
            assert f"({tiling})" in op.explain(x, other, **operands).implementation
            op(x, other, **operands, out=out, generator=(SEED, OFFSET))
            again = op(x, other, **operands, generator=(SEED, OFFSET))
        again = (again,) if isinstance(again, torch.Tensor) else again
        for got, once_more, want, bound in zip(out, again, truth, bounds, strict=True):
            assert torch.equal(got == -math.inf, want == -math.inf), (shape, "masked")
            finite = want != -math.inf
            worst = ((got.double() - want).abs() / bound)[finite].amax()
            assert worst <= 1, (shape, worst)  # False for NaN
            assert same_bits(got, once_more)


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", TILINGS)
def test_nan_and_inf_under_a_mask_are_not_seen(tiling):
    """Of keys beyond all queries, whose tiles are left out; of others they are."""
    needs_hopper()
    op = fo.Matmul(store=[fo.Scale("s"), fo.Causal()])
    x = randn(2, 512, 64, dtype=torch.float16, device="cuda", seed=1)
    k = randn(2, 1024, 64, dtype=torch.float16, device="cuda", seed=2)
    k[0, 300, 5], k[1, 600, 7] = math.nan, math.inf
    with forced(tiling), torch.no_grad():
        y = op(x, k.mT, s=0.5)
    keys, queries = torch.arange(1024, device="cuda"), torch.arange(512, device="cuda")
    masked = keys > queries[:, None]
    assert (y[:, masked] == -math.inf).all()
    assert y[0, 300:, 300].isnan().all()
    assert y[1, :, :512][~masked[:, :512]].isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("shape", ["plain", "heads share keys", "a batch of keys"])
@pytest.mark.parametrize("store", ["scores", "dropout", "saving", "tap"])
def test_gradients_are_those_of_two_kernels(store, shape, tiling):
    needs_hopper()
    op = fo.Matmul(store=STORES[store])
    x, other, operands = case(shape, torch.float16, "cuda")
    operands = of(op, operands)
    results = []
    for way in ("two_kernels", tiling):
        leaves = [one.detach().clone().requires_grad_() for one in (x, other)]
        given = dict(operands)
        if "b" in given:
            given["b"] = given["b"].detach().clone().requires_grad_()
            leaves.append(given["b"])
        with forced(way):
            assert ("torch's product, then" if way == "two_kernels" else way) in str(
                op.explain(*leaves[:2], **given).implementation
            )
            y = op(*leaves[:2], **given, generator=(SEED, OFFSET))
        outputs = (y,) if isinstance(y, torch.Tensor) else tuple(y)
        upstream = [
            randn(*one.shape, dtype=one.dtype, device="cuda", seed=20 + i)
            for i, one in enumerate(outputs)
        ]
        found = torch.autograd.grad(outputs, leaves, upstream)
        results.append([*[y.detach() for y in outputs], *found])
    for one, other in zip(*results, strict=True):
        # The products of both ways are float16, and differ in the last place.
        torch.testing.assert_close(one, other, rtol=4e-3, atol=4e-3)


@pytest.mark.gpu
def test_under_autocast_and_in_a_graph():
    needs_hopper()
    op = fo.Matmul(store=[fo.Scale("s"), fo.Causal()])
    x = randn(4, 256, 64, device="cuda", seed=1)
    k = randn(4, 512, 64, device="cuda", seed=2)
    with forced("Together"), torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        want = op(x, k.mT, s=0.5)
        assert want.dtype is torch.bfloat16
        assert same_bits(want, op(x.bfloat16(), k.bfloat16().mT, s=0.5))
        static = x.clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = op(static, k.mT, s=0.5)
        static.copy_(x * 2)
        graph.replay()
        assert same_bits(got, op(x * 2, k.mT, s=0.5))


class TestCompiled:
    """One operator where one kernel may be chosen; values and gradients of the eager call."""

    SCORES = fo.Matmul(store=[fo.Scale("s"), fo.Bias("b"), fo.Mask("m"), fo.Causal()])

    @pytest.fixture
    def may_be_one(self, monkeypatch):
        def asked(store, dtype, device, reads, writes, draws, n, k):
            assert n is k is None
            return True

        asked._dynamo_marked_constant = True
        monkeypatch.setattr(torch_op, "_may_be_one", asked)
        torch._dynamo.reset()

    def given(self, heads=3, rows=9, device="cpu", dtype=torch.float16):
        """Queries, keys that heads share, and a bias of each head, which all have gradients."""
        q = randn(2, heads, rows, 16, dtype=dtype, device=device, seed=1)
        k = randn(2, 1, 24, 16, dtype=dtype, device=device, seed=2)
        b = randn(heads, rows, 24, dtype=dtype, device=device, seed=3)
        m = randn(2, 1, 1, 24, device=device, seed=4) > 1
        return [one.requires_grad_() for one in (q, k, b)], m

    def call(self, q, k, b, m):
        return self.SCORES(q, k.mT, s=0.5, b=b, m=m)

    @pytest.mark.thorough
    def test_one_operator_serves_any_batch(self, may_be_one, device):
        graphs = []

        def backend(module, inputs):
            graphs.append([target_of(n) for n in module.graph.nodes if n.op == "call_function"])
            return aot_eager(module, inputs)

        compiled = torch.compile(self.call, backend=backend, fullgraph=True, dynamic=True)
        for heads, rows in ((3, 9), (3, 12), (5, 7)):
            results = []
            for run in (self.call, compiled):
                leaves, m = self.given(heads, rows, device)
                y = run(*leaves, m)
                upstream = randn(*y.shape, dtype=y.dtype, device=device, seed=9)
                results.append([y.detach(), *torch.autograd.grad(y, leaves, upstream)])
            assert same_bits(results[0][0], results[1][0])
            for one, other in zip(*results, strict=True):
                # Gradients of factors are float16 products, summed over heads in another order.
                torch.testing.assert_close(one, other, rtol=4e-3, atol=4e-3)
        assert len(graphs) == 1
        assert "fusedops.forward of Matmul" in graphs[0]

    @pytest.mark.thorough
    def test_what_trains_and_reads_the_product_saves_it(self, may_be_one, device):
        op = fo.Matmul(store=[fo.Softcap("cap"), fo.Causal()])

        def call(q, k):
            return op(q, k.mT, cap=2.0)

        results = []
        for run in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
            (q, k, _), _ = self.given(device=device)
            y = run(q, k)
            upstream = randn(*y.shape, dtype=y.dtype, device=device, seed=9)
            results.append([y.detach(), *torch.autograd.grad(y, (q, k), upstream)])
        assert all(same_bits(one, other) for one, other in zip(*results, strict=True))

    @pytest.mark.gpu
    def test_on_a_gpu(self):
        """Inductor's code runs one kernel, forward and in training."""
        needs_hopper()
        torch._dynamo.reset()
        op = fo.Matmul(store=[fo.Scale("s"), fo.Causal()])

        def call(q, k):
            return op(q, k.mT, s=0.125)

        results = []
        for run in (call, torch.compile(call, fullgraph=True)):
            q = randn(4, 16, 512, 64, dtype=torch.float16, device="cuda", seed=1)
            k = randn(4, 16, 512, 64, dtype=torch.float16, device="cuda", seed=2)
            leaves = [q.requires_grad_(), k.requires_grad_()]
            y = run(*leaves)
            assert last_schedule() == "Together"
            upstream = randn(*y.shape, dtype=y.dtype, device="cuda", seed=9)
            results.append([y.detach(), *torch.autograd.grad(y, leaves, upstream)])
        assert all(same_bits(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", ["plain", "heads share keys", "one for all"])
def test_every_implementation_is_checked_and_timed(shape):
    needs_hopper()
    op = fo.Matmul(store=STORES["scores"])
    x, other, operands = case(shape, torch.float16)
    given = of(op, operands)
    bound = choices.bind_store(op.epilogue, x, other.mT, given)
    device = torch.device("cuda", torch.cuda.current_device())
    factors = {"x": x, "w": other.mT}
    problem = of_product(op, bound, factors, device, {})
    for implementation in IMPLEMENTATIONS:
        problem.check(ProductConfig(implementation))
        assert 0 < problem.seconds(ProductConfig(implementation)) < 1e-2


class TestProductsOfHeadsWithinRows:
    """Those of a backward pass, which torch.matmul would copy the heads for."""

    @staticmethod
    def factors(batch, heads, dtype=torch.float64, device="cpu"):
        """The gradient of scores, and keys as a projection leaves them."""
        dz = randn(batch, heads, 5, 7, dtype=dtype, device=device, seed=30)
        keys = randn(batch, 7, heads, 3, dtype=dtype, device=device, seed=31)
        return dz, keys.transpose(1, 2)

    @pytest.mark.parametrize("dim", [0, 1])
    def test_in_turns(self, dim, monkeypatch):
        monkeypatch.setattr(factors, "_along", lambda *factors: dim)
        dz, keys = self.factors(4, 3)
        want = torch.matmul(dz, keys)
        made = factors.multiply(dz, keys)
        torch.testing.assert_close(made, want, rtol=1e-14, atol=1e-14)
        assert made.is_contiguous()

    @pytest.mark.gpu
    @torch.no_grad()
    def test_which_are(self):
        for batch, heads, products in ((20, 3, 3), (2, 40, 2), (40, 9, 1), (1, 3, 1)):
            dz, keys = self.factors(batch, heads, torch.float16, "cuda")
            with Seen() as seen:
                made = factors.multiply(dz, keys)
            ran = [name.removeprefix("aten::").split(".")[0] for name in seen.names]
            assert ran.count("bmm") == products
            assert ("clone" in ran) == ((batch, heads) == (40, 9))
            truth = torch.matmul(dz.double(), keys.double())
            torch.testing.assert_close(made.double(), truth, rtol=2.0**-10, atol=1e-5)
        dz, keys = self.factors(20, 3, torch.float16, "cuda")
        cases = (dz, keys.contiguous()), (dz[:, 0], keys[:, 0]), (dz, keys[:1])
        for first, second in cases:
            assert factors._along(first, second) is None
        with torch.enable_grad():
            assert factors._along(dz, keys) is None
        with torch.autocast("cuda", torch.bfloat16):
            assert factors._along(dz, keys) is None
