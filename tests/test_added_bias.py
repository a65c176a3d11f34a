# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A bias with which a STORE begins: the product adds it, so that their sum is rounded once."""

import math

import pytest
import torch
from cases import raises, randn, same_bits
from products import OPS, all_same, forced, gated, gelu, gradients, needs_hopper
from test_product_kernels import described
from torch.nn import functional

import fusedops as fo
from fusedops.declare.text import read
from fusedops.functors import AddedBias
from fusedops.schedule.architectures import TILINGS
from fusedops.schedule.launch import IMPLEMENTATIONS
from fusedops.testing import check, last_schedule

LAYER, HEAVY = OPS["layer"], OPS["saving"]
ROWS, N, K = 300, 264, 200


def cancelling(dtype, device="cpu", rows=ROWS, n=N, k=K):
    """x, w and a bias that is the product of one row, all but zero and its rounding."""
    x = randn(rows, k, dtype=dtype, device=device, seed=1)
    w = randn(n, k, dtype=dtype, device=device, seed=2)
    return x, w, -functional.linear(x.double(), w.double())[7].to(dtype)


def apart(x, w, b):
    """The largest error of torch's product and sum one after another, in its own ulp."""
    y = functional.linear(x, w) + b
    return ulps(y, functional.linear(x.double(), w.double(), b.double()))


def is_rounded_once(y, x, w, b):
    """Whether y is the sum of product and bias within the bound of docs/explanation/products.md."""
    x, w, b = (one.double() for one in (x, w, b))
    wanted = functional.linear(x, w, b)
    sizes = functional.linear(x.abs(), w.abs(), b.abs())
    off = torch.finfo(y.dtype).eps / 2 * wanted.abs()
    return (
        (y.double() - wanted).abs() <= off + math.sqrt(x.shape[-1] + 1) * 2.0**-23 * sizes
    ).all()


def ulps(y, wanted):
    of = torch.finfo(y.dtype).eps * 2.0 ** torch.frexp(wanted)[1].double().sub(1)
    return ((y.double() - wanted).abs() / of).max().item()


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("op", [LAYER, HEAVY], ids=["gelu", "saving"])
def test_within_the_bound_where_sum_and_bias_cancel(op, dtype, device):
    """The bound is of the sum; in 16 bits the two roundings would be beyond it."""
    x, w, b = cancelling(dtype, device)
    operands = {"b": b, "p": 0.25, "r": randn(ROWS, N, dtype=dtype, device=device, seed=3)}
    assert check(op, x, w, **{key: operands[key] for key in op.slots}).passed
    assert dtype is torch.float32 or apart(x, w, b) > 16, "or this shows nothing"


@pytest.mark.parametrize(
    "form", ["a row", "a batch", "batches", "columns apart", "an uneven batch", "no rows"]
)
def test_x_of_any_form(form, device):
    """Of some of which torch rounds the product before it adds the bias."""
    x, w, b = cancelling(torch.bfloat16, device)
    x = {
        "a row": x[7],
        "a batch": x.view(3, 100, K),
        "batches": x.view(3, 10, 10, K),
        "columns apart": torch.stack([x, x], -1)[..., 0],
        "an uneven batch": torch.cat([x, x]).view(3, 200, K)[:, :100],
        "no rows": x[:0],
    }[form]
    only = fo.Linear(store=[fo.Bias("b"), fo.Scale("s")])
    y = only(x, w, b=b, s=1.0)
    assert y.shape == (*x.shape[:-1], N)
    assert is_rounded_once(y, x, w, b)


@pytest.mark.parametrize("name", ["layer", "saving", "bias"])
def test_the_unfused_chain_begins_with_torchs_layer(name, device):
    op = OPS[name]
    x, w, b = cancelling(torch.float16, device)
    operands = {"p": 0.0, "r": randn(ROWS, N, dtype=torch.float16, device=device, seed=3)}
    own = {key: operands[key] for key in op.slots if key != "b"}
    rest = fo.Map(load=op.store[1:])
    found = []
    for chain in (
        lambda x, w, b: op.unfused(x, w, b=b, **own),
        lambda x, w, b: rest.unfused(functional.linear(x, w, b), **own),
    ):
        leaves = dict(zip("xwb", (one.clone().requires_grad_() for one in (x, w, b)), strict=True))
        result = chain(*leaves.values())
        outputs = [result] if isinstance(result, torch.Tensor) else [*result]
        found.append([*(y.detach() for y in outputs), *gradients(leaves, outputs)])
    assert all_same(*found)
    with raises(TypeError, "c"):
        op.unfused(x, w, b=b, c=b, **own)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("store", "b"),
    [
        ([fo.Bias("b"), gelu()], {"shape": (1, N)}),
        ([fo.Bias("b"), gelu()], {"shape": (N,), "dtype": torch.float32}),
        ([fo.Bias("b"), gelu()], {"shape": (1,)}),
        ([fo.Bias("b"), gated("b")], {"shape": (N,)}),
        ([fo.Scale("s"), fo.Bias("b")], {"shape": (N,)}),
        ([fo.Bias("b"), gelu()], 0.5),
    ],
    ids=["of two dimensions", "of another type", "of one", "read twice", "later", "a number"],
)
def test_what_the_functors_add(store, b, device):
    x, w, _ = cancelling(torch.float16, device)
    op = fo.Linear(store=store)
    if isinstance(b, dict):
        kind = {"dtype": torch.float16, **b}
        b = randn(*kind["shape"], dtype=kind["dtype"], device=device, seed=4)
    given = {"b": b, "s": 2.0}
    given = {key: given[key] for key in op.slots}
    assert op.that_adds(w, given) is op
    assert check(op, x, w, **given).passed


