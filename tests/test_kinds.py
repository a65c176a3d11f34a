# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors that are not what they seem, and modes that watch: right, or refused by name."""

import importlib

import pytest
import torch
from cases import (
    ADD_NORM,
    ATTENTION,
    MAP,
    OPERATORS,
    declare,
    named,
    parameters,
    raises,
    randn,
    same_bits,
)
from test_forward import add_norm_case, attention_case
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import fusedops as fo

BIASED = fo.Softmax(load=[fo.Bias("b")])


class Named(torch.Tensor):
    """A class without a mind of its own: its memory is what it says."""


def described(result):
    """What a tensor is without its elements."""
    return {
        name: (y.shape, y.dtype, y.stride(), y.device.type) for name, y in named(result).items()
    }


@pytest.fixture(params=["attention", "add_norm", "map", *OPERATORS])
def case(request, device):
    if request.param == "attention":
        return ATTENTION, *attention_case(torch.float16, device)
    if request.param == "add_norm":
        return ADD_NORM, *add_norm_case(torch.float16, device)
    chain = {**OPERATORS, "map": MAP}[request.param]
    x = randn(5, 40, dtype=torch.float16, device=device)
    return chain, x, parameters(chain, 40, device=device)


def test_fake_tensors_have_the_shapes_of_real_ones(case):
    chain, x, operands = case
    want = described(declare(chain)(x, **operands))
    with FakeTensorMode() as mode:
        fake = tree_map_only(torch.Tensor, mode.from_tensor, {"x": x, **operands})
        got = declare(chain)(fake.pop("x"), **fake)
    assert described(got) == want


def test_meta_tensors_have_the_shapes_of_real_ones(case):
    chain, x, operands = case
    want = described(declare(chain)(x, **operands))
    meta = tree_map_only(torch.Tensor, lambda t: t.to("meta"), {"x": x, **operands})
    got = described(declare(chain)(meta.pop("x"), **meta))
    assert got == {name: (*kind[:3], "meta") for name, kind in want.items()}


def test_a_wrong_call_is_refused_of_fake_tensors_too():
    with FakeTensorMode() as mode:
        x, b = (mode.from_tensor(randn(*shape)) for shape in ((3, 4), (3,)))
        with pytest.raises(ValueError, match="does not broadcast against x"):
            BIASED(x, b=b)
        with pytest.raises(TypeError, match="must be one of"):
            BIASED(x, b=x, dtype=torch.int64)


def test_devices_differ():
    with pytest.raises(ValueError, match="must be on x's device"):
        BIASED(randn(3, 4), b=randn(4).to("meta"))
    with pytest.raises(ValueError, match="must be on x's device"):
        BIASED(randn(3, 4).to("meta"), b=randn(4))


@pytest.mark.parametrize("which", ["x", "b"])
def test_a_subclass_by_name_alone(which, device):
    given = {"x": randn(3, 4, device=device), "b": randn(4, device=device, seed=1)}
    want = BIASED(given["x"], b=given["b"])
    given[which] = given[which].as_subclass(Named)
    got = BIASED(given["x"], b=given["b"])
    assert type(got) is Named
    assert same_bits(got.as_subclass(torch.Tensor), want)


def test_a_wrapper_decides_for_itself(device):
    """It has no memory; what it holds is computed, forward and backward."""
    x, y, b, dx, dy = (randn(3, 4, device=device, seed=i) for i in range(5))
    pair = TwoTensor(x, y).requires_grad_()
    result = BIASED(pair, b=b)
    assert type(result) is TwoTensor
    (gradient,) = torch.autograd.grad(result, pair, TwoTensor(dx, dy))
    for name, one, upstream in (("a", x, dx), ("b", y, dy)):
        leaf = one.clone().requires_grad_()
        want = BIASED(leaf, b=b)
        assert same_bits(getattr(result.detach(), name), want.detach())
        (wanted,) = torch.autograd.grad(want, leaf, upstream)
        assert same_bits(getattr(gradient, name), wanted)


@pytest.mark.parametrize("which", ["x", "b"])
def test_zeros_without_memory(which):
    given = {"x": randn(3, 4), "b": randn(3, 4, seed=1)}
    given[which] = torch.zeros(3, 4)
    want = BIASED(given["x"], b=given["b"])
    given[which] = torch._efficientzerotensor((3, 4))
    assert same_bits(BIASED(given["x"], b=given["b"]), want)


