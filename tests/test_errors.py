# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Bad input: an exception before any launch that says what came, what was wanted, and the cure."""

import functools

import pytest
import torch
from cases import ADD_NORM, ATTENTION, SOFTMAX, declare, raises, randn
from references import Chain

import fusedops as fo


def doubled(x):
    return 2 * x


def moved(x, by, times):
    return x + by * times


WRONG = (TypeError, ValueError)

BIASED = fo.Softmax(load=[fo.Bias("b")])
MASKED = fo.Softmax(load=[fo.Mask("m")])
LAYER = fo.LayerNorm()
DROPPED = fo.Softmax(store=[fo.Dropout("p")])


@pytest.fixture
def x(device):
    return randn(3, 4, device=device)


class TestDeclarations:
    @pytest.mark.parametrize("name", ["dim", "dtype", "out", "training", "generator", "x"])
    def test_reserved_names(self, name):
        with raises(ValueError, repr(name)):
            fo.Softmax(load=[fo.Scale(name)])

    @pytest.mark.parametrize("name", ["", "two words", "1st", "a-b", "class", 3, None])
    def test_names_that_are_no_keyword(self, name):
        with raises(WRONG, repr(name)):
            fo.Softmax(load=[fo.Scale(name)])

    def test_a_tensor_in_place_of_a_name(self):
        for kind in (fo.Bias, fo.Scale):
            with raises(TypeError, f"{kind.__name__}: ", "got a tensor, Tensor; the value itself"):
                kind(torch.zeros(3, 4))

    @pytest.mark.parametrize(
        "functor",
        [fo.Mask("m"), fo.Causal(), fo.Window(3), fo.Lengths("n"), fo.Alibi("slopes")],
        ids=lambda f: type(f).__name__,
    )
    @pytest.mark.parametrize("op", [fo.Softmax, fo.LogSoftmax, fo.LayerNorm, fo.RMSNorm])
    def test_masks_and_positions_stand_in_the_load(self, op, functor):
        kind = type(functor).__name__
        with raises(ValueError, op.__name__, kind, "load"):
            op(store=[functor])
        if op in (fo.LayerNorm, fo.RMSNorm) and kind == "Alibi":
            with raises(ValueError, op.__name__, kind, "oftmax"):
                op(load=[functor])

    def test_a_group_norm_takes_no_number_of_channels(self):
        with raises(TypeError, "GroupNorm", "got 8", "Affine"):
            fo.GroupNorm(2, 8)
        fo.GroupNorm(2, store=[fo.Affine("weight", "bias")])  # the cure

    @pytest.mark.parametrize("op", [fo.Softmax, fo.LayerNorm])
    def test_a_stream_is_saved_in_the_load(self, op):
        with raises(ValueError, op.__name__, "Residual", "save", "load"):
            op(store=[fo.Residual("r", save="stream")])

    @pytest.mark.parametrize(
        ("thing", "cure"),
        [
            ("scale", "fusedops.Scale('scale')"),
            ("mask", "fusedops.Mask('mask')"),
            ("mine", "fusedops.Scale('mine')"),
            (doubled, "write fusedops.functor(doubled)()"),
            (moved, "write fusedops.functor(moved)('by', 'times')"),
            (torch.exp, "a Python function that calls it, decorated with fusedops.functor"),
        ],
        ids=["scale", "mask", "name", "function", "operands", "builtin"],
    )
    def test_the_cure_for_what_is_no_functor(self, thing, cure):
        for op in (fo.Softmax, fo.Map):
            with raises(TypeError, op.__name__, "load must hold functors", cure):
                op(load=[thing])

    def test_one_output_is_not_saved_over_another(self):
        for name in ("y", "stream"):
            with raises(ValueError, repr(name)):
                fo.LayerNorm(
                    load=[fo.Residual("r", save="stream"), fo.Residual("q", save=name)],
                )
        with raises(ValueError, "'mean'"):
            fo.LayerNorm(load=[fo.Residual("r", save="mean")], stats=True)

    @pytest.mark.parametrize("thing", ["s", 3, None, fo.Scale, fo.Softmax()])
    def test_only_functors(self, thing):
        with raises(TypeError, "Softmax", "load"):
            fo.Softmax(load=[thing])

    def test_options(self):
        with raises(ValueError, "empty_row", "'zero'", "'nan'", "'one'"):
            fo.Softmax(empty_row="one")
        with raises(WRONG, "Cast", "int32"):
            fo.Cast(torch.int32)
        with raises(WRONG, "eps", "-1"):
            fo.LayerNorm(eps=-1.0)
        with raises(WRONG, "Affine"):
            fo.Affine(None, None)

    @pytest.mark.parametrize("kind", [fo.Causal, fo.Scale])
    def test_a_class_is_no_functor_yet(self, kind):
        with raises(TypeError, "load", f"the class {kind.__name__}", f"{kind.__name__}(...)"):
            fo.Softmax(load=[kind])

    @pytest.mark.parametrize(
        "functor",
        [fo.Causal, functools.partial(fo.Window, 3), functools.partial(fo.Alibi, "slopes")],
        ids=["Causal", "Window", "Alibi"],
    )
    def test_positions(self, functor, request):
        kind = request.node.callspec.id
        with raises(ValueError, kind, "align", "'top-left'", "'bottom-right'", "'left'"):
            functor(align="left")
        for offset in (0.5, "1", True, None):
            with raises(TypeError, kind, "offset", repr(offset)):
                functor(offset=offset)
        for offset in (2**61, -(2**70)):
            with raises(ValueError, kind, "offset", str(offset)):
                functor(offset=offset)

    def test_windows(self):
        for size in (0.5, "1", True):
            with raises(TypeError, "Window", "left", repr(size), "None"):
                fo.Window(size)
            with raises(TypeError, "Window", "right", repr(size), "None"):
                fo.Window(0, size)
        for size, cure in ((-1, "offset"), (2**61, "None")):
            with raises(ValueError, "Window", "left", str(size), cure):
                fo.Window(size)
            with raises(ValueError, "Window", "right", str(size), cure):
                fo.Window(0, size)
        with raises(ValueError, "Window", "left", "right", "None"):
            fo.Window(None, None)

    @pytest.mark.parametrize("name", ["two words", 3, None])
    def test_slopes_are_named(self, name):
        with raises(WRONG, "Alibi", "slopes", repr(name)):
            fo.Alibi(name)


