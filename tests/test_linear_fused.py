# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Linear as one kernel: its code for sm_90a, results against float64, and when it is not taken."""

import contextlib
import dataclasses
import functools
import math

import pytest
import torch
from cases import randn, same_bits, thorough
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import fusedops as fo
from fusedops.generate.target import Target
from fusedops.generate.views import STORAGE
from fusedops.jit import nvrtc
from fusedops.plan.planner import plan
from fusedops.product import choice as choices
from fusedops.product.autograd import factor_gradients
from fusedops.product.product_kernel import Product
from fusedops.run.autograd import ProductInput, differentiate_product
from fusedops.schedule.architectures import TILINGS
from fusedops.schedule.launch import ProductConfig
from fusedops.testing import force_launch, last_schedule


@fo.functor
def gelu(v):
    return functional.gelu(v, approximate="tanh")


STORES = {
    "gelu": [fo.Bias("b"), gelu()],
    "dropout": [fo.Bias("b"), fo.Dropout("p")],
    "saving": [fo.Bias("b"), fo.Dropout("p"), fo.Residual("r", 0.5, save="stream")],
    "tap": [fo.Scale("row"), gelu(), fo.Tap("act"), fo.Residual("r")],
}
P, SEED, OFFSET = 0.3, 5, 64


def case(dtype, device="cpu", shape=(3, 100), n=264, k=200):
    """x, w, and operands that all rows share, that are one a row, and of the product's size."""
    x = randn(*shape, k, dtype=dtype, device=device, seed=1)
    w = randn(n, k, dtype=dtype, device=device, seed=2)
    operands = {
        "b": randn(n, dtype=dtype, device=device, seed=3),
        "row": randn(*shape, 1, dtype=dtype, device=device, seed=4),
        "r": randn(shape[-1], n, dtype=dtype, device=device, seed=5),  # broadcast over the batch
        "p": P,
    }
    return x, w, operands


def exact_case(*given):
    """The same in eighths: then x @ w.T + b is exact before it is rounded, in whatever order."""
    x, w, operands = case(*given)
    x, w, operands["b"] = ((one * 8).round() / 8 for one in (x, w, operands["b"]))
    return x, w, operands


def of(op, operands):
    return {key: operands[key] for key in op.slots}


@contextlib.contextmanager
def kept_beside(leaves):
    """The sizes of what is kept for gradients and is no leaf, however it lies in memory."""
    own = {leaf.untyped_storage().data_ptr() for leaf in leaves.values()}
    sizes = {}

    def pack(tensor):
        if (memory := tensor.untyped_storage().data_ptr()) not in own:
            sizes[memory] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        kept = []
        yield kept
        kept.extend(sorted(sizes.values()))


@pytest.mark.parametrize("dtype", [torch.float16, *thorough(torch.bfloat16)], ids=str)
@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("store", ["gelu", "saving", *thorough("dropout", "tap")])
def test_registers_do_not_spill_and_products_are_not_serialized(store, tiling, dtype):
    x, w, operands = case(dtype)
    op = fo.Linear(store=STORES[store]).that_adds(w, operands)
    z = torch.empty(op.shape(x, w), dtype=dtype)
    bound = op.epilogue.bind(z, of(op, operands))
    made = dataclasses.replace(TILINGS[tiling], dtype=STORAGE[dtype])
    (launch,) = plan(Product(bound, x, w, made), HOPPER).launches
    variant = launch.variant
    assert variant.arch == "sm_90a"
    assert len(launch.words) == 8 * variant.words
    _, log = nvrtc.compile_cuda(variant.source, variant.arch, [nvrtc.RESOURCES])
    assert "registers" in log, "no report, so that nothing would be found"
    assert "C75" not in log, log  # wgmma that waits for one another, or for what ptxas adds
    spilled = [line for line in log.splitlines() if "bytes spill" in line]
    assert spilled, log
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in spilled), log


