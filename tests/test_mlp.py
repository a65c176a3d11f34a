# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""MLP: the bits of its two layers, by hand in float64, and what it keeps between the passes."""

import math
import pickle

import pytest
import torch
from cases import raises, randn, same_bits, thorough
from test_linear import SCALE, P, gelu, saved
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import fusedops as fo
from fusedops.testing import check, count_launches

BLOCK = fo.MLP(
    hidden=[fo.Bias("b1"), gelu(), fo.Dropout("p")],
    store=[fo.Bias("b2"), fo.Dropout("p"), fo.Residual("r")],
)
LAYERS = fo.Linear(BLOCK.hidden), fo.Linear(BLOCK.store)
PLAIN = fo.MLP(hidden=[fo.Bias("b1"), gelu()], store=[fo.Bias("b2")])
SHAPES = {"x": (2, 3, 16), "w1": (40, 16), "w2": (16, 40), "b1": (40,), "b2": (16,)}


def case(dtype=torch.float32, device="cpu"):
    """Leaves by name, and the residual."""
    leaves = {
        name: randn(*shape, dtype=dtype, device=device, seed=seed).requires_grad_()
        for seed, (name, shape) in enumerate(SHAPES.items())
    }
    return leaves, randn(2, 3, 16, dtype=dtype, device=device, seed=8)


def run(op, leaves, **further):
    """Outputs and gradients of one call."""
    x, w1, w2, b1, b2 = leaves.values()
    y = op(x, w1, w2, b1=b1, b2=b2, **further)
    dy = randn(*y.shape, dtype=y.dtype, device=y.device, seed=9)
    return [y.detach(), *torch.autograd.grad(y, [*leaves.values()], dy)]


def by_layers(x, w1, w2, *, b1, b2, p, r, **options):
    return LAYERS[1](LAYERS[0](x, w1, b1=b1, p=p, **options), w2, b2=b2, p=p, r=r, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, *thorough(torch.bfloat16)], ids=str)
def test_the_bits_of_its_layers(dtype, device):
    """Whether the hidden tensor is kept or made again; drawn from torch's generator, in order."""
    leaves, r = case(dtype, device)
    results = []
    for op in (BLOCK, by_layers):
        torch.manual_seed(3)
        results.append(run(op, leaves, p=P, r=r))
    assert all(same_bits(*pair) for pair in zip(*results, strict=True))
    results = [run(op, leaves, p=P, r=r, training=False) for op in (BLOCK, by_layers)]
    assert all(same_bits(*pair) for pair in zip(*results, strict=True))


def by_hand(leaves, r):
    """Y of seed 5 and offset 64 by torch's own layers, and its gradients."""
    x, w1, w2, b1, b2 = leaves.values()
    masks = [
        BLOCK.dropout_mask(shape, 5, 64, P, slot=slot).to(x.device)
        for slot, shape in enumerate(((2, 3, 40), (2, 3, 16)))
    ]
    h = torch.where(masks[0], functional.gelu(x @ w1.T + b1, approximate="tanh") * SCALE, 0)
    y = torch.where(masks[1], (h @ w2.T + b2) * SCALE, 0) + r
    dy = randn(*y.shape, dtype=y.dtype, device=x.device, seed=9)
    return [y.detach(), *torch.autograd.grad(y, [*leaves.values()], dy)]


