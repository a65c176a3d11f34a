# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The gate of the hot path: everything that must not be read as plain memory."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode


class Subclass(torch.Tensor):
    pass


def fake(x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(x)


def freed(x):
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


def complex_tensor(x):
    return torch.view_as_complex(torch.ones(*x.shape, 2))


ODD = {
    "negated view": (torch._neg_view, "neg"),
    "imaginary part of a conjugate": (lambda x: complex_tensor(x).conj().imag, "neg"),
    "conjugate": (lambda x: complex_tensor(x).conj(), "conj"),
    "subclass": (lambda x: x.as_subclass(Subclass), "subclass"),
    "wrapper subclass": (lambda x: TwoTensor(x, x), "subclass"),
    "fake": (fake, "subclass"),
    "subclass of Parameter": (lambda x: torch.nn.parameter.UninitializedParameter(), "subclass"),
    "sparse": (lambda x: x.to_sparse(), "layout"),
    "sparse rows": (lambda x: x.to_sparse_csr(), "layout"),
    "mkldnn": (lambda x: x.to_mkldnn(), "layout"),
    "quantized": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "layout"),
    "nested": (lambda x: torch.nested.nested_tensor([x, x[:2]]), "layout"),
    "jagged": (lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged), "subclass"),
    "functional": (lambda x: torch._to_functional_tensor(x), "storage"),
    "meta": (lambda x: x.to("meta"), "device"),
    "requires grad": (lambda x: x.clone().requires_grad_(), "grad"),
    "result that requires grad": (lambda x: x.clone().requires_grad_() * 2, "grad"),
    "zero tensor": (lambda x: torch._efficientzerotensor(x.shape), "storage"),
    "freed storage": (freed, "storage"),
    "array": (lambda x: x.numpy(), "arguments"),
    "list": (lambda x: x.tolist(), "arguments"),
    "None": (lambda x: None, "arguments"),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_odd_tensors_are_turned_away(affine, x, name):
    make, reason = ODD[name]
    affine(x, b=x)
    try:
        odd = make(x)
    except (RuntimeError, NotImplementedError) as error:
        if name != "mkldnn":
            raise
        pytest.skip(f"this torch has no mkldnn: {error}")
    assert affine(odd, b=x) == reason
    assert affine(x, b=odd) == reason
    if name not in ("None",):
        assert affine(x, b=x, out=odd) == reason
    assert affine.dispatch.launches == 1


def test_a_tensor_that_requires_grad_passes_without_grad_mode(affine, x):
    x.requires_grad_()
    for off in (torch.no_grad(), torch.inference_mode()):
        with off:
            assert torch.equal(affine(x, s=2.0), x * 2)
    assert affine(x) == "grad"


def test_outputs_in_inference_mode_are_inference_tensors(affine, x):
    with torch.inference_mode():
        assert affine(x).is_inference()


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [DispatchMode, FunctionMode])
def test_modes_turn_away(affine, x, mode):
    affine(x)
    with mode():
        assert affine(x) == "mode"
    affine(x)
    assert affine.dispatch.hits == 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_default_device_changes_nothing(affine, x, device):
    with torch.device(device):
        got = affine(x, s=2.0)
        assert got.device == x.device
        assert torch.equal(affine(x, s=2.0, out=torch.empty_like(got)), got)
        with FunctionMode():
            assert affine(x, s=2.0) == "mode"
    torch.set_default_device(device)
    try:
        assert affine(x, s=2.0).device == x.device
    finally:
        torch.set_default_device(None)
    assert torch.equal(got, x * 2)


def test_fake_mode_turns_away(affine, x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert affine(x) == "mode"


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.vmap(f)(x),
        lambda f, x: torch.func.grad(f)(x),
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.func.functionalize(f)(x),
        lambda f, x: torch.func.vmap(torch.func.vmap(f))(x),
    ],
)
def test_functorch_turns_away(affine, x, transform):
    seen = []

    def function(inner):
        seen.append(affine(inner))
        seen.append(affine(x))  # even of a tensor from outside: the level decides
        return inner.sum()

    transform(function, x)
    assert set(seen) == {"functorch"}


def test_a_tensor_that_left_its_transform_is_turned_away(affine, x):
    left = []

    def function(inner):
        left.append(inner)
        return inner

    torch.func.vmap(function)(x)
    assert affine(left[0]) in ("layout", "functorch")


def test_forward_mode_turns_away(affine, x):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        assert affine(dual) == "dual"
    affine(x)
    assert affine.dispatch.launches == 1


@pytest.mark.filterwarnings("ignore")
def test_tracing_turns_away(affine, x):
    seen = []

    def function(inner):
        seen.append(affine(inner))
        return inner * 2

    torch.jit.trace(function, (x,), check_trace=False)
    assert seen.pop() == "tracing"
    make_fx(function)(x)
    assert seen.pop() == "mode"
    make_fx(function, tracing_mode="symbolic")(x)
    assert seen.pop() == "mode"


def test_compiling_turns_away(affine, x, monkeypatch):
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)
    assert affine(x) == "tracing"


@pytest.mark.parametrize(
    ("strides", "overlaps"),
    [((8, 1), False), ((1, 4), False), ((4, 1), True), ((0, 1), True), ((1, 1), True)],
)
def test_an_out_that_overlaps_itself_is_turned_away(affine, x, strides, overlaps):
    narrow = x[:, :5].contiguous()
    out = torch.zeros(64).as_strided((4, 5), strides)
    got = affine(narrow, out=out)
    assert got == "overlap" if overlaps else got is out


def test_sizes_of_one_and_none_overlap_nothing(affine):
    buffer = torch.zeros(8)
    for shape in ((1, 4), (0, 4)):
        out = buffer.as_strided(shape, (0, 1))
        assert affine(torch.ones(shape), out=out) is out


def test_writes_to_out_are_counted(affine, x):
    out = torch.empty_like(x)
    before = out._version
    affine(x, out=out)
    assert out._version > before
    before = out._version
    affine(x, out=(out,))
    assert out._version > before
    with torch.inference_mode():
        affine(x, out=torch.empty_like(x))  # has no counter
