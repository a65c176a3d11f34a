# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Functors of the user's own in ops; their declarations; what is refused."""

import copy
import inspect
import math
import pickle

import pytest
import torch
from cases import thorough
from operations import OPERATIONS
from references import check
from test_variants import ARCHS, check_compiles, described
from torch.nn import functional

import fusedops as fo
from fusedops import testing

# Many operations in one functor, since each variant has to be built.

#: Operations that are not real, or not tame, everywhere.
WITHIN_ONE = (
    *("log", "log1p", "log2", "log10", "inverses", "sqrt", "rsqrt", "root", "inverse_root"),
    *("power", "powers", "xlogy", "reciprocal", "from_number", "inverse_square", "inverse_cube"),
    *("tan", "acosh", "seventh"),
)
#: They jump, so that one rounding more or less may change them by more than roundings do.
JUMPS = ("steps", "frac", "comparisons", "comparisons_with_numbers", "logic", "masked_fill")


def total(names):
    """A functor that adds up these operations."""

    def added(x, a, b):
        inside = 0.25 + 0.5 * torch.sigmoid(x)
        result = torch.zeros_like(x)
        for name in names:
            value = 1 / inside if name == "acosh" else inside if name in WITHIN_ONE else x
            function = OPERATIONS[name].kind.function
            result = result + function(value, *[a, b][: len(OPERATIONS[name].operands)])
        return result / len(names)

    return fo.functor(added)


TAME = [name for name in OPERATIONS if name not in JUMPS and name not in ("sinh", "cosh")]
GROUPS = {name: total(TAME[k::4]) for k, name in enumerate(["first", "second", "third", "fourth"])}
GROUPS["jumps"] = total(JUMPS)


def given(dtype, device, columns=100):
    """An input and operands, in all patterns of broadcasting."""
    generator = torch.Generator().manual_seed(3)

    def between(*shape):
        values = torch.rand(shape, generator=generator, dtype=torch.float64) * 1.5 + 0.5
        return values.to(dtype).to(device)

    x = torch.randn(3, 5, columns, generator=generator, dtype=torch.float64).to(dtype).to(device)
    operands = {
        "a": between(columns),
        "b": between(3, 1, columns),
        "c": between(5, 1),
        "d": between(),
    }
    return x, operands


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float64, *thorough(torch.float16)], ids=str)
@pytest.mark.parametrize("group", GROUPS)
def test_every_operation_in_load_and_store(group, dtype, device):
    functor = GROUPS[group]
    op = fo.RMSNorm(load=[functor("a", "b")], store=[functor("c", "d")])
    x, operands = given(dtype, device)
    got = op(x, **operands)
    # On the CPU: torch's hardsigmoid on a GPU takes its 1/6 from a float.
    exact = {name: value.cpu().double() for name, value in operands.items()}
    want = op.unfused(x.cpu().double(), **exact).to(device)
    if dtype is torch.float64:
        torch.testing.assert_close(got, want, rtol=1e-9, atol=0)
    else:
        near = {name: value.float() for name, value in operands.items()}
        check(got, want, op.unfused(x.float(), **near))


