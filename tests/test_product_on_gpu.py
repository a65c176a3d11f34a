# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""One kernel for a product and its functors, on a GPU: float64, gradients, compiled, graphs."""

import math

import pytest
import torch
from cases import randn, same_bits
from products import (
    GOING_BACK,
    HALF,
    HIDDEN,
    OFFSET,
    OPS,
    PAIRS,
    SCORES,
    SEED,
    SEVERAL,
    STORES,
    all_same,
    allowed,
    apart,
    call,
    close,
    compiled,
    exact,
    forced,
    given,
    gradients,
    in_a_checkpoint,
    kept_beside,
    learning,
    needs_hopper,
    step,
)
from torch._dynamo.testing import CompileCounterWithBackend

import fusedops as fo
from fusedops.testing import check, last_schedule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

HALVES = [HALF, torch.bfloat16]
SEEDED = {"generator": (SEED, OFFSET)}
LINEARS = {name: fo.Linear(store) for name, store in STORES.items()}
LINEARS["gelu, dropout"] = fo.Linear([*STORES["gelu"], fo.Dropout("p")])
MATMULS = {name: fo.Matmul(store) for name, store in SCORES.items()}
BLOCKS = {name: fo.MLP(hidden, [fo.Bias("b2")]) for name, hidden in HIDDEN.items()}
ONE_OF_EACH = {
    "layer": LINEARS["gelu, dropout"],
    "scores": fo.Matmul([fo.Scale("s"), fo.Dropout("p"), fo.Causal()]),
    "block": BLOCKS["dropout"],
}

#: Whole and ragged shapes, fewer tiles than clusters and more, K that no stage divides.
SIZES = [
    {"rows": (3, 100), "n": 264, "k": 200, "r": (100, 264)},  # broadcast over the batch
    {"rows": (128,), "n": 256, "k": 8},
    {"rows": (4096,), "n": 1024, "k": 1024},
    {"rows": (4995,), "n": 1000, "k": 1032},
    {"rows": (5, 999), "n": 1000, "k": 1032, "r": (999, 1000)},
]
LARGE = {"rows": (256,), "n": 512, "k": 256, "h": 512}


@pytest.fixture(autouse=True)
def hopper():
    needs_hopper()
    torch._dynamo.reset()


def large(op, dtype=HALF, **more):
    """A call that each implementation runs."""
    pair = {"pair": PAIRS["plain"]} if isinstance(op, fo.Matmul) else LARGE
    return given(op, dtype, "cuda", **(pair | more))


def implementation(op, tensors):
    factors, operands = apart(op, tensors)
    return op.explain(*factors, **operands).implementation


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("tiling", SEVERAL)
@pytest.mark.parametrize(
    ("kind", "store", "layout"),
    [
        *(("layer", store, "rows") for store in STORES),
        *(("product", store, way) for store in SCORES for way in ("keys", "values", "heads")),
    ],
)
def test_against_float64(kind, store, layout, tiling, dtype):
    """What is masked is -inf everywhere and nowhere else, whatever the product is there."""
    op = LINEARS[store] if kind == "layer" else MATMULS[store]
    for sizes in SIZES if kind == "layer" else [{"pair": pair} for pair in PAIRS.values()]:
        tensors = given(op, dtype, "cuda", layout, **sizes)
        truth, bounds = allowed(op, tensors)
        out = [torch.full(one.shape, math.nan, dtype=dtype, device="cuda") for one in truth]
        with forced(tiling), torch.no_grad():
            assert f"({tiling})" in implementation(op, tensors)
            call(op, tensors, out=out, **SEEDED)
            again = call(op, tensors, **SEEDED)
        for got, once_more, want, bound in zip(out, again, truth, bounds, strict=True):
            assert torch.equal(got == -math.inf, want == -math.inf), (sizes, "masked")
            finite = want != -math.inf
            worst = ((got.double() - want).abs() / bound)[finite].amax()
            assert worst <= 1, (sizes, worst)  # False for NaN
            assert same_bits(got, once_more)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("tiling", GOING_BACK)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_gradients_between_products_against_float64(hidden, tiling, dtype):
    """Tiles that begin earlier, whose sums may not be counted twice; a depth with a rest."""
    op = BLOCKS[hidden]
    tensors = given(op, dtype, "cuda", rows=(3, 100), n=200, h=264, k=136)
    with forced(tiling):
        factors, operands = apart(op, tensors)
        report = check(op, *factors, **operands)
        found = step(op, learning(tensors))
    assert last_schedule() == f"{tiling}, gradient"
    assert "in double" in {one.case for one in report.compared}
    assert all(one.isfinite().all() for one in found)


