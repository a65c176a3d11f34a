# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Odd calls: each is right, or refused by an error of ours that names the op and the argument."""

import functools
import math
import traceback
from pathlib import Path

import pytest
import torch
from cases import raises, randn
from torch.masked import masked_tensor

import fusedops as fo
from fusedops import testing

PACKAGE = str(Path(fo.__file__).parent)
OURS = (TypeError, ValueError, fo.FusedOpsError)

PLAIN = fo.Softmax()
BIASED = fo.Softmax(load=[fo.Bias("b")])
MASKED = fo.Softmax(load=[fo.Mask("m")])
COUNTED = fo.Softmax(load=[fo.Lengths("n")])
NORM = fo.LayerNorm(load=[fo.Residual("r", save="stream")], store=[fo.Affine("g")])
DROPPED = fo.Softmax(store=[fo.Dropout("p")])


@pytest.mark.parametrize(
    ("op", "name"),
    [
        *((DROPPED, name) for name in ("p", "dim", "training", "load", "store", "constants")),
        *((fo.Linear(store=[fo.Bias("b")]), name) for name in ("b", "dtype", "store")),
        (fo.MLP(hidden=[fo.Bias("b")]), "hidden"),
    ],
    ids=str,
)
def test_an_assignment_that_would_do_nothing_is_refused(op, name):
    before = repr(op)
    cure = "is given to each call" if name in ("b", "p", "dim", "training", "dtype") else "another"
    with pytest.raises(AttributeError, match=rf"{type(op).__name__}: .*{cure}"):
        setattr(op, name, 1)
    assert repr(op) == before


class Subclass(torch.Tensor):
    pass


def conjugated(x):
    return torch.complex(x, x).conj()


#: Each makes an odd tensor of a plain one.
TENSORS = {
    "jagged": lambda x: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged),
    "nested": lambda x: torch.nested.nested_tensor([x, x[:2]]),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x.to_sparse_csr(),
    "opaque": lambda x: x.to_mkldnn(),
    "masked": lambda x: masked_tensor(x, x > 0),
    "negative": lambda x: conjugated(x).imag,
    "conjugate": conjugated,
    "complex": lambda x: torch.complex(x, x),
    "meta": lambda x: x.to("meta"),
    "subclass": lambda x: x.as_subclass(Subclass),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "int": lambda x: x.int(),
    "bool": lambda x: x > 0,
    "0-d": lambda x: x[0, 0],
    "wider": lambda x: torch.cat([x, x], 1),
    "array": lambda x: x.numpy(),
    "list": lambda x: x.tolist(),
    "text": lambda x: "x",
    "None": lambda x: None,
    "huge": lambda x: 10**5000,
}

#: The op, the argument that is odd, and all others.
PLACES = {
    "x": (PLAIN, "x", {}),
    "a bias": (BIASED, "b", {}),
    "a mask": (MASKED, "m", {}),
    "a length": (COUNTED, "n", {}),
    "a residual": (NORM, "r", {"g": 1.0}),
    "a gamma": (NORM, "g", {"r": 0.0}),
    "a probability": (DROPPED, "p", {}),
    "out": (PLAIN, "out", {}),
    "dim": (PLAIN, "dim", {}),
    "dtype": (PLAIN, "dtype", {}),
    "training": (PLAIN, "training", {}),
    "generator": (DROPPED, "generator", {"p": 0.5}),
    "normalized_shape": (NORM, "normalized_shape", {"r": 0.0, "g": 1.0}),
}
WAYS = {
    "op": lambda op, x, given: op(x, **given),
    "unfused": lambda op, x, given: op.unfused(x, **given),
    "explain": lambda op, x, given: op.explain(x, **given),
    "trained": lambda op, x, given: op(
        x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x, **given
    ),
}


def right_or_told(call, name, argument):
    """Run a call; what it raises is ours, and says what is wrong with what."""
    with testing.count_launches() as launches:
        try:
            call()
        except Exception as error:
            told = error
        else:
            return
    assert isinstance(told, OURS), f"{type(told).__name__}: {told}"
    last = traceback.extract_tb(told.__traceback__)[-1].filename
    assert last.startswith(PACKAGE) or last == __file__, f"raised at {last}: {told}"
    message = str(told)
    assert message.startswith(f"{name}: "), message
    assert argument is None or argument in message.removeprefix(f"{name}: "), message
    assert len(message) < 600
    assert "\n" not in message
    assert not launches


