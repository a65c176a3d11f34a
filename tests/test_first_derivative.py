# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A second derivative is right or refused, whichever tensors have gradients."""

import itertools

import pytest
import torch
from cases import but_seldom, randn, thorough
from torch.nn import functional

import fusedops as fo
from fusedops.schedule.architectures import TILINGS
from fusedops.schedule.launch import ProductConfig
from fusedops.testing import force_launch, last_schedule


@fo.functor
def gelu(v):
    return functional.gelu(v, approximate="tanh")


@fo.functor
def gate(v, g):
    return functional.silu(v) * g


ROWS, N, K = 5, 16, 8
WIDE, ROW = (ROWS, N), (N,)
FACTORS = {"x": (ROWS, K), "w": (N, K)}
PAIR = {"x": (ROWS, K), "w1": (N, K), "w2": (K, N)}

#: An op, the shapes of what it gets by position, and of its operands.
CASES = {
    "layer": (fo.Linear([fo.Bias("b"), gelu()]), FACTORS, {"b": ROW}),
    "layer, a matrix": (fo.Linear([fo.Bias("b"), gelu()]), FACTORS, {"b": (1, N)}),
    "layer, gated": (fo.Linear([fo.Bias("b"), gate("g")]), FACTORS, {"b": ROW, "g": WIDE}),
    "layer, saved": (
        fo.Linear([fo.Bias("b"), fo.Residual("r", save="stream"), gelu()]),
        FACTORS,
        {"b": ROW, "r": WIDE},
    ),
    "layer, linear": (fo.Linear([fo.Scale("s"), fo.Residual("r")]), FACTORS, {"s": ROW, "r": WIDE}),
    "product": (
        fo.Matmul([fo.Scale("s"), gelu()]),
        {"x": (2, ROWS, K), "other": (2, K, N)},
        {"s": (1,)},
    ),
    "block": (
        fo.MLP([fo.Bias("b"), gelu()], [fo.Bias("c"), fo.Residual("r")]),
        PAIR,
        {"b": ROW, "c": (K,), "r": (ROWS, K)},
    ),
    "block, gated": (
        fo.MLP([fo.Bias("b"), gate("g")], [fo.Bias("c")]),
        PAIR,
        {"b": ROW, "c": (K,), "g": WIDE},
    ),
    "map": (fo.Map([fo.Bias("b"), gelu()]), {"x": WIDE}, {"b": ROW}),
    "map, saved": (
        fo.Map([fo.Bias("b"), fo.Residual("r", save="stream"), gate("g")]),
        {"x": WIDE},
        {"b": ROW, "r": WIDE, "g": WIDE},
    ),
    "softmax": (
        fo.Softmax([fo.Scale("s"), fo.Bias("b")], [fo.Scale("t")]),
        {"x": WIDE},
        {"s": (1,), "b": ROW, "t": ROW},
    ),
    "softmax of x alone": (fo.Softmax(), {"x": WIDE}, {}),
    "log-softmax": (fo.LogSoftmax([fo.Bias("b")]), {"x": WIDE}, {"b": ROW}),
    "norm": (
        fo.LayerNorm([fo.Bias("b"), fo.Residual("r", save="stream")], [fo.Affine("g", "e")]),
        {"x": WIDE},
        {"b": ROW, "r": WIDE, "g": ROW, "e": ROW},
    ),
}


def second(call, given, positional, wanted, of):
    """What the squares of all gradients, of random upstreams, have for a gradient of one leaf.

    A square of the leaf itself is among them, so that autograd always finds a way to it.
    """
    leaves = {key: one.clone().requires_grad_(key in wanted) for key, one in given.items()}
    factors = [leaves.pop(key) for key in positional]
    outputs = call(*factors, **leaves)
    leaves |= dict(zip(positional, factors, strict=True))
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else [*outputs]
    outputs = [one for one in outputs if one.requires_grad]
    upstream = [randn(*one.shape, dtype=one.dtype, device=one.device, seed=9) for one in outputs]
    gradients = torch.autograd.grad(
        outputs, [leaves[key] for key in wanted], upstream, create_graph=True, allow_unused=True
    )
    squares = [one.square().sum() for one in gradients if one is not None]
    (found,) = torch.autograd.grad(sum(squares) + leaves[of].square().sum(), leaves[of])
    return found - 2 * leaves[of].detach()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", but_seldom(CASES, {"layer, gated", "layer, linear", "map, saved", "log-softmax"})
)
def test_it_is_refused_or_right(name, device):
    """Of each leaf, where it alone has a gradient, and with one or two others.

    A gradient is a function of more than is kept to compute it: the bias that a product added, the
    factors that a product was made of. If autograd knew no way to one of these, the second
    derivative would lack a term, without a word.
    """
    op, factors, operands = CASES[name]
    given = {
        key: randn(*shape, dtype=torch.float64, device=device, seed=seed)
        for seed, (key, shape) in enumerate({**factors, **operands}.items())
    }
    refused = 0
    for size in (1, 2, 3):
        for wanted in itertools.combinations(given, size):
            for of in wanted:
                try:
                    found = second(op, given, factors, wanted, of)
                except fo.UnsupportedError:
                    refused += 1
                    continue
                # None, or that of torch's product alone, which torch differentiates itself.
                want = second(op.unfused, given, factors, wanted, of)
                torch.testing.assert_close(found, want, rtol=1e-11, atol=1e-11)
    assert refused


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", [*TILINGS][:1] + thorough(*[*TILINGS][1:]))
@pytest.mark.parametrize("name", ["layer", "layer, gated", "layer, saved", "block"])
def test_of_a_product_in_one_kernel(name, tiling):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("one kernel for both needs sm_90")
    op, factors, operands = CASES[name]
    larger = {ROWS: 300, N: 264, K: 256}
    given = {
        key: randn(*(larger[size] for size in shape), dtype=torch.float16, device="cuda", seed=seed)
        for seed, (key, shape) in enumerate({**factors, **operands}.items())
    }
    with force_launch(product=ProductConfig(tiling)):
        for size in (1, 2):
            for wanted in itertools.combinations(given, size):
                for of in wanted:
                    try:
                        found = second(op, given, factors, wanted, of)
                    except fo.UnsupportedError:
                        continue
                    assert not found.any()
                    want = second(op.unfused, given, factors, wanted, of)
                    assert not want.any()
        with torch.no_grad():
            op(*(given[key] for key in factors), **{key: given[key] for key in operands})
        assert last_schedule() == tiling
