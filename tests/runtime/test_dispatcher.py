# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The hot path: what it finds again, what it turns away, and what it launches.

The kernels here are a few lines of C, so that nothing but the runtime is under test.
"""

from __future__ import annotations

import collections
import gc
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from fusedops import _runtime
from fusedops.runtime import draw

PROBABILITY, NUMBER, TENSOR = 1, 2, 4

KERNELS = r"""
#include <stdint.h>

/* out = x * scale + bias (a row) */
struct Affine { const float *x, *bias; float *out; int64_t columns; float scale, kept; };
void affine(const void* words, int64_t begin, int64_t end) {
  const struct Affine* a = words;
  for (int64_t r = begin; r < end; ++r)
    for (int64_t c = 0; c < a->columns; ++c)
      a->out[r * a->columns + c] = a->x[r * a->columns + c] * a->scale + (a->bias ? a->bias[c] : 0);
}

/* out[r] += 1, so that a row computed twice or never shows */
struct Count { int64_t* out; };
void count(const void* words, int64_t begin, int64_t end) {
  const struct Count* a = words;
  for (int64_t r = begin; r < end; ++r) __atomic_fetch_add(&a->out[r], 1, __ATOMIC_RELAXED);
}

/* the argument itself, word by word */
struct Echo { int64_t* out; int64_t words[15]; };
void echo(const void* words, int64_t begin, int64_t end) {
  const struct Echo* a = words;
  for (int i = 0; i < 15; ++i) a->out[i] = a->words[i];
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The compiled C kernels, as a path."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on PATH: install gcc or clang")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernels.c").write_text(KERNELS)
    command = [compiler, "-O1", "-fPIC", "-shared", "kernels.c", "-o", "kernels.so"]
    subprocess.run(command, cwd=folder, check=True)
    return str(folder / "kernels.so")


class Affine:
    """A dispatcher of out = x * s + b for two-dimensional x, and the reasons that slow was given."""

    def __init__(self, library, slots=(("b", TENSOR), ("s", NUMBER), ("p", PROBABILITY | NUMBER))):
        self.kernel = _runtime.load_host(library, "affine")
        self.reasons = []
        self.calls = []
        self.dispatch = _runtime.Dispatcher("affine", slots, self.slow, draw)

    def slow(self, reason, x, operands, options):
        self.reasons.append(reason)
        self.calls.append((x, operands, options))
        if reason != "miss":
            return reason
        columns = x.shape[-1]
        rows = x.numel() // max(columns, 1)
        words = struct.pack("<QQQqff", 0, 0, 0, columns, 1.0, 7.0)
        patches = [(0, _runtime.POINTER, 0), (2, _runtime.OUTPUT, 0)]
        if isinstance(operands.get("b"), torch.Tensor):
            patches.append((1, _runtime.POINTER, 1))
        if "s" in operands:
            patches.append((4, _runtime.FLOAT32, 2))
        outputs = [(2, 32, tuple(x.shape))]
        return _runtime.Plan(self.kernel, words, patches, outputs, rows, 8, 0, 0, 0, 0, "info")

    def __call__(self, *args, **keywords):
        return self.dispatch(*args, **keywords)


@pytest.fixture
def affine(library):
    return Affine(library)


@pytest.fixture
def x():
    return torch.arange(24, dtype=torch.float32).reshape(4, 6)


# --- what a call does -------------------------------------------------------------------------


def test_a_hit_computes_what_the_miss_did(affine, x):
    b = torch.randn(6)
    for scale in (2.0, 3, -0.5):
        for _ in range(2):
            assert torch.equal(affine(x, b=b, s=scale), x * scale + b)
    assert affine.reasons == ["miss", "miss"]  # a float and an int; their values are no key
    assert (affine.dispatch.misses, affine.dispatch.hits) == (2, 4)
    assert affine.dispatch.launches == 6
    assert affine.dispatch.plans == 2
    assert _runtime.last_plan().info == "info"


def test_slow_is_given_everything(affine, x):
    b = torch.randn(6)
    affine(x, b=b, s=1.5, dim=-1, training=False)
    got, operands, options = affine.calls[0]
    assert got is x
    assert operands == {"b": b, "s": 1.5}
    assert options == {"dim": -1, "training": False}