class TestOperands:
    def test_unknown(self, x):
        with raises(TypeError, "Softmax", "'bias'", "'b'"):
            BIASED(x, b=x, bias=x)

    def test_a_plain_op_takes_none(self, x):
        with raises(TypeError, "Softmax", "'b'"):
            fo.Softmax()(x, b=x)

    def test_missing(self, x):
        with raises(TypeError, "Softmax", "'b'"):
            BIASED(x)
        with raises(TypeError, "Softmax", "'b'", "None"):
            BIASED(x, b=None)
        with raises(TypeError, "Softmax", "'pair_bias'", "'padding'"):
            declare(ATTENTION)(x, scale=1.0, p=0.1)

    def test_positional(self, x):
        with pytest.raises(TypeError):
            BIASED(x, x)
        with pytest.raises(TypeError):
            BIASED()

    @pytest.mark.parametrize("shape", [(5,), (3, 5), (4, 4), (2, 3, 4), (1, 3, 4), (0,)])
    def test_a_shape_that_does_not_broadcast(self, x, shape, device):
        with raises(ValueError, "Softmax", "b", str(shape), "(3, 4)"):
            BIASED(x, b=torch.zeros(shape, device=device))

    @pytest.mark.parametrize("value", ["1", [1.0], (1.0,), True, 1j, object()])
    def test_what_is_no_tensor(self, x, value):
        with raises(TypeError, "Softmax", "b", type(value).__name__):
            BIASED(x, b=value)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64], ids=str)
    def test_an_integer_mask(self, x, dtype, device):
        with raises(TypeError, "Softmax", "m", str(dtype), "bool"):
            MASKED(x, m=torch.zeros(3, 4, dtype=dtype, device=device))

    def test_a_float_mask(self, x):
        with raises(TypeError, "Softmax", "m", "torch.float32", "bool"):
            MASKED(x, m=x)
        with raises(TypeError, "Softmax", "m"):
            MASKED(x, m=0.5)

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.complex64], ids=str)
    def test_a_bias_that_is_not_floating(self, x, dtype, device):
        with raises(TypeError, "Softmax", "b", str(dtype)):
            BIASED(x, b=torch.zeros(4, dtype=dtype, device=device))

    def test_lengths(self, x, device):
        op = fo.Softmax(load=[fo.Lengths("n")])
        with raises(TypeError, "Softmax", "n", "torch.float32"):
            op(x, n=torch.zeros(3, 1, device=device))
        with raises(TypeError, "Softmax", "n", "2.5"):
            op(x, n=2.5)
        with raises(ValueError, "Softmax", "n", "(4,)"):
            op(x, n=torch.zeros(4, dtype=torch.int64, device=device))

    @pytest.mark.parametrize(
        ("functor", "dtype", "sizes", "shape", "cure"),
        [
            (fo.Alibi("n"), torch.float32, (3, 8, 5, 8), (8,), "n[:, None, None]"),
            (fo.Lengths("n"), torch.int64, (3, 4, 5, 8), (3,), "n[:, None, None, None]"),
            (fo.Lengths("n"), torch.int64, (2, 4, 5, 8), (2, 4), "n[:, :, None, None]"),
            (fo.Lengths("n"), torch.int64, (2, 4, 8, 8), (2, 1, 1, 8), "n.transpose(-2, -1)"),
            (fo.Bias("n"), torch.float32, (2, 4, 5, 8), (2, 8), "n[:, None, None]"),
            (fo.Segments("n", "k"), torch.int64, (2, 4, 8, 8), (8,), "n[:, None]"),
            (fo.Segments("q", "n"), torch.int64, (2, 4, 2, 8), (2, 8), "n[:, None, None]"),
            (fo.Segments("q", "n"), torch.int64, (8, 8), (8, 1), "n.transpose(-2, -1)"),
        ],
        ids=str,
    )
    def test_a_cure_for_a_shape_works(self, functor, dtype, sizes, shape, cure):
        op, x, n = fo.Softmax(load=[functor]), torch.zeros(sizes), torch.ones(shape, dtype=dtype)
        others = {name: torch.ones((), dtype=dtype) for name in op.slots if name != "n"}
        with raises(ValueError, "'n'", str(shape), str(sizes), cure):
            op.unfused(x, n=n, **others)
        op.unfused(x, n=eval(cure), **others)

    def test_without_a_cure_the_shape_is_named(self):
        x, n = torch.zeros(2, 4, 5, 8), torch.ones(2, 1, 1, 8, dtype=torch.int64)
        with raises(ValueError, "'n'", "(2, 1, 1, 8)", "broadcasts against (2, 4, 5, 1)"):
            fo.Softmax(load=[fo.Lengths("n")])(x, n=n)
        with raises(ValueError, "'n'", "n[:, None, None]"):
            fo.Softmax(sink="n")(x, n=torch.zeros(4))

    @pytest.mark.parametrize("p", [-0.1, 1.0001, 2, float("nan"), float("inf")])
    @pytest.mark.parametrize("training", [True, False])
    def test_a_probability_outside_its_range(self, x, p, training):
        with raises(ValueError, "Softmax", "p", str(p), "[0, 1]"):
            DROPPED(x, p=p, training=training)
        with raises(ValueError, "p", str(p), "[0, 1]"):
            DROPPED.dropout_mask((3, 4), 0, 0, p)

    def test_a_probability_that_is_no_number(self, x, device):
        with raises(TypeError, "Softmax", "p", "float(p)"):
            DROPPED(x, p="0.1")
        with raises(TypeError, "Softmax", "p"):
            DROPPED(x, p=torch.rand(3, device=device))

    def test_more_row_dimensions_than_there_are_variants_for(self, device):
        x = torch.zeros((2,) * 7, device=device)
        with raises(fo.UnsupportedError, "Softmax", "6 row dimensions", "contiguous"):
            BIASED(x, b=torch.zeros((2, 1, 2, 1, 2, 1, 2), device=device))

    @pytest.mark.gpu
    def test_two_devices(self):
        x = randn(3, 4, device="cuda")
        with raises(ValueError, "Softmax", "b", "cpu", "cuda:0"):
            BIASED(x, b=x.cpu())
        with raises(ValueError, "Softmax", "b", "cpu", "cuda:0"):
            BIASED(x.cpu(), b=x)
        with raises(ValueError, "Softmax", "out", "cpu", "cuda:0"):
            fo.Softmax()(x, out=x.cpu())


