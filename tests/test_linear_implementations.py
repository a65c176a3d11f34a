# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""One kernel for a Linear where torch compiles, under autocast, built ahead and as tuned."""

import re
import sys

import pytest
import torch
from captured import target_of
from cases import raises, randn, same_bits
from test_linear_fused import HOPPER, STORES, chosen, gelu, needs_hopper
from test_tuning import HERE, TARGET
from test_tuning_mlp import as_if_timed
from torch._dynamo.backends.debugging import aot_eager
from torch._inductor.compile_fx import compile_fx
from torch.nn import functional
from typer.testing import CliRunner

import fusedops as fo
from fusedops.cli import app
from fusedops.functors import AddedBias
from fusedops.generate import tuned
from fusedops.plan.planner import plan
from fusedops.prebuild.recording import Signature
from fusedops.product import choice as choices
from fusedops.product import recorded, torch_op
from fusedops.product.product_kernel import Product
from fusedops.schedule import lookup
from fusedops.schedule.launch import IMPLEMENTATIONS, ProductConfig
from fusedops.testing import force_launch, last_schedule
from fusedops.tuning import product, tuner

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

LAYER = fo.Linear(store=STORES["gelu"])
HALF = torch.float16

#: The fewest rows of which each cluster of an H200 has a tile, where there are 256 columns.
ROWS = 66 * 256

#: So few that two kernels are faster, and twice as many, too.
FEW = ROWS // 8


def given(device="cpu", rows=12, n=24, k=16, dtype=HALF):
    x = randn(rows, k, dtype=dtype, device=device, seed=1)
    w = torch.nn.Parameter(randn(n, k, dtype=dtype, device=device, seed=2) * k**-0.5)
    return x, w, randn(n, dtype=dtype, device=device, seed=3)


def call(x, w, b, **options):
    return LAYER(x, w, b=b, **options)


