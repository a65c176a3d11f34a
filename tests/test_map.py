# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Map: against float64, in every functor and layout, without a reduction in any schedule."""

import dataclasses
import io
import math
import subprocess
import sys

import pytest
import torch
from cases import (
    FLOATS,
    MAP,
    exhaustive,
    gradients_of,
    poisoned,
    raises,
    randn,
    same_bits,
    thorough,
    verify,
    verify_gradients,
)
from references import Chain
from test_gradient_variants import backward_of
from test_gradient_variants import check_compiles as check_backward
from test_gradients import LOAD, verify_words
from test_variants import ARCHS, DTYPES, check_compiles, covering, described, only_on_sm_90, tensor
from torch.nn import functional

import fusedops as fo
from fusedops import testing
from fusedops.bind.bind import bind
from fusedops.generate.target import Target
from fusedops.testing import check
from fusedops.tuning.problem import kernel_of

#: A linear layer's epilogue: bias, GELU in the middle, dropout, residual stream.
TAIL = Chain("map", (("bias", "b"), ("dropout", "p"), ("residual", "r", 0.5, "stream")))
SCORES = Chain("map", (("scale", "s"), ("bias", "b"), ("mask", "m"), ("causal", "top-left", 0)))
WORDS = sorted({*LOAD["softmax"], *LOAD["layer_norm"]})


@fo.functor
def gelu(v, b):
    return functional.gelu(v + b, approximate="tanh")


EPILOGUE = fo.Map(load=[gelu("b"), fo.Dropout("p"), fo.Residual("r")])


def tail_case(rows, columns, dtype, device):
    x = randn(rows, columns, dtype=dtype, device=device)
    b = randn(columns, dtype=dtype, device=device, seed=1)
    return x, {"b": b, "p": 0.3, "r": randn(rows, columns, dtype=dtype, device=device, seed=2)}


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [1, 33, *thorough(8, 250, 1024, 3000), 70001])
def test_columns_and_dtypes(columns, dtype, device):
    x, operands = tail_case(7, columns, dtype, device)
    verify(TAIL, x, operands)
    verify_gradients(TAIL, x, operands)


@pytest.mark.parametrize(
    "word", ["causal", "save", *thorough(*WORDS[::2]), *exhaustive(*WORDS[1::2])]
)
def test_each_functor(word, device):
    verify_words("map", (word,), (), device)


@pytest.mark.thorough
@pytest.mark.parametrize("words", ["scale alibi mask bias dropout keep", "cast save affine save"])
def test_chains_of_many(words, device):
    verify_words("map", tuple(words.split()), (), device)


def test_double(device):
    x, operands = tail_case(5, 100, torch.float64, device)
    verify(TAIL, x, operands)
    verify_gradients(TAIL, x, operands, unfused=True)


def test_scores(device):
    """What is masked is -inf, has no gradient, and hands none to the operands."""
    x = randn(2, 3, 9, 20, device=device)
    b, m = randn(3, 9, 20, device=device, seed=1), randn(2, 1, 1, 20, device=device, seed=2) > 1
    operands = {"s": torch.tensor(0.7, device=device), "b": b, "m": m}
    y = verify(SCORES, x, operands)["y"]
    assert (y == -torch.inf).sum() > x.numel() / 2
    got = verify_gradients(SCORES, x, operands, unfused=True)
    assert not got["x"][y == -torch.inf].any()


