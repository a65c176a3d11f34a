# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of products: who runs them, what they keep, autocast, checkpoints, and what is refused."""

import inspect
import math
import pickle

import pytest
import torch
from cases import raises, randn, same_bits, thorough, thorough_points
from products import (
    HALF,
    OPS,
    all_same,
    apart,
    call,
    compiled,
    gelu,
    given,
    gradients,
    in_a_checkpoint,
    kept_beside,
    learning,
    saved,
    step,
)
from torch.nn import functional

import fusedops as fo
from fusedops.product import choice as choices
from fusedops.testing import check, count_launches


def explained(op, tensors, **options):
    positional, operands = apart(op, tensors)
    return op.explain(*positional, **operands, **options)


class TestWhoRunsThem:
    def test_torch_alone(self, device):
        """An empty STORE, or a bias that the product adds; nothing else."""
        x, w, b = given(OPS["bias"], HALF, device).values()
        q, k = given(OPS["product"], HALF, device).values()
        op = OPS["bias"]
        with torch.no_grad(), count_launches() as launches:
            assert same_bits(OPS["empty"](x, w), functional.linear(x, w))
            assert same_bits(op(x, w, b=b), functional.linear(x, w, b))
            assert same_bits(op(x, w, b=b, training=False), functional.linear(x, w, b))
            assert same_bits(OPS["product"](q, k), torch.matmul(q, k))
            block = fo.MLP([fo.Bias("b")])
            y = functional.linear(functional.linear(x, w, b), w.mT)
            assert same_bits(block(x, w, w.mT.contiguous(), b=b), y)
        assert not launches
        for asked in (
            {"b": b.float()},
            {"b": b, "dtype": torch.float32},
            {"b": b, "out": torch.empty(2, 6, 24, dtype=HALF, device=device)},
        ):
            with torch.no_grad(), count_launches() as launches:
                y = op(x, w, **asked)
            assert sum(launches.values()) == 1
            assert y.dtype is asked.get("dtype", HALF)
            assert asked.get("out", y) is y
        for said, told in (
            ("torch's product alone, which adds 'b': that is all of the STORE", (op, b)),
            ("torch's product alone: the STORE is empty", (OPS["empty"],)),
        ):
            assert said in str(told[0].explain(x, w, **dict(zip("b", told[1:], strict=False))))
        assert "torch's product alone" in str(OPS["product"].explain(q, k))

    def test_two_kernels(self, device):
        """The product, then one kernel, whose bytes and products `explain` counts."""
        op, scores = OPS["saving"], OPS["scores"]
        tensors = learning(given(op, HALF, device), ["x", "w"])
        told = str(explained(op, tensors))
        size = 2 * 6 * 24 * 2
        assert (
            f"one kernel for the STORE, which moves {4 * size + 48} bytes, {size} of them z" in told
        )
        assert "rounded to float16 before the STORE gets it" in told
        assert "then 2 products for x and w" in told
        told = explained(scores, given(scores, HALF, device))
        assert told.flops == 2 * 2 * 3 * 7 * 9 * 16
        assert told.store.rows == 42

    def test_between_two_products(self, device):
        """Backward: one Map kernel goes back through bias and GELU, one makes the hidden tensor."""
        tensors = learning(given(OPS["plain"], device=device))
        with count_launches() as launches:
            step(OPS["plain"], tensors)
        # Forward, again in the backward pass, and its gradient; the other bias is torch's.
        assert sum(launches.values()) == 3

    def test_nothing_is_filled_with_zeros(self, device):
        """As torch would for the hidden tensor, to which no gradient goes back by itself."""
        tensors = learning(given(OPS["plain"], device=device, rows=(32,)), ["x", "w1", "w2"])
        outputs = call(OPS["plain"], tensors)
        with torch.profiler.profile() as profile:
            gradients(tensors, outputs)
        made = [one.key for one in profile.key_averages()]
        assert "aten::mm" in made, "nothing was recorded"
        assert not {"aten::zeros", "aten::zero_", "aten::fill_"} & {*made}


