# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Linear layers in graphs: what the backend "fusedops" fuses after a product, and how exactly."""

import pytest
import torch
from captured import assert_near, compiled_products, held, trained
from cases import exhaustive, randn, same_bits, thorough
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

from fusedops.testing.comparison import Case, truth
from fusedops.testing.report import worst

K, N = 16, 24
X = randn(2, 5, K, seed=1)
W = randn(N, K, seed=2) * K**-0.5
B = randn(N, seed=3)
R = randn(2, 5, N, seed=4)
W2 = randn(N, K, seed=5) * K**-0.5

PATTERNS = {}

RESIDUAL = "Residual(residual='residual', alpha=1.0, save=None)"


FLAGS = R > 0


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def pattern(*wanted, inputs=(X, W, B, R)):
    """Register a program of these inputs and the STOREs that its linear layers become."""

    def register(program):
        PATTERNS[program.__name__] = program, inputs, wanted
        return program

    return register


@pattern("Bias(bias='bias'), GELU(approximate='none')")
def gelu_by_erf(x, w, b, r):
    return functional.gelu(functional.linear(x, w, b))


@pattern("Bias(bias='bias'), GELU(approximate='tanh')")
def gelu_by_tanh(x, w, b, r):
    return functional.gelu(functional.linear(x, w, b), approximate="tanh")


@pattern("Bias(bias='bias'), ReLU()")
def relu(x, w, b, r):
    return functional.relu(functional.linear(input=x, weight=w, bias=b))


@pattern("SiLU()")
def silu_without_a_bias(x, w, b, r):
    return functional.silu(functional.linear(x, w))


@pattern(f"Bias(bias='bias'), {RESIDUAL}")
def residual(x, w, b, r):
    return r + functional.linear(x, w, b)


@pattern("Bias(bias='bias'), Scale(scale='scale')")
def scaled(x, w, b, r):
    return functional.linear(x, w, b) * 0.125


@pattern("Scale(scale='scale'), Bias(bias='bias')")
def a_factor_and_a_summand_of_each_column(x, w, b, r):
    return functional.linear(x, w) * b + r[0, 0]


@pattern("Bias(bias='bias'), masked_fill('operand')", inputs=(X, W, B, FLAGS))
def filled_under_a_mask(x, w, b, flags):
    return functional.linear(x, w, b).masked_fill(flags, -torch.inf)


@pattern(
    "Bias(bias='bias'), Save(name='stream', dtype=torch.float64), Scale(scale='scale'), "
    "Dropout(p='p')"
)
def of_two_dropouts_side_by_side_one(x, w, b, r):
    h = functional.linear(x, w, b)
    return functional.dropout(h, 1.0) + functional.dropout(h * 2, 1.0)


@pattern("Gate(gate='gate', activation='silu', of='gate')", "")
def gated(x, w, b, r):
    return functional.linear(x, w) * functional.silu(r), functional.linear(x, w, b)


@pattern("SiLU(), Scale(scale='scale')", "", inputs=(X, W, B, W2))
def gate_of_two_products(x, w, b, w2):
    return functional.silu(functional.linear(x, w)) * functional.linear(x, w2, b)


@pattern("Bias(bias='bias'), mul_sigmoid()", f"{RESIDUAL}", inputs=(X, W, B, R[..., :K]))
def two_layers(x, w, b, r):
    h = functional.linear(x, w, b)
    return functional.linear(h * torch.sigmoid(1.702 * h), w.mT) + r


@pattern("Bias(bias='bias'), Save(name='stream', dtype=torch.float64), GELU(approximate='none')")
def the_product_is_used_elsewhere(x, w, b, r):
    h = functional.linear(x, w, b)
    return functional.gelu(h), h.mT @ h


@pattern(
    "Bias(bias='bias'), Residual(residual='residual', alpha=1.0, save='stream', "
    "dtype=torch.float64), GELU(approximate='none'), Save(name='stream2', dtype=torch.float64), "
    "Scale(scale='scale')"
)
def two_values_on_the_way_are_used_elsewhere(x, w, b, r):
    h = functional.linear(x, w, b) + r
    act = functional.gelu(h)
    return act * b, act.cumsum(-1), h.reshape(-1)