@pytest.mark.thorough
@pytest.mark.parametrize("masked", [False, True])
def test_infinity_is_a_value_with_masks_and_without(masked, device):
    x = randn(3, 40, device=device)
    x[0, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    op = fo.Map(load=[fo.Scale("s"), *([fo.Mask("m")] if masked else [])])
    operands = {"s": 2.0, **({"m": torch.zeros_like(x).bool()} if masked else {})}
    dy = {"y": torch.full_like(x, 3.0)}
    for function in (op, op.unfused):
        outputs, got = gradients_of(function, x, operands, dy)
        torch.testing.assert_close(outputs["y"], x * 2, equal_nan=True)
        assert torch.equal(got["x"], torch.full_like(x, 6.0))


@pytest.mark.thorough
def test_masks_alone_keep_no_x(device):
    """Their elements are known without it, also where a bias is -inf or a scale infinite."""
    x, b = randn(3, 5, 40, device=device), randn(5, 40, device=device, seed=1)
    b[0, 3] = -torch.inf
    m = randn(3, 1, 40, device=device, seed=2) > 1
    op = fo.Map(load=[fo.Scale("s"), fo.Bias("b"), fo.Mask("m"), fo.Causal()])
    for s in (0.5, math.inf):
        leaves = [one.clone().requires_grad_() for one in (x, b)]
        kept = []

        def note(tensor, kept=kept):
            kept.append(tensor.shape)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            y = op(leaves[0], s=s, b=leaves[1], m=m)
        assert x.shape not in kept
        masked = m | (torch.arange(40, device=device) > torch.arange(5, device=device)[:, None])
        dy = randn(*x.shape, device=device, seed=3)
        dx, db = torch.autograd.grad(y, leaves, dy)
        assert (dx == 0).eq(masked).all()
        torch.testing.assert_close(dx, torch.where(masked, 0.0, dy * s))
        torch.testing.assert_close(db, torch.where(masked, 0.0, dy).sum(0))
    told = op.explain(leaves[0], s=0.5, b=leaves[1], m=m)
    assert "x" not in [one.name for one in told.kept]


@pytest.mark.thorough
def test_infinity_is_not_taken_for_masked_where_x_is_read(device):
    """As the gradient of a factor reads it."""
    x = randn(3, 40, device=device)
    x[0, 1], x[1, 2] = -torch.inf, -torch.inf
    m = torch.zeros_like(x).bool()
    m[1, 2] = m[2, 5] = True
    op = fo.Map(load=[fo.Scale("s"), fo.Mask("m")])
    dy = randn(*x.shape, device=device, seed=1)
    for function in (op, op.unfused):
        leaf, s = x.clone().requires_grad_(), torch.tensor(2.0, device=device, requires_grad=True)
        y = function(leaf, s=s, m=m)
        assert torch.equal(y, (x * 2).masked_fill(m, -torch.inf))
        dx, ds = torch.autograd.grad(y, (leaf, s), dy)
        assert torch.equal(dx, torch.where(m, 0.0, dy * 2))
        assert ds.abs() == torch.inf  # of x[0, 1] alone: that of x[1, 2] is masked


@pytest.mark.thorough
def test_dropout_is_that_of_a_row_kernel(device):
    """Same seed, same slot: the elements that a norm's STORE drops."""
    x = randn(6, 200, dtype=torch.float16, device=device) + 10
    given = {"p": 0.4, "generator": (5, 64)}
    y = fo.Map(load=[fo.Dropout("p")])(x, **given)
    norm = fo.RMSNorm(store=[fo.Dropout("p")])(x, **given)
    assert torch.equal(y == 0, norm == 0)
    kept = fo.Map(load=[fo.Dropout("p")]).dropout_mask((6, 200), 5, 64, 0.4)
    assert torch.equal((y != 0).cpu(), kept)


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [40, 9001])
def test_layouts(columns, device):
    """Strided, expanded and turned tensors, every kind of sum, any dimension as the row."""
    wide = randn(4, 5, 2 * columns, device=device)
    cases = {
        "strided": (wide[..., ::2], (columns,), -1),
        "turned": (wide[..., :columns].transpose(0, 1), (4, 1), -1),
        "a dimension inside": (wide, (5, 1), 1),
        "all rows and columns": (wide, (), -1),
        "a batch": (wide, (4, 1, 2 * columns), -1),
        "outer": (wide, (4, 1, 1), -1),
    }
    op = fo.Map(load=[fo.Scale("s"), fo.Bias("b")])
    for name, (x, shape, dim) in cases.items():
        operands = {
            "s": randn(*shape, device=device, seed=3),
            "b": randn(*x.shape[-1:], device=device, seed=4).expand(x.shape),
        }
        dy = {"y": randn(*x.shape, device=device, seed=5).transpose(0, 1).contiguous()}
        dy["y"] = dy["y"].transpose(0, 1)
        outputs, got = gradients_of(op, x, operands, dy, dim=dim)
        near, wanted = gradients_of(op.unfused, x, operands, dy, dim=dim)
        torch.testing.assert_close(outputs["y"], near["y"], msg=name)
        for key in wanted:
            torch.testing.assert_close(got[key], wanted[key], atol=2e-3, rtol=1e-4, msg=name)


