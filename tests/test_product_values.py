# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of products: float64, bounds, sizes, dropouts, missing operands, NaN and Inf."""

import math

import pytest
import torch
from cases import FLOATS, randn, same_bits, thorough, thorough_points
from products import (
    OFFSET,
    OPS,
    SEED,
    P,
    all_same,
    apart,
    call,
    close,
    compiled,
    gelu,
    given,
    gradients,
    learning,
    step,
)
from torch.nn import functional

import fusedops as fo
from fusedops.testing import check

SCALE = 65536 / (65536 - round(P * 65536))


def gelu_by_hand(z):
    return functional.gelu(z, approximate="tanh")


def by_hand(name, tensors, device):
    """The outputs in torch, and which elements of the first one are masked."""
    op, x = OPS[name], tensors["x"]
    masked, kept = None, []
    for slot, key in enumerate(op.inputs[1:] if op.dropouts else ()):
        size = (*x.shape[:-1], tensors[key].shape[0])
        kept.append(op.dropout_mask(size, SEED, OFFSET, P, slot=slot).to(device))
    if name == "scores":
        keys, queries = torch.arange(9, device=device), torch.arange(7, device=device)
        masked = tensors["m"] | (keys >= tensors["n"]) | (keys > queries[:, None])
        y = x @ tensors["other"] * tensors["s"] + tensors["b"]
        return [y.masked_fill(masked, -math.inf)], masked
    if name == "block":
        h = gelu_by_hand(x @ tensors["w1"].T + tensors["b1"])
        h = torch.where(kept[0], h * SCALE, 0)
        y = torch.where(kept[1], (h @ tensors["w2"].T + tensors["b2"]) * SCALE, 0)
        return [y + tensors["r"]], masked
    z = x @ tensors["w"].mT + tensors["b"]
    if name == "saving":
        stream = torch.where(kept[0], z * SCALE, 0) + 0.5 * tensors["r"]
        return [stream, stream], masked
    act = gelu_by_hand(z)
    return [torch.where(kept[0], act * SCALE, 0) + tensors["r"], act], masked


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("block", "eager"),
        ("scores", "compiled"),
        *thorough_points(("full", "eager"), ("saving", "eager"), ("scores", "eager")),
        *thorough_points(("block", "compiled"), ("block", "seed in memory")),
    ],
)
def test_by_hand(name, way, device):
    """In float64, where the only freedom is the order of the sums: outputs and all gradients.

    The slots of a second chain follow those of the first. Masked elements are -inf and have no
    gradient, whatever comes in; heads share their keys.
    """
    op = OPS[name]
    tensors = learning(given(op, torch.float64, device))
    wanted, masked = by_hand(name, tensors, device)
    leaves = [one for one in tensors.values() if getattr(one, "requires_grad", False)]
    upstream = [
        randn(*one.shape, dtype=torch.float64, device=device, seed=20 + i)
        for i, one in enumerate(wanted)
    ]
    reached = [torch.where(masked, 0.0, one) if name == "scores" else one for one in wanted]
    through = [torch.where(masked, 0.0, one) if name == "scores" else one for one in upstream]
    wanted_gradients = torch.autograd.grad(reached, leaves, through)
    if name == "scores":
        upstream = [torch.where(masked, math.inf, one) for one in upstream]
    seed = torch.tensor([SEED, OFFSET], device=device) if "memory" in way else (SEED, OFFSET)
    options = {"generator": seed} if op.dropouts else {}
    for function in (compiled(op),) if way == "compiled" else (op, op.unfused):
        got = call(op, tensors, function, **options)
        close(got, wanted, 1e-12)
        if function is not op.unfused or masked is None:
            close(torch.autograd.grad(got, leaves, upstream), wanted_gradients)


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("layer", torch.float16),  # of further dtypes in test_added_bias.py, with "saving"
        ("causal", torch.float16),
        ("hidden", torch.float16),
        *thorough_points(*((name, dtype) for name in ("bias", "full") for dtype in FLOATS)),
        *thorough_points(*(("causal", dtype) for dtype in FLOATS[1:])),
        *thorough_points(("scores", torch.float16), ("scores", torch.float32)),
        *thorough_points(("block", torch.float16)),
    ],
)
def test_within_the_bound(name, dtype, device):
    factors, operands = apart(OPS[name], given(OPS[name], dtype, device))
    report = check(OPS[name], *factors, **operands)
    assert report.passed
    if isinstance(OPS[name], fo.MLP):
        cases = {one.case for one in report.compared}
        assert {"as layers", "first: as given", "second: as given"} <= cases


