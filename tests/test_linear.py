# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Linear: against a layer written by hand in float64, its bound, implementations, what is kept."""

import inspect
import pickle

import pytest
import torch
from cases import FLOATS, raises, randn, same_bits, thorough
from torch.nn import functional

import fusedops as fo
from fusedops.testing import check


@fo.functor
def gelu(v):
    return functional.gelu(v, approximate="tanh")


#: What follows the second product of a feed-forward block, with all that a STORE can hold.
FULL = fo.Linear(
    store=[fo.Bias("b"), gelu(), fo.Tap("act"), fo.Dropout("p"), fo.Residual("r", optional=True)]
)
SAVING = fo.Linear(store=[fo.Bias("b"), fo.Dropout("p"), fo.Residual("r", 0.5, save="stream")])
BIAS = fo.Linear(store=[fo.Bias("b")])
P, SEED, OFFSET = 0.3, 5, 64
SCALE = 65536 / (65536 - round(P * 65536))


def case(dtype=torch.float32, device="cpu", shape=(2, 6), n=24, k=40):
    """x, w and the operands of a call."""
    x, w, b = (
        randn(*s, dtype=dtype, device=device, seed=i)
        for i, s in enumerate(((*shape, k), (n, k), (n,)))
    )
    r = randn(*shape, n, dtype=dtype, device=device, seed=3)
    return x, w, {"b": b, "p": P, "r": r}


def by_hand(op, x, w, b, r, kept):
    """Both declarations in torch, with a dropout mask that is given."""
    z = x @ w.mT + b
    if op is SAVING:
        stream = torch.where(kept, z * SCALE, 0) + 0.5 * r
        return {"y": stream, "stream": stream}
    act = functional.gelu(z, approximate="tanh")
    return {"y": torch.where(kept, act * SCALE, 0) + r, "act": act}


@pytest.mark.thorough
@pytest.mark.parametrize("op", [FULL, SAVING], ids=["tap", "saving"])
def test_a_layer_by_hand(op, device):
    """In float64, where the only freedom is the order of the sums: outputs and all gradients."""
    x, w, operands = case(torch.float64, device)
    names = op.outputs
    leaves = [one.clone().requires_grad_() for one in (x, w, operands["b"], operands["r"])]
    kept = op.dropout_mask((2, 6, 24), SEED, OFFSET, P).to(device)
    wanted = by_hand(op, *leaves, kept)
    result = op(*leaves[:2], b=leaves[2], r=leaves[3], p=P, generator=(SEED, OFFSET))
    assert result._fields == names
    upstream = [randn(2, 6, 24, dtype=torch.float64, device=device, seed=9 + i) for i in range(2)]
    for name, got in result._asdict().items():
        torch.testing.assert_close(got, wanted[name], rtol=1e-12, atol=1e-12)
    theirs = torch.autograd.grad([wanted[name] for name in names], leaves, upstream)
    for got, want in zip(torch.autograd.grad([*result], leaves, upstream), theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    chain = op.unfused(*leaves[:2], b=leaves[2], r=leaves[3], p=P, generator=(SEED, OFFSET))
    for got, want in zip(chain, result, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, *thorough(torch.bfloat16, *FLOATS[2:])], ids=str)
def test_within_the_bound(dtype, device):
    x, w, operands = case(dtype, device)
    assert check(fo.Linear(store=[gelu()]), x, w).passed
    assert check(BIAS, x, w, b=operands["b"]).passed


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", [FULL, SAVING], ids=["tap", "saving"])
def test_whole_stores_within_the_bound(op, dtype, device):
    x, w, operands = case(dtype, device)
    assert check(op, x, w, **operands).passed


def test_the_bound_tells_a_wrong_product(device):
    """A product of 8 bits fewer, one term of 40 left out, and a gradient of the wrong factor."""

    class Coarse(fo.Linear):
        def product(self, x, w):
            if x.dtype is torch.float64:
                return super().product(x, w)
            return super().product(x.bfloat16(), w.bfloat16()).to(x.dtype)

    class Short(fo.Linear):
        def product(self, x, w):
            return super().product(x[..., :-1], w[:, :-1]) if x.dtype is torch.float16 else x @ w.mT

    class Detached(fo.Linear):
        def product(self, x, w):
            return x @ w.mT if x.dtype is torch.float64 else (x * 0.99 + 0.01 * x.detach()) @ w.mT

    x, w, _ = case(torch.float16, device)
    for kind, what in ((Coarse, "y"), (Short, "y"), (Detached, "gradient of x")):
        with pytest.raises(AssertionError) as caught:
            check(kind(), x, w)
        wrong = {one.what for one in caught.value.args[0].compared if one.share > 1}
        assert what in wrong, kind