@pytest.mark.parametrize("group", ["first", *thorough("second", "third", "fourth", "jumps")])
def test_gradients_in_load_and_store(group, device):
    functor = GROUPS[group]
    op = fo.RMSNorm(load=[functor("a", "b")], store=[functor("c", "d")])
    x, operands = given(torch.float64, device)
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(4)).to(x)
    leaves = {name: value.requires_grad_() for name, value in {"x": x, **operands}.items()}
    got = torch.autograd.grad(op(x, **operands), leaves.values(), upstream)
    want = torch.autograd.grad(
        op.unfused(x, **operands), leaves.values(), upstream, materialize_grads=True
    )
    for name, mine, theirs in zip(leaves, got, want, strict=True):
        largest = theirs.abs().max().item()
        torch.testing.assert_close(
            mine, theirs, rtol=1e-7, atol=1e-9 * largest, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.thorough
def test_large_arguments_keep_torchs_stable_derivatives(device):
    @fo.functor
    def stable(x):
        return torch.sigmoid(x) * 1e30 + functional.softplus(x)

    op = fo.Softmax(store=[fo.Scale("zero"), fo.Bias("v"), stable()])
    v = torch.tensor([[-100.0, -80.0, 0.0, 80.0, 100.0]], device=device, requires_grad=True)
    y = op(torch.zeros_like(v), zero=0.0, v=v)
    y.sum().backward()
    exact = v.detach().double()
    truth = torch.sigmoid(exact)
    slope = truth * torch.sigmoid(-exact) * 1e30 + truth
    value = truth * 1e30 + functional.softplus(exact)
    # At -100 a float has five bits left; at 100 its sigmoid is 1, whose slope is 0.
    torch.testing.assert_close(y.detach().double(), value, rtol=1e-6, atol=1e-15)
    torch.testing.assert_close(v.grad.double(), slope, rtol=1e-5, atol=1e23)
    assert (v.grad[0, :3] > 0).all()


@pytest.mark.thorough
def test_only_the_gradients_that_are_wanted(device):
    """Operands that the gradient does not read are not there, whatever is asked for."""
    functor = OPERATIONS["swiglu"].functor
    op = fo.LayerNorm(load=[functor], store=[fo.Affine("gamma")])
    x, operands = given(torch.float64, device)
    operands = {"a": operands["a"], "gamma": operands["c"]}
    tensors = {"x": x, **operands}
    for wanted in (["x"], ["a"], ["x", "a"], ["gamma"], ["x", "gamma"]):
        leaves = {
            name: value.clone().requires_grad_(name in wanted) for name, value in tensors.items()
        }
        asked = [leaves[name] for name in wanted]
        values = {name: leaves[name] for name in operands}
        got = torch.autograd.grad(op(leaves["x"], **values).square().sum(), asked)
        want = torch.autograd.grad(op.unfused(leaves["x"], **values).square().sum(), asked)
        for name, mine, theirs in zip(wanted, got, want, strict=True):
            torch.testing.assert_close(mine, theirs, msg=lambda text, n=name: f"{n}: {text}")


# Declarations.


@fo.functor
def softcap(x, cap):
    """Bends to a limit."""
    return cap * torch.tanh(x / cap)


@fo.functor
def bent(x, cap=2.0, sharp=True):
    return torch.clamp(x, -cap, cap) if sharp else cap * torch.tanh(x / cap)


def test_a_declaration_is_a_value():
    functor = softcap("cap")
    assert repr(functor) == "softcap('cap')"
    assert functor == softcap(cap="cap")
    assert hash(functor) == hash(softcap("cap"))
    assert functor != softcap("other")
    assert functor != bent("cap")
    assert [operand.name for operand in functor.operands()] == ["cap"]
    assert softcap.__doc__ == "Bends to a limit."
    assert str(inspect.signature(softcap)) == "(cap)"
    op = fo.Softmax(load=[functor])
    assert pickle.loads(pickle.dumps(op)) == op
    assert copy.deepcopy(op) == op
    assert repr(op) == "Softmax(load=[softcap('cap')], empty_row='zero')"


def test_what_is_local_cannot_be_pickled_but_copied():
    @fo.functor
    def local(x):
        return x + 1

    assert copy.deepcopy(local()) == local()
    with pytest.raises((pickle.PicklingError, AttributeError), match="local"):
        pickle.dumps(local())


@pytest.mark.thorough
def test_constants_of_the_declaration(device):
    x = torch.randn(3, 20, generator=torch.Generator().manual_seed(1)).to(device)
    sharp, smooth = fo.RMSNorm(load=[bent(0.5)]), fo.RMSNorm(load=[bent(0.5, False)])
    for op in (sharp, smooth):
        torch.testing.assert_close(op(x), op.unfused(x))
    assert not torch.allclose(sharp(x), smooth(x))
    assert repr(bent()) == "bent(2.0, True)"
    assert bent() == bent(2.0) != bent(1.0)
    assert not bent("cap", sharp=True).operands()[1:]


@pytest.mark.thorough
def test_an_operand_named_twice_is_one(device):
    functor = fo.functor(lambda x, a, b: a * x + b * b)("s", "s")
    assert [operand.name for operand in functor.operands()] == ["s"]
    op = fo.LayerNorm(load=[functor])
    x, operands = given(torch.float64, device)
    s = operands["a"].requires_grad_()
    got = torch.autograd.grad(op(x, s=s).square().sum(), s)
    want = torch.autograd.grad(op.unfused(x, s=s).square().sum(), s)
    torch.testing.assert_close(got, want)


def test_the_same_text_is_the_same_variant_and_other_text_another():
    first, second = fo.functor(lambda x: x * 2), fo.functor(lambda x: x * 2)
    third = fo.functor(lambda x: x * 3)
    assert first().definition == second().definition != third().definition
    x = torch.ones(2, 3)
    assert not torch.equal(
        fo.Softmax(load=[third()], store=[first()])(x), fo.Softmax(load=[third()])(x)
    )


@pytest.mark.thorough
def test_cpp_may_name_one_operand_twice(device):
    line = fo.cpp_functor(
        "line",
        forward="v * a + b",
        derivative="g * a",
        operands=["a", "b"],
        operand_derivatives={"a": "g * v", "b": "g"},
        apply=lambda x, a, b: x * a + b,
    )
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).to(device)
    testing.check(fo.LayerNorm(load=[line("q", "q")]), x, q=x[0].clone())


