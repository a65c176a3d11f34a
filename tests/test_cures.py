# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Calls and declarations that are wrong as people make them: each error says what to write."""

import re

import pytest
import torch
from cases import raises, randn
from torch import nn
from torch.nn import functional

import fusedops as fo
import fusedops.testing
from fusedops import functors
from fusedops.declare import wanted
from fusedops.functors import suggestions

LAYER = fo.Linear(store=[fo.Bias("b")])
BLOCK = fo.MLP(hidden=[fo.Bias("b")], store=[fo.Bias("c")])


@fo.functor
def gelu(v):
    return functional.gelu(v)


def relu(v):
    return torch.relu(v)


X, W, V = randn(3, 4), randn(5, 4, seed=1), randn(6, 5, seed=2)


@pytest.mark.parametrize(
    ("op", "factors", "given", "parts"),
    [
        (LAYER, (X,), {"w": W}, ("Linear: w is given by position", "op(x, w, ...)")),
        (LAYER, (), {"x": X, "w": W}, ("Linear: x is given by position", "op(x, w, ...)")),
        (LAYER, (X,), {"weight": W}, ("Linear: w is missing", "not by name as 'weight'")),
        (LAYER, (X,), {"b": 0.0}, ("Linear: w is missing", "op(x, w, ...)")),
        (LAYER, (X, None), {"b": 0.0}, ("Linear: w is missing", "op(x, w, ...)")),
        (LAYER, (X, W.numpy()), {"b": 0.0}, ("Linear: w must", "torch.as_tensor(w)")),
        (LAYER, (X, W.tolist()), {"b": 0.0}, ("Linear: w must", "torch.as_tensor(w)")),
        (LAYER, (X, [*W]), {"b": 0.0}, ("Linear: w must", "torch.stack([*w])")),
        (LAYER, (X, nn.ParameterList([*W])), {"b": 0.0}, ("Linear: w must", "torch.stack([*w])")),
        (LAYER, (X, nn.Linear(4, 5)), {"b": 0.0}, ("Linear: w must", "pass w.weight")),
        (LAYER, (X + 0j, W), {"b": 0.0}, ("Linear: x must be floating point", "x.real")),
        (BLOCK, (X, W), {"w2": V, "b": 0.0, "c": 0.0}, ("MLP: w2 is given by position",)),
        (BLOCK, (), {"b": 0.0, "c": 0.0}, ("MLP: x is missing", "op(x, w1, w2, ...)")),
        (BLOCK, (X,), {"b": 0.0, "c": 0.0}, ("MLP: w1 is missing", "op(x, w1, w2, ...)")),
    ],
)
def test_factors_of_a_product(op, factors, given, parts):
    for call in (op, op.unfused, op.explain):
        with raises(TypeError, *parts):
            call(*factors, **given)


def test_shapes_of_a_product():
    x, w = randn(2, 3, 4), randn(5, 4)
    LAYER(x, w, b=randn(2)[:, None, None])  # the cure
    with raises(ValueError, "Linear: operand 'b' of shape (2,)", "b[:, None, None]"):
        LAYER(x, w, b=randn(2))
    with raises(ValueError, "Linear: operand 'b'", "a shape that broadcasts against (2, 3, 5)"):
        LAYER(x, w, b=randn(7))
    with raises(ValueError, "Linear: w must have", "torch.nn.Linear(4, 5), for 4 columns"):
        LAYER(randn(2, 3), w, b=0.0)


def test_factors_of_a_product_and_its_loss():
    op = fo.LinearCrossEntropy()
    target = torch.arange(3)
    for call in (op, op.unfused, op.explain):
        with raises(TypeError, "LinearCrossEntropy: w is given by position"):
            call(X, w=W, target=target)
        with raises(TypeError, "LinearCrossEntropy: w is missing", "not by name as 'weight'"):
            call(X, weight=W, target=target)
        with raises(TypeError, "LinearCrossEntropy takes 2 positional arguments, x, w, got 3"):
            call(X, W, target)
        with raises(TypeError, "unknown operand 'dim'; this op takes 'target'"):
            call(X, W, target=target, dim=0)
        with raises(TypeError, "belongs to the declaration: LinearCrossEntropy(reduction=...)"):
            call(X, W, target=target, reduction="sum")


