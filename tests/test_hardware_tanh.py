# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`hardware_tanh`: its bound, written by hand as well, its code, its text, and what it refuses."""

import copy
import dataclasses
import math
import pickle
import re

import pytest
import torch
from cases import randn, thorough, thorough_points
from products import HALF, SEVERAL, check_resources, forced, given, needs_hopper
from test_product_kernels import described
from torch.nn import functional

import fusedops as fo
from fusedops.declare.text import read, spell
from fusedops.explain.forward import explain
from fusedops.generate.target import Target
from fusedops.jit import nvrtc
from fusedops.plan import forward
from fusedops.reference.error_bound import expected
from fusedops.run.gradient import described as described_gradient
from fusedops.testing import check
from fusedops.tuning.problem import _gradient

BFLOAT16 = torch.bfloat16

#: Each functor with a tanh, without it and with it: its arguments.
FUNCTORS = {
    "tanh": (fo.Tanh, (), ""),
    "sigmoid": (fo.Sigmoid, (), ""),
    "silu": (fo.SiLU, (), ""),
    "gelu_tanh": (fo.GELU, ("tanh",), ""),
    "softcap": (fo.Softcap, ("cap",), "cap"),
    "gate": (fo.Gate, ("gate", "silu"), "gate"),
    "gated": (fo.Gate, ("gate", "gelu_tanh", "value"), "gate"),
}


@fo.functor(hardware_tanh=True)
def own(x, cap):
    return cap * torch.tanh(x / cap)


@fo.functor(hardware_tanh=True)
def of_all(x):
    """Two calls, whose errors may have one sign or two."""
    return functional.silu(x) + functional.gelu(x, approximate="tanh") * torch.sigmoid(-x)


KEYS = ("y", "gradient of x")

#: The relative error of tanh.approx.f32 that PTX states.
STATED = 2.0**-11


def made(name, hardware_tanh=True):
    kind, arguments, _ = FUNCTORS[name]
    return kind(*arguments, hardware_tanh=hardware_tanh)


def others(than):
    """The names of the functors but one."""
    return [name for name in FUNCTORS if name != than]


def operands(name, columns, dtype=torch.float32, device="cpu"):
    """What the functor takes: a cap, or a gate of x's columns."""
    match FUNCTORS[name][2]:
        case "cap":
            return {"cap": 3.0}
        case "gate":
            return {"gate": randn(columns, dtype=dtype, device=device, seed=1) * 2}
    return {}


def by_hand(name, x):
    """How far value and derivative at x may be off, to first order, from the error of tanh."""
    inner = {"tanh": x, "gelu_tanh": math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)}
    t = torch.tanh(inner.get(name, x / 2))
    e = STATED * t.abs()
    if name == "tanh":
        return e, 2 * t.abs() * e
    if name == "sigmoid":  # s = (1 + t) / 2, whose derivative is (1 - t^2) / 4
        return e / 2, t.abs() * e / 2
    # x (1 + t) / 2, whose derivative is (1 + t) / 2 + x (1 - t^2) inner' / 2
    slope = 0.5 if name == "silu" else math.sqrt(2 / math.pi) * (1 + 0.134145 * x**2)
    return (x * e / 2).abs(), ((1 - 2 * x * t * slope) * e / 2).abs()


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "silu", "gelu_tanh"])
def test_the_bound_is_that_of_the_instruction(name):
    """Of what a declaration without it is allowed there is a thousandth."""
    x = torch.linspace(-6, 6, 241)[None].double()
    found = {}
    for hardware in (True, False):
        op = fo.Map(load=[made(name, hardware)])
        bound = op.bind(x.float(), {})
        results = expected(bound, {}, {"y": torch.ones_like(x)})
        found[hardware] = [torch.as_tensor(results[key].inherited) for key in KEYS]
    for got, want in zip(found[True], by_hand(name, bound.x.double()), strict=True):
        assert (got <= 1.02 * want + 1e-7).all()
        assert (got >= want - 1e-7).all()
    assert all((one == 0).all() for one in found[False])


@pytest.mark.parametrize("name", ["silu", *thorough(*others("silu"))])
def test_on_a_cpu_it_is_as_precise_as_without(name):
    x = randn(5, 61, dtype=HALF) * 3
    results = []
    for hardware in (True, False):
        leaf = x.clone().requires_grad_()
        y = fo.Map(load=[made(name, hardware)])(leaf, **operands(name, 61))
        y.sum().backward()
        results.append((y.detach(), leaf.grad))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    check(fo.Map(load=[made(name)]), x, **operands(name, 61))


class Coarse(fo.Tanh):
    """Its meaning in torch is off by twice of what the instruction may be."""

    def apply(self, x, chain):
        return super().apply(x, chain) * (1 + 2 * STATED)


class CoarseDerivative(fo.Tanh):
    """Its derivative is off by twice of what it may be where tanh is nearly 1."""

    def apply(self, x, chain):
        y = super().apply(x, chain)
        return y.detach() + (y - y.detach()) * (1 + 4 * STATED * y.detach() ** 2)