def test_operands_may_be_numbers_at_the_call(device):
    op = fo.Softmax(load=[softcap("cap")])
    x = torch.randn(4, 30, generator=torch.Generator().manual_seed(1)).to(device) * 10
    with testing.count_launches() as launches:
        for cap in (1.0, 2, torch.tensor(3.0, device=device)):
            torch.testing.assert_close(op(x, cap=cap), op.unfused(x, cap=cap))
    assert launches


def test_declaring_under_other_modes():
    for mode in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu")):
        with mode:
            functor = fo.functor(lambda x, a: torch.tanh(x) * a)("a")
        assert functor.reads(["a"]) == (True, ("a",))
    torch.set_default_dtype(torch.float64)
    try:
        assert fo.functor(lambda x, a: torch.tanh(x) * a)("a").definition == functor.definition
    finally:
        torch.set_default_dtype(torch.float32)


SLOPES = torch.ones(3)
OUTSIDE = torch.nn.Parameter(torch.ones(()))

REFUSED = {
    "sum": (lambda x: x - x.sum(-1, keepdim=True), "aten.sum", "not pointwise"),
    "mean": (lambda x: x * x.mean(), "aten.mean", "not pointwise"),
    "softmax": (lambda x: torch.softmax(x, -1), "aten._softmax", "not pointwise"),
    "cumsum": (lambda x: x.cumsum(-1), "aten.cumsum", "not pointwise"),
    "flip": (lambda x: x.flip(-1), "aten.flip", "not pointwise"),
    "transpose": (lambda x: x.t().t(), "aten.t ", "not pointwise"),
    "matmul": (lambda x: x @ x.new_ones(3, 3), "aten.new_ones", "makes shape (3, 3)"),
    "shape": (lambda x: x.reshape(-1).reshape(x.shape), "aten.view", "makes shape (6,)"),
    "column": (lambda x: x * x[..., :1], "aten.slice", "not pointwise"),
    "random": (lambda x: x + torch.randn_like(x), "aten.randn_like", "random numbers"),
    "dropout": (lambda x: functional.dropout(x, 0.5), "", "fusedops.Dropout"),
    "no spelling": (lambda x: torch.special.i0(x), "aten.i0", "no spelling in C++"),
    "an option": (lambda x: torch.round(x, decimals=2), "aten.round", "decimals=2"),
    "if elementwise": (lambda x: x if x > 0 else -x, "torch.where", "depends on a value"),
    "if": (lambda x: x if x.sum() > 0 else -x, "torch.where", "depends on a value"),
    "item": (lambda x, a: x * float(a.max()), "", "a value"),
    "columns": (lambda x: x / x.shape[-1], "x.shape", "as an operand"),
    "finfo": (lambda x: x + torch.finfo(x.dtype).eps, "torch.finfo", "as an operand"),
    "half": (lambda x: x.half().float(), "aten._to_copy", "fusedops.Cast"),
    "integers": (lambda x: x.long() * x, "aten._to_copy", "torch.trunc"),
    "made": (lambda x: x * torch.ones(3), "aten.ones", "makes shape (3,)"),
    "outside": (lambda x: x * SLOPES, "shape (3,)", "make it an operand"),
    "parameter": (lambda x: x * OUTSIDE, "requires grad", "make it an operand"),
    "too large": (lambda x: x.clamp(max=1e300), "1e+300", "torch.inf"),
    "in place": (lambda x: x.mul_(2), "in-place", ""),
    "no gradient": (lambda x: x // 2, "floor_divide", "torch cannot trace its gradient"),
    "product": (lambda x, a: x @ a, "lambda x, a: x @ a", "pass the result as an operand"),
    "table": (lambda x, a: a[x], "lambda x, a: a[x]", "pass the result as an operand"),
}


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_elementwise_is_refused_by_name(case):
    function, *parts = REFUSED[case]
    kind = fo.functor(function)
    names = ["a", "b"][: len(kind.parameters.parameters)]
    with pytest.raises(fo.UnsupportedError) as raised:
        kind(*names)
    for part in ("<lambda>", *parts):
        assert part in str(raised.value), str(raised.value)


def test_a_number_of_a_value_is_refused_without_a_warning(recwarn):
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with pytest.raises(fo.UnsupportedError, match=r"<lambda>: .*torch\.exp"):
            fo.functor(lambda x: x * math.exp(x))()
    finally:
        torch.set_warn_always(before)
    assert not list(recwarn)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda x: 1.0, "must return a tensor, got float"),
        (lambda x: (x, x), "must return a tensor, got tuple"),
        (lambda x: x > 0, r"got torch.bool; convert it with .to\(x.dtype\)"),
        (lambda x: torch.ones(()), r"got shape \(\) for x of shape"),
    ],
)
def test_what_it_returns(function, match):
    with pytest.raises(TypeError, match=match):
        fo.functor(function)()