@pytest.mark.thorough
def test_a_copy(device):
    """Without functors, and into memory that is given; nothing beyond it is written."""
    for shape in ((5, 33), (2, 9000), (3, 1)):
        x = randn(*shape, device=device)
        assert same_bits(fo.Map()(x), x)
        out, intact = poisoned(shape, torch.float16, device)
        assert fo.Map()(x, out=out, dtype=torch.float16) is out
        assert torch.equal(out, x.half())
        assert intact()


def test_nothing_to_do(device):
    for shape in ((0, 8), (3, 0)):
        x = torch.empty(shape, device=device)
        operands = {"gamma": x.new_ones(shape[-1]), "beta": x.new_ones(shape[-1])}
        outputs, got = gradients_of(
            fo.Map(load=[fo.Affine("gamma", "beta")]), x, operands, {"y": x}
        )
        assert outputs["y"].shape == got["x"].shape == shape
        assert torch.equal(got["gamma"], torch.zeros_like(operands["gamma"]))


@pytest.mark.thorough
def test_what_is_saved(device):
    """Neither x nor an operand where no functor's gradient reads it; and no numbers of rows."""
    x, operands = tail_case(4, 64, torch.float32, device)
    x.requires_grad_()
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = fo.Map(load=[fo.Bias("b"), fo.Dropout("p"), fo.Residual("r")])(x, **operands)
        assert sum(sizes) == 0
        EPILOGUE(x, **operands)
        assert sum(sizes) == x.numel() + operands["b"].numel()
    y.backward(torch.ones_like(y))
    text = str(fo.Map(load=[fo.Dropout("p")]).explain(x, p=0.3))
    assert "kept" not in text
    assert "read twice" not in text


@pytest.mark.thorough
def test_check_and_checkpoints(device):
    x, operands = tail_case(6, 130, torch.bfloat16, device)
    x.requires_grad_()
    check(EPILOGUE, x, **operands)
    check(fo.Map(load=[fo.Scale("s"), fo.Causal()]), x, s=0.5)
    leaf = x.detach().requires_grad_()
    for one, call in ((x, EPILOGUE), (leaf, None)):
        torch.manual_seed(3)
        if call is None:
            y = torch.utils.checkpoint.checkpoint(
                lambda x: EPILOGUE(x, **operands), one, use_reentrant=False
            )
        else:
            y = call(one, **operands)
        y.sum().backward()
    assert torch.equal(x.grad, leaf.grad)


@pytest.mark.thorough
def test_torch_compile(device):
    x, operands = tail_case(6, 130, torch.float32, device)
    x.requires_grad_()
    given = {**operands, "generator": (7, 0)}
    compiled = torch.compile(lambda x: EPILOGUE(x, **given), fullgraph=True, backend="aot_eager")
    dy = randn(*x.shape, device=device, seed=8)
    got, wanted = compiled(x), EPILOGUE(x, **given)
    assert torch.equal(got, wanted)
    assert torch.equal(*(torch.autograd.grad(y, x, dy)[0] for y in (got, wanted)))


def test_a_saved_program(device):
    class Tail(torch.nn.Module):
        def forward(self, x, b):
            return fo.Map(load=[fo.Bias("b"), fo.Scale("s"), fo.Causal()])(x, b=b, s=0.5)

    x, b = randn(6, 130, device=device), randn(130, device=device, seed=1)
    stream = io.BytesIO()
    torch.export.save(torch.export.export(Tail(), (x, b)), stream)
    stream.seek(0)
    again = torch.export.load(stream).module()
    assert torch.equal(again(x, b), Tail()(x, b))


def test_an_exported_header():
    """It has no parameter for numbers that nobody keeps."""
    x, operands = tail_case(6, 130, torch.float32, "cpu")
    op = fo.Map(load=[fo.Bias("b"), fo.Dropout("p"), fo.Residual("r")])
    header = fo.export(op, x, **operands, arch="cpu")
    assert not any("kept" in names for names in header.parameters.values())
    long = randn(4, 70000, dtype=torch.float16)
    header = fo.export(op, long, b=long[0], p=0.1, r=long, arch="sm_90", backward=["x"])
    assert header.parameters


