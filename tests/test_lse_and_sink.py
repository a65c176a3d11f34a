# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The logsumexp of a softmax, an output with a gradient, and a sink: one more logit of a row."""

import dataclasses

import pytest
import torch
from cases import (
    FLOATS,
    LOG_SOFTMAX,
    SOFTMAX,
    gradients_of,
    raises,
    randn,
    same_bits,
    thorough,
    verify,
    verify_gradients,
)
from references import Chain

import fusedops as fo
from fusedops.testing import check

CHAINS = {"softmax": SOFTMAX, "log_softmax": LOG_SOFTMAX}
OPS = ["softmax", *thorough("log_softmax")]

#: What a sink of an x of shape (2, 3, 5, columns) may be; None is a number.
SINKS = [(3, 1, 1), (2, 3, 5, 1), (5, 1), (1,), (2, 1, 5, 1), (1, 3, 1, 1), None]


def with_both(op, **more):
    return dataclasses.replace(CHAINS[op], lse=True, sink="s", **more)


def sink_of(shape, **options):
    return 0.75 if shape is None else randn(*shape, seed=40, **options)


@pytest.mark.parametrize("shape", SINKS, ids=lambda shape: "x".join(map(str, shape or ())))
@pytest.mark.parametrize("op", OPS)
def test_sinks_of_every_shape(op, shape, device):
    x = randn(2, 3, 5, 17, dtype=torch.float64, device=device)
    operands = {"s": sink_of(shape, dtype=torch.float64, device=device)}
    single = {k: v.float() if isinstance(v, torch.Tensor) else v for k, v in operands.items()}
    verify(with_both(op), x.float(), single)
    verify_gradients(with_both(op), x, operands, unfused=True)


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [1, 33, *thorough(1024, 3000), 16400])
@pytest.mark.parametrize("op", OPS)
def test_columns_and_dtypes(op, columns, dtype, device):
    x = randn(7, columns, dtype=dtype, device=device)
    operands = {"s": randn(7, 1, dtype=dtype, device=device, seed=41)}
    verify(with_both(op), x, operands)
    verify_gradients(with_both(op), x, operands)


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", ["register", "shared", "streaming", "cluster"])
@pytest.mark.parametrize("op", CHAINS)
def test_schedules(op, schedule):
    columns = 20000 if schedule == "cluster" else 3001
    x = randn(2, 3, 5, columns, dtype=torch.float16, device="cuda")
    operands = {"s": randn(3, 1, 1, device="cuda", seed=42)}
    verify(with_both(op), x, operands, schedule=schedule)
    verify_gradients(with_both(op), x, operands, schedule=schedule)


@pytest.mark.thorough
def test_a_row_that_is_read_twice(device):
    x = randn(2, 3, 5, 1100, device=device)
    operands = {"s": randn(3, 1, 1, device=device, seed=43)}
    verify(with_both("softmax"), x, operands, schedule="streaming")
    verify_gradients(with_both("softmax"), x, operands, schedule="streaming")


@pytest.mark.thorough
@pytest.mark.parametrize("op", CHAINS)
@pytest.mark.parametrize("outputs", [("y",), ("lse",)], ids=["y", "lse"])
def test_the_gradient_of_one_output_alone(op, outputs, device):
    x = randn(4, 3, 19, device=device)
    given = {"y": randn(4, 3, 19, device=device, seed=7), "lse": randn(4, 3, device=device, seed=8)}
    upstream = {name: given[name] for name in outputs}
    verify_gradients(with_both(op), x, {"s": randn(3, 1, device=device, seed=44)}, upstream)


@pytest.mark.parametrize("wanted", [["x"], ["s"]], ids=["x", "s"])
def test_the_gradient_of_one_operand_alone(wanted, device):
    x = randn(4, 3, 19, device=device)
    operands = {"s": randn(3, 1, device=device, seed=45)}
    verify_gradients(with_both("log_softmax"), x, operands, wanted=wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"lse": True}, {"sink": "s"}], ids=["lse", "sink"])
@pytest.mark.parametrize("op", OPS)
def test_one_without_the_other(op, options, device):
    chain = dataclasses.replace(CHAINS[op], **options)
    operands = {"s": randn(3, 1, device=device, seed=46)} if "sink" in options else {}
    x = randn(4, 3, 19, device=device)
    verify(chain, x, operands)
    verify_gradients(chain, x, operands)


def attention(op="softmax", **options):
    load = (("scale", "scale"), ("bias", "bias"), ("mask", "m"), ("causal", "top-left", 0))
    return Chain(op, load=load, store=(("dropout", "p"),), **options)