def test_an_integer_result_is_rounded_or_converted():
    rounding = "torch.trunc, torch.floor or torch.round"
    with pytest.raises(fo.UnsupportedError, match=f"makes torch.int64 of .*write {rounding}"):
        fo.functor(lambda x: x.long())()
    fo.functor(lambda x: torch.trunc(x) + torch.floor(x) + torch.round(x))()  # the cures

    def counted(x):
        return (x > 0).int()

    def placed(x):
        return fo.position(-1)

    for function in (counted, placed):
        with pytest.raises(TypeError, match=r"got torch.int.*; convert it with .to\(x.dtype\)"):
            fo.functor(function)()
    fo.functor(lambda x: counted(x).to(x.dtype) + placed(x).to(x.dtype))()  # the cure


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("function", "cure", "parameter"),
    [
        (lambda x, s: functional.leaky_relu(x, s), (0.1,), "s"),
        (lambda x, a, b: functional.elu(x, a) * b, (0.1, "b"), "a"),
        (lambda x, a, b: torch.clamp(functional.elu(x * b, a), b, 1.0), (0.1, 0.1), "a, b"),
    ],
)
def test_an_operand_that_torch_takes_as_a_number(function, cure, parameter):
    kind = fo.functor(function)
    names = list(kind.parameters.parameters)
    said = rf"<lambda>: it takes a number for {parameter}, got .*lu\(\): argument .* must be Number"
    with pytest.raises(fo.UnsupportedError, match=said) as raised:
        kind(*names)
    made = kind(*cure)
    assert f"{made!r} say, or write" in str(raised.value)
    leaky = fo.functor(lambda x, s: torch.where(x > 0, x, x * s))("s")  # the other cure
    x = torch.linspace(-1, 1, 6)[None]
    torch.testing.assert_close(
        fo.Map(load=[leaky]).unfused(x, s=0.3), functional.leaky_relu(x, 0.3)
    )


def test_its_own_errors_are_its_own():
    with pytest.raises(NameError, match="missing_name"):
        fo.functor(lambda x: missing_name(x))()  # noqa: F821


def test_arguments_are_checked():
    with pytest.raises(TypeError, match=r"softcap: missing .*'cap'.*softcap\(cap\)"):
        softcap()
    with pytest.raises(ValueError, match="softcap: cap must be usable as a keyword"):
        softcap("not a name")
    with pytest.raises(TypeError, match="softcap: cap names an operand"):
        softcap(None)
    with pytest.raises(ValueError, match="NaN"):
        softcap(torch.nan)
    with pytest.raises(ValueError, match="names its operand 'dim'"):
        fo.Softmax(load=[softcap("dim")])
    with pytest.raises(TypeError, match="decorates a Python function, got <class 'int'>"):
        fo.functor(int)
    with pytest.raises(TypeError, match="the value and then its operands"):
        fo.functor(lambda *values: values[0])
    with pytest.raises(TypeError, match="the value and then its operands"):
        fo.functor(lambda: 0)