@pytest.mark.parametrize(
    "sizes",
    [
        {"rows": (128,), "h": 256, "n": 8},
        {"rows": (257,), "h": 1000, "n": 72},
        {"rows": (1000,), "h": 264, "n": 1000},
        {"rows": (5, 513), "h": 1032, "n": 64},
    ],
    ids=str,
)
@pytest.mark.parametrize("tiling", GOING_BACK)
def test_sizes_between_products(tiling, sizes):
    op = BLOCKS["gelu"]
    factors, operands = apart(op, given(op, torch.bfloat16, "cuda", k=136, **sizes))
    with forced(tiling):
        assert check(op, *factors, **operands).passed


@pytest.mark.parametrize("tiling", SEVERAL)
@pytest.mark.parametrize("kind", ["layer", "product"])
def test_dropout_drops_the_same_elements(kind, tiling):
    """As documented, of products that are nowhere zero."""
    op = LINEARS["dropout"] if kind == "layer" else MATMULS["dropout"]
    tensors = large(op)
    if kind == "layer":
        tensors["b"].fill_(1000.0)
    else:
        tensors["x"].fill_(1.0)
        tensors["other"].fill_(1.0)
    with forced(tiling), torch.no_grad():
        (y,) = call(op, tensors, **SEEDED)
        (all_kept,) = call(op, tensors, training=False)
    assert torch.equal(y != 0, op.dropout_mask(y.shape, SEED, OFFSET, tensors["p"]).cuda())
    assert (all_kept != 0).all()


@pytest.mark.parametrize("tiling", SEVERAL)
@pytest.mark.parametrize(
    ("kind", "store", "pair"),
    [
        *(("layer", store, None) for store in LINEARS),
        *(
            ("product", store, pair)
            for store in ("scores", "dropout", "saving", "tap")
            for pair in ("plain", "heads share keys", "a batch of keys")
        ),
    ],
)
def test_gradients_are_those_of_two_kernels(kind, store, pair, tiling):
    """Where sums are exact to the bit, with random upstream gradients; as little is kept."""
    op = LINEARS[store] if kind == "layer" else MATMULS[store]
    if kind == "layer":
        tensors = exact(large(op, rows=(2, 128), r=(128, 512)))
    else:
        tensors = given(op, HALF, "cuda", pair=PAIRS[pair])
    results, kept = [], []
    for way in ("two_kernels", tiling):
        leaves = learning(tensors)
        with forced(way):
            said = implementation(op, leaves)
            assert (", then one kernel" if way == "two_kernels" else f"({way})") in said
            sizes, outputs = kept_beside(leaves, lambda leaves=leaves: call(op, leaves, **SEEDED))
        kept.append(sizes)
        results.append([*(y.detach() for y in outputs), *gradients(leaves, outputs)])
    if kind == "layer":
        assert all_same(*results)
        assert kept[0] == kept[1]
    else:  # the products of both ways are float16, and differ in the last place
        close(*results, 4e-3)


def test_a_block_whose_first_layer_is_one_kernel():
    """Values and gradients, which two kernels make: those of one have bits of their own."""
    op = BLOCKS["dropout"]
    tensors = exact(large(op))
    results = []
    for way in ("two_kernels", "Together"):
        leaves = learning(tensors)
        with forced(way):
            outputs = call(op, leaves, **SEEDED)
        with forced("two_kernels"):
            results.append([*(y.detach() for y in outputs), *gradients(leaves, outputs)])
    assert all_same(*results)


def test_many_tiles_a_cluster_twice():
    """Persistent blocks; two runs have the same bits, and poison in memory reaches nothing."""
    op = BLOCKS["dropout"]
    tensors = exact(given(op, HALF, "cuda", rows=(4999,), h=2056, n=520, k=64))
    names = [name for name in tensors if name != "p"]

    def run():
        return dict(zip(("y", *names), step(op, learning(tensors), **SEEDED), strict=True))

    runs = []
    for tiling in SEVERAL:
        with forced(tiling):
            for _ in range(2):
                for size in ((4999, 2056), (8 << 20,)):
                    torch.full(size, torch.nan, dtype=HALF, device="cuda")
                runs.append(run())
    for first, second in zip(runs[::2], runs[1::2], strict=True):
        assert all_same(first.values(), second.values())
    with forced("two_kernels"):
        want = run()
    for found in runs:
        assert same_bits(found["w2"], want["w2"]), "h has the bits that it had"
        for name, one in want.items():
            far = (found[name].double() - one.double()).norm() / one.double().norm()
            assert far < 2e-3, name  # a wrong tile of 600 would be 4e-2