def test_keywords_in_any_order_and_not_interned(affine, x):
    b = torch.randn(6)
    names = {"".join(["s"]): 2.0, bytes(b"b").decode(): b, "".join(["dt", "ype"]): torch.float32}
    assert torch.equal(affine(x, **names), x * 2 + b)
    assert torch.equal(affine(x, dtype=torch.float32, s=2.0, b=b), x * 2 + b)
    assert affine.dispatch.hits == 1


def test_a_parameter_is_a_tensor(affine, x):
    b = torch.nn.Parameter(torch.randn(6))
    with torch.no_grad():
        assert torch.equal(affine(x, b=b, s=1.0), x + b)


def test_one_positional_argument(affine, x):
    with pytest.raises(TypeError, match="affine takes one positional argument"):
        affine(x, x)
    with pytest.raises(TypeError, match="affine takes one positional argument"):
        affine()


def test_an_exception_of_slow_comes_through(x):
    def slow(reason, x, operands, options):
        raise LookupError("no such plan")

    dispatch = _runtime.Dispatcher("op", [], slow, draw)
    with pytest.raises(LookupError, match="no such plan"):
        dispatch(x)
    assert dispatch.plans == 0


def test_slow_may_answer_a_miss_itself(x):
    dispatch = _runtime.Dispatcher("op", [], lambda *call: "answer", draw)
    assert dispatch(x) == "answer"
    assert dispatch.plans == 0


def test_several_outputs_make_a_named_tuple(library, x):
    kernel = _runtime.load_host(library, "echo")
    result = collections.namedtuple("result", ["y", "mean"])

    def slow(reason, x, operands, options):
        outputs = [(0, 64, (15,)), (4, 16, (2, 3))]
        patches = [(0, _runtime.OUTPUT, 0), (1, _runtime.OUTPUT, 1)]
        return _runtime.Plan(kernel, bytes(128), patches, outputs, 1, 1, 0, 0, 0, 0, None)

    got = _runtime.Dispatcher("op", [], slow, draw, result)(x)
    assert type(got) is result
    assert (got.y.dtype, got.mean.dtype) == (torch.int64, torch.bfloat16)
    assert (got.y.shape, got.mean.shape) == ((15,), (2, 3))
    assert got.y[0] == got.mean.data_ptr()


def test_outputs_are_torch_memory(affine, x):
    y = affine(x)
    y.untyped_storage().resize_(0)  # memory of another library could not be
    assert y.untyped_storage().nbytes() == 0


@pytest.mark.parametrize("shape", [(0, 6), (4, 0)])
def test_no_elements_launch_nothing(affine, shape):
    x = torch.empty(shape)
    y = affine(x)
    assert y.shape == shape
    if shape[0] == 0:
        assert affine.dispatch.launches == 0


def test_plans_can_be_forgotten(affine, x):
    affine(x)
    affine.dispatch.clear()
    assert affine.dispatch.plans == 0
    affine(x)
    assert affine.dispatch.misses == 2


def test_a_dispatcher_in_a_cycle_is_collected(library):
    owner = Affine(library)
    owner(torch.ones(2, 2))
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_a_call_leaks_no_reference(affine, x):
    b = torch.randn(6)
    affine(x, b=b, s=1.0)
    affine.calls.clear()
    before = sys.getrefcount(x), sys.getrefcount(b)
    for _ in range(100):
        affine(x, b=b, s=1.0)
        affine(x, b=b, unknown=1)
        affine.calls.clear()
    assert (sys.getrefcount(x), sys.getrefcount(b)) == before
    y, fresh = affine(x, b=b, s=1.0), torch.empty(1)
    assert sys.getrefcount(y) == sys.getrefcount(fresh)


# --- the words of a kernel's argument ---------------------------------------------------------


class Echo:
    """A dispatcher whose kernel returns its own argument."""

    def __init__(self, library, patches, words=bytes(128), draws=0, slots=(("v", NUMBER),)):
        self.kernel = _runtime.load_host(library, "echo")
        self.drawn = []

        def slow(reason, x, operands, options):
            assert reason == "miss"
            all_patches = [(0, _runtime.OUTPUT, 0), *patches]
            outputs = [(0, 64, (15,))]
            return _runtime.Plan(
                self.kernel, words, all_patches, outputs, 1, 1, 0, 0, 0, draws, None
            )

        def draw(device_type, device_index, generator, count):
            self.drawn.append((device_type, device_index, generator, count))
            return -2, 40

        self.dispatch = _runtime.Dispatcher("echo", slots, slow, draw)

    def __call__(self, **keywords):
        return struct.pack("<15q", *self.dispatch(torch.ones(1), **keywords).tolist())