#: What a call keeps: its op, which have a gradient, the names that `explain` says, and the sizes of
#: what was not given. A row has 12 elements of x, the product 24 or 40 times as many.
Z, H = 12 * 24, 12 * 40
KEPT = {
    "saving": ("saving", None, ["x", "w"], []),
    "full": ("full", ["x", "w"], ["x", "w", "z", "b"], [Z]),  # the sum of product and bias
    "layer": ("layer", None, ["x", "w", "z", "b"], [Z]),
    "causal": ("causal", None, ["x", "other"], []),
    "capped": ("capped", None, ["x", "other", "z"], [6 * 7 * 9]),
    "block": ("block", None, ["x", "w1", "z", "b1", "w2"], [H]),
    "frozen w2": ("plain", ["x", "w1", "b1", "b2"], ["x", "w1", "z", "b1", "w2"], [H]),
    "frozen first layer": ("plain", ["w2", "b2"], ["h"], [H]),
}


@pytest.mark.parametrize(
    "name", ["saving", "full", "block", *thorough("layer", "causal", "capped")]
)
def test_the_least_is_kept(name, device):
    """The factors, and the product only where the STORE's gradient reads it.

    Of an MLP that, too; what stands between the products is made again.
    """
    key, wanted, names, sizes = KEPT[name]
    op = OPS[key]
    # Of keys that heads share torch's product keeps a copy for each of them.
    heads = {"rows": (2, 3)} if isinstance(op, fo.Matmul) else {}
    tensors = learning(given(op, HALF, device, **heads), wanted)
    found, _ = kept_beside(tensors, lambda: call(op, tensors))
    assert found == sizes
    told = explained(op, tensors)
    assert [one.name for one in told.kept] == names
    kept, _ = saved(lambda: call(op, tensors))
    given_tensors = {key: one for key, one in tensors.items() if isinstance(one, torch.Tensor)}
    own = {key for key, one in given_tensors.items() if one.data_ptr() in kept}
    assert own == {*names} - {"z", "h"}
    if name == "full":
        assert f"multiply again is {2 * 12 * 24 * 16} flops" in str(told)
    if name == "block":
        assert told.recomputed
        assert "made again from z in the backward pass, by a kernel that moves" in str(told)
        assert device != "cpu" or "one kernel for both needs sm_90" in str(told)
        assert "its input is made again" in told.layers[1].implementation, (
            "so it is never one kernel"
        )
        layers = fo.Linear(op.hidden), fo.Linear(op.store)

        def by_layers(x, w1, w2, *, b1, b2, p, r):
            return layers[1](layers[0](x, w1, b1=b1, p=p), w2, b2=b2, p=p, r=r)

        found, _ = kept_beside(tensors, lambda: call(op, tensors, by_layers))
        assert found == [H, H], "layers that are called one by one keep two"
        found, _ = kept_beside(tensors, lambda: call(op, tensors, compiled(op)))
        assert [size for size in found if size >= H] == [H], "compiled code, too"