@pytest.mark.thorough
@pytest.mark.parametrize("op", OPS)
def test_in_an_attention(op, device):
    """Masks, dropout and an operand with a gradient that rows share, as gpt-oss has it."""
    x = randn(2, 4, 9, 9, device=device)
    operands = {
        "scale": 0.3,
        "bias": randn(4, 9, 9, device=device, seed=47),
        "m": randn(2, 1, 1, 9, device=device, seed=48) > 0.8,
        "p": 0.25,
        "s": randn(4, 1, 1, device=device, seed=49),
    }
    operands["m"][0, ..., 0] = True  # the first query sees nothing
    chain = attention(op, lse=True, sink="s")
    got = verify(chain, x, operands)
    verify_gradients(chain, x, operands, unfused=True)
    empty = torch.zeros_like(got["y"][0, :, 0]) if op == "softmax" else None
    assert empty is None or torch.equal(got["y"][0, :, 0], empty)
    torch.testing.assert_close(got["lse"][0, :, 0], operands["s"][:, 0, 0], rtol=1e-6, atol=0)


@pytest.mark.thorough
def test_rows_that_share_a_sink_need_not_be_neighbours(device):
    """Two operands that rows share across each other: the sums are left to torch."""
    x = randn(6, 5, 4, 8, dtype=torch.float64, device=device)
    chain = dataclasses.replace(with_both("softmax"), load=(("bias", "b"), ("scale", "a")))
    operands = {
        "b": randn(5, 1, 8, dtype=torch.float64, device=device, seed=50),
        "a": randn(6, 1, 4, 8, dtype=torch.float64, device=device, seed=51),
        "s": randn(6, 1, 4, 1, dtype=torch.float64, device=device, seed=52),
    }
    verify_gradients(chain, x, operands)
    operands["s"] = randn(1, 5, 1, 1, dtype=torch.float64, device=device, seed=53)
    verify_gradients(chain, x, operands)


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [1, 3000])
def test_many_rows_share_one_sink(rows, device):
    """Slices of the rows leave parts, which a second kernel adds up."""
    chain = with_both("softmax")
    x = randn(rows, 40, device=device)
    operands = {"s": randn(1, device=device, seed=54)}
    first = verify_gradients(chain, x, operands)
    assert same_bits(first["s"], verify_gradients(chain, x, operands)["s"])


@pytest.mark.thorough
@pytest.mark.parametrize("op", CHAINS)
def test_a_sink_of_minus_infinity_is_none(op, device):
    plain, kind = dataclasses.replace(CHAINS[op], lse=True), with_both(op)
    x = randn(3, 33, device=device)
    x[1] = -torch.inf
    dy, of_lse = randn(3, 33, device=device, seed=1), randn(3, device=device, seed=2)
    dy[2, 4] = torch.nan
    results = []
    for chain, operands in (
        (plain, {}),
        (kind, {"s": torch.full((3, 1), -torch.inf, device=device)}),
    ):
        op_ = (fo.Softmax if op == "softmax" else fo.LogSoftmax)(lse=True, sink=chain.sink)
        results.append(gradients_of(op_, x, operands, {"y": dy, "lse": of_lse}))
    (outputs, gradients), (same, alike) = results
    assert same_bits(outputs["y"], same["y"])
    assert same_bits(outputs["lse"], same["lse"])
    assert same_bits(gradients["x"], alike["x"])
    assert torch.equal(alike["s"], torch.zeros(3, 1, device=device))
    assert torch.equal(outputs["lse"][1], torch.tensor(-torch.inf, device=device))
    assert torch.equal(gradients["x"][1], torch.zeros(33, device=device))


@pytest.mark.thorough
@pytest.mark.parametrize("empty_row", ["zero", "nan"])
@pytest.mark.parametrize("op", CHAINS)
def test_a_row_without_logits(op, empty_row, device):
    """Its lse is -inf, without gradient. With a sink the row is not empty: lse is the sink."""
    kind = fo.Softmax if op == "softmax" else fo.LogSoftmax
    x = torch.full((2, 9), -torch.inf, device=device)
    upstream = {"y": randn(2, 9, device=device), "lse": randn(2, device=device, seed=1)}
    for function in (kind(empty_row=empty_row, lse=True),):
        for call in (function, function.unfused):
            outputs, got = gradients_of(call, x, {}, upstream)
            assert outputs["lse"].isneginf().all()
            assert torch.equal(got["x"], torch.zeros_like(x))
    sunk = kind(empty_row=empty_row, lse=True, sink="s")
    s = torch.tensor([[2.5], [-3.0]], device=device)
    for call in (sunk, sunk.unfused):
        outputs, got = gradients_of(call, x, {"s": s}, upstream)
        assert torch.equal(outputs["lse"], s[:, 0])
        assert (outputs["y"] == (0.0 if op == "softmax" else -torch.inf)).all()
        assert torch.equal(got["x"], torch.zeros_like(x))
        torch.testing.assert_close(got["s"][:, 0], upstream["lse"])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["x", "s"])