def test_operands_of_a_product_by_position():
    with raises(TypeError, "Linear takes 2 positional arguments, x, w, got 3", "here b="):
        LAYER(X, W, randn(5))
    with raises(TypeError, "MLP takes 3 positional arguments, x, w1, w2, got 5", "b=, c="):
        BLOCK(X, W, V, randn(5), randn(6))


@pytest.mark.parametrize("kind", [fo.Linear, fo.MLP])
@pytest.mark.parametrize("sizes", [(16,), (16, 8)])
def test_a_declaration_is_no_module(kind, sizes):
    name = kind.__name__
    with raises(TypeError, f"{name}: a declaration holds functors", f"fusedops.nn.{name}"):
        kind(*sizes)
    given = {"activation": gelu()} if kind is fo.MLP else {}
    getattr(fo.nn, name)(16, 8, **given)  # the cure


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        *(
            (one, "'@fusedops.functor' above it: def mish(v): return torch.nn.functional.mish(v)")
            for one in ("mish", "Mish", nn.Mish(), nn.Mish, functional.mish)
        ),
        *((one, "; write fusedops.GELU()") for one in ("GELU", nn.GELU(), nn.GELU)),
        (functional.silu, "; write fusedops.SiLU()"),
        (relu, "'@fusedops.functor' above it, and pass relu()"),
        (3, "def activation(v): return ..."),
    ],
)
def test_an_activation_that_is_no_functor(given, cure):
    with raises(TypeError, "Linear: activation must be a functor", cure):
        fo.nn.Linear(4, 5, activation=given)


CHAINS = [
    lambda one: fo.Linear(store=[fo.Bias("b"), one]),
    lambda one: fo.MLP(hidden=[one]),
    lambda one: fo.Map(load=[one]),
    lambda one: fo.Map(load=one),
]


@pytest.mark.parametrize(
    ("given", "call"),
    [
        *((one, "mish(v)") for one in (nn.Mish(inplace=True), nn.Mish, functional.mish)),
        (nn.LeakyReLU(0.2), "leaky_relu(v, negative_slope=0.2)"),
        (nn.ELU(2.0, inplace=True), "elu(v, alpha=2.0)"),
        (nn.Softplus(2.0), "softplus(v, beta=2.0, threshold=20.0)"),
        (nn.Softshrink(0.1), "softshrink(v, 0.1)"),
    ],
)
def test_an_activation_in_a_chain(given, call):
    for declare in CHAINS:
        with pytest.raises(TypeError, match="must hold functors, got") as raised:
            declare(given)
    name = call.partition("(")[0]
    written = re.search(r"functor' above it: (def .*); then pass (\w+)\(\)$", str(raised.value))
    assert written.groups() == (f"def {name}(v): return torch.nn.functional.{call}", name)
    space = {"torch": torch}
    exec(written[1], space)  # the cure
    function = given() if given is nn.Mish else given
    y = fo.Map(load=[fo.functor(space[name])()]).unfused(X)
    torch.testing.assert_close(y, function(X.clone()))


@pytest.mark.parametrize(
    "given",
    [nn.GELU("tanh"), nn.GELU(), nn.ReLU(inplace=True), nn.Tanh(), functional.silu],
    ids=lambda given: getattr(
        given, "__name__", str(given)
    ),  # no address, which differs by process
)
def test_an_activation_that_the_library_has(given):
    for declare in CHAINS:
        with pytest.raises(TypeError, match="must hold functors, got") as raised:
            declare(given)
    written = re.search(r"; write fusedops\.(.*)$", str(raised.value))
    y = fo.Map(load=[eval(written[1], vars(fo))]).unfused(X)
    torch.testing.assert_close(y, given(X.clone()))


@pytest.mark.thorough
@pytest.mark.parametrize("name", suggestions._ACTIVATIONS)
def test_each_activation_that_is_named_works(name):
    function = getattr(functional, suggestions._ACTIVATIONS[name])
    y = fo.Map(load=[fo.functor(lambda v: function(v))()]).unfused(X)
    torch.testing.assert_close(y, function(X))