@pytest.mark.parametrize("kind", [fo.Linear, *thorough(fo.Matmul)])
def test_the_bound_tells_a_wrong_product(kind, device):
    """A product of 8 bits fewer, one term of 16 left out, and a gradient of the wrong factor."""

    def coarse(product, x, w):
        return product(x.bfloat16(), w.bfloat16()).to(x.dtype)

    def short(product, x, w):
        return product(torch.cat([x[..., :-1], 0 * x[..., -1:]], -1), w)

    def detached(product, x, w):
        return product(x * 0.99 + 0.01 * x.detach(), w)

    for wrong, what in ((coarse, "y"), (short, "y"), (detached, "gradient of x")):

        class Wrong(kind):
            def product(self, x, w, wrong=wrong):
                honest = super().product
                return honest(x, w) if x.dtype is torch.float64 else wrong(honest, x, w)

        op = Wrong()
        with pytest.raises(AssertionError) as caught:
            check(op, *given(op, torch.float16, device).values())
        found = {one.what for one in caught.value.args[0].compared if one.share > 1}
        assert what in found, wrong.__name__


@pytest.mark.parametrize("kind", [fo.Linear, *thorough(fo.Matmul)])
def test_dropout_is_that_of_the_map(kind, device):
    op = kind([fo.Dropout("p")])
    x, other, p = given(op, device=device).values()
    seed = {"p": p, "generator": (SEED, OFFSET)}
    z = kind()(x, other)
    assert same_bits(op(x, other, **seed), fo.Map(load=[fo.Dropout("p")])(z, **seed))


@pytest.mark.thorough
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_block_has_the_bits_of_its_layers(dtype, training, device):
    """Whether the hidden tensor is kept or made again; drawn from torch's generator, in order."""
    op = OPS["block"]
    layers = fo.Linear(op.hidden), fo.Linear(op.store)

    def by_layers(x, w1, w2, *, b1, b2, p, r, **options):
        h = layers[0](x, w1, b1=b1, p=p, **options)
        return layers[1](h, w2, b2=b2, p=p, r=r, **options)

    tensors = learning(given(op, dtype, device))
    results = [step(op, tensors, function, training=training) for function in (op, by_layers)]
    assert all_same(*results)


#: An op with these functors in front and at the end, and the functors by the operands they need.
MISSING = {
    "layer": lambda b, r: fo.Linear([*b, gelu(), *r]),
    "product": lambda b, r: fo.Matmul([*b, gelu(), *r]),
    "block": lambda b, r: fo.MLP([*b, gelu()], r),
}


@pytest.mark.parametrize("gone", [("b", "r"), *thorough(("b",))], ids=str)
@pytest.mark.parametrize("kind", ["layer", *thorough("product", "block")])
def test_operands_that_are_missing(kind, gone, device):
    """Left out or None, as if the functor were not there; given, as if it had to be."""
    name = {"b": "b1" if kind == "block" else "b", "r": "r"}

    def made(optional, names):
        bias, residual = fo.Bias(name["b"], optional=optional), fo.Residual("r", optional=optional)
        return MISSING[kind]([bias] * ("b" in names), [residual] * ("r" in names))

    op = made(True, "br")
    tensors = given(op, torch.float16, device)
    assert all_same(call(op, tensors), call(made(False, "br"), tensors))
    rest = {key: one for key, one in tensors.items() if key not in [name[one] for one in gone]}
    want = call(made(False, {*"br"} - {*gone}), rest)
    assert all_same(call(op, rest), want)
    assert all_same(call(op, {**dict.fromkeys(tensors), **rest}), want)