class TestCompiled:
    @pytest.fixture(autouse=True)
    def may_be_one(self, monkeypatch):
        """As on a GPU where one kernel may be chosen for some sizes."""

        def asked(store, dtype, device, reads, writes, draws, n, k):
            assert (n, k) in ((None, None), (24, 16))
            return writes == 0

        asked._dynamo_marked_constant = True
        monkeypatch.setattr(torch_op, "_may_be_one", asked)
        torch._dynamo.reset()

    def nodes(self, function, *arguments):
        """What the graph calls, and its result."""
        seen = []

        def backend(module, inputs):
            seen.append([target_of(n) for n in module.graph.nodes if n.op == "call_function"])
            return module

        got = torch.compile(function, backend=backend, fullgraph=True)(*arguments)
        (found,) = seen
        return [name for name in found if "getitem" not in name], got

    def test_a_graph_holds_one_operator(self, device):
        x, w, b = given(device)
        with torch.no_grad():
            names, got = self.nodes(call, x, w, b)
            assert same_bits(got, call(x, w, b))
        assert names == ["fusedops.forward of Linear"]

    def test_any_batch_runs_the_graph(self, device):
        graphs = []

        def backend(module, inputs):
            graphs.append(module)
            return aot_eager(module, inputs)

        _, w, b = given(device)
        compiled = torch.compile(call, backend=backend, fullgraph=True)
        with torch.no_grad():
            for rows in (12, 5, 7, 300):
                x, _, _ = given(device, rows)
                assert same_bits(compiled(x, w, b), call(x, w, b))
        assert len(graphs) == 2  # of one batch, and of any

    @pytest.mark.thorough
    def test_inductor_calls_it_at_once(self, device):
        """Compiled code of Inductor's has the results of the eager call."""
        x, w, b = given(device)
        with torch.no_grad():
            got = torch.compile(call, fullgraph=True)(x, w, b)
            assert same_bits(got, call(x, w, b))

    def test_under_autocast(self, device):
        x, w, b = given(device, dtype=torch.float32)

        def cast(x, w, b):
            with torch.autocast(device, torch.bfloat16):
                return call(x, w, b)

        with torch.no_grad():
            names, got = self.nodes(cast, x, w, b)
            assert same_bits(got, cast(x, w, b))
        assert got.dtype is torch.bfloat16
        assert "fusedops.forward of Linear" in names

    def test_dtype_numbers_and_further_operands(self, device):
        x, w, b = given(device)
        layer = fo.Linear(store=[fo.Scale("s"), fo.Bias("b"), fo.Gate("g")])
        g = randn(12, 24, dtype=HALF, device=device, seed=6)

        def scaled(x, w, b, g):
            return layer(x, w, b=b, s=0.5, g=g, dtype=torch.float32)

        with torch.no_grad():
            names, got = self.nodes(scaled, x, w, b, g)
            assert same_bits(got, scaled(x, w, b, g))
        assert got.dtype is torch.float32
        assert names == ["fusedops.forward of Linear"]

    @pytest.mark.thorough
    @pytest.mark.parametrize("store", ["gelu", "dropout", "residual", "gelu, dropout"])
    @pytest.mark.parametrize("learning", ["all", "x", "w", "b"])
    def test_training(self, store, learning, device):
        """One operator; values and gradients, masks included, are those of the eager call."""
        stores = {
            "residual": [fo.Bias("b"), fo.Dropout("p"), fo.Residual("r")],
            "gelu, dropout": [fo.Bias("b"), gelu(), fo.Dropout("p")],
        }
        layer = fo.Linear(store=stores[store] if store in stores else STORES[store])
        drawn = {"generator": (5, 64)} if layer.dropouts else {}

        def called(x, w, b, r):
            operands = {"b": b, "p": 0.5, "r": r}
            return layer(x, w, **{name: operands[name] for name in layer.slots}, **drawn)

        results = []
        for compiles in (False, True):
            x, w, b = given(device)
            r = randn(12, 24, dtype=HALF, device=device, seed=5)
            leaves = {"x": x, "w": w.detach(), "b": b, "r": r}
            for name, one in leaves.items():
                one.requires_grad_(learning in ("all", name))
            if compiles:
                names, y = self.nodes(called, *leaves.values())
                assert "fusedops.forward of Linear" in names
                assert "fusedops.forward of Map" not in names
                torch._dynamo.reset()
                y = torch.compile(called, backend="aot_eager", fullgraph=True)(*leaves.values())
            else:
                y = called(*leaves.values())
            wanted = [one for one in leaves.values() if one.requires_grad]
            upstream = randn(*y.shape, dtype=y.dtype, device=device, seed=9)
            found = torch.autograd.grad(y, wanted, upstream, allow_unused=True)
            results.append([y.detach(), *found])
        assert len(results[0]) == len(results[1]) > 1
        for one, other in zip(*results, strict=True):
            assert one is other is None or same_bits(one, other)

    def test_dropouts_draw_as_torch_seeds_them(self, device):
        x, w, b = given(device)
        layer = fo.Linear(store=STORES["dropout"])

        def dropped(x, w, b):
            return layer(x, w, b=b, p=0.5)

        compiled = torch.compile(dropped, backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            torch.manual_seed(3)
            first, second = compiled(x, w, b), compiled(x, w, b)
            torch.manual_seed(3)
            assert same_bits(compiled(x, w, b), first)
        assert not same_bits(first, second)
        assert 0.3 < (first == 0).float().mean() < 0.7

    @pytest.mark.thorough
    @pytest.mark.parametrize("why", ["float32", "stream"])
    def test_two_kernels_are_compiled_as_before(self, why, device):
        x, w, b = given(device, dtype=torch.float32 if why == "float32" else HALF)
        layer = fo.Linear(store=STORES["saving" if why == "stream" else "gelu"])
        operands = {"b": b, "p": 0.5, "r": randn(12, 24, dtype=x.dtype, device=device, seed=5)}
        operands = {name: operands[name] for name in layer.slots}
        with torch.no_grad():
            names, _ = self.nodes(lambda x, w: layer(x, w, **operands), x, w)
        assert "fusedops.forward of Linear" not in names
        assert "fusedops.forward of Map" in names

    def test_a_dropout_that_does_not_act_is_no_hindrance(self, device):
        x, w, b = given(device)
        layer = fo.Linear(store=STORES["dropout"])

        def still(x, w, b):
            return layer(x, w, b=b, p=0.5, training=False)

        with torch.no_grad():
            names, got = self.nodes(still, x, w, b)
            assert same_bits(got, still(x, w, b))
        assert names == ["fusedops.forward of Linear"]

    @pytest.mark.parametrize("generator", [None, (5, 64)])
    def test_a_dropout_draws_what_it_draws_in_an_eager_call(self, generator, device):
        x, w, b = given(device)
        layer = fo.Linear(store=STORES["dropout"])

        def dropped(x, w, b):
            return layer(x, w, b=b, p=0.5, generator=generator)

        results = []
        with torch.no_grad():
            for run in (lambda *a: self.nodes(dropped, *a)[1], dropped):
                torch.manual_seed(7)
                results.append(run(x, w, b))
            names, _ = self.nodes(dropped, x, w, b)
        assert same_bits(*results)
        assert names[-1] == "fusedops.forward of Linear"
        assert sum("fusedops.draw" in name for name in names) == (generator is None)

    def test_an_exported_program_holds_two(self, device):
        class Module(torch.nn.Module):
            def __init__(self, w, b):
                super().__init__()
                self.w, self.b = w, torch.nn.Buffer(b)

            def forward(self, x):
                return call(x, self.w, self.b)

        x, w, b = given(device)
        with torch.no_grad():
            program = torch.export.export(Module(w, b), (x,))
            assert same_bits(program.module()(x), call(x, w, b))
        assert "fusedops.forward" in str(program.graph)
        assert "Linear(" not in str(program.graph)

    def test_what_the_operator_refuses(self):
        x, w, b = given()

        def run(x, keep=False):
            rest = [], None, None, LAYER.text, [1], HALF, keep
            return torch.ops.fusedops.forward(x, [w, b], ["w", "b"], *rest)

        leaf = x.clone().requires_grad_()
        (y,) = run(leaf)
        with raises(fo.UnsupportedError, "no gradient was wanted"):
            y.sum().backward()
        with pytest.raises(fo.UnsupportedError, match=r"Linear: .* reads the product"):
            run(leaf, True)
        with raises(fo.UnsupportedError, "vmap"), torch.no_grad():
            torch.func.vmap(run)(x[None])

    def test_a_layer_that_is_gone_is_made_again(self):
        x, w, b = given()
        text = LAYER.text.replace("Bias(bias='b')", "Bias(bias='other')")
        rest = [], None, None, text, [1], HALF, False
        (y,) = torch.ops.fusedops.forward(x, [w.detach(), b], ["w", "other"], *rest)
        assert same_bits(y, call(x, w.detach(), b))


def test_where_one_kernel_may_be_compiled(monkeypatch):
    """By what is known as code is compiled; a file that was tuned counts."""
    monkeypatch.setattr(torch_op.Target, "of", classmethod(lambda cls, device: HOPPER))
    device = torch.device("cuda", 0)
    known = (LAYER.epilogue.text, HALF, device)
    assert torch_op._may_be_one(*known, 0, 0, False)
    assert torch_op._may_be_one(*known, 1, 0, True), "of several dimensions, and perhaps no larger"
    assert torch_op._may_be_one(*known, 0, 0, False, 1024, 4096)
    for n, k in ((1024, 8192), (1024, 1004), (1004, 1024)):
        assert not torch_op._may_be_one(*known, 0, 0, False, n, k)
    assert not torch_op._may_be_one(*known[:2], torch.device("cpu"), 0, 0, False)
    with force_launch(product=ProductConfig("two_kernels")):
        assert not torch_op._may_be_one(*known, 0, 0, False)
    monkeypatch.setattr(torch_op.Target, "of", classmethod(lambda cls, d: HOPPER.named("sm_100")))
    assert not torch_op._may_be_one(*known, 0, 0, False)


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_factors_under_autocast(x_dtype, device):
    """They are what torch's product would multiply, without a gradient and with one."""
    x, w, _ = given(device, dtype=torch.float32)
    x = x.to(x_dtype)
    for learns in (False, True):
        with torch.autocast(device, torch.bfloat16), torch.set_grad_enabled(learns):
            factors = choices.as_multiplied(x, w)
            want = functional.linear(x, w)
        assert [one.dtype for one in factors] == [torch.bfloat16] * 2
        assert same_bits(functional.linear(*factors), want)
        assert factors[1].requires_grad or not learns


class TestRecorded:
    @pytest.fixture
    def lines(self, tmp_path, monkeypatch):
        """The calls of layers that have been recorded."""
        file = tmp_path / "calls.jsonl"
        monkeypatch.setenv("FUSEDOPS_RECORD", str(file))
        monkeypatch.setattr("fusedops.prebuild.recording._seen", set())

        def read():
            text = file.read_text() if file.exists() else ""
            every = [Signature.parse(line) for line in text.splitlines()]
            return [one for one in every if one.factors]

        return read

    def built(self, signatures, target=HOPPER):
        return recorded.variants(signatures, target)

    def test_what_torch_runs_alone_is_no_kernel(self, lines):
        x, w, b = given(rows=ROWS, n=256, k=8)
        with torch.no_grad():
            fo.Linear([fo.Bias("b")])(x, w, b=b)
            fo.Linear()(x, w)
        assert lines() == []

    @pytest.mark.thorough
    def test_a_run_on_a_cpu_names_the_kernel_of_a_gpu(self, lines):
        x, w, b = given(rows=ROWS, n=256, k=8)
        with torch.no_grad():
            call(x, w, b)
            call(x, w, b)
        (one,) = lines()
        assert one.x == f"float16:{ROWS},256"
        assert one.factors == {"x": f"float16:{ROWS},8", "w": "float16:256,8"}
        assert str(Signature.parse(str(one))) == str(one)
        (variant,) = self.built([one])
        epilogue = LAYER.that_adds(w, {"b": b}).epilogue
        tiling = choices.chosen(epilogue, x, w, {"b": b}, HOPPER).tiling
        bound = epilogue.bind(x.new_empty(ROWS, 256), {"b": b})
        (want,) = plan(Product(bound, x, w, tiling), HOPPER).variants
        assert (variant.arch, variant.key, variant.source) == ("sm_90a", want.key, want.source)
        for other in ("sm_80", "sm_100", "x86-64-v3"):
            assert not self.built([one], HOPPER.named(other))

    def test_under_autocast_in_the_dtype_of_the_product(self, lines):
        x, w, b = given(rows=ROWS, n=256, k=8, dtype=torch.float32)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            call(x, w, b)
        (one,) = lines()
        assert one.factors == {"x": f"bfloat16:{ROWS},8", "w": "bfloat16:256,8"}
        (variant,) = self.built([one])
        assert variant.dtype is torch.bfloat16

    def test_compiled_calls_are_recorded(self, lines, monkeypatch):
        def asked(*known):
            return True

        asked._dynamo_marked_constant = True
        monkeypatch.setattr(torch_op, "_may_be_one", asked)
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(call, backend="aot_eager")(*given(rows=ROWS, n=256, k=8))
        assert len(lines()) == 1

    def test_what_trains_saves_the_product(self, lines):
        call(*given(rows=ROWS, n=256, k=8))  # of a parameter
        (one,) = lines()
        assert "Save(name='z'" in one.op
        (variant,) = self.built([one])
        assert variant.entry == "product"

    @pytest.mark.thorough
    def test_what_no_gpu_runs_in_one_kernel(self, lines):
        x, w, b = given(rows=ROWS, n=256, k=8)
        with torch.no_grad():
            call(x[:FEW], w, b)  # too few tiles
            call(x[:, :4].contiguous(), w[:, :4].contiguous(), b)  # K is no multiple of 8
            call(x.float(), w.float(), b)
        assert not lines()

    @pytest.mark.parametrize(
        ("factors", "said"),
        [({"x": "float16:8,8"}, "x and w"), ({"x": "float16:8,8", "w": "nonsense"}, "DTYPE:SIZES")],
    )
    def test_factors_that_are_none(self, factors, said):
        one = Signature(LAYER.epilogue.text, "float16:8,8", {"b": "float16:8"}, factors=factors)
        with raises(ValueError, said):
            self.built([Signature.parse(str(one))])


WORDS = ("--operand", f"x=T:{ROWS},8", "--operand", "w=T:256,8", "--operand", "b=T:256")


@pytest.fixture
def declared(tmp_path, monkeypatch):
    """A module with layers, in the working directory; the cache."""
    (tmp_path / "of_layers.py").write_text(
        "import fusedops as fo\n"
        "LAYER = fo.Linear(store=[fo.Bias('b'), fo.Softcap('c')])\n"
        "HEAVY = fo.Linear(store=[fo.Bias('b'), fo.Residual('r')])\n"
        "LIGHT = fo.Linear(store=[fo.Bias('b'), fo.Scale('s')])\n"
        "BLOCK = fo.MLP()\n"
        "SCORES = fo.Matmul(store=[fo.Scale('s'), fo.Causal()])\n"
    )
    monkeypatch.delitem(sys.modules, "of_layers", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")

    def forget():
        tuned.find.cache_clear()
        lookup.forget()

    forget()
    yield tmp_path / "cache"
    forget()


def said(outcome):
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", outcome.output).split())


def test_a_cache_is_filled_with_it(declared):
    words = ["build", "of_layers:LAYER", *WORDS, "--operand", "c=30.0"]
    words += ["--dtype", "bfloat16", "--arch", "sm_90", "--no-backward"]
    outcome = CliRunner().invoke(app, words)
    assert outcome.exit_code == 0, outcome.output
    names = sorted(entry.name for entry in declared.iterdir() if not entry.name.startswith("."))
    assert sum("product" in name for name in names) == 1, names
    assert len(names) == 2, "and the kernel of two"
    fewer = [word.replace(str(ROWS), "8") for word in words]
    assert "│ 1 │" in re.sub(" +", " ", CliRunner().invoke(app, fewer).output)


#: Queries, and keys as k.mT is.
SCORES = ["--operand", "x=T:4,8,512,64", "--operand", "other=T:4,8,64,512@262144,32768,1,64"]


def test_a_cache_is_filled_with_scores(declared):
    words = ["build", "of_layers:SCORES", *SCORES, "--operand", "s=0.5", "--dtype", "float16"]
    outcome = CliRunner().invoke(app, [*words, "--arch", "sm_90", "--no-backward"])
    assert outcome.exit_code == 0, outcome.output
    names = [entry.name for entry in declared.iterdir()]
    assert sum("matmul_scale_causal_float16_batched_product" in name for name in names) == 1, names


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["of_layers:SCORES", *SCORES[:2], "--operand", "s=0.5"], "other=DTYPE:BATCH,K,N"),
        (["of_layers:LAYER", "--operand", "x=T:8,8", "--operand", "b=T:8"], "'w' is missing"),
        (["of_layers:LAYER", *WORDS[:4]], "'b', 'c' are missing"),
        (["of_layers:LAYER", *WORDS, "--dim", "0"], "no option of Linear"),
        (["of_layers:LAYER", *WORDS, "--lengths", "64"], "a Linear has none"),
        (["of_layers:BLOCK", *WORDS], "a row op, Linear or Matmul"),
    ],
)
def test_what_is_not_built(declared, words, part):
    outcome = CliRunner().invoke(app, ["build", *words])
    assert outcome.exit_code == 2
    assert part in said(outcome)