@pattern(RESIDUAL, inputs=(X, W, B, R))
def a_factor_is_an_operand_and_the_other_is_computed(x, w, b, r):
    return functional.linear(x, w[:K] * 2) + x


@pattern("Bias(bias='bias'), ReLU()", inputs=(X[0, 0], W, B, R))
def a_single_row(x, w, b, r):
    return functional.relu(functional.linear(x, w, b))


def stores(found):
    """The STOREs as text, empty for a layer that is left."""
    return tuple("" if one.op is None else repr(list(one.op.store))[1:-1] for one in found)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*[*PATTERNS][::2], *exhaustive(*[*PATTERNS][1::2])])
def test_pattern(name):
    """In double: outputs and gradients are eager's, and the STORE is what was written."""
    program, inputs, wanted = PATTERNS[name]
    found = held(program, *inputs, compiled=compiled_products)
    assert stores(found) == wanted
    for one in found:
        assert (one.op is None) == (not one.nodes)
        assert one.why or one.op is not None


#: Of each, the operands of its call by name.
BOUND = {
    gelu_by_erf: {"bias": B},
    gelu_by_tanh: {"bias": B},
    relu: {"bias": B},
    silu_without_a_bias: {},
    residual: {"bias": B, "residual": R},
}


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("program", BOUND, ids=lambda one: one.__name__)
def test_within_the_bound_of_products(program, dtype):
    """Outputs and gradients, by docs/explanation/products.md; the truth is eager's in double."""
    leaves = [one.to(dtype) for one in (X, W, B, R)]
    fused, found = compiled_products(program)
    (y,), gradients = trained(fused, leaves)
    operands = {name: one.to(dtype) for name, one in BOUND[program].items()}
    upstream = {"y": randn(*y.shape, dtype=dtype, seed=90)}
    case = Case("compiled", {"x": leaves[0], "w": leaves[1], **operands})
    want = truth(found[0].op, case, {}, {}, upstream)
    exact = [one.double().requires_grad_() for one in leaves]
    eager = program(*exact)
    used = {"x": 0, "w": 1, "bias": 2, "residual": 3}
    names = ["x", "w", *operands]
    at = [used[name] for name in names]
    true = torch.autograd.grad(eager, [exact[k] for k in at], upstream["y"].double())
    got = {"y": (y, eager.detach())}
    got |= {f"gradient of {n}": (gradients[k], t) for n, k, t in zip(names, at, true, strict=True)}
    for name, (one, of_eager) in got.items():
        assert_near([want[name].value], [of_eager])
        assert worst("compiled", name, one, want[name]).share <= 1, name


class Block(nn.Module):
    """A block of modules that Dynamo inlines."""

    def __init__(self, p=0.0):
        super().__init__()
        self.up, self.down = nn.Linear(K, 4 * K), nn.Linear(4 * K, K)
        self.act, self.drop = nn.GELU(), nn.Dropout(p)

    def forward(self, x):
        return x + self.drop(self.down(self.act(self.up(x))))


@pytest.mark.thorough
def test_modules_and_their_dropout():
    """In evaluation the dropout is nothing; in training it is the op's, by its contract."""
    torch.manual_seed(1)
    model = Block(0.5).double()
    fused, found = compiled_products(model.eval())
    x = X.double()
    assert_near([fused(x)], [model(x)])
    assert stores(found) == (
        "Bias(bias='bias'), GELU(approximate='none')",
        f"Bias(bias='bias'), {RESIDUAL}",
    )
    assert not any(one.drops for one in found)
    torch._dynamo.reset()
    fused, found = compiled_products(model.train())
    torch.manual_seed(3)
    leaf = x.clone().requires_grad_()
    y = fused(leaf)
    upstream = randn(*y.shape, dtype=torch.float64, seed=6)
    (dx,) = torch.autograd.grad(y, leaf, upstream)
    assert [one.drops for one in found] == [False, True]
    assert "Dropout(p='p')" in stores(found)[1]
    torch.manual_seed(3)
    seed = torch.empty((), dtype=torch.int64).random_().item()
    kept = found[1].op.dropout_mask(X.shape, seed, 0, 0.5)
    assert 0 < kept.sum() < kept.numel()
    other = x.clone().requires_grad_()
    wanted = other + torch.where(kept, model.down(model.act(model.up(other))) * 2, 0)
    assert_near([y.detach()], [wanted.detach()])
    assert_near([dx], [torch.autograd.grad(wanted, other, upstream)[0]])