@pytest.mark.parametrize(
    ("functor", "wrong"),
    [
        (Coarse(hardware_tanh=True), "y"),
        *thorough_points((CoarseDerivative(hardware_tanh=True), "gradient of x")),
    ],
)
def test_what_is_twice_as_far_off_is_found(functor, wrong):
    with pytest.raises(AssertionError) as found:
        check(fo.Map(load=[functor]), randn(5, 60))
    assert wrong in {one.what for one in found.value.args[0].compared if one.share > 1}


class TestCode:
    """What NVRTC makes of a declaration with it, and of the same without."""

    def count(self, variant):
        """How often tanh is the instruction, and how many exponentials there are."""
        _, ptx, _ = nvrtc._compile(variant.source, variant.arch, [])
        return ptx.count(b"tanh.approx.f32"), ptx.count(b"ex2.approx")

    @pytest.mark.parametrize("name", ["gelu_tanh", *thorough(*others("gelu_tanh"))])
    def test_rows(self, name):
        for hardware in (True, False):
            op = fo.Map(load=[made(name, hardware)])
            bound = op.bind(torch.empty(8, 1024, dtype=HALF), operands(name, 1024))
            gradient, target = _gradient(bound), Target.named("sm_90")
            for told in (
                forward.describe(bound, target),
                gradient.describe(*described_gradient(bound, gradient), target),
            ):
                tanh, exp = self.count(told.variants[0])
                assert (tanh > 0, exp > 0) == (hardware, not hardware)

    @pytest.mark.parametrize("name", ["softcap", *thorough("silu", "gated")])
    @pytest.mark.parametrize("dtype", [HALF, *thorough(BFLOAT16)], ids=str)
    def test_products(self, name, dtype):
        for hardware in (True, False):
            op = fo.Linear(store=[fo.Bias("b"), made(name, hardware)])
            tensors = {
                **given(fo.Linear([fo.Bias("b")]), dtype, rows=(300,), n=264, k=200),
                **operands(name, 264, dtype),
            }
            (launch,) = described(op, tensors).launches
            tanh, exp = self.count(launch.variant)
            assert (tanh > 0, exp > 0) == (hardware, not hardware)
            if hardware:
                check_resources(launch.variant)

    def test_the_doubles_of_a_gpu_have_no_such_instruction(self):
        op = fo.Map(load=[fo.Tanh(hardware_tanh=True)])
        bound = op.bind(torch.empty(8, 64, dtype=torch.float64), {})
        (variant,) = forward.describe(bound, Target.named("sm_90")).variants
        assert self.count(variant)[0] == 0
        assert expected(op.bind(randn(2, 3).double(), {}), {}, {})["y"].inherited.max() == 0


@pytest.mark.parametrize("name", FUNCTORS)
def test_it_is_part_of_what_is_declared(name):
    plain, functor = made(name, hardware_tanh=False), made(name)
    assert functor != plain
    assert "hardware_tanh" not in repr(plain), "which keeps the text that it had"
    for kind in (fo.Map, fo.Linear):
        op = kind([functor])
        assert "hardware_tanh=True" in op.declaration
        assert read(spell(op)) == op == pickle.loads(pickle.dumps(op)) != kind([plain])


class TestPythonFunctions:
    def test_what_their_code_calls(self):
        """Tanh and sigmoid by the instruction, also where they are steps of an activation."""
        text = of_all().definition
        assert text.count("HardwareTanh::sigmoid") == 6  # three, forward and again backward
        assert not re.search(r"pointwise::(sigmoid|tanh|silu|gelu_tanh)", text)
        assert "pointwise::HardwareTanh::tanh" in own("cap").definition
        precise = fo.functor(own.function)("cap")
        assert "HardwareTanh" not in precise.definition

    def test_what_they_mean(self):
        x = torch.linspace(-4, 4, 60).double()[None]
        want = functional.silu(x) + functional.gelu(x, approximate="tanh") * torch.sigmoid(-x)
        for found in (fo.Map([of_all()]).unfused(x), fo.Map([of_all()])(x)):
            torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-14)

    def test_their_bound_is_that_of_every_call(self):
        """The changes of all calls are added: a sum that one sign for all would not reach."""
        x = torch.linspace(-4, 4, 81)[None]
        op = fo.Map([of_all()])
        found = expected(op.bind(x, {}), {}, {})["y"].inherited
        v = x.double()
        silu, _ = by_hand("silu", v)
        gelu, _ = by_hand("gelu_tanh", v)
        sigmoid, _ = by_hand("sigmoid", v)
        value = functional.gelu(v, approximate="tanh").abs()
        want = silu + gelu * torch.sigmoid(-v) + value * sigmoid
        assert (found <= 1.02 * want + 1e-7).all()
        assert (found >= want - 1e-7).all()

    def test_their_declarations_are_text(self):
        op = fo.Linear([own("cap")])
        assert read(spell(op)) == op

    def test_what_is_no_bool(self):
        with pytest.raises(TypeError, match="functor: hardware_tanh must be True or False"):
            fo.functor(hardware_tanh=1)