@pytest.mark.parametrize("tiling", SEVERAL)
@pytest.mark.parametrize("name", ["layer", "product"])
def test_no_memory_for_a_product_that_is_not_there(name, tiling):
    """In training, too, the result is all that a call takes."""
    op = LINEARS["dropout"] if name == "layer" else MATMULS["dropout"]
    sizes = {"pair": ((8, 256, 64), (8, 64, 512))} if name == "product" else {"rows": (8, 128)}
    tensors = learning(large(op, **sizes), op.inputs)
    with forced(tiling):
        call(op, tensors)  # which is planned, and builds
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        (y,) = call(op, tensors)
        most = torch.cuda.max_memory_allocated() - before
    assert y.numel() * y.element_size() <= most < 1.1 * y.numel() * y.element_size()


def test_h_takes_no_memory_between_the_passes():
    """Bytes that are held after the forward pass: about those of eager code."""
    op = BLOCKS["dropout"]
    tensors = given(op, torch.bfloat16, "cuda", rows=(8192,), n=200, h=4096, k=136)
    tensors = learning(tensors, op.inputs)
    held = []
    for function in (op, compiled(op, "inductor")):
        for _ in range(2):
            before = torch.cuda.memory_allocated()
            (y,) = call(op, tensors, function)
            held.append(torch.cuda.memory_allocated() - before)
            torch.autograd.grad(y.sum(), [tensors[name] for name in op.inputs])
            del y
    assert abs(held[3] - held[1]) < 8192 * 4096  # h has twice as many bytes


def assert_ran(tiling, name, trains):
    """Where the last kernel shows it: of a layer forward, of a block its gradient."""
    if (name == "block") is trains:
        wanted = f"{tiling}, gradient" if trains else tiling
        assert (last_schedule() == wanted) is (tiling != "two_kernels")


@pytest.mark.parametrize("way", ["eager", "compiled"])
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_under_autocast(name, trains, way):
    """Factors of float32 are cast, their gradients are float32: to the bit as of cast tensors."""
    op = ONE_OF_EACH[name]
    tensors = large(op, torch.float32)
    cast = {
        key: one.bfloat16() if isinstance(one, torch.Tensor) else one
        for key, one in tensors.items()
    }
    wanted = op.inputs if trains else ()
    with forced("Together"):
        leaves = learning(tensors, wanted)
        with torch.autocast("cuda", torch.bfloat16):
            if name != "block":
                assert "(Together)" in implementation(op, leaves)
            got = step(op, leaves, compiled(op, "inductor") if way == "compiled" else op, **SEEDED)
        assert_ran("Together", name, trains)
        want = step(op, learning(cast, wanted), **SEEDED)
    assert got[0].dtype is torch.bfloat16
    assert all(one.dtype is torch.float32 for one in got[1:])
    if name != "block":  # a bias of float32 is not the product's to add
        assert all_same([one.bfloat16() for one in got], want)
    assert all(one.isfinite().all() for one in got[1:])


@pytest.mark.parametrize("store", ["saving", "gelu"])
def test_training_under_autocast_is_that_of_two_kernels(store):
    op = LINEARS[store]
    tensors = exact(large(op, torch.float32))
    results = []
    for way in ("two_kernels", "Together"):
        leaves = learning(tensors, ["x", "w", "b"])
        with forced(way), torch.autocast("cuda", torch.bfloat16):
            assert (", then one kernel" if way == "two_kernels" else way) in implementation(
                op, leaves
            )
            y, *_ = call(op, leaves, **SEEDED)
        assert y.dtype is torch.bfloat16
        found = gradients(leaves, [y])
        assert all(one.dtype is torch.float32 for one in found)
        results.append([y.detach(), *found])
    assert all_same(*results)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_in_a_checkpoint(name, reentrant):
    """Run again in the backward pass, it draws the same."""
    op = ONE_OF_EACH[name]
    results = []
    for function in (op, in_a_checkpoint(op, reentrant)):
        leaves = learning(large(op), op.inputs)
        torch.manual_seed(SEED)
        with forced("Together"):
            (y,) = call(op, leaves, function)
            y.backward(randn(*y.shape, dtype=y.dtype, device="cuda", seed=20))
        results.append([y.detach(), *(leaves[key].grad for key in op.inputs)])
    assert all_same(*results)


