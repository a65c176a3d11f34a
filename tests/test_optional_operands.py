# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Operands that a call may leave out: it is that of an op declared without their functors."""

import inspect
import pickle

import pytest
import torch
from cases import floating, named, raises, randn, same_bits

import fusedops as fo
from fusedops.declare.text import read
from fusedops.testing import check

SHAPE = (2, 3, 5, 24)

ATTENTION = fo.Softmax(
    load=[
        fo.Scale("s", optional=True),
        fo.Bias("b", optional=True),
        fo.Alibi("slopes", optional=True),
        fo.Mask("m", optional=True),
        fo.Lengths("n", optional=True),
    ],
    store=[fo.Dropout("p")],
)
NORM = fo.LayerNorm(
    load=[fo.Dropout("p"), fo.Residual("r", save="stream", optional=True)],
    store=[fo.Affine("gamma", "beta", optional=True)],
)


def operands(device):
    return {
        "s": randn(3, 1, 1, device=device, seed=1),
        "b": randn(1, 3, 5, 24, device=device, seed=2),
        "slopes": randn(3, 1, 1, device=device, seed=3),
        "m": randn(2, 1, 1, 24, device=device, seed=4) < -0.5,
        "n": torch.tensor([24, 7], device=device)[:, None, None, None],
    }


def without(op, names):
    """The same by hand."""
    plain = {"s": fo.Scale, "b": fo.Bias, "slopes": fo.Alibi, "m": fo.Mask, "n": fo.Lengths}
    return fo.Softmax([kind(k) for k, kind in plain.items() if k not in names], op.store)


def both(op, other, x, given, left_out, **options):
    """Results and gradients of the call that leaves out, and of the op without, to the bit."""
    found = []
    for called, arguments in ((op, {**given, **left_out}), (other, given)):
        able = ("x", *floating(arguments))
        leaves = {"x": x, **arguments}
        leaves.update({k: leaves[k].detach().requires_grad_() for k in able})
        wanted = [leaves[k] for k in able]
        outputs = named(called(leaves.pop("x"), **leaves, **options))
        sums = sum(one.double().square().sum() for one in outputs.values())
        found.append([*outputs.values(), *torch.autograd.grad(sums, wanted)])
    assert len(found[0]) == len(found[1])
    for a, b in zip(*found, strict=True):
        assert same_bits(a.detach(), b.detach())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names", [("s",), ("b", "m"), ("slopes", "n"), ("s", "b", "slopes", "m", "n")]
)
@pytest.mark.parametrize("none", [True, False])
def test_a_call_without_is_that_of_an_op_without(names, none, device):
    x, given = randn(*SHAPE, device=device), operands(device)
    given = {k: v for k, v in given.items() if k not in names}
    left_out = dict.fromkeys(names) if none else {}
    other = without(ATTENTION, names)
    draw = (5, 0)
    got = ATTENTION(x, **given, **left_out, p=0.3, generator=draw)
    assert same_bits(got, other(x, **given, p=0.3, generator=draw))
    plain = ATTENTION.unfused(x, **given, **left_out, p=0.3, generator=draw)
    assert same_bits(plain, other.unfused(x, **given, p=0.3, generator=draw))
    both(ATTENTION, other, x, given, left_out, p=0.3, generator=draw)


def test_all_are_given(device):
    x, given = randn(*SHAPE, device=device), operands(device)
    assert same_bits(ATTENTION(x, **given, p=0.0), without(ATTENTION, ())(x, **given, p=0.0))


@pytest.mark.thorough
def test_half_of_an_affine(device):
    x, one = randn(4, 24, device=device), randn(24, device=device, seed=1)
    op = fo.RMSNorm(store=[fo.Affine("gamma", "beta", optional=True)])
    for name, halves in (("gamma", ("gamma", None)), ("beta", (None, "beta"))):
        both(op, fo.RMSNorm(store=[fo.Affine(*halves)]), x, {name: one}, {})
    both(op, fo.RMSNorm(), x, {}, {"gamma": None, "beta": None})


@pytest.mark.thorough
def test_a_stream_is_saved_without_a_residual(device):
    x = randn(4, 24, device=device)
    y, stream = NORM(x, p=0.0)
    assert torch.equal(stream, x)
    assert torch.equal(y, fo.LayerNorm()(x))
    other = fo.LayerNorm(load=[fo.Dropout("p"), fo.Save("stream")])
    both(NORM, other, x, {}, {"r": None, "gamma": None}, p=0.5, generator=(3, 0))
    op = fo.LayerNorm(load=[fo.Residual("r", save="stream", dtype=torch.float32, optional=True)])
    assert op(x.half()).stream.dtype is torch.float32
    assert op(x.half(), r=x.half()).stream.dtype is torch.float32