@pytest.mark.thorough
def test_a_recorded_call_is_built_by_the_command(tmp_path):
    """In its process nothing is imported before it is used, and no class is known by itself."""
    program, calls = tmp_path / "program.py", tmp_path / "calls.jsonl"
    program.write_text(
        "import torch, fusedops as fo\n"
        "fo.Map(load=[fo.Bias('b')])(torch.zeros(2, 4), b=torch.zeros(4))\n"
    )
    for words in (
        ["record", "-o", str(calls), sys.executable, str(program)],
        ["build", "--calls", str(calls), "--arch", "cpu"],
    ):
        command = [sys.executable, "-m", "fusedops", *words]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_there_is_nothing_to_tune():
    bound = bind(fo.Map(), tensor(4, 64), {}, {})
    with raises(fo.UnsupportedError, "Map", "nothing to tune"):
        kernel_of(bound, "forward", Target.named("sm_90"))


@pytest.mark.gpu
def test_graphs():
    x, operands = tail_case(64, 4096, torch.float16, "cuda")
    op = fo.Map(load=[fo.Bias("b"), fo.Residual("r")])
    wanted = op(x, b=operands["b"], r=operands["r"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = op(x, b=operands["b"], r=operands["r"])
    y.zero_()
    graph.replay()
    assert torch.equal(y, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [8, 255, 256, 1000, 4096, 8192, 8193, 30522, 65536, 200001])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_every_size(dtype, columns):
    for rows in (1, 3, 199):
        x, operands = tail_case(rows, columns, dtype, "cuda")
        verify(TAIL, x, operands, unfused=False)
        verify_gradients(TAIL, x, operands)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [5000, 70001])
def test_numbers_of_long_rows(columns):
    """Their gradients are sums over all chunks of a row: one block visits them."""
    chain = Chain("map", (("scale", "s"), ("bias", "b")))
    x, b = randn(40, columns, device="cuda"), randn(columns, device="cuda", seed=1)
    for shape in ((), (40, 1)):
        verify_gradients(chain, x, {"s": randn(*shape, device="cuda", seed=2), "b": b})
    with testing.force_schedule("chunks"):
        verify_gradients(MAP, x, {"gamma": b, "beta": b + 1})


def test_refusals(device):
    x = randn(2, 8, device=device)
    with raises(ValueError, "Map: store must be empty", "load=[Scale(scale='a'), Bias(bias='b')]"):
        fo.Map(load=[fo.Scale("a")], store=[fo.Bias("b")])
    with raises(TypeError, "Map", "eps"):
        fo.Map(eps=1e-5)
    with raises(TypeError, "Map", "'s'"):
        fo.Map(load=[fo.Scale("s")])(x)
    with raises(ValueError, "Softmax, LogSoftmax or Map"):
        fo.LayerNorm(load=[fo.Alibi("slopes")])


class KeepsSomething(fo.Map):
    """A declaration that contradicts itself."""

    kept = 2


def test_what_reduces_nothing_keeps_nothing():
    with raises(TypeError, "KeepsSomething", "kept = 0", "got kept = 2"):
        KeepsSomething()


@pytest.mark.gpu
def test_schedules_of_rows_that_are_reduced():
    x = randn(3, 100, device="cuda")
    for op, schedule in ((fo.Map(), "register"), (fo.Softmax(), "chunks")):
        with testing.force_schedule(schedule), pytest.raises(ValueError, match="chunk"):
            op(x)


SIZES = {"one": 1, "odd": 333, "exact": 8192, "long": 200001, "even": 65536}


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("arch", "size", "dtype", "aligned"),
    only_on_sm_90(covering(2, ARCHS, SIZES, DTYPES, [True, False])),
)
def test_it_compiles(arch, size, dtype, aligned):
    columns = SIZES[size]
    x = tensor(2, 3, columns, dtype=dtype, misaligned=not aligned)
    operands = {
        "b": tensor(columns, dtype=dtype),
        "p": 0.1,
        "r": tensor(2, 3, columns, dtype=dtype),
    }
    info = described(EPILOGUE, x, operands, arch)
    assert info.call.storage == "chunks"
    assert info.tile.grid(6) >= 6 / info.tile.rows_per_block
    check_compiles(info)
    check_backward(backward_of(EPILOGUE, x, operands, arch, None))