def test_of_the_second_layer_of_a_block(device):
    """Of a bias that is not contiguous, for which torch's layer rounds in between."""
    x, w1, _ = cancelling(torch.float16, device)
    w2 = randn(K, N, dtype=torch.float16, device=device, seed=6)
    b1 = randn(N, dtype=torch.float16, device=device, seed=7)
    h = LAYER(x, w1, b=b1)
    b2 = -functional.linear(h.double(), w2.double())[7].half()  # one row leaves the roundings
    b2 = torch.stack([b2, b2], 1)[:, 0]
    op = OPS["plain"]
    for trains in (False, True):
        leaves = [one.detach().requires_grad_(trains) for one in (x, w1, w2)]
        y = op(*leaves, b1=b1, b2=b2)
        assert is_rounded_once(y.detach(), h, w2, b2)
        assert not trains or all(
            one.isfinite().all() for one in torch.autograd.grad(y.sum(), leaves)
        )


@pytest.mark.thorough
def test_in_a_block(device):
    """Both layers; the second one's bias is torch's where that is all."""
    x, w, b = cancelling(torch.float16, device)
    back = randn(K, N, dtype=torch.float16, device=device, seed=6)
    op = fo.MLP(hidden=[fo.Bias("b"), gelu()], store=[fo.Bias("c"), fo.Scale("s")])
    h = LAYER(x, w, b=b)
    c = -functional.linear(h.double(), back.double())[3].half()
    assert check(op, x, w, back, b=b, c=c, s=0.5).passed
    assert same_bits(
        op(x, w, back, b=b, c=c, s=0.5),
        fo.Linear(store=[fo.Bias("c"), fo.Scale("s")])(h, back, c=c, s=0.5),
    )


def test_what_runs_is_written_as_text():
    """So a recorded call, a graph and the cache name it."""
    _, w, b = cancelling(torch.float16)
    op = LAYER.that_adds(w, {"b": b})
    assert op.store[0] == AddedBias("b")
    assert read(op.epilogue.text).load[0] == AddedBias("b")
    assert op.that_adds(w, {"b": b}) is op
    keeps = op.that_keeps()
    assert [type(one).__name__ for one in keeps.store][:2] == ["AddedBias", "Save"]
    with raises(ValueError, "usable as a keyword"):
        AddedBias("1")


def test_it_is_explained():
    x, w, b = cancelling(torch.float16)
    told = LAYER.explain(x, w, b=b)
    assert told.op is LAYER
    assert "torch's product, which adds 'b', then one kernel" in told.implementation
    assert "the product and 'b' is accumulated in float32" in told.notes[0]
    assert "op              Linear(store=[Bias(bias='b')" in str(told)
    (alone,) = (fo.Linear(store=[fo.Bias("b")]).explain(x, w, b=b),)
    assert "torch's product alone, which adds 'b'" in alone.implementation


@pytest.mark.parametrize("tiling", TILINGS)
def test_the_kernel_reads_it_where_sums_begin(tiling):
    x, w, b = cancelling(torch.float16)
    (variant,) = described(LAYER, {"x": x, "w": w, "b": b}, tiling).variants
    assert "AddedBias<View<half, 0, Column::kContiguous, 8>>" in variant.source


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def hopper(self):
        needs_hopper()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
    @pytest.mark.parametrize("op", [LAYER, HEAVY], ids=["gelu", "saving"])
    def test_each_implementation(self, op, implementation, dtype):
        x, w, b = cancelling(dtype, "cuda", rows=1300, n=520)
        operands = {"b": b, "p": 0.25, "r": randn(1300, 520, dtype=dtype, device="cuda", seed=3)}
        with forced(implementation):
            assert check(op, x, w, **{key: operands[key] for key in op.slots}).passed
        assert apart(x, w, b) > 16

    @pytest.mark.parametrize("implementation", IMPLEMENTATIONS[1:])
    @pytest.mark.parametrize("form", ["shifted", "apart", "expanded"])
    def test_a_bias_of_any_form(self, form, implementation):
        """What no bulk copy reads is added by torch's product."""
        x, w, b = cancelling(torch.float16, "cuda")
        given = {
            "shifted": torch.cat([b[:1], b])[1:],
            "apart": torch.stack([b, b.roll(1)], -1)[:, 0],
            "expanded": b[:1].expand(N),
        }[form]
        op = fo.Linear(store=[fo.Bias("b"), fo.Scale("s")])
        with torch.no_grad(), forced(implementation):
            got = op(x, w, b=given, s=1.0)
            want = op(x, w, b=given.clone(memory_format=torch.contiguous_format), s=1.0)
            assert last_schedule() == implementation
        assert is_rounded_once(got, x, w, given)
        assert is_rounded_once(want, x, w, given)

    @pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
    def test_under_autocast_it_is_rounded_as_torchs(self, implementation):
        x, w, b = cancelling(torch.float32, "cuda")
        op = fo.Linear(store=[fo.Bias("b"), fo.Scale("s")])
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16), forced(implementation):
            y = op(x, w, b=b, s=1.0)
        assert is_rounded_once(y, *(one.bfloat16() for one in (x, w, b)))