@pytest.mark.filterwarnings("ignore")  # torch's, about making such tensors at all
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", TENSORS)
def test_odd_values(kind, place):
    op, argument, others = PLACES[place]
    for way in WAYS.values():
        x, given = randn(4, 8), dict(others)
        odd = TENSORS[kind](x)
        if argument == "x":
            x = odd
        else:
            given[argument] = odd
        call = functools.partial(way, op, x, given)
        right_or_told(call, op.name, None if odd is None else argument)


class TestCures:
    """What a message proposes works."""

    x = randn(4, 8)

    def test_nested(self):
        nested = torch.nested.nested_tensor([self.x[0, :5], self.x[1]])
        with raises(fo.UnsupportedError, "to_padded_tensor(x, 0.0)", "Lengths"):
            PLAIN(nested)
        y = COUNTED(torch.nested.to_padded_tensor(nested, 0.0), n=torch.tensor([[5], [8]]))
        torch.testing.assert_close(y[0, :5], torch.softmax(self.x[0, :5], -1))
        jagged = torch.nested.nested_tensor([self.x, self.x[:2]], layout=torch.jagged)
        with raises(fo.UnsupportedError, "x.values()"):
            PLAIN(jagged)
        torch.testing.assert_close(PLAIN(jagged.values())[:4], torch.softmax(self.x, -1))

    @pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
    def test_masked(self):
        masked = masked_tensor(self.x, self.x > 0)
        with raises(fo.UnsupportedError, "x.get_data()", "mask=x.get_mask()", "keep=True"):
            PLAIN(masked)
        op = fo.Softmax(load=[fo.Mask("mask", keep=True)])
        y = op(masked.get_data(), mask=masked.get_mask())
        torch.testing.assert_close(y, torch.softmax(masked, -1).to_tensor(0.0))

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize(
        ("kind", "cure"),
        [
            ("quantized", lambda x: x.dequantize()),
            ("sparse", lambda x: x.to_dense()),
            ("compressed", lambda x: x.to_dense()),
            ("opaque", lambda x: x.to_dense()),
            ("negative", lambda x: x.resolve_neg()),
            ("complex", lambda x: x.real),
            ("conjugate", lambda x: x.abs()),
            ("complex", lambda x: torch.view_as_real(x)),
            ("array", lambda x: torch.as_tensor(x)),
            ("list", lambda x: torch.as_tensor(x)),
            ("float8", lambda x: x.float()),
        ],
    )
    def test_conversions(self, kind, cure):
        odd = TENSORS[kind](self.x)
        with pytest.raises(OURS):
            PLAIN(odd)
        plain = cure(odd)
        torch.testing.assert_close(PLAIN(plain), torch.softmax(plain, -1))

    def test_rows_in_too_many_dimensions(self):
        wide = torch.zeros([2] * 12)
        odd = wide.permute(11, 9, 7, 5, 3, 1, 0, 2, 4, 6, 8, 10)
        for op, given in ((PLAIN, {}), (BIASED, {"b": torch.zeros(2)})):
            with raises(fo.UnsupportedError, "Softmax", "pass x.contiguous()"):
                op(odd, **given)
            op(odd.contiguous(), **given)
        b = torch.zeros([2, 1] * 6)
        with raises(fo.UnsupportedError, "pass b.expand(x.shape).contiguous()"):
            BIASED(wide, b=b)
        BIASED(wide, b=b.expand(wide.shape).contiguous())