@pytest.mark.thorough
def test_seed_and_offset_in_memory_are_read_once():
    """As in a captured graph: before the tiles, so that no pack waits for them."""
    x, w, operands = case(torch.float16)
    op = fo.Linear(store=STORES["saving"]).that_adds(w, operands)
    given = {**of(op, operands), "generator": torch.tensor([SEED, OFFSET])}
    bound = op.epilogue.bind(torch.empty(op.shape(x, w), dtype=x.dtype), given)
    (variant,) = plan(Product(bound, x, w, TILINGS["Together"]), HOPPER).variants
    assert variant.source.count(".drawn()") == 1
    _, log = nvrtc.compile_cuda(variant.source, variant.arch, [nvrtc.RESOURCES])
    assert "0 bytes spill stores, 0 bytes spill loads" in log


@pytest.mark.thorough
def test_few_integers_are_multiplied_to_64_bits():
    """Beside tensor cores these are dear: a thread's rows share those of draws and addresses."""
    x, w, operands = case(torch.float16, shape=(300,))
    op = fo.Linear(store=STORES["saving"]).that_adds(w, operands)
    bound = op.epilogue.bind(torch.empty(op.shape(x, w), dtype=x.dtype), of(op, operands))
    (variant,) = plan(Product(bound, x, w, TILINGS["Together"]), HOPPER).variants
    _, ptx, _ = nvrtc._compile(variant.source, variant.arch, [])
    packs = 4  # that share a column; two such sets are written out
    draws = 2 * (4 + packs * 16)
    assert draws <= ptx.count(b"mul.wide.u32") <= draws + 4
    assert ptx.count(b"st.global.v4") == 2 * packs * 2  # y and the stream, none of them in pieces


def test_rows_stay_in_the_order_of_the_product():
    """Where a Map would have rows that share a large operand come one after another."""
    op = fo.Linear(store=STORES["saving"])
    x, w, operands = case(torch.float16, shape=(5, 999), n=1000, k=8)
    z = torch.empty(op.shape(x, w), dtype=x.dtype)
    bound = op.epilogue.bind(z, of(op, operands))
    (launch,) = plan(Product(bound, x, w, TILINGS["Together"]), HOPPER).launches
    assert "RowSpace<2>" in launch.variant.source
    order = op.epilogue.explain(z, **of(op, operands)).visited[0]
    assert order == (1, 0), "or this shape shows nothing"
    words = torch.frombuffer(bytearray(launch.words), dtype=torch.int64).tolist()
    rows = words.index(5 * 999)
    assert words[rows + 1] & 0xFFFFFFFF == 999, "rows of the inner dimension come after it"


def test_what_bulk_copies_cannot_read_is_left_to_two_kernels():
    x, w, operands = case(torch.float16)
    op = fo.Linear(store=STORES["gelu"])
    made = TILINGS["Together"]
    bound = op.epilogue.bind(torch.empty(op.shape(x, w), dtype=x.dtype), of(op, operands))
    assert plan(Product(bound, x, w, made), HOPPER) is not None
    apart = x.new_empty(3, 100, 400)[..., ::2]
    odd = x.new_empty(3, 100, 201)[..., :200]
    uneven = x.new_empty(3, 104, 200)[:, :100]
    shifted = x.new_empty(300 * 200 + 1)[1:].view(3, 100, 200)
    for given in (apart, odd, uneven, shifted):
        assert plan(Product(bound, given, w, made), HOPPER) is None
    double = op.epilogue.bind(torch.empty(3, 100, 264, dtype=torch.float64), {"b": operands["b"]})
    assert plan(Product(double, x, w, made), HOPPER) is None


def test_operands_whose_rows_lie_far_apart_are_left_to_two_kernels():
    op = fo.Linear(store=[fo.Residual("r")])
    kind = {"dtype": torch.float16, "device": "meta"}
    x, w = torch.empty(300, 200, **kind), torch.empty(264, 200, **kind)
    z = torch.empty(op.shape(x, w), **kind)
    for apart, is_one in ((264, True), ((1 << 29) - 8, True), (1 << 29, False)):
        r = torch.empty_strided((300, 264), (apart, 1), **kind)
        bound = op.epilogue.bind(z, {"r": r})
        told = plan(Product(bound, x, w, TILINGS["Together"]), HOPPER)
        assert (told is not None) is is_one


def test_what_is_left_to_two_kernels():
    for store in (STORES["saving"], [fo.Mask("m"), fo.Bias("b")]):
        assert choices.able(fo.Linear(store=store).epilogue)
    assert not choices.able(fo.Linear(store=[fo.Quantize("s", torch.float8_e4m3fn)]).epilogue)