@pytest.mark.parametrize("op", CHAINS)
def test_nan_and_infinity_are_seen(op, where, value, device):
    kind = fo.Softmax if op == "softmax" else fo.LogSoftmax
    x, s = randn(3, 70, device=device), randn(3, 1, device=device, seed=1)
    (x if where == "x" else s)[1, -1] = value
    sunk = kind(lse=True, sink="s")
    for call in (sunk, sunk.unfused):
        y, lse = call(x, s=s)
        assert lse[1].isnan()
        assert y[1].isnan().any()
        assert y[0].isfinite().all()
        assert lse[[0, 2]].isfinite().all()


def test_rows_without_columns(device):
    x = torch.empty(3, 0, device=device)
    s = randn(3, 1, device=device).requires_grad_()
    assert fo.Softmax(lse=True)(x).lse.isneginf().all()
    lse = fo.Softmax(lse=True, sink="s")(x, s=s).lse
    assert torch.equal(lse, s[:, 0])
    assert torch.equal(torch.autograd.grad(lse.sum(), s)[0], torch.ones_like(s))


def test_lse_is_that_of_the_load(device):
    x, bias = randn(4, 12, device=device), randn(12, device=device, seed=1)
    y, lse = fo.Softmax(load=[fo.Bias("b")], store=[fo.Scale("g")], lse=True)(x, b=bias, g=2.0)
    torch.testing.assert_close(lse, torch.logsumexp(x + bias, -1))
    torch.testing.assert_close(y.sum(-1), torch.full((4,), 2.0, device=device))


def test_other_dimensions_and_out(device):
    x, s = randn(3, 8, 5, device=device), randn(3, 1, 5, device=device, seed=1)
    sunk = fo.Softmax(lse=True, sink="s")
    y, lse = sunk(x, s=s, dim=1)
    assert lse.shape == (3, 5)
    torch.testing.assert_close(lse, torch.logsumexp(torch.cat([x, s], 1), 1))
    out = torch.empty_like(y), torch.empty_like(lse)
    assert sunk(x, s=s, dim=1, out=out).lse is out[1]
    assert same_bits(out[1], lse)
    assert fo.Softmax(lse=True)(x.half(), dtype=torch.float64).lse.dtype == torch.float64


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [fo.Softmax, fo.LogSoftmax])
def test_check_says_so(kind, device):
    op = kind(load=[fo.Mask("m")], lse=True, sink="s")
    x, m = randn(2, 5, 16, device=device), randn(5, 16, device=device, seed=1) > 1
    m[2] = True
    assert check(op, x, m=m, s=randn(5, 1, device=device, seed=2)).passed


def test_what_does_not_fit(device):
    x = randn(2, 3, 8, device=device)
    sunk = fo.Softmax(sink="s")
    with raises(ValueError, "'s' has one number a row", "size 1 in the reduced", "(2, 3, 1)"):
        sunk(x, s=randn(8, device=device))
    with raises(ValueError, "does not broadcast"):
        sunk(x, s=randn(4, 1, device=device))
    with raises(TypeError, "one number a row", "torch.int64", "s.to(x.dtype)"):
        sunk(x, s=torch.zeros(1, dtype=torch.int64, device=device))
    with raises(TypeError, "operand 's' is missing"):
        sunk(x)
    with raises(TypeError, "unknown operand 'sink'", "the declaration names it 's': pass s=..."):
        sunk(x, sink=1.0)
    with raises(TypeError, "unknown operand 'lse'", "belongs to the declaration: Softmax(lse=...)"):
        sunk(x, s=1.0, lse=True)
    with raises(ValueError, "named twice", "use two names"):
        fo.Softmax(load=[fo.Scale("s")], sink="s")
    with raises(ValueError, "'lse'", "choose another name"):
        fo.Softmax(sink="lse")
    with raises(TypeError, "lse must be True or False, got 1.5"):
        fo.Softmax(lse=1.5)
    with raises(TypeError, "sink names an operand and must be a string"):
        fo.LogSoftmax(sink=0.5)
    with raises(TypeError, "normalized_shape is an option of norms"):
        sunk(x, s=1.0, normalized_shape=8)


def test_explain_says_it(device):
    x = randn(4, 3, 16, device=device).requires_grad_()
    s = randn(3, 1, device=device).requires_grad_()
    told = fo.Softmax(lse=True, sink="s").explain(x, s=s)
    assert list(told.outputs) == ["y", "lse"]
    assert told.outputs["lse"].shape == (4, 3)
    assert told.outputs["lse"].dtype == torch.float32
    text = str(told)
    assert "lse=True, sink='s'" in text
    assert "gradients of x, s by" in text
    assert "s: summed over rows" in text