def saved(function):
    """The tensors that autograd keeps of a call, by their memory."""
    found = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: found.append(t) or t, lambda t: t):
        result = function()
    return {one.untyped_storage().data_ptr(): tuple(one.shape) for one in found}, result


def test_the_least_is_kept(device):
    """X, w and the bias, and the product only where the STORE's gradient reads it.

    explain says the same.
    """
    x, w, operands = case(torch.float16, device)
    leaves = [one.requires_grad_() for one in (x, w)]
    given = [one.data_ptr() for one in (x, w)]
    kept, _ = saved(lambda: SAVING(*leaves, **operands))
    sizes = [shape for memory, shape in kept.items() if memory not in given and 0 not in shape]
    assert sizes == []
    assert [one.name for one in SAVING.explain(x, w, **operands).kept] == ["x", "w"]
    kept, _ = saved(lambda: FULL(*leaves, **operands))
    given.append(operands["b"].data_ptr())
    others = {shape for memory, shape in kept.items() if memory not in given and 0 not in shape}
    assert others == {(2, 6, 24)}  # the sum of product and bias, the GELU's input
    told = FULL.explain(x, w, **operands)
    assert [one.name for one in told.kept] == ["x", "w", "z", "b"]
    assert f"multiply again is {2 * 12 * 24 * 40} flops" in str(told)


def test_implementations(device):
    """A bias alone is torch's; all else is the product, then one kernel."""
    x, w, operands = case(torch.float16, device)
    b = operands["b"]
    with torch.no_grad():
        assert same_bits(fo.Linear()(x, w), functional.linear(x, w))
        assert same_bits(BIAS(x, w, b=b), functional.linear(x, w, b))
        before = BIAS.epilogue.launches
        BIAS(x, w, b=b, training=False)
        assert BIAS.epilogue.launches == before
        wider = BIAS(x, w, b=b.float())
        assert BIAS.epilogue.launches == before + 1
        assert wider.dtype is torch.float16
        assert BIAS(x, w, b=b, dtype=torch.float32).dtype is torch.float32
        out = torch.empty(2, 6, 24, dtype=torch.float16, device=x.device)
        assert BIAS(x, w, b=b, out=out) is out
    alone, two = str(BIAS.explain(x, w, b=b)), str(SAVING.explain(x, w, **operands))
    assert "torch's product alone, which adds 'b': that is all of the STORE" in alone
    assert "STORE is empty" in str(fo.Linear().explain(x, w))
    size = 2 * 6 * 24 * 2
    assert f"one kernel for the STORE, which moves {4 * size + 48} bytes, {size} of them z" in two
    assert "rounded to float16 before the STORE gets it" in two
    assert "then 2 products for x and w" in str(
        SAVING.explain(x.requires_grad_(), w.requires_grad_(), **operands)
    )


def test_ranks_and_nothing(device):
    """X of any rank, operands that broadcast, no rows, no terms."""
    for shape in ((), (5,), (2, 1, 3)):
        x, w, operands = case(device=device, shape=shape)
        got = FULL(x, w, **operands, generator=(1, 0))
        want = FULL.unfused(x, w, **operands, generator=(1, 0))
        torch.testing.assert_close(got.y, want.y)
    x, w, operands = case(device=device, shape=(0, 3))
    assert FULL(x, w, **operands).y.shape == (0, 3, 24)
    x, w, operands = case(device=device, k=0)
    torch.testing.assert_close(BIAS(x, w, b=operands["b"]), operands["b"].expand(2, 6, 24))


@pytest.mark.thorough
def test_optional_operands(device):
    x, w, operands = case(device=device)
    operands["r"] = None
    got = FULL(x, w, **operands, generator=(1, 0)).y
    plain = fo.Linear(store=[fo.Bias("b"), gelu(), fo.Dropout("p")])
    operands.pop("r")
    assert same_bits(got, plain(x, w, **operands, generator=(1, 0)))
    lacking = fo.Linear(store=[fo.Bias("b", optional=True)])
    assert same_bits(lacking(x, w), functional.linear(x, w))


def test_dropout_is_that_of_the_map(device):
    x, w, _ = case(device=device)
    given = {"p": P, "generator": (SEED, OFFSET)}
    y = fo.Linear(store=[fo.Dropout("p")])(x, w, **given)
    same = fo.Map(load=[fo.Dropout("p")])(functional.linear(x, w), **given)
    assert same_bits(y, same)