def captured(run):
    """A graph of a call, and what it writes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = run()
    return graph, made


@pytest.mark.parametrize("way", ["eager", "autocast", "compiled"])
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("tiling", ["Together", "two_kernels"])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_in_a_cuda_graph(name, tiling, trains, way):
    """Replays read the tensors as they are then, and draw anew."""
    op = ONE_OF_EACH[name]
    tensors = large(op, torch.float32 if way == "autocast" else HALF)
    leaves = learning(tensors, op.inputs if trains else ())
    function = compiled(op, "inductor") if way == "compiled" else op
    dy = None

    def run(**options):
        with forced(tiling), torch.autocast("cuda", torch.bfloat16, enabled=way == "autocast"):
            (y,) = call(op, leaves, function, **options)
            if dy is None or not trains:
                return [y]
            return [y, *torch.autograd.grad(y, [leaves[key] for key in op.inputs], dy)]

    (y,) = run()
    dy = randn(*y.shape, dtype=y.dtype, device="cuda", seed=20)
    del y  # With it, what autograd knows of the leaves would stay on the stream of this call.
    graph, made = captured(run)
    assert_ran(tiling, name, trains)
    still_graph, still = captured(lambda: run(training=False))
    seen = []
    for _ in "xy":
        graph.replay()
        still_graph.replay()
        torch.cuda.synchronize()
        seen.append([[one.detach().clone() for one in each] for each in (made, still)])
    assert all(not one.isnan().any() for one in seen[0][0])
    assert not same_bits(seen[0][0][0], seen[1][0][0]), "each replay draws anew"
    assert all_same(seen[0][1], seen[1][1])
    with torch.no_grad():
        leaves["x"].mul_(2)
    still_graph.replay()
    assert same_bits(still[0].detach(), run(training=False)[0].detach())


def test_a_replayed_step_goes_back_by_the_masks_that_it_drew():
    """Of a weight that is the identity, so that they show in the gradient of x."""
    x = torch.ones(256, 256, dtype=HALF, device="cuda")
    tensors = {"x": x, "w": torch.eye(256, dtype=HALF, device="cuda"), "b": x[0], "p": 0.5}
    leaves = learning(tensors, ["x"])

    def run():
        with forced("Together"):
            (y,) = call(LINEARS["dropout"], leaves)
            return y, torch.autograd.grad(y, leaves["x"], x)[0]

    graph, (y, dx) = captured(run)
    for _ in "xy":
        graph.replay()
        assert torch.equal(dx != 0, y != 0)
        assert 0 < (y != 0).sum() < y.numel()


class TestCompiled:
    """By Inductor: eager's bits from the same kernels."""

    @pytest.mark.parametrize("dtype", HALVES, ids=str)
    @pytest.mark.parametrize(
        ("kind", "name", "tiling"),
        [
            *(("layer", name, "Together") for name in LINEARS),
            *(("product", name, "Together") for name in ("scores", "dropout")),
            *(("block", name, "Together") for name in HIDDEN),
            *(("block", name, "two_kernels") for name in HIDDEN),
        ],
    )
    def test_the_bits_of_an_eager_call(self, kind, name, tiling, dtype):
        op = {"layer": LINEARS, "product": MATMULS, "block": BLOCKS}[kind][name]
        tensors = large(op, dtype)
        for seed in ({}, SEEDED) if op.dropouts else ({},):
            for trains in (False, True):
                leaves = learning(tensors, None if trains else ())
                torch._dynamo.reset()
                results = []
                for function in (op, compiled(op, "inductor")):
                    with forced(tiling):
                        results.append(step(op, leaves, function, **seed))
                    assert_ran(tiling, kind, trains)
                count = len(op.outputs) if kind == "product" else None
                assert all_same(*(one[:count] for one in results))
                # Gradients of a Matmul's factors are products in an order of the compiler's.
                for one, other in zip(*results, strict=True):
                    torch.testing.assert_close(one, other, rtol=2**-7, atol=2**-7)

    @pytest.mark.parametrize("kind", ["layer", "product", "block"])
    def test_it_chooses_when_it_runs(self, kind):
        """One graph: one kernel for many rows, two for few."""
        op = {"layer": OPS["layer"], "product": OPS["causal"], "block": BLOCKS["gelu"]}[kind]
        sizes = {"n": 256, "k": 64} if kind == "layer" else {"n": 1024, "h": 4096, "k": 136}
        counter = CompileCounterWithBackend("inductor")
        function = compiled(op, counter, dynamic=True)
        graphs = []
        for rows, one in ((66 * 256, True), (64, False), (2 * 66 * 256, True)):
            sizes |= {"rows": (rows,)}
            if kind == "product":
                m = 512 if one else 64
                sizes = {"pair": ((4, 16, m, 64), (4, 16, 64, m))}
            tensors = given(op, torch.bfloat16 if kind == "block" else HALF, "cuda", **sizes)
            leaves = learning(tensors, None if kind == "block" else ())
            results = []
            for each in (op, function):
                results.append(step(op, leaves, each))
                said = "Together, gradient" if kind == "block" else "Together"
                assert (last_schedule() == said) is one
            assert all_same(*results)
            graphs.append(counter.frame_count)
        assert {*graphs} == {graphs[0]}  # A Python float makes AOTAutograd start twice.