def forced(implementation):
    """All shapes have one kernel of this tiling, or two kernels."""
    return force_launch(product=ProductConfig(implementation))


HOPPER = Target.named("sm_90")


def chosen(op, m, n, k, target=HOPPER, dtype=torch.float16, **operands):
    """What is chosen for a call whose factors are contiguous."""
    x, w = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((m, k), (n, k)))
    given = {
        name: torch.empty(one, dtype=dtype, device="meta") if isinstance(one, tuple) else one
        for name, one in operands.items()
    }
    choice = choices.chosen(op.epilogue, x, w, given, target)
    return choice.tiling and choice.tiling.name, choice.why


def test_one_kernel_is_chosen_where_it_was_measured_to_win():
    light, heavy = (fo.Linear(store=STORES[key]) for key in ("gelu", "saving"))
    of_light, of_heavy = {"b": (1024,)}, {"b": (1024,), "p": 0.1, "r": (16384, 1024)}
    assert chosen(heavy, 16384, 1024, 1024, **of_heavy)[0] == "Together"
    for m, n, k, wanted in (
        (16384, 1024, 1024, "Together"),
        (10007, 3000, 1000, "Together"),
        (512, 4096, 4096, "InTurns"),  # too few large tiles
        (512, 2048, 4096, None),
        (16384, 1024, 4104, None),  # not measured
    ):
        name, why = chosen(light, m, n, k, **of_light)
        assert name == wanted, (m, n, k)
        said = "faster than two" if wanted else "not faster"
        assert f"{said} (docs/explanation/products.md)" in why
    for m, n, k in ((16384, 1024, 1004), (100, 65536, 1024)):
        name, why = chosen(light, m, n, k, **of_light)
        assert name is None
        assert "multiples of 8" in why