@pytest.mark.parametrize("as_tensor", [False, *thorough(True)])
def test_by_hand(as_tensor, device):
    """In float64, of a given seed: the slots of the second chain follow those of the first."""
    leaves, r = case(torch.float64, device)
    wanted = by_hand(leaves, r)
    generator = torch.tensor([5, 64], device=device) if as_tensor else (5, 64)
    for op in (BLOCK, BLOCK.unfused):
        for got, want in zip(run(op, leaves, p=P, r=r, generator=generator), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_check(device):
    leaves, _ = case(torch.float16, device)
    factors = [leaves[name].detach() for name in ("x", "w1", "w2")]
    report = check(fo.MLP(hidden=[gelu()]), *factors)
    cases = {one.case for one in report.compared}
    assert {"as layers", "first: as given", "second: as given"} <= cases


@pytest.mark.thorough
def test_check_of_a_block(device):
    leaves, r = case(torch.float16, device)
    x, w1, w2, b1, b2 = (one.detach() for one in leaves.values())
    assert check(BLOCK, x, w1, w2, b1=b1, b2=b2, p=P, r=r).passed


def test_the_hidden_tensor_is_not_kept(device):
    """One tensor of its size is, the product; layers that are called one by one keep two."""
    leaves, r = case(torch.float16, device)
    x, w1, w2, b1, b2 = leaves.values()
    wide = []
    for op in (BLOCK, by_layers):
        kept, _ = saved(lambda op=op: op(x, w1, w2, b1=b1, b2=b2, p=P, r=r))
        wide.append([shape for shape in kept.values() if math.prod(shape) == 2 * 3 * 40])
    assert [*map(len, wide)] == [1, 2]
    told = BLOCK.explain(x, w1, w2, b1=b1, b2=b2, p=P, r=r)
    assert [one.name for one in told.kept] == ["x", "w1", "z", "b1", "w2"]
    assert told.recomputed
    assert "made again from z in the backward pass" in str(told)
    assert "its input is made again" in told.layers[1].implementation, "so it is never one kernel"


@pytest.mark.parametrize("sizes", [{}, {"x": 0}, {"w1": 0}, {"w2": 0}], ids=str)
@pytest.mark.parametrize("rows", [(), (0,), (2, 3)], ids=str)
def test_sizes_of_zero(rows, sizes, device):
    """Rows, K, H or N; as torch's chain, in each gradient."""
    k, h, n = (sizes.get(key, size) for key, size in (("x", 4), ("w1", 8), ("w2", 5)))
    shapes = {"x": (*rows, k), "w1": (h, k), "w2": (n, h), "b1": (h,), "b2": (n,)}
    leaves = {
        name: randn(*shape, dtype=torch.float64, device=device, seed=seed).requires_grad_()
        for seed, (name, shape) in enumerate(shapes.items())
    }
    for got, want in zip(run(PLAIN, leaves), run(PLAIN.unfused, leaves), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_the_second_bias_is_added_before_rounding(device):
    """Of a bias that is not contiguous, for which torch's layer rounds in between."""
    leaves, _ = case(torch.float16, device)
    x, w1, w2, b1, _ = (one.detach() for one in leaves.values())
    h = fo.Linear(PLAIN.hidden)(x, w1, b1=b1).double()
    full = functional.linear(h, w2.double())
    b2 = -full[1, 2].half()  # of which one row leaves the roundings
    b2 = torch.stack([b2, b2], 1)[:, 0]
    wanted = full + b2.double()
    sizes = functional.linear(h.abs(), w2.double().abs()) + b2.double().abs()
    bound = torch.finfo(torch.float16).eps / 2 * wanted.abs() + math.sqrt(41) * 2.0**-23 * sizes
    leaves = dict(zip(SHAPES, (x, w1, w2, b1, b2), strict=True))
    with torch.no_grad():
        plain = PLAIN(x, w1, w2, b1=b1, b2=b2)
    trained = run(PLAIN, {key: one.requires_grad_() for key, one in leaves.items()})[0]
    for y in (plain, trained):
        assert ((y.double() - wanted).abs() <= bound).all()


def test_it_is_kept_where_that_costs_nothing(device):
    """A hidden chain whose gradient reads no product, a frozen w2, no gradient at all."""
    leaves, _ = case(torch.float32, device)
    x, w1, w2, b1, b2 = leaves.values()
    linear = fo.MLP(hidden=[fo.Bias("b1"), fo.Dropout("p")])
    assert not linear.explain(x, w1, w2, b1=b1, p=P).recomputed
    assert not PLAIN.explain(x, w1, w2.detach(), b1=b1, b2=b2).recomputed
    with torch.no_grad():
        told = PLAIN.explain(x, w1, w2, b1=b1, b2=b2)
    assert not told.recomputed
    assert told.kept == ()
    alone = fo.MLP(hidden=[fo.Bias("b1")])
    assert not alone.explain(x, w1, w2, b1=b1).recomputed
    y = alone(x, w1, w2, b1=b1)
    assert same_bits(y, functional.linear(functional.linear(x, w1, b1), w2))


def test_it_is_kept_beside_operands_as_large(device):
    """Where no gradient reads them; they would be kept in its place. Smaller ones are."""
    leaves, _ = case(torch.float32, device)
    x, w1, w2, *_ = leaves.values()
    op = fo.MLP(hidden=[gelu(), fo.Residual("r")])
    for shape, recomputed in (((2, 3, 40), False), ((40,), True)):
        r = randn(*shape, device=device)
        kept, _ = saved(lambda r=r: op(x, w1, w2, r=r))
        told = op.explain(x, w1, w2, r=r)
        assert told.recomputed == recomputed
        names = ["x", "w1", "z", "r", "w2"] if recomputed else ["x", "w1", "z", "h", "w2"]
        assert [one.name for one in told.kept] == names
        assert (r.data_ptr() in kept) == recomputed
        assert sum(math.prod(shape) == 2 * 3 * 40 for shape in kept.values()) == 2 - recomputed


@pytest.mark.gpu
def test_weights_are_cast_once_under_autocast():
    """However many calls there are."""
    leaves, _ = case(torch.float32, "cuda")
    x, w1, w2, b1, b2 = leaves.values()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        kept, _ = saved(lambda: [PLAIN(x, w1, w2, b1=b1, b2=b2) for _ in range(3)])
    assert [*kept.values()].count(tuple(w1.shape)) == 1
    assert [*kept.values()].count(tuple(w2.shape)) == 1


def test_one_kernel_between_the_products(device):
    """Backward: one Map kernel goes back through bias and GELU, one makes the hidden tensor."""
    leaves, _ = case(torch.float32, device)
    with count_launches() as launches:
        run(PLAIN, leaves)
    # Forward, again in the backward pass, and its gradient; the other bias is torch's.
    assert sum(launches.values()) == 3


def test_in_a_checkpoint(device):
    leaves, r = case(torch.float32, device)
    results = []
    for way in (lambda f, *a, **k: f(*a, **k), checkpoint):
        torch.manual_seed(4)

        def op(*factors, way=way, **operands):
            more = {"use_reentrant": False} if way is checkpoint else {}
            return way(BLOCK, *factors, **operands, **more)

        results.append(run(op, leaves, p=P, r=r))
    assert all(same_bits(*pair) for pair in zip(*results, strict=True))


def test_under_autocast(device):
    """As torch's layers: weights in float32, activations in bfloat16, gradients in float32."""
    leaves, _ = case(torch.float32, device)
    first, second = fo.Linear(PLAIN.hidden), fo.Linear(PLAIN.store)
    results = []
    with torch.autocast(device, dtype=torch.bfloat16):
        results.append(run(PLAIN, leaves))
        results.append(
            run(lambda x, w1, w2, b1, b2: second(first(x, w1, b1=b1), w2, b2=b2), leaves)
        )
    assert results[0][0].dtype is torch.bfloat16
    assert [one.dtype for one in results[0][1:]] == [torch.float32] * 5
    assert all(same_bits(*pair) for pair in zip(*results, strict=True))


def test_a_declaration_is_a_value(device):
    assert pickle.loads(pickle.dumps(BLOCK)) == BLOCK
    assert BLOCK != PLAIN
    assert repr(fo.MLP(hidden=[fo.Bias("b")])) == "MLP(hidden=[Bias(bias='b')])"
    x, w1, w2, *_ = case(device=device)[0].values()
    tapped = fo.MLP(hidden=[gelu()], store=[fo.Tap("t"), fo.Scale("s")])
    assert tapped(x, w1, w2, s=2.0)._fields == ("y", "t")


def test_refusals(device):
    leaves, _ = case(device=device)
    x, w1, w2, b1, b2 = (one.detach() for one in leaves.values())
    given = {"b1": b1, "b2": b2}
    for kind, parts, call in (
        (ValueError, ("w1 must have shape (N, 16)", "w1.mT"), lambda: PLAIN(x, w1.mT, w2, **given)),
        (ValueError, ("w2 must have shape (N, 40)", "w1 of"), lambda: PLAIN(x, w1, w1, **given)),
        (TypeError, ("w2 is missing", "op(x, w1, w2, ...)"), lambda: PLAIN(x, w1, **given)),
        (TypeError, ("w2 must have x's dtype",), lambda: PLAIN(x, w1, w2.half(), **given)),
        (TypeError, ("'b3'", "takes 'b1', 'b2'"), lambda: PLAIN(x, w1, w2, b3=b1, **given)),
        (TypeError, ("'b2' is missing",), lambda: PLAIN(x, w1, w2, b1=b1)),
        (
            ValueError,
            ("'b1'", "product of shape (2, 3, 40)"),
            lambda: PLAIN(x, w1, w2, b1=b2, b2=b2),
        ),
        (TypeError, ("dim is no option",), lambda: PLAIN(x, w1, w2, **given, dim=0)),
        (ValueError, ("hidden cannot return",), lambda: fo.MLP(hidden=[fo.Save("s")])),
        (TypeError, ("hidden must hold functors",), lambda: fo.MLP(hidden=3)),
    ):
        with raises(kind, "MLP: ", *parts):
            call()