@pytest.mark.parametrize("name", sorted({n for one in wanted.WANTED for n in one.names}))
def test_a_name_that_the_library_has_not(name):
    """Each expression that is suggested runs, of tensors that it names."""
    for module in (fo, fo.nn):
        assert name not in module.__all__
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'; ") as raised:
            getattr(module, name)
        (one,) = {one for one in wanted.WANTED if name in one.names}
        assert str(raised.value).endswith(one.code or one.sentence)
    q, k, v = randn(3, 2, 4, 8)
    space = {"torch": torch, "fusedops": fo, "q": q, "k": k, "v": v, "x": randn(4, 8)}
    space |= {"cos": randn(4, 8), "sin": randn(4, 8), "model": nn.Identity(), "w": randn(9, 8)}
    space |= {"logits": randn(4, 9), "target": torch.arange(4), "images": randn(2, 8, 5, 5)}
    if one.code:
        eval(one.code, space)


def test_tools_for_tests_need_no_import():
    assert fo.__getattr__("testing") is fusedops.testing  # as fo.testing before any import of it


def test_names_stand_for_one_thing():
    names = [name for one in wanted.WANTED for name in {*map(wanted._plain, one.names)}]
    assert len(names) == len({*names})


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        (fo, "AttentionSoftmax", "fusedops.nn.AttentionSoftmax is there"),
        (fo.nn, "Softmax", "fusedops.Softmax is there"),
        (fo, "Mish", "def mish(v): return torch.nn.functional.mish(v)"),
        (fo.nn, "GELU", "fusedops.GELU is there"),
        (fo.nn, "layernorm", "did you mean 'LayerNorm'?"),
        (fo, "InstanceNorm2d", "did you mean 'InstanceNorm'?"),
    ],
)
def test_a_name_that_is_another(module, name, said):
    with pytest.raises(AttributeError, match=f"'{name}'; .*{re.escape(said)}"):
        getattr(module, name)


@pytest.mark.parametrize(
    ("call", "parts", "cure"),
    [
        (
            lambda: fo.RMSNorm(unit_offset=True),
            ("'unit_offset'", "RMSNorm(store=[Affine('weight', None, zero_centred=True)])"),
            lambda: fo.RMSNorm(store=[fo.Affine("weight", None, zero_centred=True)]),
        ),
        (lambda: fo.Softmax(stats=True), ("say Softmax(lse=True)",), lambda: fo.Softmax(lse=True)),
        (
            lambda: fo.nn.AttentionSoftmax(window=(2, 0)),
            ("AttentionSoftmax: window", "fusedops.Window(left, right)", "(2, 0)"),
            lambda: fo.nn.AttentionSoftmax(window=fo.Window(2, 0)),
        ),
        (lambda: fo.Window((2, 0)), ("write Window(left, right)",), lambda: fo.Window(2, 0)),
        (lambda: fo.Window(-1, 0), ("None is no limit",), lambda: fo.Window(None, 0)),
        (
            lambda: fo.explain_graph(nn.LayerNorm(4)),
            ("explain_graph: ", "'input'", "explain_graph(model, input)"),
            lambda: fo.explain_graph(nn.LayerNorm(4), X),
        ),
        (
            lambda: fo.explain_graph(functional.softmax, X, axis=-1),
            ("explain_graph: ", "'axis'"),
            lambda: fo.explain_graph(functional.softmax, X, -1),
        ),
    ],
)
def test_what_is_said_in_the_words_of_others(call, parts, cure):
    with raises((TypeError, ValueError), *parts):
        call()
    cure()


OPS = {
    name: getattr(fo, name)
    for name in fo.__all__
    if isinstance(getattr(fo, name), type) and hasattr(getattr(fo, name), "unfused")
}


@pytest.mark.parametrize("kind", sorted({*OPS} - {"RowOp"}))
def test_arguments_of_declarations_that_functors_stand_for(kind):
    """Every declaration that an error proposes can be made, in the ops' own words."""
    sizes = (2,) * (kind == "GroupNorm")
    for name in (*suggestions.FUNCTORS, "anything"):
        with pytest.raises(TypeError, match=f"^{kind}: unknown argument '{name}'") as raised:
            OPS[kind](*sizes, **{name: 1})
        _, declared, code = str(raised.value).partition("is given to the call: ")
        if declared:
            code = code.replace("GroupNorm(", "GroupNorm(2, ").replace("left", "3")
            assert eval(code, {one: getattr(fo, one) for one in fo.__all__})