def test_numbers_are_patched(library):
    echo = Echo(
        library,
        [(1, _runtime.FLOAT32, 1), (2, _runtime.FLOAT64, 1), (3, _runtime.INT64, 1)],
        struct.pack("<16q", *[-1] * 16),
    )
    for value in (3, -(2**40)):
        low, high, double, integer, rest = struct.unpack_from("<fidqq", echo(v=value))
        assert (low, double, integer) == (value, value, value)
        assert (high, rest) == (-1, -1)  # the upper half and the other words stay


@pytest.mark.parametrize(
    ("p", "threshold"),
    [(1e-9, 1), (0.1, 6554), (0.5, 32768), (1 - 1e-9, 65535), (1.0, 65536), (1, 65536)],
)
def test_probabilities_are_patched(library, p, threshold):
    patches = [(1, _runtime.THRESHOLD, 1), (2, _runtime.KEEP_SCALE32, 1)]
    echo = Echo(library, [*patches, (3, _runtime.KEEP_SCALE64, 1)], slots=[("v", 3)])
    got, _, scale32, _, scale64 = struct.unpack_from("<IIfId", echo(v=p))
    scale = 0.0 if threshold == 65536 else 65536 / (65536 - threshold)
    assert (got, scale64) == (threshold, scale)
    assert scale32 == pytest.approx(scale, rel=1e-7)


def test_draws_are_patched(library):
    patches = [(1, _runtime.SEED, 0), (2, _runtime.OFFSET, 0), (3, _runtime.OFFSET, 2)]
    echo = Echo(library, patches, draws=2)
    generator = torch.Generator()
    assert struct.unpack_from("<qqq", echo(v=1.0, generator=generator)) == (-2, 40, 42)
    assert echo.drawn == [("cpu", 0, generator, 2)]
    echo(v=1.0)
    assert echo.drawn[1] == ("cpu", 0, None, 2)


def test_nothing_is_drawn_without_draws(library):
    echo = Echo(library, [])
    echo(v=1.0)
    assert echo.drawn == []


def test_draw_follows_the_generator():
    torch.manual_seed(5)
    first = draw("cpu", 0, None, 1)
    assert draw("cpu", 0, None, 1) != first
    torch.manual_seed(5)
    assert draw("cpu", 0, None, 1) == first
    assert draw("cpu", 0, torch.Generator().manual_seed(5), 1) == first
    with pytest.raises(ValueError, match=r"generator must be on the device of x, cuda:0"):
        draw("cuda", 0, torch.Generator(), 1)


# --- the key ----------------------------------------------------------------------------------

BASE = torch.zeros(64)
KEYS = {
    "base": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5),
    "x shape": lambda: dict(x=torch.ones(6, 4), b=torch.ones(6), s=1.0, p=0.5),
    "x rank": lambda: dict(x=torch.ones(1, 4, 6), b=torch.ones(6), s=1.0, p=0.5),
    "x strides": lambda: dict(x=torch.ones(6, 4).t(), b=torch.ones(6), s=1.0, p=0.5),
    "x dtype": lambda: dict(x=torch.ones(4, 6).double(), b=torch.ones(6), s=1.0, p=0.5),
    "x dtype of the same size": lambda: dict(
        x=torch.ones(4, 6).int(), b=torch.ones(6), s=1.0, p=0.5
    ),
    "x alignment": lambda: dict(
        x=BASE[1:25].reshape(4, 6), b=torch.ones(6), s=1.0, p=0.5
    ),
    "x better alignment": lambda: dict(
        x=BASE[2:26].reshape(4, 6), b=torch.ones(6), s=1.0, p=0.5
    ),
    "b shape": lambda: dict(x=torch.ones(4, 6), b=torch.ones(1, 6), s=1.0, p=0.5),
    "b stride": lambda: dict(x=torch.ones(4, 6), b=torch.ones(1).expand(6), s=1.0, p=0.5),
    "b half": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6).half(), s=1.0, p=0.5),
    "b bfloat16": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6).bfloat16(), s=1.0, p=0.5),
    "no b": lambda: dict(x=torch.ones(4, 6), s=1.0, p=0.5),
    "s int": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1, p=0.5),
    "no s": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), p=0.5),
    "p zero": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.0),
    "no p": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1.0),
    "not training": lambda: dict(
        x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, training=False
    ),
    "dim": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, dim=0),
    "another dim": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, dim=1),
    "two dims": lambda: dict(x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, dim=(0, 1)),
    "normalized_shape": lambda: dict(
        x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, normalized_shape=(0, 1)
    ),
    "dtype": lambda: dict(
        x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, dtype=torch.half
    ),
    "out": lambda: dict(
        x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, out=torch.ones(4, 6)
    ),
    "out strides": lambda: dict(
        x=torch.ones(4, 6), b=torch.ones(6), s=1.0, p=0.5, out=torch.ones(6, 4).t()
    ),
}  # fmt: skip


