# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Linear layers that the backend leaves, the option that says so, and what is reported."""

import pytest
import torch
from captured import compiled, compiled_products, held
from cases import raises, randn
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import fusedops as fo
from fusedops.graph import products

K, N = 16, 24
X = randn(2, 5, K, seed=1)
W = randn(N, K, seed=2) * K**-0.5
B = randn(N, seed=3)
R = randn(2, 5, N, seed=4)

MISSES = {}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def miss(why, wanted=None, inputs=(X, W, B, R)):
    """Register a program: a reason that is given, and the STORE that there is all the same."""

    def register(program):
        MISSES[program.__name__] = program, inputs, why, wanted
        return program

    return register


@miss("torch's product has all of it")
def nothing_after_it(x, w, b, r):
    return functional.linear(x, w, b)


@miss("not elementwise")
def a_view_between(x, w, b, r):
    return functional.gelu(functional.linear(x, w, b).view(10, N))


@miss("not elementwise")
def a_transpose_between(x, w, b, r):
    return functional.gelu(functional.linear(x, w, b).mT)


@miss("its shape is not that")
def a_broadcast_that_enlarges_the_result(x, w, b, r):
    return functional.linear(x[:, :1], w, b) + r


@miss("something is written in place")
def an_operand_is_written_in_between(x, w, b, r):
    b = b.clone()
    h = functional.linear(x, w, b)
    b.add_(1)
    return functional.gelu(h) * b


@miss("something is written in place", wanted="Bias(bias='bias'), GELU(approximate='none')")
def an_operand_is_written_before_it_is_read(x, w, b, r):
    r = r.clone()
    h = functional.gelu(functional.linear(x, w, b))
    r.mul_(2)
    return h + r


@miss("", wanted="Bias(bias='bias'), Residual(residual='residual', alpha=1.0, save=None)")
def operands_are_written_afterwards(x, w, b, r):
    b, r = b.clone(), r.clone()
    y = functional.linear(x, w, b) + r
    r.mul_(2)
    return y, r, b.add_(1)


@miss("no functor can hold it")
def an_activation_in_place(x, w, b, r):
    return functional.relu(functional.linear(x, w, b), inplace=True)


@miss("it is computed in another precision")
def rounded_from_double(x, w, b, r):
    return functional.linear(x, w, b).float() * 2


@miss("its weight is no matrix", inputs=(X, W[0], B, R))
def a_weight_that_is_a_vector(x, w, b, r):
    return torch.exp(functional.linear(x, w))


@miss("would have to be saved", wanted="Bias(bias='bias'), GELU(approximate='none')")
def a_value_that_an_operand_needs(x, w, b, r):
    h = functional.gelu(functional.linear(x, w, b))
    return h * (h @ torch.ones(N, N, dtype=h.dtype))


@miss(
    "",
    wanted="Bias(bias='bias'), Save(name='stream', dtype=torch.float64), GELU(approximate='none')",
)
def a_value_that_an_operand_needs_by_another_branch(x, w, b, r):
    h = functional.linear(x, w, b)
    other = functional.relu(h)
    return functional.gelu(h) * other.cumsum(-1)


@miss("no functor can hold it", wanted="Bias(bias='bias'), Scale(scale='scale')")
def truth_values_at_the_end(x, w, b, r):
    h = functional.linear(x, w, b) * r
    return h, (h > 0).to(h.dtype) * r


@miss("its bias is no vector", inputs=(X, W, R[0], R))
def a_bias_that_is_a_matrix(x, w, b, r):
    return functional.gelu(functional.linear(x, w, b))


@miss("no functor can hold it", wanted="Bias(bias='bias'), ReLU()")
def an_integer_operand(x, w, b, r):
    return functional.relu(functional.linear(x, w, b)) * (r > 0).long()


@pytest.mark.thorough
@pytest.mark.parametrize("name", MISSES)
def test_near_miss(name):
    """Results and gradients are eager torch's."""
    program, inputs, why, wanted = MISSES[name]
    (one,) = held(program, *inputs, compiled=compiled_products)
    assert not why or any(why in text for text in one.why.values()), one.why
    if wanted is None:
        assert one.op is None
    else:
        assert repr(list(one.op.store)) == f"[{wanted}]"


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w, b, r: functional.gelu(x @ w.mT + b),
        lambda x, w, b, r: functional.gelu(torch.einsum("...k,nk->...n", x, w)),
        lambda x, w, b, r: functional.gelu(torch.bmm(x, x.mT)),
    ],
)
def test_other_products_are_not_looked_at(program):
    assert held(program, X, W, B, R, compiled=compiled_products) == []