# Functors given as C++.

scaled_cube = fo.cpp_functor(
    "scaled_cube",
    forward="a * v * v * v + Compute(0.5) * pointwise::tanh(b)",
    derivative="Compute(3) * a * v * v * g",
    operands=["a", "b"],
    operand_derivatives={
        "a": "v * v * v * g",
        "b": "Compute(0.5) * (Compute(1) - pointwise::power<2>(pointwise::tanh(b))) * g",
    },
    apply=lambda x, a, b: a * x**3 + 0.5 * torch.tanh(b),
)


def test_a_functor_in_cpp(device):
    op = fo.RMSNorm(load=[scaled_cube("s", "t")], store=[scaled_cube("u", "t")])
    x, operands = given(torch.float64, device)
    operands = dict(zip("stu", operands.values(), strict=False))
    leaves = [value.requires_grad_() for value in (x, *operands.values())]
    got, want = op(x, **operands), op.unfused(x, **operands)
    torch.testing.assert_close(got, want)
    upstream = torch.randn_like(x)
    torch.testing.assert_close(
        torch.autograd.grad(got, leaves, upstream), torch.autograd.grad(want, leaves, upstream)
    )


def test_a_functor_in_cpp_is_a_value():
    functor = scaled_cube("s", "t")
    assert repr(functor) == "scaled_cube('s', 't')"
    assert pickle.loads(pickle.dumps(functor)) == functor
    assert functor.reads([]) == (True, ("s",))
    assert functor.reads(["b", "t"]) == (True, ("s", "t"))
    assert functor.differentiable


def test_without_a_derivative_it_is_forward_only(device):
    doubled = fo.cpp_functor("doubled", forward="v + v")
    op = fo.Softmax(load=[doubled()])
    x = torch.randn(2, 5, device=device)
    torch.testing.assert_close(op(x), torch.softmax(2 * x, -1))
    assert not doubled().differentiable
    with pytest.raises(fo.UnsupportedError, match=r"doubled\(\)"):
        op(x.requires_grad_())
    with pytest.raises(fo.UnsupportedError, match=r"doubled\(\) is given as C\+\+ alone.*apply="):
        op.unfused(x)


def test_text_that_does_not_compile():
    wrong = fo.cpp_functor("wrong", forward="v +* nonsense")
    with pytest.raises(fo.CompileError, match="nonsense"):
        fo.Softmax(load=[wrong()])(torch.ones(2, 3))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"name": "no name"}, "must be an identifier"),
        ({"operands": ["v"]}, "cannot be called 'v'"),
        ({"operands": ["a", "a"]}, "cannot be called 'a'"),
        ({"operand_derivatives": {"a": "g"}}, "also needs derivative="),
        ({"derivative": "g", "operands": ["a"]}, r"an expression for each of \['a'\]"),
        ({"forward": "v * g"}, "forward has no 'g'"),
    ],
)
def test_what_cpp_functor_refuses(options, match):
    with pytest.raises(ValueError, match=match):
        fo.cpp_functor(**{"name": "fine", "forward": "v", **options})
    fo.cpp_functor("fine", forward="v")


# NVRTC, without a GPU.


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ARCHS)
def test_functors_compile_for_every_architecture(arch):
    activations = [OPERATIONS[name].functor for name in ("gelu", "gelu_tanh", "silu", "powers")]
    x = torch.empty(2, 3, 1000, dtype=torch.float16)
    operands = {"cap": 2.0, "a": torch.empty(1000)}
    op = fo.Softmax(load=[softcap("cap"), *activations], store=[softcap("cap")])
    check_compiles(described(op, x, operands, arch))


@pytest.mark.parametrize(
    ("divisor", "text"),
    [
        (3.0, "pointwise::over(v, Compute(3.0))"),
        (-1e-30, "pointwise::over(v, Compute(-1e-30))"),
        (2e38, "v / Compute(2e+38)"),  # whose reciprocal is subnormal
        (1e-40, "v / Compute(1e-40)"),
        (0.0, "v / Compute(0.0)"),
        (math.inf, "v / infinity<Compute>()"),
    ],
)
def test_a_division_by_a_constant(divisor, text):
    assert f"= {text};" in fo.functor(lambda v: v / divisor)().definition