def test_each_part_of_the_key_parts_plans(library):
    affine = Affine(library)
    for number, make in enumerate(KEYS.values(), 1):
        for _ in range(2):  # tensors of their own each time: addresses are no key
            keywords = make()
            affine(keywords.pop("x"), **keywords)
        assert affine.dispatch.plans == number
    assert affine.reasons == ["miss"] * len(KEYS)
    assert affine.dispatch.hits == len(KEYS)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (dict(p=0.1), dict(p=0.9)),
        (dict(p=1), dict(p=1.0)),
        (dict(p=0), dict(p=0.0)),
        (dict(p=0.5, training=False), dict(p=0.0, training=False)),
        (dict(s=1.0), dict(s=-7.5)),
        (dict(dim=-1), dict(dim=(-1,))),
        (dict(dim=-1), dict(dim=[-1])),
        (dict(), dict(training=True)),
        (dict(), dict(dtype=None, dim=None, out=None, generator=None, normalized_shape=None)),
        (dict(generator=torch.Generator()), dict()),
        (dict(normalized_shape=6), dict(normalized_shape=torch.Size([6]))),
    ],
)
def test_what_is_no_key(affine, x, one, other):
    affine(x, **one)
    affine(x, **other)
    assert affine.reasons == ["miss"]


def test_the_salt_parts_plans(affine, x):
    affine(x)
    _runtime.set_salt(3)
    try:
        affine(x)
    finally:
        _runtime.set_salt(0)
    affine(x)
    assert (affine.dispatch.misses, affine.dispatch.hits) == (2, 1)


def test_shapes_without_end_do_not_fill_the_memory(affine):
    for size in range(9000):
        affine(torch.empty(0, size))
    assert affine.dispatch.plans <= 8192


# --- the gate: what is turned away, and why ---------------------------------------------------


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


@pytest.mark.parametrize("mode", [DispatchMode, FunctionMode, lambda: torch.device("cpu")])
def test_modes_turn_away(affine, x, mode):
    affine(x)
    with mode():
        assert affine(x) == "mode"
    affine(x)
    assert affine.dispatch.hits == 1


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