#: What runs a call of a layer with a bias, of which it has the row.
LIKE = fo.Linear(store=[AddedBias("b"), fo.Residual("r")])


class TestTuned:
    @pytest.fixture
    def gpu(self, monkeypatch):
        """A GPU on which times are as given, by implementation; nothing runs on it."""
        seconds = {"two_kernels": 3e-4, "Together": 2e-4, "InTurns": 2.5e-4}
        as_if_timed(monkeypatch, lambda problem, config: seconds[config.implementation])
        return seconds

    def tune(self, *words, op="of_layers:HEAVY", rows=ROWS):
        given = [word.replace(str(ROWS), str(rows)) for word in (*WORDS, *words)]
        return CliRunner().invoke(app, ["tune", op, "--dtype", "float16", *given])

    def test_what_is_faster_is_kept_and_used(self, declared, gpu):
        operands = {"b": (256,), "r": (FEW, 256)}
        assert chosen(LIKE, FEW, 256, 8, TARGET, **operands)[0] is None
        outcome = self.tune("--operand", f"r=T:{FEW},256", rows=FEW)
        assert outcome.exit_code == 0, outcome.output
        for part in (
            "300.0 us",
            "200.0 us",
            "1.500",
            "implementation two_kernels -> Together",
            "kept in",
        ):
            assert part in said(outcome)
        tuned.find.cache_clear()
        lookup.forget()
        name, why = chosen(LIKE, FEW, 256, 8, TARGET, **operands)
        assert name == "Together"
        assert f"tuned on this device, from {declared}" in why
        # Neither another size, dtype, store or machine.
        more = {"b": (256,), "r": (2 * FEW, 256)}
        assert chosen(LIKE, 2 * FEW, 256, 8, TARGET, **more)[0] is None
        assert chosen(LIKE, FEW, 256, 8, TARGET, torch.bfloat16, **operands)[0] is None
        assert chosen(LIKE, FEW, 256, 8, HOPPER, **operands)[0] is None
        other = fo.Linear(store=[AddedBias("b"), fo.Residual("r", 0.5)])
        assert chosen(other, FEW, 256, 8, TARGET, **operands)[0] is None
        assert "nothing is faster" in said(self.tune("--operand", f"r=T:{FEW},256", rows=FEW))
        # A graph may hold it then, and a kernel is not looked for where it cannot be chosen.
        known = {"store": LIKE.epilogue.text, "writes": 0, "draws": False, "dtype": "float16"}
        known["wave_percent"] = 100 * 9 // 66
        assert "Together" in lookup.product_implementations("sm_90", HERE, reads=1, **known)
        known["store"] = other.epilogue.text
        assert lookup.product_implementations("sm_90", HERE, reads=1, **known) == {"two_kernels"}

    def test_of_scores(self, declared, gpu):
        gpu.update(two_kernels=1e-4)
        words = ["tune", "of_layers:SCORES", *SCORES, "--operand", "s=0.5", "--dtype", "float16"]
        outcome = CliRunner().invoke(app, words)
        assert outcome.exit_code == 0, outcome.output
        assert "implementation Together -> two_kernels" in said(outcome)
        lookup.forget()
        op = fo.Matmul(store=[fo.Scale("s"), fo.Causal()])
        x, w = (torch.empty(4, 8, 512, 64, dtype=HALF, device="meta") for _ in "xw")
        choice = choices.chosen(op.epilogue, x, w, {"s": 0.5}, TARGET)
        assert choice.tiling is None
        assert "tuned on this device" in choice.why
        assert choices.chosen(op.epilogue, x[1:], w[1:], {"s": 0.5}, TARGET).tiling is not None

    def test_one_kernel_may_lose(self, declared, gpu):
        gpu.update(two_kernels=1e-4)
        outcome = self.tune("--operand", "s=2.0", op="of_layers:LIGHT")
        assert "implementation Together -> two_kernels" in said(outcome)
        lookup.forget()
        light = fo.Linear(store=[AddedBias("b"), fo.Scale("s")])
        name, why = chosen(light, ROWS, 256, 8, TARGET, b=(256,), s=2.0)
        assert name is None
        assert "not faster (tuned on this device" in why

    def test_what_is_wrong_is_not_taken(self, declared, gpu):
        gpu.update(Together="wrong")
        outcome = self.tune("--operand", f"r=T:{FEW},256", rows=FEW)
        assert "two_kernels -> InTurns" in said(outcome)

    def test_what_is_refused(self, declared, gpu):
        gpu.update(two_kernels="wrong")
        outcome = self.tune("--operand", f"r=T:{FEW},256", rows=FEW)
        assert outcome.exit_code == 2
        assert "the product is wrong as it is" in said(outcome)
        outcome = self.tune("--no-forward", "--operand", "s=2.0", op="of_layers:LIGHT")
        assert "nothing to tune with --no-forward: of a Linear" in said(outcome)

    @pytest.mark.gpu
    @pytest.mark.parametrize("store", ["gelu", "saving"])
    def test_on_a_gpu(self, store, declared):
        needs_hopper()
        op = fo.Linear(store=STORES[store])
        shapes = {"x": (ROWS, 64), "w": (256, 64)}
        factors = {name: torch.empty(s, dtype=HALF, device="meta") for name, s in shapes.items()}
        of = {"b": (256,), "r": (ROWS, 256)}
        operands = {k: torch.empty(of[k], dtype=HALF, device="meta") for k in op.slots if k in of}
        operands |= {"p": 0.1} if "p" in op.slots else {}
        device = torch.device("cuda", torch.cuda.current_device())
        bound = choices.bind_store(op.epilogue, *factors.values(), operands)
        problem = product.of_product(op, bound, factors, device, {})
        for implementation in IMPLEMENTATIONS:
            problem.check(ProductConfig(implementation))
            assert 0 < problem.seconds(ProductConfig(implementation)) < 1e-2
        found = tuner.tune(problem)
        assert len(found.outcome.tried) == len(IMPLEMENTATIONS)
        assert all(one.seconds for one in found.outcome.tried)


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def hopper(self):
        needs_hopper()
        torch._dynamo.reset()

    def test_compiled(self):
        """Inductor's code and eager calls run one kernel, and two for few rows, by one graph."""
        _, w, b = given("cuda", n=256, k=64)
        graphs = []

        def backend(module, inputs):
            graphs.append(module)
            return compile_fx(module, inputs)

        compiled = torch.compile(call, backend=backend, fullgraph=True, dynamic=True)
        with torch.no_grad():
            for rows, one in ((ROWS, True), (2 * ROWS, True), (64, False)):
                x, _, _ = given("cuda", rows, 256, 64)
                got = compiled(x, w, b)
                assert (last_schedule() == "Together") is one
                assert same_bits(got, call(x, w, b))
                assert (last_schedule() == "Together") is one
        assert len(graphs) == 1

    @pytest.mark.parametrize("compiles", [False, True])
    def test_under_autocast(self, compiles):
        x, w, b = given("cuda", ROWS, 256, 64, torch.float32)
        run = torch.compile(call, fullgraph=True) if compiles else call
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            got = run(x, w, b)
            assert last_schedule() == "Together"
            assert "one kernel" in LAYER.explain(x, w, b=b).implementation
        with torch.no_grad():
            want = call(x.bfloat16(), w.bfloat16(), b.bfloat16())
        assert got.dtype is torch.bfloat16
        assert same_bits(got, want)

    def test_training_compiled(self):
        """Inductor's code trains by one kernel, to the bit as eager calls do."""
        layer = fo.Linear(store=[fo.Bias("b"), gelu(), fo.Dropout("p")])

        def called(x, w, b):
            return layer(x, w, b=b, p=0.5, generator=(5, 64))

        results = []
        for run in (called, torch.compile(called, fullgraph=True)):
            leaves = [one.detach().requires_grad_() for one in given("cuda", ROWS, 256, 64)]
            y = run(*leaves)
            assert last_schedule() == "Together"
            upstream = randn(*y.shape, dtype=y.dtype, device="cuda", seed=9)
            results.append([y.detach(), *torch.autograd.grad(y, leaves, upstream)])
        assert all(same_bits(one, other) for one, other in zip(*results, strict=True))

    def test_a_dropout_in_compiled_code(self):
        """One kernel draws there, from memory, the elements that an eager call draws."""
        layer = fo.Linear(store=STORES["dropout"])
        x, w, b = given("cuda", ROWS, 256, 64)

        def dropped(x, w, b):
            return layer(x, w, b=b, p=0.5)

        results = []
        with torch.no_grad():
            for run in (torch.compile(dropped, fullgraph=True), dropped):
                torch.manual_seed(7)
                results.append(run(x, w, b))
                assert last_schedule() == "Together"
        assert same_bits(*results)

    def test_autocast_casts_a_parameter_once(self):
        _, w, _ = given("cuda", dtype=torch.float32)
        x = torch.zeros(8, 16, dtype=torch.bfloat16, device="cuda")
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            first, second = (choices.as_multiplied(x, w)[1] for _ in range(2))
        assert first.data_ptr() == second.data_ptr()

    def test_gradients_under_autocast(self):
        leaves = []
        for implementation in ("two_kernels", "Together"):
            x, w, b = given("cuda", ROWS, 256, 64, torch.float32)
            for one in (x, w, b):  # so that sums are exact, in whatever order
                one.data = (one.data * 8).round() / 8
            with force_launch(product=ProductConfig(implementation)):
                with torch.autocast("cuda", torch.bfloat16):
                    y = call(x, w, b)
                y.float().square().sum().backward()
            leaves.append(w.grad)
        assert same_bits(*leaves)

    def test_recorded_while_it_runs(self, tmp_path, monkeypatch):
        monkeypatch.setenv("FUSEDOPS_RECORD", str(tmp_path / "calls.jsonl"))
        monkeypatch.setattr("fusedops.prebuild.recording._seen", set())
        LAYER.clear()  # a call is recorded where it is planned
        with torch.no_grad():
            call(*given("cuda", ROWS, 256, 64))
        assert last_schedule() == "Together"
        (line,) = (tmp_path / "calls.jsonl").read_text().splitlines()
        (variant,) = recorded.variants([Signature.parse(line)], HOPPER)
        assert variant.loaded is not None
