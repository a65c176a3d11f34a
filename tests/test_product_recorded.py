# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""One kernel for a product, built ahead: of recorded calls, and by the command `build`."""

import re

import pytest
import torch
from cases import raises
from products import (
    HALF,
    HOPPER,
    OPS,
    apart,
    call,
    declaring,
    given,
    learning,
    may_be_one,
    needs_hopper,
    recording,
    step,
)
from typer.testing import CliRunner

import fusedops as fo
from fusedops.cli import app
from fusedops.generate.target import Target
from fusedops.plan.planner import plan
from fusedops.prebuild.build_all import variants
from fusedops.prebuild.recording import Signature
from fusedops.product import choice as choices
from fusedops.product import recorded
from fusedops.product.linear_loss_kernel import pass_of
from fusedops.product.product_kernel import Product
from fusedops.testing import last_schedule

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

#: The fewest rows of which each cluster of an H200 has a tile, where there are 256 columns.
ROWS = 66 * 256
LAYER, SCORES, BLOCK = OPS["layer"], OPS["causal"], OPS["plain"]
SIZES = {
    LAYER: {"rows": (ROWS,), "n": 256, "k": 8},
    SCORES: {"pair": ((4, 1152, 64), (4, 64, 1152))},
    BLOCK: {"rows": (1024,), "h": 2112, "n": 64, "k": 8},
}


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """The calls of products that have been recorded since."""
    file = recording(monkeypatch, tmp_path)
    for op in SIZES:  # a call is recorded where it is planned
        op.clear()

    def read():
        text = file.read_text() if file.exists() else ""
        every = [Signature.parse(line) for line in text.splitlines()]
        return [one for one in every if one.factors]

    return read


def large(op, dtype=HALF, device="cpu"):
    return given(op, dtype, device, **SIZES[op])