BAD = {
    "unknown name": dict(unknown=1.0),
    "unknown name among known": dict(s=1.0, unknown=1.0),
    "number for a tensor": dict(b=1.0),
    "tensor for a number": dict(s=torch.tensor(1.0)),
    "None for an operand": dict(b=None),
    "bool for a number": dict(s=True),
    "string for a number": dict(s="1"),
    "number beyond 64 bits": dict(s=2**63),
    "negative p": dict(p=-0.1),
    "p above 1": dict(p=1.5),
    "p above 1, not training": dict(p=1.5, training=False),
    "p NaN": dict(p=float("nan")),
    "p a tensor": dict(p=torch.tensor(0.5)),
    "training 1": dict(training=1),
    "training None": dict(training=None),
    "dim a float": dict(dim=1.0),
    "dim a bool": dict(dim=True),
    "dim a string": dict(dim="1"),
    "dim of floats": dict(dim=(0, 1.0)),
    "dim beyond 64 bits": dict(dim=2**64),
    "normalized_shape a string": dict(normalized_shape="6"),
    "dtype a string": dict(dtype="float32"),
    "dtype a type": dict(dtype=float),
    "generator a seed": dict(generator=5),
    "out a number": dict(out=1.0),
    "out empty": dict(out=()),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_go_to_python(affine, x, name):
    assert affine(x, **BAD[name]) == "arguments"
    _, operands, options = affine.calls[0]
    assert {**operands, **options} == BAD[name]
    assert affine.dispatch.launches == 0


# --- out= -------------------------------------------------------------------------------------


def test_out_is_written_and_returned(affine, x):
    b = torch.randn(6)
    for _ in range(2):
        out = torch.full((4, 6), float("nan"))
        assert affine(x, b=b, s=2.0, out=out) is out
        assert torch.equal(out, x * 2 + b)
    one = (torch.empty(4, 6),)
    assert affine(x, b=b, s=2.0, out=one) is one[0]
    assert affine.dispatch.hits == 2


def test_out_must_fit_the_outputs(affine, x):
    with pytest.raises(ValueError, match="affine: out must hold 1 tensors"):
        affine(x, out=(torch.empty(4, 6), torch.empty(4, 6)))


def test_overlap_is_turned_away(affine):
    base = torch.zeros(100)
    x, b = base[:24].reshape(4, 6), base[60:66]
    apart = base[24:48].reshape(4, 6)  # begins where x ends
    assert affine(x, b=b, out=apart) is apart
    overlapping = {
        "x itself": x,
        "the end of x": base[23:47].reshape(4, 6),
        "a row that b starts in": base[37:61].reshape(4, 6),
        "a strided view around b": base[50:98].reshape(4, 12)[:, ::2],
        "itself": torch.zeros(6).expand(4, 6),
    }
    for name, out in overlapping.items():
        assert affine(x, b=b, out=out) == "overlap", name
    assert affine.dispatch.launches == 1


def test_overlap_is_found_when_the_plan_is_known(affine):
    base = torch.zeros(100)
    x = base[:24].reshape(4, 6)
    affine(x, out=base[24:48].reshape(4, 6))
    affine(x, out=base[32:56].reshape(4, 6))
    assert affine.dispatch.hits == 1
    assert affine(x, out=base[16:40].reshape(4, 6)) == "overlap"


def test_two_outs_that_overlap_are_turned_away(affine, x):
    base = torch.empty(40)
    outs = base[:24].reshape(4, 6), base[16:40].reshape(4, 6)
    assert affine(x, out=outs) == "overlap"


# --- threads and processes --------------------------------------------------------------------


def counting(library, grain=1):
    kernel = _runtime.load_host(library, "count")

    def slow(reason, x, operands, options):
        assert reason == "miss"
        patches = [(0, _runtime.OUTPUT, 0)]
        rows = x.shape[0]
        outputs = [(0, 64, (rows,))]
        return _runtime.Plan(kernel, bytes(8), patches, outputs, rows, grain, 0, 0, 0, 0, None)

    return _runtime.Dispatcher("count", [], slow, draw)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("number", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 1000])
def test_every_row_is_run_once(library, threads, number, rows):
    threads(number)
    for grain in (1, 7, 64, 2000):
        dispatch = counting(library, grain)
        for _ in range(20):
            out = torch.zeros(rows, dtype=torch.int64)
            dispatch(torch.empty(rows, 1), out=out)
            assert bool((out == 1).all())