@pytest.mark.parametrize(
    ("arch", "dtype", "said"),
    [
        ("sm_90", HALF, "the GPU's instruction, within 2^-11 of itself"),
        ("sm_90", torch.float64, "as precise as without"),
        (None, HALF, "as precise as without"),
    ],
)
def test_explain_says_what_it_does(arch, dtype, said):
    op = fo.Softmax(load=[fo.Softcap("cap", hardware_tanh=True)])
    target = None if arch is None else Target.named(arch)
    text = str(explain(op.bind(randn(2, 8, dtype=dtype), {"cap": 2.0}), target))
    assert "Softcap(cap='cap', hardware_tanh=True)" in text
    assert f"hardware_tanh: tanh is {said}" in re.sub(r"\s+", " ", text)


def test_modules_take_it():
    layer = fo.nn.Linear(4, 8, activation=fo.GELU("tanh", hardware_tanh=True))
    assert "hardware_tanh=True" in layer.op().declaration


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: fo.GELU(hardware_tanh=True),
            "GELU: hardware_tanh must be False here.*by a tanh; say approximate='tanh'",
        ),
        (lambda: fo.Gate("g", "relu", hardware_tanh=True), "Gate: hardware_tanh must be False"),
    ],
)
def test_what_has_no_tanh(make, said):
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize("name", FUNCTORS)
def test_what_is_no_bool(name):
    kind, arguments, _ = FUNCTORS[name]
    with pytest.raises(TypeError, match=f"{kind.__name__}: hardware_tanh must be True or False"):
        kind(*arguments, hardware_tanh="yes")


def test_a_gelu_of_keywords_is_traced():
    @fo.functor(hardware_tanh=True)
    def act(v):
        return torch.nn.functional.gelu(input=v, approximate="tanh")

    x = randn(3, 8)
    wanted = torch.nn.functional.gelu(x, approximate="tanh")
    torch.testing.assert_close(fo.Map(load=[act()])(x), wanted)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fo.ReLU(hardware_tanh=True), "ReLU: hardware_tanh=True is .*leave that out"),
        (lambda: fo.SquaredReLU(True), "SquaredReLU: True is no argument of it; it has none"),
        (lambda: fo.SiLU(True), "SiLU: True is no argument of it; it has hardware_tanh= by name"),
        (
            lambda: fo.GELU("tanh", True),
            "GELU: True is no argument of it; it has hardware_tanh= by name, approximate=",
        ),
        (lambda: fo.Tanh(hardware=True), "Tanh: hardware=True is no argument of it"),
    ],
)
def test_what_is_no_argument(make, said):
    with pytest.raises(TypeError, match=said):
        make()


def test_they_are_copied_and_pickled():
    for act in (fo.ReLU(), fo.SiLU(hardware_tanh=True), fo.GELU("tanh", hardware_tanh=True)):
        assert pickle.loads(pickle.dumps(act)) == copy.copy(act) == act
        assert dataclasses.replace(act) == act


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [HALF, BFLOAT16, torch.float32], ids=str)
class TestOnAGpu:
    @pytest.mark.parametrize("name", FUNCTORS)
    def test_maps(self, name, dtype):
        x = randn(7, 250, dtype=dtype, device="cuda") * 3
        check(fo.Map(load=[made(name)]), x, **operands(name, 250, dtype, "cuda"))

    def test_softmax_of_capped_scores(self, dtype):
        op = fo.Softmax(load=[fo.Scale("scale"), fo.Softcap("cap", hardware_tanh=True)])
        x = randn(9, 1000, dtype=dtype, device="cuda") * 8
        check(op, x, scale=0.5, cap=torch.tensor(5.0, device="cuda"))

    @pytest.mark.parametrize("implementation", ["two_kernels", *SEVERAL])
    @pytest.mark.parametrize("name", ["softcap", "gelu_tanh", "gated"])
    def test_products(self, name, implementation, dtype):
        """Gradients, and the forward pass without them, which may be one kernel."""
        if implementation != "two_kernels":
            needs_hopper()
            if dtype is torch.float32:
                pytest.skip("one kernel multiplies 16 bits")
        op = fo.Linear(store=[fo.Bias("b"), made(name)])
        tensors = given(fo.Linear([fo.Bias("b")]), dtype, "cuda", rows=(300,), n=264, k=200)
        more = operands(name, 264, dtype, "cuda")
        with forced(implementation):
            check(op, tensors["x"], tensors["w"], b=tensors["b"], **more)


@pytest.mark.gpu
def test_the_instruction_is_as_exact_as_ptx_states():
    """All numbers of eleven binades, in which everything happens: 2^-7 to 16."""
    bits = torch.arange(0x3C000000, 0x41800000, device="cuda", dtype=torch.int32)
    x = bits.view(torch.float32).view(-1, 1024)
    y = fo.Map(load=[fo.Tanh(hardware_tanh=True)])(x)
    for at, found in zip(x.split(1 << 14), y.split(1 << 14), strict=True):
        assert (found.double() / torch.tanh(at.double()) - 1).abs().amax() <= STATED