GRADIENT_STORES = {
    "saving": STORES["saving"],
    "gelu of a stream": [fo.Save("z"), fo.Bias("b"), gelu(), fo.Dropout("p")],
    "row of a stream": [fo.Save("z"), fo.Scale("row"), fo.Tap("act"), fo.Residual("r")],
}


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("learning", ["all", "x", "w", "operands"])
@pytest.mark.parametrize("store", GRADIENT_STORES)
def test_gradients_of_one_kernel_are_those_of_two(store, learning, dtype):
    """The function that records a call of one kernel, around two, which a CPU has."""
    op = fo.Linear(store=GRADIENT_STORES[store])
    results = []
    for one in (True, False):
        x, w, operands = case(dtype)
        operands = of(op, operands)
        leaves = {"x": x, "w": w, **{k: v for k, v in operands.items() if k != "p"}}
        for name, leaf in leaves.items():
            leaf.requires_grad_(learning in ("all", name) or (learning, name) == ("operands", "b"))
        leaves = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        if not leaves:
            return
        options = {"generator": (SEED, OFFSET)} if op.dropouts else None

        def run(x, w, arguments, op=op):
            assert not torch.is_grad_enabled()
            found = op(x, w, **arguments)
            return (found,) if isinstance(found, torch.Tensor) else found

        if one:
            values = [operands[name] for name in op.slots]
            made = ProductInput(run, op.shape(x, w), factor_gradients)
            outputs = differentiate_product(op.epilogue, options, made, x, w, *values)
        else:
            outputs = op(x, w, **operands, **(options or {}))
            outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
        upstream = [randn(*y.shape, dtype=y.dtype, seed=20 + i) for i, y in enumerate(outputs)]
        loss = sum((y * g).double().sum() for y, g in zip(outputs, upstream, strict=True))
        found = torch.autograd.grad(loss, [*leaves.values()])
        results.append([*[y.detach() for y in outputs], *found])
    assert all(same_bits(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("store", [*STORES, "gelu, dropout"])
def test_a_call_that_one_kernel_would_run_trains(store, monkeypatch):
    """From the gate on, with two kernels in place of the one, which a CPU has not."""
    op = fo.Linear(store=STORES.get(store, [fo.Bias("b"), gelu(), fo.Dropout("p")]))
    results, kept = [], []
    for fuses in (False, True):
        op.clear()
        monkeypatch.setattr(fo.Linear, "fuses", lambda *call, fuses=fuses: fuses)
        monkeypatch.setattr(fo.Linear, "_plan", lambda *call: None)
        x, w, operands = case(torch.float16)
        leaves = {"x": x, "w": w, **of(op, operands)}
        leaves = {k: v.requires_grad_() for k, v in leaves.items() if k != "p"}
        with kept_beside(leaves) as sizes:
            y = op(x, w, **of(op, operands), generator=(SEED, OFFSET))
        kept.append(sizes)
        outputs = (y,) if isinstance(y, torch.Tensor) else tuple(y)
        assert (type(y).__name__, len(outputs)) == (
            op.epilogue.result_type.__name__ if len(op.outputs) > 1 else "Tensor",
            len(op.outputs),
        )
        upstream = [randn(*y.shape, dtype=y.dtype, seed=20 + i) for i, y in enumerate(outputs)]
        found = torch.autograd.grad(outputs, [*leaves.values()], upstream)
        results.append([*[y.detach() for y in outputs], *found])
    assert all(same_bits(one, other) for one, other in zip(*results, strict=True))
    assert kept[0] == kept[1], "as little"


@pytest.mark.thorough
def test_a_second_derivative_is_refused():
    op = fo.Linear(store=[fo.Save("z"), gelu()])
    x, w, _ = case(torch.float32)
    made = ProductInput(lambda x, w, _: op(x, w), op.shape(x, w), factor_gradients)
    y, _ = differentiate_product(op.epilogue, None, made, x.requires_grad_(), w)
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(fo.UnsupportedError, match="first derivative only"):
        dx.sum().backward()


def test_why_there_are_two_kernels():
    op = fo.Linear(store=STORES["gelu"])
    for name in ("sm_80", "sm_100", "x86-64-v3"):
        tiling, why = chosen(op, 16384, 1024, 1024, Target.named(name))
        assert tiling is None
        assert name in why
    assert "float16 and bfloat16" in chosen(op, 16384, 1024, 1024, dtype=torch.float32)[1]
    with forced("two_kernels"):
        assert "forced" in chosen(op, 16384, 1024, 1024)[1]
    with forced("InTurns"):
        assert chosen(op, 512, 256, 1024)[0] == "InTurns"
        assert chosen(op, 512, 256, 0)[0] is None  # no copy is awaited, and none would come


def told(monkeypatch, op, x, w, **operands):
    """The implementation that `explain` names, of tensors that need not be on such a GPU."""
    monkeypatch.setattr(choices.Target, "of", classmethod(lambda cls, device: HOPPER))
    return op.choice(x, w, operands)


def test_what_explain_says_of_strides_and_gradients(monkeypatch):
    op = fo.Linear(store=STORES["gelu"])
    x, w, operands = case(torch.float16, shape=(300,))
    with forced("Together"):
        assert told(monkeypatch, op, x, w, b=operands["b"]).tiling.name == "Together"
        apart = x.new_empty(300, 400)[:, ::2]
        choice = told(monkeypatch, op, apart, w, b=operands["b"])
        assert choice.tiling is None
        assert "bulk copies" in choice.why
        masked = fo.Linear(store=[fo.Mask("m")])
        flags = torch.zeros(264, dtype=torch.bool)
        assert told(monkeypatch, masked, x, w, m=flags).tiling.name == "Together"


def needs_hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is an instruction of sm_90a")


def allowed(op, x, w, operands):
    """The outputs in float64, and the bound of docs/explanation/products.md for each element."""
    u = torch.finfo(x.dtype).eps / 2
    double = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in operands.items()}
    z = x.double() @ w.double().mT
    # A bias that the STORE begins with is one more term of the sum that is rounded.
    b = double["b"] if isinstance(op.store[0], fo.Bias) else z.new_zeros(())
    size = x.double().abs() @ w.double().abs().mT + b.abs()
    off = u * (z + b).abs() + math.sqrt(w.shape[1] + 1) * 2.0**-23 * size
    run = [
        op.epilogue.unfused(at, **double, generator=(SEED, OFFSET)) for at in (z, z + off, z - off)
    ]
    truth, *ends = [(one,) if isinstance(one, torch.Tensor) else one for one in run]
    bounds = [
        torch.stack([(end[i] - at).abs() for end in ends]).amax(0)
        + (u + 4e-6) * (1 + 1e-3) * at.abs()
        + 4e-6
        for i, at in enumerate(truth)
    ]
    return truth, bounds


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("store", STORES)
def test_against_float64(store, tiling, dtype):
    """Whole and ragged shapes, fewer tiles than clusters and more, K that no stage divides."""
    needs_hopper()
    op = fo.Linear(store=STORES[store])
    shapes = (
        ((3, 100), 264, 200),
        ((128,), 256, 8),
        ((4096,), 1024, 1024),
        ((4995,), 1000, 1032),
        ((5, 999), 1000, 1032),
    )
    for shape, n, k in shapes:
        x, w, operands = case(dtype, "cuda", shape, n, k)
        w *= k**-0.5
        operands = of(op, operands)
        truth, bounds = allowed(op, x, w, operands)
        out = [torch.full_like(x.new_empty(*shape, n), math.nan) for _ in truth]
        with forced(tiling), torch.no_grad():
            assert tiling in op.explain(x, w, **operands).implementation
            op(x, w, **operands, out=out, generator=(SEED, OFFSET))
            again = op(x, w, **operands, generator=(SEED, OFFSET))
        again = (again,) if isinstance(again, torch.Tensor) else again
        for got, once_more, want, bound in zip(out, again, truth, bounds, strict=True):
            assert got.isfinite().all()
            worst = ((got.double() - want).abs() / bound).amax()
            assert worst <= 1, (shape, n, k, worst)
            assert same_bits(got, once_more)


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", TILINGS)
def test_dropout_drops_the_same_elements(tiling):
    needs_hopper()
    op = fo.Linear(store=STORES["dropout"])
    x, w, operands = case(torch.float16, "cuda", (1000,), 520, 128)
    operands = {"b": torch.full_like(operands["b"], 1000.0), "p": P}
    with forced(tiling), torch.no_grad():
        y = op(x, w, **operands, generator=(SEED, OFFSET))
        all_kept = op(x, w, **operands, training=False)
    kept = op.dropout_mask((1000, 520), SEED, OFFSET, P).cuda()
    assert torch.equal(y != 0, kept)
    assert (all_kept != 0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("store", [*STORES, "gelu, dropout"])
def test_gradients_are_those_of_two_kernels(store, tiling):
    """To the bit, with random upstream gradients, and the tensors kept are as few."""
    needs_hopper()
    op = fo.Linear(store=STORES.get(store, [fo.Bias("b"), gelu(), fo.Dropout("p")]))
    x, w, operands = exact_case(torch.float16, "cuda", (2, 128), 512, 256)
    w *= 256**-0.5
    operands = of(op, operands)
    results, kept = [], []
    for way in ("two_kernels", tiling):
        leaves = {"x": x, "w": w, **{k: v for k, v in operands.items() if k != "p"}}
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
        with forced(way), kept_beside(leaves) as sizes:
            assert ("then one kernel" if way == "two_kernels" else way) in str(
                op.explain(x, w, **operands).implementation
            )
            y = op(
                leaves["x"],
                leaves["w"],
                **{**operands, **{k: v for k, v in leaves.items() if k in operands}},
                generator=(SEED, OFFSET),
            )
        outputs = (y,) if isinstance(y, torch.Tensor) else tuple(y)
        upstream = [
            randn(*y.shape, dtype=y.dtype, device="cuda", seed=20 + i)
            for i, y in enumerate(outputs)
        ]
        found = torch.autograd.grad(outputs, [*leaves.values()], upstream)
        results.append([*[y.detach() for y in outputs], *found])
        kept.append(sizes)
    assert all(same_bits(one, other) for one, other in zip(*results, strict=True))
    assert kept[0] == kept[1]


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", TILINGS)
def test_no_memory_for_a_product_that_is_not_there(tiling):
    """In training, too, the result is all that a call takes."""
    needs_hopper()
    op = fo.Linear(store=STORES["dropout"])
    x, w, operands = case(torch.float16, "cuda", (8, 128), 512, 256)
    x, w = x.requires_grad_(), w.requires_grad_()
    given = of(op, operands)
    with forced(tiling):
        op(x, w, **given)  # which is planned, and builds
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = op(x, w, **given)
        most = torch.cuda.max_memory_allocated() - before
    assert y.numel() * y.element_size() <= most < 1.1 * y.numel() * y.element_size()


@pytest.mark.gpu
def test_a_layer_of_two_products():
    """Values and gradients of MLP with one kernel for its first product, beside two.

    Gradients by one kernel have bits of their own: test_product_backward.py.
    """
    needs_hopper()
    op = fo.MLP(hidden=[fo.Bias("b"), gelu(), fo.Dropout("p")], store=[fo.Bias("b2")])
    results = []
    for way in ("two_kernels", "Together"):
        x, w, operands = exact_case(torch.float16, "cuda", (256,), 512, 256)
        w2 = randn(264, 512, dtype=torch.float16, device="cuda", seed=9) * 512**-0.5
        b2 = randn(264, dtype=torch.float16, device="cuda", seed=10)
        leaves = [x, w * 256**-0.5, w2, operands["b"], b2]
        leaves = [one.detach().requires_grad_() for one in leaves]
        x, w, w2, b, b2 = leaves
        with forced(way):
            y = op(x, w, w2, b=b, p=P, b2=b2, generator=(SEED, OFFSET))
        upstream = randn(*y.shape, dtype=y.dtype, device="cuda", seed=20)
        with forced("two_kernels"):
            results.append([y.detach(), *torch.autograd.grad(y, leaves, upstream)])
    assert all(same_bits(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("store", ["saving", "gelu"])
def test_training_under_autocast(store):
    """Factors of float32 are cast, their gradients are float32: to the bit as by two kernels."""
    needs_hopper()
    op = fo.Linear(store=STORES[store])
    x, w, operands = exact_case(torch.float32, "cuda", (256,), 512, 256)
    w *= 256**-0.5
    operands = of(op, operands)
    if "r" in operands:
        operands["r"] = randn(256, 512, dtype=torch.float32, device="cuda", seed=8)
    results = []
    for way in ("two_kernels", "Together"):
        leaves = [one.clone().requires_grad_() for one in (x, w, operands["b"])]
        given = {**operands, "b": leaves[2]}
        with forced(way), torch.autocast("cuda", torch.bfloat16):
            assert ("then one kernel" if way == "two_kernels" else way) in str(
                op.explain(*leaves[:2], **given).implementation
            )
            y = op(*leaves[:2], **given, generator=(SEED, OFFSET))
        y = y if isinstance(y, torch.Tensor) else y[0]
        assert y.dtype is torch.bfloat16
        upstream = randn(*y.shape, dtype=y.dtype, device="cuda", seed=20)
        found = torch.autograd.grad(y, leaves, upstream)
        assert all(one.dtype is torch.float32 for one in found)
        results.append([y.detach(), *found])
    assert all(same_bits(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("reentrant", [False, True])
def test_in_a_checkpoint(reentrant):
    """Run again in the backward pass, it draws the same."""
    needs_hopper()
    op = fo.Linear(store=[fo.Bias("b"), gelu(), fo.Dropout("p")])
    x, w, operands = case(torch.float16, "cuda", (256,), 512, 256)
    operands = of(op, operands)
    results = []
    with forced("Together"):
        for kept in (True, False):
            torch.manual_seed(SEED)
            leaf = x.clone().requires_grad_()
            run = functools.partial(op, **operands)
            y = run(leaf, w) if kept else checkpoint(run, leaf, w, use_reentrant=reentrant)
            upstream = randn(*y.shape, dtype=y.dtype, device="cuda", seed=20)
            y.backward(upstream)
            results.append([y.detach(), leaf.grad])
    assert all(same_bits(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.gpu
def test_a_graph_draws_anew():
    needs_hopper()
    op = fo.Linear(store=STORES["saving"])
    x, w, operands = case(torch.float16, "cuda", (256,), 512, 256)
    operands = of(op, operands) | {"r": randn(256, 512, dtype=torch.float16, device="cuda", seed=8)}
    with forced("Together"), torch.no_grad():
        op(x, w, **operands)  # built before the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y, _ = op(x, w, **operands)
        assert last_schedule() == "Together"
        graph.replay()
        first = y.clone()
        graph.replay()
    assert first.isfinite().all()
    assert not torch.equal(first, y)  # each replay draws anew