class TestX:
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool, torch.complex64])
    def test_a_dtype_that_is_not_floating(self, dtype, device):
        with raises(TypeError, "Softmax", "x", str(dtype), "float"):
            fo.Softmax()(torch.zeros(3, 4, dtype=dtype, device=device))

    @pytest.mark.parametrize("thing", [None, 1.0, [1.0, 2.0], "x"])
    def test_what_is_no_tensor(self, thing):
        with raises(TypeError, "Softmax", "x", type(thing).__name__):
            fo.Softmax()(thing)

    def test_no_dimensions(self, device):
        with raises(WRONG, "Softmax", "x"):
            fo.Softmax()(torch.tensor(1.0, device=device))

    def test_a_sparse_tensor(self, device):
        with raises((*WRONG, fo.UnsupportedError), "Softmax", "x", "parse"):
            fo.Softmax()(torch.eye(4, device=device).to_sparse())


class TestOptions:
    @pytest.mark.parametrize("dim", [2, -3, 100])
    def test_dim(self, x, dim):
        with raises((IndexError, ValueError), "Softmax", "dim", str(dim)):
            fo.Softmax()(x, dim=dim)

    @pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 3, 4), 3, ()])
    def test_normalized_shape(self, x, shape):
        with raises(ValueError, "LayerNorm", "normalized_shape", "(3, 4)"):
            fo.LayerNorm()(x, normalized_shape=shape)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.bool, "float16", float])
    def test_dtype(self, x, dtype):
        with raises(TypeError, "Softmax", "dtype"):
            fo.Softmax()(x, dtype=dtype)

    def test_a_generator_of_another_kind(self, x):
        with raises(TypeError, "Softmax", "generator"):
            DROPPED(x, p=0.5, generator=3)

    @pytest.mark.gpu
    def test_a_generator_of_another_device(self):
        with raises(ValueError, "Softmax", "generator", "cpu", "cuda"):
            DROPPED(randn(3, 4, device="cuda"), p=0.5, generator=torch.Generator())