def test_the_next_call_draws_anew():
    fused, _ = compiled_products(Block(0.5))
    torch.manual_seed(3)
    first, second = fused(X), fused(X)
    torch.manual_seed(3)
    assert same_bits(fused(X), first)
    assert not same_bits(first, second)


@pytest.mark.parametrize("inner", ["aot_eager", *thorough("inductor")])
def test_any_batch_runs_one_graph(inner):
    """As many graphs as the inner backend alone makes."""
    counter = CompileCounterWithBackend(inner)
    alone = torch.compile(gelu_by_erf, backend=counter)
    batches = [X.double().repeat(times, 1, 1) for times in (1, 2, 3, 7)]
    rest = [one.double() for one in (W, B, R)]
    for x in batches:
        alone(x, *rest)
    torch._dynamo.reset()
    fused, found = compiled_products(gelu_by_erf, inner)
    for x in batches:
        assert_near([fused(x, *rest)], [gelu_by_erf(x, *rest)])
    assert all(one.op is not None for one in found)
    assert len(found) <= counter.frame_count < len(batches)


@pytest.mark.thorough
@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
@pytest.mark.parametrize("within", [False, True], ids=["around", "in the graph"])
def test_under_autocast(inner, within):
    """The product is computed in the lower dtype; what is added in float32 gives float32."""
    low = torch.bfloat16

    def program(x, w, b, r):
        with torch.autocast("cpu", low, enabled=within or torch.is_autocast_enabled("cpu")):
            h = functional.gelu(functional.linear(x, w, b))
            return h, functional.linear(x, w) + r

    leaves = [one.clone().requires_grad_() for one in (X, W, B, R)]
    fused, found = compiled_products(program, inner)
    with torch.autocast("cpu", low, enabled=not within):
        got, wanted = fused(*leaves), program(*leaves)
    assert [one.op is not None for one in found] == [True, True]
    assert [one.dtype for one in got] == [one.dtype for one in wanted] == [low, torch.float32]
    upstream = [randn(*y.shape, dtype=y.dtype, seed=90) for y in got]
    for (op, operands), y, at in zip(
        # The product adds the bias, for which autocast rounds it.
        ((found[0].op, {"bias": B.to(low)}), (found[1].op, {"residual": R})),
        got,
        (0, 1),
        strict=True,
    ):
        case = Case("autocast", {"x": X.to(low), "w": W.to(low), **operands})
        options = {"dtype": y.dtype}
        want = truth(op, case, options, {}, {"y": upstream[at]})
        assert worst("autocast", "y", y.detach(), want["y"]).share <= 1
        wanted_of = {name: leaves[{"bias": 2, "residual": 3}[name]] for name in operands}
        grads = torch.autograd.grad(y, [*wanted_of.values()], upstream[at], retain_graph=True)
        for name, one in zip(wanted_of, grads, strict=True):
            key = f"gradient of {name}"
            assert one.dtype is torch.float32
            assert worst("autocast", key, one, want[key]).share <= 1


def test_a_result_that_one_product_reads_is_stored_in_its_dtype():
    """Under autocast, as of a row op (test_graph_autocast.py)."""

    def program(x, w, b, r):
        return functional.linear(functional.linear(x, w, b) + r, w.mT)

    seen = []

    def inner(graph_module, inputs):
        seen.extend(n.kwargs["dtype"] for n in graph_module.graph.nodes if "dtype" in n.kwargs)
        return graph_module.forward

    fused, _ = compiled_products(program, inner)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        got, wanted = fused(X, W, B, R), program(X, W, B, R)
    assert seen == [torch.bfloat16]
    assert got.dtype is wanted.dtype