def test_the_hidden_tensor_is_kept_where_that_costs_nothing(device):
    """Its gradient reads no product, w2 is frozen, no gradient at all, or operands are as large."""
    tensors = given(OPS["plain"], device=device)
    for hidden, frozen, recomputed in (
        ([fo.Bias("b1"), fo.Dropout("p")], (), False),
        ([fo.Bias("b1")], (), False),
        ([fo.Bias("b1"), gelu()], ("w2",), False),
        ([fo.Bias("b1"), gelu()], ("x", "w1", "b1"), False),
        ([fo.Bias("b1"), gelu()], ("x",), True),
    ):
        op = fo.MLP(hidden)
        tensors = given(op, device=device)
        leaves = learning(tensors, {*tensors} - {*frozen})
        assert explained(op, leaves).recomputed is recomputed
        with torch.no_grad():
            told = explained(op, leaves)
        assert not told.recomputed
        assert told.kept == ()
    op = fo.MLP([gelu(), fo.Residual("r")])
    for shape, recomputed in (((2, 6, 40), False), ((40,), True)):
        tensors = given(op, device=device) | {"r": randn(*shape, device=device)}
        tensors = learning(tensors, op.inputs)
        kept, _ = saved(lambda op=op, tensors=tensors: call(op, tensors))
        told = explained(op, tensors)
        assert told.recomputed == recomputed
        names = ["x", "w1", "z", "r", "w2"] if recomputed else ["x", "w1", "z", "h", "w2"]
        assert [one.name for one in told.kept] == names
        assert (tensors["r"].data_ptr() in kept) == recomputed
        assert sum(math.prod(shape) == H for shape in kept.values()) == 2 - recomputed


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("causal", "eager"),
        *thorough_points(
            ("plain", "eager"), ("full", "eager"), ("full", "compiled"), ("plain", "compiled")
        ),
        *thorough_points(("capped", "eager"), ("capped", "compiled")),
    ],
)
def test_under_autocast(name, way, device):
    """Products are computed in the lower dtype, gradients have that of the leaves.

    As without autocast of tensors of that dtype; factors may have two dtypes.
    """
    op, low = OPS[name], torch.bfloat16
    tensors = given(op, device=device)
    tensors[op.inputs[-1]] = tensors[op.inputs[-1]].to(low)
    leaves = learning(tensors)
    with torch.autocast(device, dtype=low):
        got = step(op, leaves, compiled(op) if way == "compiled" else op)
        told = explained(op, leaves)
    assert "in bfloat16" in (str(told) if isinstance(op, fo.MLP) else told.product)
    count = len(op.outputs)
    assert got[0].dtype is low
    learned = [one for one in leaves.values() if getattr(one, "requires_grad", False)]
    assert [one.dtype for one in got[count:]] == [one.dtype for one in learned]
    cast = [*op.inputs, *({"b1"} & {*op.slots})]  # what has its weight's dtype has that, too
    want = step(op, learning(tensors | {key: tensors[key].to(low) for key in cast}))
    assert all_same(got[:count], want[:count])
    for one, other in zip(got[count:], want[count:], strict=True):
        assert same_bits(one.to(other.dtype), other)


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_factors_under_autocast(x_dtype, device):
    """They are what torch's product would multiply, without a gradient and with one."""
    x, w = (one.requires_grad_() for one in given(OPS["empty"], device=device).values())
    x = x.detach().to(x_dtype)
    for learns in (False, True):
        with torch.autocast(device, torch.bfloat16), torch.set_grad_enabled(learns):
            cast = choices.as_multiplied(x, w)
            want = functional.linear(x, w)
        assert [one.dtype for one in cast] == [torch.bfloat16] * 2
        assert same_bits(functional.linear(*cast), want)
        assert cast[1].requires_grad or not learns


@pytest.mark.gpu
def test_weights_are_cast_once_under_autocast():
    """However many calls there are."""
    tensors = learning(given(OPS["plain"], device="cuda"))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        kept, _ = saved(lambda: [call(OPS["plain"], tensors) for _ in range(3)])
        with torch.no_grad():
            first, second = (choices.as_multiplied(tensors["x"], tensors["w1"]) for _ in "xw")
    for name in ("w1", "w2"):
        assert [*kept.values()].count(tuple(tensors[name].shape)) == 1
    assert first[1].data_ptr() == second[1].data_ptr()


@pytest.mark.parametrize("way", ["eager", "compiled"])
@pytest.mark.parametrize("name", ["full", "block", *thorough("dropped")])
def test_in_a_checkpoint(name, way, device):
    """Which makes it again, and draws what was drawn.

    On a GPU a compiled checkpoint draws from a generator of its own, so its masks are not eager's.
    """
    op = OPS[name]
    tensors = learning(given(op, device=device))
    function = in_a_checkpoint(op)
    function = compiled(function) if way == "compiled" else function
    seed = {"generator": (4, 7)} if way == "compiled" and device == "cuda" else {}
    results = [step(op, tensors, each, **seed) for each in (op, function)]
    assert all_same(*results)


@pytest.mark.parametrize("name", ["full", *thorough("capped", "plain")])
def test_a_second_derivative_is_refused(name, device):
    """That of a kernel is; what no gradient loses is in test_first_derivative.py."""
    tensors = learning(given(OPS[name], device=device))
    (y, *_) = call(OPS[name], tensors)
    (dx,) = torch.autograd.grad(y[y.isfinite()].sum(), tensors["x"], create_graph=True)
    with pytest.raises(fo.UnsupportedError, match="a fused op has a first derivative only"):
        torch.autograd.grad(dx.sum(), tensors["x"])