class Watching(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_mode_sees_operators(case):
    chain, x, operands = case
    torch.manual_seed(1)
    want = declare(chain)(x, **operands)
    torch.manual_seed(1)
    with Watching() as mode:
        got = declare(chain)(x, **operands)
    assert "fusedops.forward.default" in mode.seen
    assert type(got) is type(want)
    for name, y in named(want).items():
        assert same_bits(named(got)[name], y)


def test_a_function_mode(device):
    class Passing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    x = randn(3, 4, device=device)
    with Passing():
        got = BIASED(x, b=1.0)
    assert same_bits(got, BIASED(x, b=1.0))


def test_a_traced_graph_runs_what_it_shows(device):
    x, b = randn(3, 4, device=device), randn(4, device=device, seed=1)
    graph = make_fx(lambda x, b: BIASED(x, b=b), tracing_mode="symbolic")(x, b)
    assert "torch.ops.fusedops.forward.default" in graph.code
    other = randn(7, 4, device=device, seed=2)
    assert same_bits(graph(other, b), BIASED(other, b=b))


REFUSED = {
    "sparse": (lambda t: t.to_sparse(), "to_dense"),
    "quantized": (lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), "floating|dense"),
    "nested": (lambda t: torch.nested.nested_tensor([t, t]), "dense"),
    "neg": (lambda t: torch.complex(t, t).conj().imag, "resolve_neg"),
}


@pytest.mark.filterwarnings("ignore")  # torch's, about making such tensors at all
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("which", ["x", "b"])
def test_what_is_refused(name, which):
    make, message = REFUSED[name]
    given = {"x": randn(3, 4), "b": randn(3, 4, seed=1)}
    given[which] = make(given[which])
    with pytest.raises((TypeError, ValueError, fo.UnsupportedError), match=message):
        BIASED(given["x"], b=given["b"])


TRANSFORMS = {
    "vmap": lambda f, x: torch.func.vmap(f)(x),
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "hessian": lambda f, x: torch.func.hessian(lambda x: f(x).sum())(x),
    "dual": lambda f, x: dual(f, x),
    "jit.trace": lambda f, x: torch.jit.trace(lambda x: f(x), x),
}


def dual(f, x):
    with torch.autograd.forward_ad.dual_level():
        return f(torch.autograd.forward_ad.make_dual(x, x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_names_the_cure(name, device):
    with pytest.raises(fo.UnsupportedError, match=r"op\.unfused"):
        TRANSFORMS[name](fo.Softmax(), randn(3, 4, device=device))


def of_an_op():
    op = fo.LayerNorm()
    return op, "op.unfused", lambda: op.unfused


def of_a_module():
    module = fo.nn.LayerNorm(4, elementwise_affine=False)
    return module, "op.unfused, which a module of fusedops.nn has", lambda: module.unfused


def of_a_patched_model():
    model = torch.nn.Sequential(torch.nn.LayerNorm(4, elementwise_affine=False))
    fo.patch(model)
    return model, "fusedops.unpatch(model)", lambda: fo.unpatch(model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [of_an_op, of_a_module, of_a_patched_model])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_cure_works_where_one_stands(name, make):
    function, cure, cured = make()
    x = randn(3, 4)
    with raises(fo.UnsupportedError, cure):
        TRANSFORMS[name](function, x)
    TRANSFORMS[name](cured(), x)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_attention_by_name_goes_back_under_a_transform():
    transformers = pytest.importorskip("transformers")
    importlib.import_module("fusedops.integrations.transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"vocab_size": 9, "intermediate_size": 8, "attn_implementation": "fusedops"}
    model = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
    x = randn(2, 3, 8)

    def gradient():
        return torch.func.grad(lambda x: model(inputs_embeds=x).last_hidden_state.sum())(x)

    with raises(fo.UnsupportedError, "model.set_attn_implementation('eager')"):
        gradient()
    model.set_attn_implementation("eager")
    gradient()


@pytest.mark.parametrize("key", ["forward", "draw"])
def test_vmap_of_an_operator(key):
    x = randn(3, 4)
    calls = {
        "forward": lambda x: torch.ops.fusedops.forward(
            x, [], [], [], [], None, fo.Softmax().text, [0], x.dtype, False
        )[0],
        "draw": lambda x: torch.ops.fusedops.draw(x, 1),
    }
    with pytest.raises(fo.UnsupportedError, match=r"op\.unfused"):
        torch.func.vmap(calls[key])(x)