@pytest.mark.parametrize(
    ("declare", "parts"),
    [
        (lambda: fo.Softmax(load=3), ("Softmax: load", "got 3")),
        (lambda: fo.Softmax(store=True), ("Softmax: store", "got True")),
        (lambda: fo.Softmax(load=None), ("Softmax: load", "got None", "leave load out")),
        (lambda: fo.Softmax("abc"), ("Softmax: load", "got 'abc'")),
        (lambda: fo.Softmax({"a": 1}), ("Softmax: load", "{'a': 1}")),
        (lambda: fo.Softmax(-1), ("Softmax: load", "Softmax()(x, dim=-1)")),
        (lambda: fo.Softmax(torch.ones(3)), ("Softmax: load", "a tensor", "Softmax()(x)")),
        (lambda: fo.LayerNorm(512), ("LayerNorm: load", "(x, normalized_shape=512)")),
        (lambda: fo.LayerNorm((2, 3)), ("LayerNorm: load", "(x, normalized_shape=(2, 3))")),
        (lambda: fo.Softmax([], [], 1), ("Softmax: ", "load, store", "empty_row")),
        (lambda: fo.Softmax(dim=-1), ("Softmax: ", "'dim'", "Softmax(...)(x, dim=...)")),
        (lambda: fo.Softmax(axis=-1), ("Softmax: ", "'axis'", "Softmax(...)(x, dim=...)")),
        (lambda: fo.Softmax(scale=0.5), ("'scale'", "Softmax(load=[Scale('scale')])")),
        (lambda: fo.Softmax(mask="m"), ("'mask'", "Softmax(load=[Mask('mask')])")),
        (lambda: fo.LayerNorm(weight=True), ("LayerNorm(store=[Affine('weight', 'bias')])",)),
        (lambda: fo.LayerNorm(epsilon=1e-5), ("'epsilon'", "did you mean 'eps'?")),
        (lambda: fo.RMSNorm(stats="no"), ("RMSNorm: stats", "'no'")),
        (lambda: fo.RMSNorm(eps=10**5000), ("RMSNorm: eps", "an int of 16610 bits")),
        (lambda: fo.Causal(offset=10**5000), ("Causal: offset", "an int of 16610 bits")),
        (lambda: fo.Window(10**5000), ("Window: left", "an int of 16610 bits")),
        (lambda: fo.Residual("r", alpha=10**5000), ("Residual: alpha", "an int of 16610 bits")),
    ],
)
def test_declarations(declare, parts):
    with raises((TypeError, ValueError), *parts):
        declare()


def test_a_mask_is_proposed_where_it_can_stand():
    with pytest.raises(TypeError, match=r"'mask'.*LayerNorm\(load=\[Mask\('mask'\)\]\)"):
        fo.LayerNorm(mask="m")
    with pytest.raises(TypeError, match="'mask'") as raised:
        fo.GroupNorm(2, mask="m")
    assert "Mask(" not in str(raised.value)


@pytest.mark.parametrize(
    ("op", "given", "parts"),
    [
        (PLAIN, {"axis": -1}, ("'axis'", "say dim=")),
        (DROPPED, {"p": 0.5, "seed": 3}, ("'seed'", "say generator=")),
        (BIASED, {"b": 1.0, "dtyp": None}, ("'dtyp'", "did you mean 'dtype'?")),
        (
            fo.Softmax(load=[fo.Bias("pair_bias")]),
            {"pairbias": 1.0},
            ("did you mean 'pair_bias'?",),
        ),
        (fo.LayerNorm(), {"eps": 1e-5}, ("'eps'", "LayerNorm(eps=...)")),
        (fo.LayerNorm(), {"weight": 1.0}, ("'weight'", "Affine('weight', 'bias')")),
        (BIASED, {"b": None}, ("'b'", "None", "declared without it")),
    ],
)
def test_names(op, given, parts):
    for call in (op, op.unfused, op.explain):
        with raises(TypeError, f"{op.name}: ", *parts):
            call(randn(4, 8), **given)


@pytest.mark.parametrize(
    ("name", "meant"), [("Sofmax", "Softmax"), ("softmax", "Softmax"), ("Layernorm", "LayerNorm")]
)
def test_a_misspelt_name_of_the_package(name, meant):
    with pytest.raises(AttributeError, match=f"'fusedops' has no.*{name}.*did you mean '{meant}'"):
        getattr(fo, name)
    for other in ("zzz", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"no attribute '{other}'$"):
            getattr(fo, other)


def test_what_the_classes_take_is_still_told():
    import inspect

    assert [*inspect.signature(fo.LayerNorm).parameters] == ["load", "store", "eps", "stats"]
    assert [*inspect.signature(BIASED).parameters][:2] == ["x", "b"]


TABLE = torch.ones(8)


def scaled(x, a):
    return x * math.exp(a)