def test_torchs_product_alone_has_further_derivatives(device):
    x, w, b = learning(given(OPS["bias"], torch.float64, device), ["x"]).values()
    (dx,) = torch.autograd.grad(OPS["bias"](x, w, b=b).square().sum(), x, create_graph=True)
    (again,) = torch.autograd.grad(dx.sum(), x)
    torch.testing.assert_close(again, (2 * w.T @ w.sum(1)).expand(x.shape))


def test_a_declaration_is_a_value():
    for name, op in OPS.items():
        assert pickle.loads(pickle.dumps(op)) == op, name
        assert hash(op) == hash(pickle.loads(pickle.dumps(op)))
        assert [one for one, other in OPS.items() if op == other] == [name]
        assert [*inspect.signature(op).parameters][: len(op.inputs)] == [*op.inputs]
        assert "explain" in dir(op)
        assert "run_store" not in dir(op)
    assert repr(OPS["bias"]) == "Linear(store=[Bias(bias='b')])"
    assert repr(fo.Matmul([fo.Scale("s")])) == "Matmul(store=[Scale(scale='s')])"
    assert repr(fo.MLP(hidden=[fo.Bias("b")])) == "MLP(hidden=[Bias(bias='b')])"
    assert OPS["saving"].outputs == ("y", "stream")


def test_results(device):
    def result_of(op):
        positional, operands = apart(op, given(op, HALF, device))
        return op(*positional, **operands)

    assert isinstance(result_of(OPS["saving"]), fo.StreamResult)
    full = result_of(OPS["full"])
    assert type(full).__name__ == "LinearResult"
    assert pickle.loads(pickle.dumps(full))._fields == ("y", "act")
    assert result_of(fo.MLP([gelu()], [fo.Tap("t"), fo.Scale("p")]))._fields == ("y", "t")
    assert fo.Matmul([fo.Tap("t"), fo.Scale("p")]).outputs == ("y", "t")