def test_a_declaration_is_a_value():
    assert pickle.loads(pickle.dumps(FULL)) == FULL
    assert hash(FULL) == hash(pickle.loads(pickle.dumps(FULL)))
    assert FULL != SAVING
    assert repr(BIAS) == "Linear(store=[Bias(bias='b')])"
    assert [*inspect.signature(BIAS).parameters][:3] == ["x", "w", "b"]
    assert SAVING.outputs == ("y", "stream")
    assert "explain" in dir(BIAS)
    assert "run_store" not in dir(BIAS)
    x, w, operands = case()
    assert isinstance(SAVING(x, w, **operands), fo.StreamResult)
    result = FULL(x, w, **operands)
    assert type(result).__name__ == "LinearResult"
    assert pickle.loads(pickle.dumps(result))._fields == ("y", "act")


def test_refusals(device):
    x, w, operands = case(device=device)
    for kind, parts, call in (
        (ValueError, ("w must have shape (N, 40)", "pass w.mT"), lambda: BIAS(x, w.mT)),
        (ValueError, ("w must have shape (N, 40)",), lambda: BIAS(x, w[0])),
        (ValueError, ("x must have shape", "x[None]"), lambda: BIAS(x[0, 0, 0], w)),
        (TypeError, ("w must have x's dtype", "autocast"), lambda: BIAS(x, w.half())),
        (TypeError, ("w is given by position", "op(x, w, ...)"), lambda: BIAS(x, w=w)),
        (TypeError, ("x must be floating point",), lambda: fo.Linear()(x.long(), w.long())),
        (TypeError, ("'bb'", "did you mean 'b'"), lambda: BIAS(x, w, bb=operands["b"])),
        (TypeError, ("operand 'b' is missing",), lambda: BIAS(x, w)),
        (TypeError, ("unknown operand 'b'",), lambda: fo.Linear()(x, w, b=operands["b"])),
        (TypeError, ("training must be",), lambda: fo.Linear()(x, w, training=1)),
        (TypeError, ("dim is no option", "last dimension"), lambda: BIAS(x, w, b=w[:, 0], dim=0)),
        (ValueError, ("against the product of shape (2, 6, 24)",), lambda: BIAS(x, w, b=w[:3, 0])),
        (ValueError, ("no dimension -4",), lambda: BIAS(x, w, b=w[None, None, :, :24])),
        (TypeError, ("unknown argument 'load'", "Map or a norm"), lambda: fo.Linear(load=[])),
        (TypeError, ("store must hold functors",), lambda: fo.Linear(store=None)),
        (ValueError, ("name of a factor",), lambda: fo.Linear(store=[fo.Bias("w")])),
        (ValueError, ("behind Tap",), lambda: fo.Linear(store=[fo.Tap("t"), fo.Save("s")])),
        (
            ValueError,
            ("named twice", "use two names"),
            lambda: fo.Linear([fo.Bias("p"), fo.Dropout("p")]),
        ),
    ):
        with raises(kind, "Linear: ", *parts):
            call()
    with raises(TypeError, "Linear: w must have x's dtype"):
        fo.Linear()(x.to("meta"), w.to("meta", torch.float16))
    with raises(TypeError, "check: Map takes one tensor by position"):
        check(fo.Map(), x, w)


def test_a_second_derivative_is_refused(device):
    """That of a kernel is; torch's product alone has as many as torch gives it."""
    x, w, operands = case(torch.float64, device)
    leaf = x.requires_grad_()
    (dx,) = torch.autograd.grad(FULL(leaf, w, **operands).y.sum(), leaf, create_graph=True)
    with pytest.raises(fo.UnsupportedError, match="Linear: a fused op has a first derivative only"):
        torch.autograd.grad(dx.sum(), leaf)
    b = operands["b"]
    (dx,) = torch.autograd.grad(BIAS(leaf, w, b=b).square().sum(), leaf, create_graph=True)
    (again,) = torch.autograd.grad(dx.sum(), leaf)
    torch.testing.assert_close(again, (2 * w.T @ w.sum(1)).expand(x.shape))


def test_gradients_need_only_what_is_asked_for(device):
    """A frozen weight, a frozen input."""
    x, w, operands = case(device=device)
    dy = {"y": randn(2, 6, 24, device=device, seed=7)}
    for wanted in ("x", "w"):
        leaves = {"x": x.detach(), "w": w.detach()}
        leaves[wanted] = leaves[wanted].clone().requires_grad_()
        y = SAVING(leaves["x"], leaves["w"], **operands, generator=(1, 0)).y
        (got,) = torch.autograd.grad(y, leaves[wanted], dy["y"])
        whole = [leaves["x"].detach().requires_grad_(), leaves["w"].detach().requires_grad_()]
        y = SAVING(*whole, **operands, generator=(1, 0)).y
        want = dict(zip("xw", torch.autograd.grad(y, whole, dy["y"]), strict=True))[wanted]
        assert same_bits(got, want)