def test_a_model_without_norms_is_told_why_nothing_is_replaced():
    assert "No module in it is a norm" in str(fo.patch(nn.Linear(2, 2)))


class Doubled(nn.Module):
    """A module of one's own."""

    def forward(self, v):
        return 2 * v


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        *(
            (one, "an op cannot stand in a chain: call one after the other")
            for one in (fo.Softmax(), fo.Softmax, LAYER, fo.nn.LayerNorm(4))
        ),
        (nn.Softmax(-1), "a module cannot stand in a chain: call it before or after the op"),
        (nn.PReLU(), "a module cannot stand in a chain: call it before or after the op"),
        (nn.Dropout(0.1), "the functor for that is fusedops.Dropout('p')"),
        (Doubled(), "'@fusedops.functor' above it: def activation(v): return ...; then pass"),
        (gelu, "got the class gelu; write gelu(...)"),
    ],
)
def test_what_is_no_functor_in_a_chain(given, cure):
    for declare in CHAINS:
        with raises(TypeError, "must hold functors, got", cure):
            declare(given)


@pytest.mark.parametrize(
    ("name", "said"),
    [("Mish", r"functional\.mish\(v\)"), ("relu", r"fusedops\.ReLU\(\)"), ("Swish", "SiLU")],
)
def test_an_activation_that_the_package_has_not(name, said):
    with pytest.raises(AttributeError, match=f"attribute '{name}'.*{said}"):
        getattr(fo, name)


@pytest.mark.parametrize(
    ("given", "call"),
    [
        (functional.logsigmoid, "functional.logsigmoid(v)"),
        (nn.Mish(), "functional.mish(v)"),
        (nn.GELU, "write fusedops.GELU()"),
    ],
)
def test_a_functor_of_no_function(given, call):
    with raises(TypeError, "functor: it decorates a Python function", call):
        fo.functor(given)


@pytest.mark.parametrize(
    ("functor", "value", "cure"),
    [
        (fo.Scale("a"), True, "use float(a)"),
        (fo.Scale("a"), 1j, "a.real or abs(a)"),
        (fo.Dropout("a"), True, "use float(a)"),
        (fo.Lengths("a"), True, "use int(a)"),
        (fo.Mask("a"), True, "torch.tensor(a)"),
    ],
)
def test_operands(functor, value, cure):
    op = fo.Map(load=[functor])
    with raises(TypeError, "Map: operand 'a' must be", f"got {type(value).__name__}", cure):
        op(X, a=value)
    values = {"use float(a)": float, "a.real or abs(a)": abs, "use int(a)": int}
    op(X, a=values.get(cure, torch.tensor)(value))


@pytest.mark.parametrize(
    ("functor", "cures"),
    [
        (fo.Bias("a"), "a.real or a.abs()"),
        (fo.Lengths("a"), "a.real.long()"),
        (fo.Mask("a"), "a != 0 (True is masked out) or a == 0"),
    ],
)
def test_complex_operands(functor, cures):
    op, a = fo.Map(load=[functor]), torch.ones(3, 1) + 0j
    with pytest.raises(TypeError, match=r"Map: operand 'a' .*got torch.complex64; ") as raised:
        op(X, a=a)
    assert cures in str(raised.value)
    assert "view_as_real" not in str(raised.value)
    for cure in re.sub(r"\(T.*?\)", "", cures).split(" or "):
        op(X, a=eval(cure))


def test_an_x_that_no_tensor_can_be_made_of():
    for x in (None, "x"):
        with raises(TypeError, "Softmax: x must be a torch.Tensor", "the tensor by position"):
            fo.Softmax()(x)