def refused(device):
    """By op: the kind of error, what it says, and a call."""

    def zeros(*shape):
        return torch.zeros(shape, device=device)

    x, w, b = zeros(2, 6, 16), zeros(24, 16), zeros(24)
    q, k = zeros(2, 3, 7, 16), zeros(2, 1, 9, 16)
    w1, w2, two = zeros(40, 16), zeros(24, 40), {"b1": zeros(40), "b2": zeros(24)}
    bias, scores, plain = OPS["bias"], OPS["causal"], OPS["plain"]
    return {
        "Linear": [
            (ValueError, ("w must have shape (N, 16)", "pass w.mT"), lambda: bias(x, w.mT)),
            (ValueError, ("w must have shape (N, 16)",), lambda: bias(x, w[0])),
            (ValueError, ("x must have shape", "x[None]"), lambda: bias(x[0, 0, 0], w)),
            (
                TypeError,
                ("w must have x's dtype", ".to(torch.float32)", "autocast"),
                lambda: bias(x, w.half()),
            ),
            (
                ValueError,
                ("reads position(-3)", "x has 2 dimensions"),
                lambda: fo.Linear([fo.Gather("t", "i")])(x[0], w, t=w, i=x.new_zeros(1).long()),
            ),
            (
                TypeError,
                ("w must have x's dtype",),
                lambda: fo.Linear()(x.to("meta"), w.to("meta", HALF)),
            ),
            (TypeError, ("w is given by position", "op(x, w, ...)"), lambda: bias(x, w=w)),
            (TypeError, ("x must be floating point",), lambda: fo.Linear()(x.long(), w.long())),
            (TypeError, ("'bb'", "did you mean 'b'"), lambda: bias(x, w, bb=b)),
            (TypeError, ("operand 'b' is missing",), lambda: bias(x, w)),
            (TypeError, ("unknown operand 'b'",), lambda: fo.Linear()(x, w, b=b)),
            (TypeError, ("training must be",), lambda: fo.Linear()(x, w, training=1)),
            (TypeError, ("dim is no option", "last dimension"), lambda: bias(x, w, b=b, dim=0)),
            (ValueError, ("against the product of shape (2, 6, 24)",), lambda: bias(x, w, b=b[:3])),
            (ValueError, ("no dimension -4",), lambda: bias(x, w, b=b[None, None, None])),
            (TypeError, ("unknown argument 'load'", "Map or a norm"), lambda: fo.Linear(load=[])),
            (TypeError, ("store must hold functors",), lambda: fo.Linear(store=None)),
            (ValueError, ("name of a factor",), lambda: fo.Linear(store=[fo.Bias("w")])),
            (ValueError, ("behind Tap",), lambda: fo.Linear(store=[fo.Tap("t"), fo.Save("s")])),
            (
                ValueError,
                ("named twice", "use two names"),
                lambda: fo.Linear([fo.Bias("p"), fo.Dropout("p")]),
            ),
        ],
        "Matmul": [
            (
                ValueError,
                ("other must have shape (..., 16, N)", "other.mT"),
                lambda: scores(q, k, s=1.0),
            ),
            (
                ValueError,
                ("other must have shape (..., rows",),
                lambda: scores(q, k[0, 0, 0], s=1.0),
            ),
            (ValueError, ("batch dimensions", "(2, 3)"), lambda: scores(q, q[:, :2].mT, s=1.0)),
            (TypeError, ("other must have x's dtype",), lambda: scores(q, k.half().mT, s=1.0)),
            (TypeError, ("x must be floating point",), lambda: fo.Matmul()(q.long(), k.long().mT)),
            (TypeError, ("'ss'", "did you mean"), lambda: scores(q, k.mT, s=1.0, ss=0)),
            (TypeError, ("operand 's' is missing",), lambda: scores(q, k.mT)),
            (TypeError, ("dim is no option",), lambda: scores(q, k.mT, s=1.0, dim=0)),
            (
                ValueError,
                ("against the product of shape (2, 3, 7, 9)",),
                lambda: scores(q, k.mT, s=torch.zeros(3)),
            ),
            (ValueError, ("name of a factor",), lambda: fo.Matmul(store=[fo.Bias("other")])),
            (ValueError, ("than x, other, w",), lambda: fo.Matmul(store=[fo.Scale("w")])),
            (TypeError, ("unknown argument 'load'",), lambda: fo.Matmul(load=[])),
        ],
        "MLP": [
            (
                ValueError,
                ("w1 must have shape (N, 16)", "w1.mT"),
                lambda: plain(x, w1.mT, w2, **two),
            ),
            (ValueError, ("w2 must have shape (N, 40)", "w1 of"), lambda: plain(x, w1, w1, **two)),
            (TypeError, ("w2 is missing", "op(x, w1, w2, ...)"), lambda: plain(x, w1, **two)),
            (TypeError, ("w2 must have x's dtype",), lambda: plain(x, w1, w2.half(), **two)),
            (TypeError, ("'b3'", "takes 'b1', 'b2'"), lambda: plain(x, w1, w2, b3=b, **two)),
            (TypeError, ("'b2' is missing",), lambda: plain(x, w1, w2, b1=two["b1"])),
            (
                ValueError,
                ("'b1'", "product of shape (2, 6, 40)"),
                lambda: plain(x, w1, w2, b1=b, b2=b),
            ),
            (TypeError, ("dim is no option",), lambda: plain(x, w1, w2, **two, dim=0)),
            (TypeError, ("training must be",), lambda: plain(x, w1, w2, **two, training=1)),
            (TypeError, ("unknown argument 'load'",), lambda: fo.MLP(load=[])),
            (ValueError, ("name of a factor",), lambda: fo.MLP([fo.Bias("w1")])),
            (ValueError, ("hidden cannot return",), lambda: fo.MLP(hidden=[fo.Save("s")])),
            (TypeError, ("hidden must hold functors",), lambda: fo.MLP(hidden=3)),
        ],
        "check": [
            (TypeError, ("Map takes one tensor by position",), lambda: check(fo.Map(), x, w))
        ],
    }


@pytest.mark.parametrize("name", ["Linear", "Matmul", "MLP", "check"])
def test_refusals(name, device):
    for kind, parts, call_of in refused(device)[name]:
        with raises(kind, f"{name}: ", *parts):
            call_of()
