# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The activations: values and gradients, alone, in gates, in modules, after products, in graphs."""

import math

import pytest
import torch
from cases import but_seldom, randn, thorough
from torch import nn
from torch.nn import functional

import fusedops as fo
from fusedops.testing import check

#: Each functor, what it is in torch, and the word that gates and modules have for it.
ACTIVATIONS = {
    "gelu": (fo.GELU(), functional.gelu),
    "gelu_tanh": (fo.GELU("tanh"), lambda v: functional.gelu(v, approximate="tanh")),
    "silu": (fo.SiLU(), functional.silu),
    "relu": (fo.ReLU(), torch.relu),
    "squared_relu": (fo.SquaredReLU(), lambda v: torch.relu(v) ** 2),
    "sigmoid": (fo.Sigmoid(), torch.sigmoid),
    "tanh": (fo.Tanh(), torch.tanh),
}
LEAKY = fo.LeakyReLU("slope")
DTYPES = [torch.float32, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("gated", [False, *thorough(True)])
def test_values_and_gradients_in_double(gated, device):
    """All in one chain, brought back to where they bend in between; and all gates."""
    load, store = [], []
    for k, (word, (one, _)) in enumerate(ACTIVATIONS.items()):
        load += [] if gated else [one, fo.Scale("back"), fo.Bias("shift")]
        store += [fo.Gate(f"gate{k}", word, "value" if k % 2 else "gate")] if gated else []
    x, slope, *gates = (
        randn(3, 61, dtype=torch.float64, device=device, seed=k).requires_grad_() for k in range(9)
    )
    gates = gates if gated else []
    numbers = {} if gated else {"back": 3.0, "shift": -0.5}
    names = {f"gate{k}": gate for k, gate in enumerate(gates)}
    y = fo.Map([*load, LEAKY, *store])(x, slope=slope, **numbers, **names)
    v = x
    for _, function in () if gated else ACTIVATIONS.values():
        v = function(v) * 3 - 0.5
    v = torch.where(v > 0, v, v * slope)
    for k, gate in enumerate(gates):
        function = [*ACTIVATIONS.values()][k][1]
        v = function(v) * gate if k % 2 else v * function(gate)
    upstream = randn(3, 61, dtype=torch.float64, device=device, seed=20)
    inputs = [x, slope, *gates]
    found, wanted = (torch.autograd.grad(one, inputs, upstream) for one in (y, v))
    for one, true in zip((y, *found), (v, *wanted), strict=True):
        torch.testing.assert_close(one, true, rtol=1e-9, atol=1e-11)


def test_at_zeros_infinities_and_nan(device):
    x = torch.tensor([[0.0, -0.0, math.inf, -math.inf, math.nan, -50.0, 50.0]], device=device)
    x.requires_grad_()
    y, wanted = fo.Map(load=[fo.SquaredReLU()])(x), torch.relu(x) ** 2
    torch.testing.assert_close(y, wanted, equal_nan=True)
    found, true = (torch.autograd.grad(one.sum(), x)[0] for one in (y, wanted))
    torch.testing.assert_close(found, true, equal_nan=True)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "word", but_seldom([*ACTIVATIONS, "leaky"], {"gelu", "relu", "sigmoid", "tanh"})
)
def test_each_within_its_bounds(word, device):
    functor = LEAKY if word == "leaky" else ACTIVATIONS[word][0]
    operands = {"slope": randn(61, device=device, seed=1)} if word == "leaky" else {}
    check(fo.RMSNorm(load=[functor], store=[functor]), randn(5, 61, device=device) * 3, **operands)


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("dtype", [torch.float64, *thorough(torch.float32, torch.bfloat16)])
@pytest.mark.parametrize("word", ACTIVATIONS)
def test_each_element_within_a_bound_of_its_own(word, dtype, device):
    """Of one column: elsewhere a row's largest error is allowed to each of its elements."""
    x = randn(400, 1, dtype=dtype, device=device) * 3
    check(fo.Map(load=[ACTIVATIONS[word][0]]), x.clamp(-9, 9))


def test_the_gradient_of_a_gelu_far_below_zero(device):
    """Both terms of it: the smaller one has the other sign."""
    x = torch.tensor([[-9.5, -12.0, -15.0]], dtype=torch.float64, device=device).requires_grad_()
    fo.Map(load=[fo.GELU("tanh")])(x).sum().backward()
    power = torch.exp(x * (1.5957691216057307 + 0.071354816272600248 * x * x))
    slope = x * (1.5957691216057307 + 3 * 0.071354816272600248 * x * x)
    torch.testing.assert_close(x.grad, power * (1 + slope), rtol=1e-9, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_on_a_gpu(dtype):
    for functor, _ in ACTIVATIONS.values():
        check(fo.Map(load=[functor]), randn(5, 250, dtype=dtype, device="cuda") * 3)
    slope = randn(5, 1, device="cuda", seed=1)
    check(fo.Map(load=[LEAKY]), randn(5, 250, dtype=dtype, device="cuda"), slope=slope)


def test_modules_take_their_words(device):
    """A layer is the product and the same formula as in a map of rows."""
    layer = fo.nn.Linear(16, 24, activation="gelu", device=device)
    assert layer.activation == fo.GELU()
    x = randn(5, 16, device=device)
    product = x.double() @ layer.weight.double().T + layer.bias.double()
    wanted = functional.gelu(product)
    torch.testing.assert_close(layer(x), wanted.float(), rtol=1e-5, atol=1e-5)
    for word, (functor, _) in ACTIVATIONS.items():
        assert fo.nn.MLP(4, 8, activation=word).activation == functor


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fo.GELU("erf"), "GELU: approximate must be 'none', .* or 'tanh', got 'erf'"),
        (lambda: fo.Gate("g", "leaky_relu"), "Gate: activation must be one of .*'squared_relu'"),
        (lambda: fo.LeakyReLU("no name"), "LeakyReLU: slope must be usable as a keyword"),
        (lambda: fo.nn.Linear(2, 2, activation=LEAKY), "must take no operands, got LeakyReLU"),
    ],
)
def test_what_they_refuse(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_graphs_with_them():
    """The functors of the library stand where a graph calls torch's functions."""

    def program(x):
        y = functional.leaky_relu(torch.softmax(torch.relu(x).square(), -1), 0.2)
        return torch.tanh(torch.sigmoid(functional.silu(y)))

    (found,) = fo.explain_graph(program, randn(3, 8)).fused
    assert "load=[SquaredReLU()]" in found.op.declaration
    wanted = "store=[LeakyReLU(slope='slope'), SiLU(), Sigmoid(), Tanh()]"
    assert wanted in found.op.declaration


def test_they_are_values():
    for kind in (fo.SiLU, fo.ReLU, fo.SquaredReLU, fo.Sigmoid, fo.Tanh):
        assert kind() == kind()
        assert repr(kind()) == f"{kind.__name__}()"
    assert fo.SiLU() != fo.ReLU()
    assert len({fo.GELU(), fo.GELU("tanh"), fo.SiLU(), fo.SiLU()}) == 3
    assert isinstance(fo.nn.Linear(2, 2, activation="relu"), nn.Linear)