@pytest.mark.parametrize(("declare", "field"), [(fo.Residual, "save"), (fo.Save, "name")])
def test_the_name_of_an_output(declare, field):
    given = ("r",) if declare is fo.Residual else ()
    parts = (f"{field} names an output", "must be a string, got True", f"{field}='stream'")
    with raises(TypeError, f"{declare.__name__}: ", *parts):
        declare(*given, **{field: True})


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_modules_that_torch_script_would_compile():
    patched = nn.Sequential(nn.LayerNorm(4))
    fo.patch(patched)
    for module in (fo.nn.LayerNorm(4), nn.Sequential(fo.nn.Linear(4, 5)), patched):
        with raises(fo.UnsupportedError, "torch.jit.script cannot", "torch.compile"):
            torch.jit.script(module)


@pytest.mark.parametrize("value", [None, 2, "0.1"])
def test_a_dropout_that_is_set_later(value):
    layer, block = fo.nn.Linear(4, 5, p=0.1), fo.nn.MLP(4, 5, activation=gelu(), p_hidden=0.1)
    for module, name in ((layer, "p"), (block, "p_hidden")):
        with raises(ValueError, f"{type(module).__name__}: {name} must be a probability in [0, 1]"):
            setattr(module, name, value)
        assert getattr(module, name) == 0.1


def test_exports():
    with raises(TypeError, "export: x must be a torch.Tensor, got list", "device='meta'"):
        fo.export(fo.Softmax(), [3, 4], arch="cpu")
    norm = fo.nn.LayerNorm(4)
    with raises(TypeError, "export: op must be a row op, such as Softmax()", "module.op()"):
        fo.export(norm, X, arch="cpu")
    fo.export(norm.op(), X, weight=norm.weight, bias=norm.bias, arch="cpu")
    with raises(TypeError, "export takes 2 positional arguments", "got 3", "here weight=, bias="):
        fo.export(norm.op(), X, norm.weight, bias=norm.bias, arch="cpu")


@pytest.mark.parametrize("kind", [fo.Linear, fo.Matmul, fo.MLP])
def test_exports_of_products(kind):
    op = kind(store=[fo.Bias("b")])
    for factors in ([X], [X] * len(op.inputs)):
        with raises(TypeError, "export: op must", f"got {kind.__name__}(", "fo.Map", "CUTLASS"):
            fo.export(op, *factors, arch="cpu")
    for after in (op.epilogues[-1], fo.Map(load=[fo.Bias("b")])):
        fo.export(after, X, b=X[0], arch="cpu")
    if kind is not fo.MLP:
        assert op.epilogue is op.epilogues[0]


@pytest.mark.parametrize("skip", ["LayerNorm", ["0", "norm1"]])
def test_a_name_that_patch_shall_skip(skip):
    model = nn.Sequential(nn.LayerNorm(4))
    name = skip if isinstance(skip, str) else skip[-1]
    with raises(ValueError, f"patch: skip has {name!r}, and no module", "named_modules"):
        fo.patch(model, skip=skip)
    assert type(model[0]) is nn.LayerNorm


class Own(functors.Functor):
    """A functor of one's own with one operand."""

    header = "scale.cuh"

    def operands(self):
        return (functors.Operand("a", functors.Role.VALUE),)


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        ({"operands": lambda self: "a"}, ("operands() must return a tuple", "got 'a'")),
        ({"operands": lambda self: ("a",)}, ("operands() must return a tuple", "Role.VALUE")),
        ({"gradients": lambda self: ("b",)}, ("gradients() names 'b'", "['a']")),
        ({"headers": "row/view.cuh"}, ("headers must be a tuple", "('row/view.cuh',)")),
        ({"headers": ("fusedops/row/view.cuh",)}, ("below include/", "write 'row/view.cuh'")),
    ],
)
def test_a_class_of_functors(wrong, parts):
    kind = type("Own", (Own,), wrong)
    with raises((TypeError, ValueError), "Own: ", *parts):
        fo.LayerNorm(store=[kind()])
    fo.LayerNorm(store=[Own()])


def test_the_factor_that_is_missing_is_named():
    op = fo.MLP(hidden=[fo.Bias("b")])
    x, w = torch.zeros(2, 4), torch.zeros(4, 4)
    for given, name in (((x, None, w), "w1"), ((x, w), "w2"), ((x, w, None), "w2")):
        for call in (op, op.unfused, op.explain):
            with raises(TypeError, f"MLP: {name} is missing"):
                call(*given, b=w[0])