class TestOut:
    def test_its_shape(self, x, device):
        with raises(ValueError, "Softmax", "out", "(3, 4)", "(4, 3)"):
            fo.Softmax()(x, out=torch.empty(4, 3, device=device))

    def test_its_dtype(self, x):
        with raises(WRONG, "Softmax", "out", "float16", "float32"):
            fo.Softmax()(x, out=torch.empty_like(x, dtype=torch.float16))

    def test_its_kind(self, x):
        with raises(TypeError, "Softmax", "out"):
            fo.Softmax()(x, out=3)

    def test_how_many(self, x):
        operands = {"bias": x, "residual": x, "p": 0.0, "gamma": x[0], "beta": x[0]}
        for out in (torch.empty_like(x), (torch.empty_like(x),)):
            with raises(WRONG, "LayerNorm", "out", "y", "stream"):
                declare(ADD_NORM)(x, **operands, out=out)

    def test_overlap_with_x(self, x):
        before = x.clone()
        for out in (x, x.view(3, 4), x[:]):
            with raises(ValueError, "Softmax", "out", "overlap", "x"):
                fo.Softmax()(x, out=out)
        assert torch.equal(x, before)

    def test_overlap_in_part(self, device):
        buffer = torch.zeros(20, device=device)
        x, out = buffer[:12].view(3, 4), buffer[8:].view(3, 4)
        with raises(ValueError, "Softmax", "out", "overlap"):
            fo.Softmax()(x, out=out)

    def test_overlap_with_an_operand(self, x):
        b = torch.zeros_like(x)
        with raises(ValueError, "Softmax", "out", "overlap", "b"):
            BIASED(x, b=b, out=b)

    def test_overlap_with_another_output(self, x):
        operands = {"bias": x, "residual": x, "p": 0.0, "gamma": x[0], "beta": x[0]}
        out = torch.empty_like(x)
        with raises(ValueError, "LayerNorm", "out", "overlap"):
            declare(ADD_NORM)(x, **operands, out=(out, out))

    def test_overlap_with_itself(self, x, device):
        with raises(ValueError, "Softmax", "out", "overlap"):
            fo.Softmax()(x, out=torch.empty(1, 4, device=device).expand(3, 4))

    def test_neighbours_do_not_overlap(self, device):
        buffer = torch.zeros(24, device=device)
        y = fo.Softmax()(buffer[:12].view(3, 4), out=buffer[12:].view(3, 4))
        assert y.eq(0.25).all()
        assert buffer[:12].eq(0).all()