def test_callers_in_parallel(library, threads):
    threads(3)
    dispatch = counting(library)
    wrong = []

    def caller():
        for rows in list(range(1, 200)) * 3:
            out = torch.zeros(rows, dtype=torch.int64)
            dispatch(torch.empty(rows, 1), out=out)
            if not bool((out == 1).all()):
                wrong.append(rows)

    callers = [threading.Thread(target=caller) for _ in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert not wrong
    assert dispatch.launches == 4 * 3 * 199


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(library, threads):
    threads(2)
    dispatch = counting(library)
    kept = torch.zeros(500, dtype=torch.int64)
    dispatch(torch.empty(500, 1), out=kept)  # the parent's pool is there
    child = os.fork()
    if child == 0:
        status = 1
        try:
            # Tensors in numpy memory and no torch operator: torch's own threads do not survive.
            for _ in range(50):
                kept.numpy()[:] = 0
                dispatch(torch.empty(500, 1), out=kept)
                assert (kept.numpy() == 1).all()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0
    out = torch.zeros(500, dtype=torch.int64)
    dispatch(torch.empty(500, 1), out=out)
    assert bool((out == 1).all())


# --- what Python may ask for wrongly ----------------------------------------------------------


def test_loading_says_what_is_wrong(library, tmp_path):
    with pytest.raises(RuntimeError, match="loading the host kernel k failed: .*missing.so"):
        _runtime.load_host(str(tmp_path / "missing.so"), "k")
    with pytest.raises(RuntimeError, match="holds no kernel nothing"):
        _runtime.load_host(library, "nothing")
    if _runtime.device_count() == 0:
        with pytest.raises(RuntimeError):
            _runtime.load_cuda(b"", "k")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(words=bytes(12)), "whole words of 8 bytes"),
        (dict(words=bytes(4104)), "at most 4096 bytes"),
        (dict(patches=[(16, _runtime.POINTER, 0)]), "out of range"),
        (dict(patches=[(0, 99, 0)]), "out of range"),
        (dict(patches=[(0, _runtime.OUTPUT, 1)]), "out of range"),
        (dict(patches=[(0, _runtime.POINTER, -1)]), "out of range"),
        (dict(outputs=[]), "outputs must be 1 to 16"),
        (dict(rows=-1), "rows must not be negative"),
        (dict(grain=0), "grain must be positive"),
    ],
)
def test_plans_are_checked(library, change, message):
    kernel = _runtime.load_host(library, "echo")
    plan = dict(
        kernel=kernel, words=bytes(128), patches=[], outputs=[(2, 32, (1,))], rows=1, grain=1,
        grid=0, block=0, shared=0, draws=0, info=None,
    )  # fmt: skip
    _runtime.Plan(**plan)
    with pytest.raises(ValueError, match=message):
        _runtime.Plan(**{**plan, **change})


def test_unknown_output_dtype(library):
    kernel = _runtime.load_host(library, "echo")
    with pytest.raises(TypeError, match="no torch dtype has DLPack code 5 with 64 bits"):
        _runtime.Plan(kernel, b"", [], [(5, 64, (1,))], 1, 1, 0, 0, 0, 0, None)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (_runtime.POINTER, dict(v=1.0)),
        (_runtime.POINTER, dict()),
        (_runtime.FLOAT32, dict()),
        (_runtime.INT64, dict(v=1.0)),
        (_runtime.THRESHOLD, dict(v=torch.ones(1))),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(library, kind, given):
    echo = Echo(library, [(1, kind, 1)], slots=[("v", NUMBER | TENSOR)])
    with pytest.raises(ValueError, match="does not fit the value in slot 1"):
        echo(**given)


def test_a_result_type_must_be_a_named_tuple():
    with pytest.raises(TypeError, match="must be a namedtuple type or None"):
        _runtime.Dispatcher("op", [], print, draw, list)


# --- the module -------------------------------------------------------------------------------


def test_cpu_features_are_those_of_the_system():
    features = _runtime.cpu_features()
    assert isinstance(features, frozenset)
    info = Path("/proc/cpuinfo")
    if not info.exists():
        pytest.skip("no /proc/cpuinfo here")
    line = re.search(r"^flags\s*:(.*)$", info.read_text(), re.MULTILINE)
    if line is None:
        pytest.skip("/proc/cpuinfo has no flags on this processor")
    flags = set(line[1].split())
    flags |= {"sse3"} if "pni" in flags else set()
    flags |= {"lzcnt"} if "abm" in flags else set()
    flags |= {"osxsave"} if "xsave" in flags else set()
    assert features <= flags
    for name in ("avx2", "fma", "f16c", "avx512f", "avx512bw", "bmi2"):
        assert (name in features) == (name in flags)


def test_the_module_links_neither_torch_nor_cuda():
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf on PATH: install binutils")

    def read(option):
        command = [readelf, "--wide", option, _runtime.__file__]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", read("--dynamic"))
    assert needed
    assert not [name for name in needed if re.search("torch|c10|cuda|nv|python", name)]
    undefined = re.findall(r"\bUND (\S+)", read("--dyn-syms"))
    assert undefined
    assert not [
        name for name in undefined if re.match(r"cu[A-Z]|cuda|nvrtc|.*(c10|torch|N2at)", name)
    ]


def test_the_module_loads_without_torch():
    code = (
        "import importlib.util, sys;"
        f"spec = importlib.util.spec_from_file_location('_runtime', {_runtime.__file__!r});"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module);"
        "assert module.cpu_features() is not None; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