FUNCTIONS = {
    "math": (scaled, "scaled: ", "torch.exp"),
    "item": (lambda x, a: x * a.item(), "torch.where"),
    "float": (lambda x, a: x * float(a), "torch.where"),
    "list": (lambda x, a: x * a.tolist()[0], "torch.where"),
    "numpy": (lambda x, a: x * a.numpy(), "torch.where"),
    "range": (lambda x, a: sum(x for _ in range(a)), "torch.where"),
    "matmul": (lambda x, a: x @ a, "pointwise", "as an operand"),
    "table": (lambda x, a: TABLE[a], "pointwise", "as an operand"),
    "row": (lambda x, a: x * a[0], "pointwise", "as an operand"),
    "shape": (lambda x, a: x + torch.ones(7), "pointwise", "as an operand"),
}


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functors_are_named_with_a_cure_and_nothing_is_printed(name, capfd):
    function, *parts = FUNCTIONS[name]
    with raises(fo.UnsupportedError, f"{function.__name__}: ", *parts):
        fo.functor(function)("a")
    assert capfd.readouterr() == ("", "")


def wrapped_softmax(x):
    return PLAIN(x)


torch.fx.wrap("wrapped_softmax")


class TestSymbolicTracing:
    def test_it_is_refused_with_cures_that_work(self):
        x = randn(4, 8)
        with raises(TypeError, "Softmax: x", "Proxy", "torch.export.export", "torch.fx.wrap"):
            torch.fx.symbolic_trace(lambda x: PLAIN(x))
        layer = fo.nn.Linear(8, 8)
        with raises(TypeError, "Linear: x", "Proxy", "torch.export.export", "torch.fx.wrap"):
            torch.fx.symbolic_trace(lambda x: layer.op()(x, layer.weight, bias=layer.bias))
        traced = torch.fx.symbolic_trace(lambda x: 2 * wrapped_softmax(x))
        assert torch.equal(traced(x), 2 * PLAIN(x))


class TestDeclaredInCompiledCode:
    """Dynamo cannot trace a declaration; with a graph break it runs as it is."""

    @pytest.mark.parametrize(
        ("name", "call"),
        [
            ("Softmax", lambda x: fo.Softmax()(x)),
            ("LayerNorm", lambda x: fo.LayerNorm(load=[fo.Scale("s")])(x, s=2.0)),
            ("Map", lambda x: fo.Map(load=[fo.SiLU()])(x)),
            ("double", lambda x: fo.Softmax(load=[doubled()])(x)),
            ("functor", lambda x: fo.Softmax(load=[fo.functor(double)()])(x)),
        ],
    )
    def test_it_is_refused_by_name_with_a_cure(self, name, call):
        compiled = torch.compile(call, fullgraph=True, backend="eager")
        with raises(Exception, f"{name}: it cannot be declared", "declare it outside"):
            compiled(randn(4, 8))

    def test_it_runs_where_the_graph_may_break(self):
        x = randn(4, 8)
        compiled = torch.compile(lambda x: fo.Softmax()(2 * x), backend="eager")
        assert torch.equal(compiled(x), PLAIN(2 * x))


def double(x):
    return 2 * x


doubled = fo.functor(double)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without DTensor")
class TestDistributedTensors:
    @pytest.fixture(autouse=True)
    def group(self, tmp_path):
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
        )
        yield
        torch.distributed.destroy_process_group()

    @pytest.mark.parametrize("odd", ["x", "b", "x and b"])
    @pytest.mark.parametrize("grad", [False, True])
    def test_they_are_refused_beside_plain_tensors_alone(self, odd, grad):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, distribute_tensor

        mesh = init_device_mesh("cpu", (1,))
        plain = {"x": randn(4, 8), "b": randn(8)}
        given = {
            key: distribute_tensor(one, mesh, [Replicate()]) if key in odd else one
            for key, one in plain.items()
        }
        for one in given.values():
            one.requires_grad_(grad)
        key = odd[0]
        if odd == "x and b":
            assert torch.equal(
                BIASED(given["x"], b=given["b"]).to_local(), BIASED(plain["x"], b=plain["b"])
            )
        else:
            with raises(fo.UnsupportedError, "Softmax: ", "DTensor", f"say {key}.to_local()"):
                BIASED(given["x"], b=given["b"])
        local = {key: one.to_local() if key in odd else one for key, one in given.items()}
        assert torch.equal(BIASED(local["x"], b=local["b"]), BIASED(plain["x"], b=plain["b"]))