@pytest.mark.parametrize("zero", ["", "k", "n", "h"])
@pytest.mark.parametrize("rows", [(), (0,), (5,), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("name", ["block", *thorough("full", "product", "bias")])
def test_sizes(name, rows, zero, device):
    """X of any rank, no rows, no terms: as torch's chain, in each gradient."""
    ops = {"product": fo.Matmul([fo.Scale("s"), gelu()]), "block": OPS["plain"]}
    op = ops.get(name) or OPS[name]
    sizes = {zero: 0} if zero else {}
    tensors = learning(given(op, torch.float64, device, rows=rows, **sizes))
    results = [step(op, tensors, function) for function in (op, op.unfused)]
    close(*results)
    if name == "bias" and zero == "k":
        assert same_bits(results[0][0], tensors["b"].detach().expand(*rows, 24))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("saving", ["x"]),
        *thorough_points(("saving", ["w"]), ("scores", ["x"]), ("scores", ["other"])),
        *thorough_points(("block", ["x"]), ("block", ["w2"])),
    ],
    ids=str,
)
def test_gradients_need_only_what_is_asked_for(name, wanted, device):
    """A frozen weight, a frozen input: the bits of those of a call where all have gradients."""
    op = OPS[name]
    every, some = (learning(given(op, device=device), names) for names in (None, wanted))
    found = []
    for tensors in (every, some):
        outputs = call(op, tensors, generator=(SEED, OFFSET))
        grads = gradients(tensors, outputs)
        names = [key for key, one in tensors.items() if getattr(one, "requires_grad", False)]
        found.append(dict(zip(names, grads, strict=True)))
    assert [*found[1]] == wanted
    assert all_same([found[0][key] for key in wanted], found[1].values())


class TestNanAndInf:
    """Of operands and of products, by a kernel and, on a GPU, within that of the product."""

    def test_in_a_bias(self, product_on):
        op = fo.Linear([fo.Bias("b"), fo.Scale("p")])
        tensors = given(op, torch.float16, product_on, rows=(300,), n=264, k=200)
        tensors["b"][3:6] = torch.tensor([torch.inf, -torch.inf, torch.nan])
        (y,) = call(op, tensors)
        assert (y[:, 3] == torch.inf).all()
        assert (y[:, 4] == -torch.inf).all()
        assert y[:, 5].isnan().all()
        assert y[:, [*range(3), *range(6, 264)]].isfinite().all()

    @pytest.mark.thorough
    def test_under_a_mask(self, product_on):
        """Not of keys beyond all queries, whose tiles are left out; of others they are seen."""
        op = OPS["causal"]
        tensors = given(op, torch.float16, product_on, rows=(2,), m=512, n=1024, k=64)
        tensors["other"][0, 5, 300], tensors["other"][1, 7, 600] = torch.nan, torch.inf
        with torch.no_grad():
            (y,) = call(op, tensors)
        keys, queries = (torch.arange(size, device=product_on) for size in (1024, 512))
        masked = keys > queries[:, None]
        assert (y[:, masked] == -torch.inf).all()
        assert y[0, 300:, 300].isnan().all()
        assert y[1, :, :512][~masked[:, :512]].isfinite().all()

    @pytest.mark.thorough
    def test_in_a_gradient(self, product_on):
        op = OPS["plain"]
        tensors = given(op, torch.float16, product_on, rows=(3, 100), n=200, h=264, k=136)
        tensors = learning(tensors, ["x", "w2", "b1"])
        (y,) = call(op, tensors)
        dy = randn(*y.shape, dtype=y.dtype, device=product_on, seed=9)
        dy[1, 7, 3] = torch.nan
        dx, _, db1 = torch.autograd.grad(y, [tensors[name] for name in ("x", "w2", "b1")], dy)
        assert db1.isnan().all(), "a NaN that reaches each column of one row"
        assert dx[1, 7].isnan().all()
        assert dx[0].isfinite().all()