class TestGradients:
    def test_out_does_not_go_with_gradients(self, x):
        x.requires_grad_()
        with raises(fo.UnsupportedError, "Softmax", "out=", "no_grad"):
            fo.Softmax()(x, out=torch.empty_like(x))


class Subclass(torch.Tensor):
    pass


ODD = {
    "conjugated": lambda t: torch.complex(t, t).conj().imag,  # a view with the neg bit
    "subclass": lambda t: t.as_subclass(Subclass),
    "sparse": lambda t: t.to_sparse(),
    "quantized": lambda t: torch.quantize_per_tensor(t.cpu(), 0.1, 0, torch.qint8),
    "nested": lambda t: torch.nested.nested_tensor([t, t]),
    "meta": lambda t: t.to("meta"),
}


def right_or_refused(call, wanted):
    """Either is fine; what is not is a wrong result, or an error that nobody can place."""
    try:
        y = call()
    except (*WRONG, fo.FusedOpsError, RuntimeError) as error:
        message = str(error)
    else:
        if y.is_meta:  # which has no elements that could be wrong
            return
        plain = (t.as_subclass(torch.Tensor) for t in (y, wanted()))
        torch.testing.assert_close(*plain)
        return
    assert "Softmax" in message


@pytest.mark.filterwarnings("ignore")  # torch's, about making such tensors at all
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("which", ["x", "b"])
def test_odd_tensors(which, odd, x):
    """The data of such a tensor is not what its elements are, so it must not be read as if."""
    tensors = {"x": x, "b": x + 1}
    tensors[which] = ODD[odd](tensors[which])
    right_or_refused(
        lambda: BIASED(tensors["x"], b=tensors["b"]),
        lambda: torch.softmax(tensors["x"] + tensors["b"], -1),
    )


TRANSFORMS = {
    "vmap": lambda f, x: torch.func.vmap(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).square().sum())(x),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(transform, x):
    call = TRANSFORMS[transform]
    right_or_refused(lambda: call(fo.Softmax(), x), lambda: call(lambda x: torch.softmax(x, -1), x))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: {"b": None},
        lambda x: {"c": x},
        lambda x: {"b": x[:, :3]},
        lambda x: {"b": x.long()},
        lambda x: {"dim": 4},
        lambda x: {"dtype": torch.int32},
    ],
)
def test_unfused_and_explain_refuse_the_same(change, x):
    messages = set()
    for function in (BIASED, BIASED.unfused, BIASED.explain):
        with pytest.raises((*WRONG, IndexError)) as raised:
            function(x, **{"b": x, **change(x)})
        messages.add(str(raised.value))
    assert len(messages) == 1