@pytest.mark.thorough
def test_an_alpha_that_is_left_out_is_one(device):
    x, r = randn(4, 24, device=device), randn(4, 24, device=device, seed=1)
    op = fo.LayerNorm(load=[fo.Residual("r", alpha="a", optional=True)])
    both(op, fo.LayerNorm(), x, {}, {})
    both(op, fo.LayerNorm(load=[fo.Residual("r")]), x, {"r": r}, {"a": None})


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [fo.GroupNorm, fo.InstanceNorm])
def test_norms_of_channels(kind, device):
    counts = (2,) if kind is fo.GroupNorm else ()
    op = kind(*counts, store=[fo.Affine("gamma", "beta", optional=True)])
    x, gamma = randn(2, 4, 3, 3, device=device), randn(4, device=device, seed=1)
    both(op, kind(*counts, store=[fo.Affine("gamma")]), x, {"gamma": gamma}, {"beta": None})
    both(op, kind(*counts), x, {}, {})
    assert same_bits(op.unfused(x), kind(*counts).unfused(x))


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_under_torch_compile(backend):
    x, given = randn(*SHAPE), operands("cpu")
    del given["b"], given["m"]

    @torch.compile(fullgraph=True, backend=backend)
    def call(x, **given):
        return ATTENTION(x, **given, b=None, p=0.3, generator=(5, 0))

    assert same_bits(call(x, **given), ATTENTION(x, **given, p=0.3, generator=(5, 0)))
    traced = [t.detach().requires_grad_() for t in (x, given["s"])]
    loss = call(traced[0], **{**given, "s": traced[1]}).square().sum()
    eager = [t.detach().requires_grad_() for t in (x, given["s"])]
    other = ATTENTION(eager[0], **{**given, "s": eager[1]}, p=0.3, generator=(5, 0))
    for a, b in zip(
        torch.autograd.grad(loss, traced),
        torch.autograd.grad(other.square().sum(), eager),
        strict=True,
    ):
        assert same_bits(a, b)


def test_a_saved_program(tmp_path):
    class Block(torch.nn.Module):
        def forward(self, x, gamma):
            return tuple(NORM(x, p=0.0, gamma=gamma))

    x, gamma = randn(4, 24), randn(24, seed=1)
    program = torch.export.export(Block(), (x, gamma))
    torch.export.save(program, tmp_path / "program.pt2")
    y, stream = torch.export.load(tmp_path / "program.pt2").module()(x, gamma)
    wanted = NORM(x, p=0.0, gamma=gamma)
    assert same_bits(y, wanted.y)
    assert same_bits(stream, wanted.stream)


@pytest.mark.thorough
def test_explain_check_and_export_take_the_call_as_it_is():
    x = randn(4, 24)
    told = str(NORM.explain(x, p=0.0, gamma=randn(24)))
    assert "Save(name='stream'" in told
    assert "beta" not in told.splitlines()[0]
    assert check(NORM, x, p=0.3, gamma=randn(24)).passed
    exported = fo.export(NORM, x, p=0.0, gamma=randn(24), arch="cpu", backward=False)
    assert "Residual<" not in exported.text
    assert "Save<" in exported.text


def test_declarations_round_trip():
    assert pickle.loads(pickle.dumps(ATTENTION)) == ATTENTION == read(ATTENTION.text)
    assert repr(fo.Bias("b", optional=True)) == "Bias(bias='b', optional=True)"
    assert repr(fo.Bias("b")) == "Bias(bias='b')"
    parameters = inspect.signature(ATTENTION).parameters
    assert parameters["b"].default is None
    assert parameters["p"].default is inspect.Parameter.empty


def test_what_is_refused():
    x = randn(4, 24)
    with raises(TypeError, "LayerNorm", "'p' is missing"):
        NORM(x)
    with raises(TypeError, "'b' must not be None", "optional=True"):
        fo.Softmax(load=[fo.Bias("b")])(x, b=None)
    # Neither a Dropout nor an op's own operand can be optional.
    with raises(TypeError, "'p' must not be None", "pass p=..., p=0 to drop nothing, or call"):
        NORM(x, p=None)
    with raises(TypeError, "'s' must not be None", "pass s=..., or call"):
        fo.Softmax(sink="s")(x, s=None)
    for call in (NORM, NORM.unfused, NORM.explain):
        with raises(TypeError, "unknown operand 'gama'", "'r', 'gamma', 'beta'", "mean 'gamma'"):
            call(x, p=0.0, gama=x)
    group_norm = fo.GroupNorm(2, store=NORM.store)
    for call in (group_norm, group_norm.unfused):
        with raises(TypeError, "unknown operand 'gama'", "'gamma', 'beta'", "mean 'gamma'"):
            call(randn(2, 4, 3), gama=x)
    ids = torch.zeros(4, 1, dtype=torch.int32)
    op = fo.Softmax(load=[fo.Segments("q", "k", optional=True)])
    for call in (op, op.unfused):
        with raises(TypeError, "'q' is given, but not k", "both or neither"):
            call(x, q=ids)
    compiled = torch.compile(lambda x, q: op(x, q=q), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="Softmax: operand 'q' is given, but not k"):
        compiled(x, ids)
    with raises(TypeError, "optional", "Bias"):
        fo.Bias("b", optional="yes")
    with raises(ValueError, "Scale(scale='b')", "optional=True of both"):
        fo.Softmax(load=[fo.Bias("b", optional=True), fo.Scale("b")])
    with raises(ValueError, "dtype", "save="):
        fo.Residual("r", dtype=torch.float32)
    with raises(TypeError, "dtype", "torch.int8"):
        fo.Save("stream", dtype=torch.int8)
    with raises(ValueError, "store"):
        fo.Softmax(store=[fo.Save("stream")])