@pytest.mark.thorough
def test_what_a_norm_takes_is_not_there_any_more():
    """Dropout and residual before a norm stay the norm's."""

    def program(x, w, b, r):
        h = functional.dropout(functional.linear(x, w, b), 0.0) + r
        return functional.layer_norm(h, (N,)), h

    fused, rows = compiled(program)
    fused(X, W, B, R)
    (row,) = rows
    assert "Residual" in repr(row.op)
    torch._dynamo.reset()
    (one,) = held(program, X, W, B, R, compiled=compiled_products)
    assert one.op is None
    assert one.why["linear"] == (
        "nothing after it can join: a row op reads it, which has what is elementwise before it"
    )


def test_a_transform_is_left():
    fused, found = compiled_products(
        torch.func.vmap(lambda x: functional.gelu(functional.linear(x, W)))
    )
    torch.testing.assert_close(fused(X), functional.gelu(functional.linear(X, W)))
    assert [one.op for one in found] == [None]
    assert "transform of torch.func" in found[0].why["linear"]


def test_the_body_of_a_checkpoint_is_left():
    def program(x, w, b, r):
        return checkpoint(
            lambda *a: functional.gelu(functional.linear(*a)), x, w, b, use_reentrant=False
        )

    assert held(program, X, W, B, R, compiled=compiled_products) == []


@pytest.mark.parametrize("value", ["on", True, None, ("auto",)])
def test_what_the_option_may_be(value):
    with pytest.raises(Exception, match="must be one of 'auto', 'off', 'always', got"):
        torch.compile(
            lambda x: x + 1, backend="fusedops", options={"inner": "eager", "products": value}
        )(X)


def test_off_and_auto_on_a_cpu():
    """A CPU has no such kernel: "auto" says so, "off" looks at nothing."""
    for option, wanted in (("off", 0), ("auto", 1)):
        torch._dynamo.reset()
        fused, found = compiled_products(
            lambda x: functional.gelu(functional.linear(x, W)), products=option
        )
        fused(X)
        assert [one.op for one in found] == [None] * wanted
    assert "needs sm_90" in found[0].why["linear"]
    torch._dynamo.reset()
    backend = torch.compile(
        lambda x: functional.gelu(functional.linear(x, W)),
        backend="fusedops",
        options={"inner": "eager"},
    )
    torch.testing.assert_close(backend(X), functional.gelu(functional.linear(X, W)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.last = nn.Linear(K, N), nn.Linear(N, K), nn.Linear(K, 3)

    def forward(self, x):
        h = self.down(functional.gelu(self.up(x)))
        return self.last(functional.dropout(h, 0.1) + x)


def test_what_is_reported(monkeypatch):
    """One reason a layer; layers with the same one share a line."""
    report = fo.explain_graph(Model(), X)
    assert [one.op for one in report.products] == [None] * 3
    text = str(report)
    assert "0 row ops fused, 0 left; no bytes; 0 of 3 linear layers fused" in text
    names = ", ".join(one.name for one in report.products)
    assert f"  linear layers left:\n    {names}: one kernel for both needs sm_90" in text
    torch._dynamo.reset()
    monkeypatch.setattr(products, "_why_it_does_not_pay", lambda *call: "")
    monkeypatch.setattr(products, "why_never", lambda *call: "")
    report = fo.explain_graph(Model(), X)
    assert [one.op is not None for one in report.products] == [True, True, False]
    text = str(report)
    assert "2 of 3 linear layers fused" in text
    declared = "Linear(store=[Bias(bias='bias'), GELU(approximate='none')])"
    assert f"linear: linear\n    {declared}\n    from   linear, gelu\n" in text
    assert "masks  dropout by the contract of fusedops" in text
    assert "linear layers left:\n" in text
    assert text.endswith(": torch's product has all of it")
    picture = report.dot()
    assert picture.count("subgraph cluster_0_product_") == 2
    assert picture.count("{") == picture.count("}")


def test_fuse_declares_row_ops_alone(monkeypatch):
    monkeypatch.setattr(products, "_why_it_does_not_pay", lambda *call: "")
    monkeypatch.setattr(products, "why_never", lambda *call: "")

    @fo.fuse
    def program(x):
        return torch.softmax(functional.gelu(functional.linear(x, W)).mT * 2, -1)

    program(X)
    assert [type(one).__name__ for one in program.ops] == ["Softmax"]
    assert program.explain(X).products == []
    with raises(fo.UnsupportedError, "it has no softmax and no norm"):
        fo.fuse(lambda x: functional.gelu(functional.linear(x, W)))(X)