def test_chunks_share_no_row():
    """As many blocks as chunks, on an architecture without clusters too; each row is covered."""
    for arch in ("sm_80", "sm_90"):
        for columns in (1, 31, 8192, 8193, 100000, 1000003):
            x = tensor(2, 3, columns, dtype=torch.float16)
            tile = described(fo.Map(), x, {}, arch).tile
            assert tile.cluster == 1
            assert tile.chunk * (tile.chunks - 1) < columns <= tile.chunk * tile.chunks
            assert tile.grid(6) == -(-6 // tile.rows_per_block) * tile.chunks
            assert tile.grid(2**40) <= 2**31 - 1
            assert tile.grid(2**40) % tile.chunks == 0


def test_chains_are_equal_whatever_their_dropout(device):
    """training=False leaves the dropout out."""
    x, operands = tail_case(3, 40, torch.float32, device)
    plain = dataclasses.replace(TAIL, load=(TAIL.load[0], TAIL.load[2]))
    verify(TAIL, x, operands, training=False)
    got = verify(plain, x, {"b": operands["b"], "r": operands["r"]})
    wanted = fo.Map(load=[fo.Bias("b"), fo.Dropout("p"), fo.Residual("r", alpha=0.5)])
    assert torch.equal(got["y"], wanted(x, **operands, training=False))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_of_a_cap_keeps_its_digits(device, dtype):
    """Both terms of tanh(u) - u / cosh(u)^2 are near u where u is small, and cancel to 2u^3/3."""
    x = torch.cat([torch.logspace(-2, 1, 200), torch.linspace(0.9, 1.1, 41)]).to(device, dtype)
    cap = torch.ones_like(x, requires_grad=True)  # The quotient is exact.
    (found,) = torch.autograd.grad(fo.Map(load=[fo.Softcap("c")])(x, c=cap).sum(), cap)
    # By the series of sinh(w) - w, all of whose terms are positive, in double.
    twice = 2 * x.detach().double()
    series, term = torch.zeros_like(twice), twice
    for k in range(1, 60):
        term = term * twice**2 / ((2 * k) * (2 * k + 1))
        series = series + term
    truth = series / (2 * torch.cosh(twice / 2) ** 2)
    # The exponential carries the rounding of its argument, 2u. Above u = 1 the terms are at most
    # three times their difference; each has the errors of its functions, of two ulps, and its own.
    eps = torch.finfo(dtype).eps
    bound = (16 + 4 * x.double()) * eps * truth
    assert ((found.double() - truth).abs() <= bound).all()


@fo.functor
def only_gelu(v):
    return functional.gelu(v, approximate="tanh")


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gelu_keeps_its_digits(device, dtype):
    """Far below zero 1 + tanh(u) is lost; as x / (1 + exp(-2u)) the result has its digits."""
    x = torch.linspace(-9, 9, 3601).to(device, dtype).requires_grad_()
    upstream = torch.randn_like(x)
    y = fo.Map(load=[only_gelu()])(x)
    (slope,) = torch.autograd.grad(y, x, upstream)
    exact = x.detach().double()
    twice = (8 / torch.pi) ** 0.5 * (exact + 0.044715 * exact**3)
    gate, rest = 1 / (1 + torch.exp(-twice)), 1 / (1 + torch.exp(twice))
    terms = gate, exact * gate * rest * (8 / torch.pi) ** 0.5 * (1 + 3 * 0.044715 * exact**2)
    # The exponential carries the four roundings of its argument and of its constants; each
    # function has errors of two ulps at most, and each product its own.
    share = (16 + 4 * twice.abs()) * torch.finfo(dtype).eps
    assert ((y.double() - exact * gate).abs() <= share * (exact * gate).abs()).all()
    size = (terms[0] + terms[1].abs()) * upstream.double().abs()
    assert (
        (slope.double() - (terms[0] + terms[1]) * upstream.double()).abs() <= share * size
    ).all()