class TestOnACpu:
    """A run there names the kernels of a GPU."""

    @pytest.mark.thorough
    @pytest.mark.parametrize("kind", ["layer", "product"])
    def test_a_call(self, kind, lines):
        op = LAYER if kind == "layer" else SCORES
        tensors = large(op)
        with torch.no_grad():
            for _ in "xy":
                call(op, tensors)
        (one,) = lines()
        (x, other), operands = apart(op, tensors)
        layer, w = op.that_adds(other, operands), op.turned(other)
        z = torch.empty(op.shape(x, other), dtype=HALF)
        assert one.x == "float16:" + ",".join(map(str, z.shape))
        assert one.factors["x"] == "float16:" + ",".join(map(str, x.shape))
        assert one.factors["w"].startswith("float16:" + ",".join(map(str, w.shape)))
        assert str(Signature.parse(str(one))) == str(one)
        (variant,) = recorded.variants([one], HOPPER)
        tiling = choices.chosen(layer.epilogue, x, w, operands, HOPPER).tiling
        bound = layer.epilogue.bind(z, operands)
        (want,) = plan(Product(bound, x, w, tiling), HOPPER).variants
        assert (variant.arch, variant.key, variant.source) == ("sm_90a", want.key, want.source)
        for other in ("sm_80", "sm_100", "x86-64-v3"):
            assert not recorded.variants([one], HOPPER.named(other))

    def test_a_loss_without_logits(self, lines):
        """The kernel of all classes; those of blocks are of lines of their own."""
        op = fo.LinearCrossEntropy([fo.Bias("b")])
        x, w = torch.zeros(512, 1280, dtype=HALF), torch.zeros(66 * 128, 1280, dtype=HALF)
        target, b = torch.zeros(512, dtype=torch.int64), torch.zeros(66 * 128)
        with torch.no_grad():
            for _ in "xy":
                op(x, w, target=target, b=b)
        (one,) = lines()
        assert str(Signature.parse(str(one))) == str(one)
        (variant,) = recorded.variants([one], HOPPER)
        assert variant.entry == "product_row_sums"
        given = {"target": target[:, None], "b": b}
        planned = plan(pass_of(op.of_part.whole, x, w, given, HOPPER), HOPPER)
        assert variant.key == planned.variants[0].key
        assert not recorded.variants([one], Target.named("sm_100"))
        assert not variants([one], HOPPER), "which a loss of whole logits would need"

    @pytest.mark.thorough
    def test_a_gradient_between_products(self, lines):
        op = fo.MLP(OPS["block"].hidden, BLOCK.store)
        tensors = learning(given(op, HALF, **SIZES[BLOCK]))
        for _ in "xy":
            step(op, tensors)
        (one,) = [each for each in lines() if each.wanted]
        assert not one.backward
        assert one.factors == {"x": "float16:1024,64", "w": "float16:64,2112"}
        assert one.wanted == ("b1", "x")
        assert str(Signature.parse(str(one))) == str(one)
        training, sums, evaluation = recorded.variants([one], HOPPER)
        entries = [each.entry for each in (training, sums, evaluation)]
        assert entries == ["product_gradient", "sums", "product_gradient"]
        assert "Dropout<" in training.source
        assert "Dropout<" not in evaluation.source
        assert not recorded.variants([one], Target.named("sm_100"))
        assert variants([one], HOPPER), "what two kernels need"

    @pytest.mark.parametrize("kind", ["layer", "block"])
    def test_what_trains_saves_the_product(self, kind, lines):
        op = LAYER if kind == "layer" else BLOCK
        tensors = learning(large(op))
        step(op, tensors) if kind == "block" else call(op, tensors)
        (one,) = [each for each in lines() if not each.wanted]
        assert "Save(name='z'" in one.op
        (variant,) = recorded.variants([one], HOPPER)
        assert variant.entry == "product"

    def test_under_autocast_in_the_dtype_of_the_product(self, lines):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            call(LAYER, large(LAYER, torch.float32))
        (one,) = lines()
        assert one.factors == {"x": f"bfloat16:{ROWS},8", "w": "bfloat16:256,8"}
        (variant,) = recorded.variants([one], HOPPER)
        assert variant.dtype is torch.bfloat16

    def test_a_compiled_call(self, lines, monkeypatch):
        may_be_one(monkeypatch)
        function = torch.compile(lambda x, w, b: LAYER(x, w, b=b), backend="aot_eager")
        with torch.no_grad():
            call(LAYER, large(LAYER), lambda x, w, b: function(x, w, b))
        assert len(lines()) == 1

    def test_what_torch_runs_alone_is_no_kernel(self, lines):
        tensors = large(LAYER)
        with torch.no_grad():
            call(OPS["bias"], tensors)
            call(OPS["empty"], {name: tensors[name] for name in "xw"})
        assert lines() == []

    @pytest.mark.thorough
    def test_what_no_gpu_runs_in_one_kernel(self, lines):
        x, w, b = large(LAYER).values()
        with torch.no_grad():
            LAYER(x[: ROWS // 8], w, b=b)  # too few tiles
            LAYER(x[:, :4].contiguous(), w[:, :4].contiguous(), b=b)  # K is no multiple of 8
            LAYER(x.float(), w.float(), b=b)
        assert not lines()

    @pytest.mark.parametrize(
        ("factors", "said"),
        [({"x": "float16:8,8"}, "x and w"), ({"x": "float16:8,8", "w": "nonsense"}, "DTYPE:SIZES")],
    )
    def test_factors_that_are_none(self, factors, said):
        one = Signature(LAYER.epilogue.text, "float16:8,8", {"b": "float16:8"}, factors=factors)
        with raises(ValueError, said):
            recorded.variants([Signature.parse(str(one))], HOPPER)


@pytest.mark.gpu
def test_recorded_while_it_runs(lines):
    needs_hopper()
    sizes = {"rows": (ROWS,), "n": 256, "k": 64}
    with torch.no_grad():
        call(LAYER, given(LAYER, HALF, "cuda", **sizes))
    assert last_schedule() == "Together"
    (one,) = lines()
    (variant,) = recorded.variants([one], HOPPER)
    assert variant.loaded is not None


#: The words of calls: of a layer, and of queries and keys as k.mT is.
WORDS = ("--operand", f"x=T:{ROWS},8", "--operand", "w=T:256,8", "--operand", "b=T:256")
PAIR = ["--operand", "x=T:4,8,512,64", "--operand", "other=T:4,8,64,512@262144,32768,1,64"]


@pytest.fixture
def declared(tmp_path, monkeypatch):
    """A module with products, in the working directory; the cache."""
    text = (
        "LAYER = fo.Linear(store=[fo.Bias('b'), fo.Softcap('c')])\n"
        "BLOCK = fo.MLP()\n"
        "SCORES = fo.Matmul(store=[fo.Scale('s'), fo.Causal()])\n"
    )
    with declaring(tmp_path, monkeypatch, "of_layers", text) as cache:
        yield cache


class TestBuild:
    @pytest.mark.parametrize(
        ("words", "entry"),
        [
            (["LAYER", *WORDS, "--operand", "c=30.0", "--dtype", "bfloat16"], "_product"),
            (
                ["SCORES", *PAIR, "--operand", "s=0.5", "--dtype", "float16"],
                "matmul_scale_causal_float16_batched_product",
            ),
        ],
        ids=["layer", "scores"],
    )
    def test_a_cache_is_filled(self, words, entry, declared):
        op, *words = words
        words = ["build", f"of_layers:{op}", *words, "--arch", "sm_90", "--no-backward"]
        outcome = CliRunner().invoke(app, words)
        assert outcome.exit_code == 0, outcome.output
        names = sorted(one.name for one in declared.iterdir() if not one.name.startswith("."))
        assert sum(entry in name for name in names) == 1, names
        if op == "LAYER":
            assert len(names) == 2, "and the kernel of two"
            fewer = [word.replace(str(ROWS), "8") for word in words]
            assert "│ 1 │" in re.sub(" +", " ", CliRunner().invoke(app, fewer).output)

    @pytest.mark.parametrize(
        ("words", "part"),
        [
            (["SCORES", *PAIR[:2], "--operand", "s=0.5"], "other=DTYPE:BATCH,K,N"),
            (["LAYER", "--operand", "x=T:8,8", "--operand", "b=T:8"], "'w' is missing"),
            (["LAYER", *WORDS[:4]], "'b', 'c' are missing"),
            (["LAYER", *WORDS, "--dim", "0"], "no option of Linear"),
            (["LAYER", *WORDS, "--lengths", "64"], "a Linear has none"),
            (["BLOCK", *WORDS], "a row op, Linear or Matmul"),
        ],
    )
    def test_what_is_not_built(self, declared, words, part):
        outcome = CliRunner().invoke(app, ["build", f"of_layers:{words[0]}", *words[1:]])
        assert outcome.exit_code == 2
        assert part in " ".join(re.sub(r"[│╭╮╰╯─]", " ", outcome.output).split())