def test_no_compiler(monkeypatch, tmp_path):
    """The message says which compilers were looked for and how to get one."""
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    op = fo.LogSoftmax(load=[fo.Scale("never_built_elsewhere")], store=[fo.Cast(torch.bfloat16)])
    with raises(fo.CompilerNotFound, "c++", "g++", "clang++", "install"):
        op(randn(3, 4), never_built_elsewhere=1.0)


def test_offline(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
    op = fo.LogSoftmax(load=[fo.Bias("never_built")], store=[fo.Cast(torch.bfloat16)])
    with raises(fo.MissingVariantError, "LogSoftmax", "never_built", "FUSEDOPS_OFFLINE"):
        op(randn(3, 4), never_built=1.0 + randn(4))


def test_a_refused_call_leaves_the_op_usable(x):
    op = declare(Chain("softmax", (("scale", "s"),)))
    wanted = op(x, s=2.0)
    with pytest.raises(WRONG):
        op(x, s="2")
    with pytest.raises(WRONG):
        op(x)
    assert torch.equal(op(x, s=2.0), wanted)
    assert torch.equal(declare(SOFTMAX)(x * 2), wanted)


class TestKindsOfNumbers:
    """What the runtime cannot read and Python can is put in plain types, once."""

    @pytest.mark.parametrize("dim", [True, [True], 0.5, "0", (0.5,)], ids=repr)
    def test_what_is_no_dimension(self, dim, x):
        for call in (LAYER, LAYER.unfused, LAYER.explain):
            with raises(TypeError, "LayerNorm", "dim", repr(dim)):
                call(x, dim=dim)

    def test_what_is_no_shape(self, device):
        one = randn(3, 1, device=device)
        for shape in (True, [True], 1.0, "1"):
            with raises(TypeError, "LayerNorm", "normalized_shape", repr(shape)):
                LAYER(one, normalized_shape=shape)

    @pytest.mark.parametrize("n", [2**63, 2**70, -(2**70)])
    def test_a_count_beyond_64_bits(self, n, x):
        op = fo.Softmax(load=[fo.Lengths("n")])
        for call in (op, op.unfused, op.explain):
            with raises(ValueError, "Softmax", "'n'", str(n)):
                call(x, n=n)

    def test_a_number_beyond_a_double(self, x):
        with raises(ValueError, "Softmax", "'b'"):
            BIASED(x, b=10**400)

    @pytest.mark.parametrize("dtype", [False, 0, "", "float32"], ids=repr)
    def test_what_is_no_dtype(self, dtype, x):
        with raises(TypeError, "Softmax", "dtype"):
            fo.Softmax()(x, dtype=dtype)

    def test_no_call_is_tried_for_ever(self, x):
        with raises(TypeError, "LayerNorm", "dim"):
            LAYER._slow("arguments", x, {}, {"dim": (0,)})


class TestConstants:
    @pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400])
    def test_constants_are_finite(self, value):
        with raises(ValueError, "Residual", "alpha"):
            fo.Residual("r", alpha=value)
        for op in (fo.LayerNorm, fo.RMSNorm):
            with raises(ValueError, op.__name__, "eps"):
                op(eps=value)

    @pytest.mark.parametrize("save", ["_s", "__len__", "count", "index"])
    def test_names_that_a_result_cannot_have(self, save):
        with raises(ValueError, "Residual", "save", "underscore", "count", repr(save)):
            fo.Residual("r", save=save)


def test_out_between_the_columns_of_x(device):
    buffer = torch.zeros(3, 8, device=device)
    with raises(ValueError, "Softmax", "out", "reaches into the memory range of 'x'"):
        fo.Softmax()(buffer[:, 4:], out=buffer[:, :4])


def test_rows_of_an_out_that_share_elements(device):
    out = torch.zeros(64, device=device).as_strided((4, 8), (4, 1))
    with raises(ValueError, "Softmax", "out", "overlap", "strides"):
        fo.Softmax()(randn(4, 8, device=device), out=out)


def test_autograd_notices_what_out_overwrites(x):
    weight, out = torch.ones_like(x, requires_grad=True), torch.ones_like(x)
    loss = (weight * out).sum()
    with torch.no_grad():
        fo.Softmax()(x, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
