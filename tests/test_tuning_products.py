# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning products: of one, of the layers of an MLP and the gradient between, checked and kept."""

import re
import sys
import types

import pytest
import torch
from cases import raises, randn
from products import (
    HALF,
    HOPPER,
    PAIRS,
    SCORES,
    STORES,
    declaring,
    gelu,
    needs_hopper,
    recording,
)
from products import given as given_to
from test_product_kernels import chosen
from test_tuning import HERE, TARGET
from typer.testing import CliRunner

import fusedops as fo
from fusedops.cli import app
from fusedops.commands import words
from fusedops.generate import tuned
from fusedops.generate.target import Target
from fusedops.product import choice as choices
from fusedops.product import product_backward, torch_op_mlp
from fusedops.product.product_backward import ProductBackward
from fusedops.product.single import SingleProduct
from fusedops.schedule import lookup, override
from fusedops.schedule.launch import IMPLEMENTATIONS, ProductConfig
from fusedops.testing import last_schedule
from fusedops.tuning import clock, parts, product, tuner
from fusedops.tuning.problem import Problem
from fusedops.tuning.search import Outcome

TWO, TOGETHER, TOGETHER_192, IN_TURNS, FEW_ROWS = (ProductConfig(one) for one in IMPLEMENTATIONS)

BLOCKS = {
    "gelu": fo.MLP(hidden=[fo.Bias("b1"), gelu()], store=[fo.Bias("b2"), fo.Residual("r")]),
    "dropout": fo.MLP(
        hidden=[fo.Bias("b1"), gelu(), fo.Dropout("p")], store=[fo.Bias("b2"), fo.Dropout("p")]
    ),
    "gate": fo.MLP(hidden=[fo.Scale("s"), gelu(), fo.Scale("g")], store=[fo.Scale("two")]),
}
LAYERS = ["first layer", "second layer"]
KEEPING, GRADIENT = "first layer, keeping its product", "gradient between the products"
EVERY = [*LAYERS, KEEPING, GRADIENT]


def said_by(outcome):
    """What a command has printed, on one line."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", outcome.output).split())


def case(op, device="meta", rows=(3, 40), k=24, h=40, n=16, dtype=HALF):
    """The factors and operands of a call."""

    def made(*shape, of=dtype):
        if device == "meta" or of is torch.bool:
            return torch.zeros(shape, dtype=of, device=device)
        return randn(*shape, dtype=of, device=device, seed=sum(shape))

    factors = [made(*rows, k), made(h, k), made(n, h)]
    if device != "meta":
        for one in factors[1:]:
            one *= one.shape[1] ** -0.5
    operands = {
        "b1": made(h),
        "b2": made(n),
        "s": made(h, of=torch.float32),
        "g": made(*rows, h),
        "m": made(h, of=torch.bool),
        "r": made(*rows, n),
        "p": 0.25,
        "two": 2.0,
    }
    return factors, {name: operands[name] for name in op.slots}


def problems(op, factors, arguments, device):
    """The problem of each part of a call, by its name."""
    device = torch.device(device)
    return {one.name: one.problem(device=device) for one in parts.of_mlp(op, factors, arguments)}


def as_if_on_a_gpu(monkeypatch):
    """One kernel may multiply; tensors have no memory, and nothing runs."""
    monkeypatch.setattr(Target, "of", classmethod(lambda cls, device: TARGET))
    monkeypatch.setattr(product, "filled", lambda values, columns, device: dict(values))
    monkeypatch.setattr(product, "compare_forward", lambda *given: None)
    monkeypatch.setattr(product, "compare_backward", lambda *given: None)


def as_if_timed(monkeypatch, seconds):
    """A GPU on which times are as given, of a problem and a configuration, or "wrong"."""
    as_if_on_a_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    checked = set()

    def check(problem, config):
        checked.add((problem, config))
        assert seconds(problem, config) != "wrong"

    def timed(problem, config):
        assert (problem, config) in checked, "timed before it was checked"
        return seconds(problem, config)

    monkeypatch.setattr(Problem, "check", check)
    monkeypatch.setattr(Problem, "seconds", timed)


@pytest.fixture
def asked(monkeypatch):
    """The features by which calls have asked what runs them; it is two kernels."""
    found = []

    def of_layer(self, x, w, arguments):
        found.append(choices.features_of(self.epilogue, x, w, arguments, TARGET))
        return False

    def of_gradient(self, dy, w, z, arguments):
        found.append(product_backward.features_of(self._epilogue, dy, w, arguments, TARGET))

    monkeypatch.setattr(SingleProduct, "fuses", of_layer)
    for op in BLOCKS.values():  # what runs a call is chosen once
        for one in (op, *op.layers):
            one.clear()
    monkeypatch.setattr(ProductBackward, "__call__", of_gradient)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_row_is_written_for_what_a_call_asks(block, training, asked, monkeypatch):
    op = BLOCKS[block]
    factors, operands = case(op, "cpu")
    with torch.no_grad():
        op(*factors, **operands, training=training)
    op(*(one.requires_grad_() for one in factors), **operands, training=training).sum().backward()
    as_if_on_a_gpu(monkeypatch)
    factors, operands = case(op)
    found = problems(op, factors, {**operands, "training": training}, "cuda")
    assert [*found] == EVERY
    assert [one.kernel.features for one in found.values()] == asked
    first, _, keeping, gradient = asked
    assert keeping.writes == first.writes + 1
    assert "Save(name='z'" in keeping.store
    assert gradient.store == f"gradient of {first.store}"
    assert (gradient.rows, gradient.columns, gradient.depth) == (120, 40, 16)
    assert gradient.draws is (block == "dropout" and training)


def test_what_cannot_run_a_call_is_not_tried(monkeypatch):
    """A kernel for few rows has one product, and no gradient, nor has a tile of 192 columns."""
    as_if_on_a_gpu(monkeypatch)
    op = BLOCKS["gelu"]
    large = {"rows": (66 * 256,), "k": 256, "h": 264, "n": 264}
    names = {
        part: one.kernel.names for part, one in problems(op, *case(op, **large), "cuda").items()
    }
    several = tuple(one for one in IMPLEMENTATIONS if one != "FewRows")
    of_gradient = tuple(one for one in several if one != "Together192")
    assert names == {part: of_gradient if part == GRADIENT else IMPLEMENTATIONS for part in EVERY}
    op, pair = fo.Matmul([fo.Scale("s")]), {"pair": PAIRS["plain"]}
    tensors = given_to(op, HALF, **pair)
    factors = {"x": tensors.pop("x"), "w": op.turned(tensors.pop("other"))}
    bound = choices.bind_store(op.epilogue, *factors.values(), tensors)
    problem = product.of_product(op, bound, factors, torch.device("cuda"), {})
    assert problem.kernel.names == several


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """A file in which calls are recorded."""
    return recording(monkeypatch, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("block", BLOCKS)
def test_a_row_is_written_for_what_a_recorded_call_asked(block, asked, calls, monkeypatch):
    op = BLOCKS[block]
    factors, operands = case(op, "cpu", rows=(1024,), k=8, h=2112, n=64)
    op(*(one.requires_grad_() for one in factors), **operands).sum().backward()
    lines = words.recorded([calls], [])
    as_if_on_a_gpu(monkeypatch)
    keeping, gradient = parts.of_recorded(lines)
    found = [one.problem(device=torch.device("cuda")) for one in (keeping, gradient)]
    assert [one.kernel.features for one in found] == asked
    assert keeping.problem.args[0] == op.layers[0].that_adds(factors[1], operands), (
        "two kernels are those of a call that keeps it"
    )
    assert found[1].name == "MLP"
    for kind in ("forward", "backward"):
        assert len(parts.of_recorded(lines, **{kind: False})) == 1


def test_a_recorded_call_without_a_gradient(asked, calls, monkeypatch):
    op = fo.Matmul(store=[fo.Scale("s"), fo.Causal()])
    given = [randn(4, *size, dtype=HALF) for size in ((1152, 64), (64, 1152))]
    op(*given, s=0.5, training=False)
    as_if_on_a_gpu(monkeypatch)
    (part,) = parts.of_recorded(words.recorded([calls], []))
    assert [part.problem(device=torch.device("cuda")).kernel.features] == asked
    assert part.problem.args[0] == op


@pytest.fixture
def on_cpu_as_if(monkeypatch):
    """Calls run on the CPU, which has two kernels alone, as if it were a GPU; what was timed."""
    monkeypatch.setattr(product, "Target", types.SimpleNamespace(of=lambda device: TARGET))
    monkeypatch.setattr(clock, "sets", lambda size: 2)
    timed = []

    def seconds(calls):
        timed.append((override.current().product, [call() for call in calls]))
        return 1e-6

    for name in ("graph_seconds", "queue_seconds"):
        monkeypatch.setattr(clock, name, seconds)
    return timed


@pytest.mark.thorough
@pytest.mark.parametrize("block", BLOCKS)
def test_every_part_runs_and_is_checked(block, on_cpu_as_if):
    op = BLOCKS[block]
    factors, operands = case(op)
    for problem in problems(op, factors, operands, "cpu").values():
        problem.check(TWO)
        assert problem.seconds(TWO) == 1e-6
        forced, results = on_cpu_as_if.pop()
        assert forced == TWO
        assert len(results) == 2
        with pytest.raises(fo.UnsupportedError, match="Together does not run this call: one"):
            problem.check(TOGETHER)
    *of_operands, of_z = results[0]  # the gradients of all but w2 are timed
    own = [operands[name] for name in op.epilogues[0].slots]
    assert of_z.shape == (3, 40, 40)
    assert len(of_operands) == sum(isinstance(one, torch.Tensor) for one in own)


def test_a_gradient_that_is_wrong_is_seen(on_cpu_as_if):
    """In each of the results, that of w2 among them, of which h shows."""
    op = BLOCKS["gate"]
    factors, operands = case(op)
    problem = problems(op, factors, operands, "cpu")[GRADIENT]
    comparison = problem.comparison
    honest = comparison.run
    names = [*honest()]
    assert names == [f"gradient of {name}" for name in ("w2", "g", "s", "z")]
    for name in names:

        def wrong(name=name):
            made = honest()
            made[name] = made[name].clone()
            made[name].flatten()[7] += 0.02 * made[name].float().abs().max()
            return made

        comparison.run = wrong
        with pytest.raises(AssertionError, match=f"^MLP: .*{name}'"):
            problem.check(TWO)


@pytest.mark.thorough
def test_what_is_checked_has_fewer_rows(on_cpu_as_if, monkeypatch):
    monkeypatch.setattr(product, "CHECKED", 1)
    op = BLOCKS["gate"]
    factors, operands = case(op, rows=(4, 1000))
    problem = problems(op, factors, operands, "cpu")[GRADIENT]
    shapes = {name: one.shape for name, one in problem.comparison.run().items()}
    assert shapes["gradient of z"] == shapes["gradient of g"] == (2, 250, 40)
    assert shapes["gradient of w2"] == (16, 40)
    dy = problem.calls()[0].args[3]
    assert dy.shape == (4, 1000, 16)
    problem.check(TWO)


@pytest.mark.parametrize(
    ("hidden", "dtype", "part"),
    [
        ([fo.Bias("b1"), gelu()], torch.float32, "float16 and bfloat16 alone"),
        ([fo.Mask("m"), gelu()], HALF, "mask, save or tap"),
        ([fo.Bias("b1")], HALF, "does not read the product, so h is kept"),
        ([], HALF, "does not read the product, so h is kept"),
        ([gelu(), fo.Residual("g")], HALF, "h follows from 'g', which no gradient reads"),
    ],
)
def test_gradients_that_have_nothing_to_tune(hidden, dtype, part, monkeypatch):
    as_if_on_a_gpu(monkeypatch)
    op = fo.MLP(hidden=hidden)
    factors, operands = case(op, dtype=dtype)
    gradient = parts.of_mlp(op, factors, operands, forward=False)[-1]
    assert gradient.name == GRADIENT
    with raises(fo.UnsupportedError, "MLP: there is nothing to tune", part, "--no-backward"):
        gradient.problem(device=torch.device("cuda"))


def test_what_has_no_derivative_has_no_gradient_to_tune(monkeypatch):
    as_if_on_a_gpu(monkeypatch)
    squared = fo.cpp_functor("squared", forward="v * v")
    op = fo.MLP(hidden=[fo.Bias("b1"), squared()])
    factors, operands = case(op)
    (gradient,) = parts.of_mlp(op, factors, operands, forward=False)
    with raises(fo.UnsupportedError, "MLP: squared() has no derivative"):
        gradient.problem(device=torch.device("cuda"))


def test_another_architecture_has_no_question(monkeypatch):
    as_if_on_a_gpu(monkeypatch)
    monkeypatch.setattr(Target, "of", classmethod(lambda cls, device: Target.named("sm_100")))
    factors, operands = case(BLOCKS["gelu"])
    for part in parts.of_mlp(BLOCKS["gelu"], factors, operands):
        with raises(fo.UnsupportedError, "nothing to tune", "needs sm_90, and this is sm_100"):
            part.problem(device=torch.device("cuda"))


#: The words of a call, and those of the operands that an op may have.
FACTORS = {"x": "x=T:4224,64", "w1": "w1=T:1024,64", "w2": "w2=T:256,1024"}
OPERANDS = {"b1": "b1=T:1024", "c": "c=30.0", "b2": "b2=T:256", "r": "r=T:4224,256"}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A module with products, in the working directory; the cache."""
    text = (
        "HIDDEN = [fo.Bias('b1'), fo.Softcap('c')]\n"
        "BLOCK = fo.MLP(HIDDEN, [fo.Bias('b2'), fo.Residual('r')])\n"
        "BARE = fo.MLP(HIDDEN)\n"
        "PLAIN = fo.MLP([fo.Bias('b1')], [fo.Bias('b2'), fo.Residual('r')])\n"
        "HEAVY = fo.Linear(store=[fo.Bias('b'), fo.Residual('r')])\n"
        "LIGHT = fo.Linear(store=[fo.Bias('b'), fo.Scale('s')])\n"
        "SCORES = fo.Matmul(store=[fo.Scale('s'), fo.Causal()])\n"
    )
    with declaring(tmp_path, monkeypatch, "of_blocks", text) as cache:
        yield cache


@pytest.fixture
def gpu(cache, monkeypatch):
    """A GPU on which times are as given, by implementation, of layers and of gradients."""
    times = {
        "layer": {TWO: 3e-4, TOGETHER: 2e-4, IN_TURNS: 2.5e-4, FEW_ROWS: 4e-4},
        "gradient": {TWO: 3e-4, TOGETHER: 2e-4, IN_TURNS: 1e-4, FEW_ROWS: 4e-4},
    }
    times["layer"][TOGETHER_192] = 3.5e-4
    # Before tuning there runs what the rows name, whatever the waves.
    monkeypatch.setattr(choices, "quicker", lambda first, *more: first)

    def of(problem, config):
        is_gradient = problem.kernel.features.store.startswith("gradient of ")
        return times["gradient" if is_gradient else "layer"][config]

    as_if_timed(monkeypatch, of)
    return times


def tuned_anew():
    """What a process after the one that tuned sees."""
    tuned.find.cache_clear()
    lookup.forget()


#: Of which each cluster of an H200 has a tile, where there are 256 columns; and so few that two
#: kernels are faster, of twice as many, too.
ROWS = 66 * 256
FEW = ROWS // 8
LIKE = fo.Linear(store=[fo.Bias("b"), fo.Residual("r")])


class TestCommandOfOneProduct:
    def tune(self, *words, op="HEAVY", rows=ROWS):
        factors = (f"x=T:{rows},8", "w=T:256,8", "b=T:256")
        if op == "SCORES":
            factors = ("x=T:4,8,512,64", "other=T:4,8,64,512@262144,32768,1,64")
        operands = [part for word in (*factors, *words) for part in ("--operand", word)]
        return self.run(op, *operands)

    def run(self, op, *words):
        command = ["tune", f"of_blocks:{op}", "--dtype", "float16", *words]
        outcome = CliRunner().invoke(app, command)
        return outcome.exit_code, said_by(outcome)

    def test_what_is_faster_is_kept_and_used(self, cache, gpu):
        operands = {"b": (256,), "r": (FEW, 256)}
        assert chosen(LIKE, FEW, 256, 8, TARGET, **operands)[0] is None
        status, said = self.tune(f"r=T:{FEW},256", rows=FEW)
        assert status == 0, said
        for part in (
            "300.0 us",
            "200.0 us",
            "1.500",
            "implementation two_kernels -> Together",
            "kept in",
        ):
            assert part in said
        tuned_anew()
        name, why = chosen(LIKE, FEW, 256, 8, TARGET, **operands)
        assert name == "Together"
        assert f"tuned on this device, from {cache}" in why
        # Neither another size, dtype, store or machine.
        more = {"b": (256,), "r": (2 * FEW, 256)}
        assert chosen(LIKE, 2 * FEW, 256, 8, TARGET, **more)[0] is None
        assert chosen(LIKE, FEW, 256, 8, TARGET, torch.bfloat16, **operands)[0] is None
        assert chosen(LIKE, FEW, 256, 8, HOPPER, **operands)[0] is None
        other = fo.Linear(store=[fo.Bias("b"), fo.Residual("r", 0.5)])
        assert chosen(other, FEW, 256, 8, TARGET, **operands)[0] is None
        assert "nothing is faster" in self.tune(f"r=T:{FEW},256", rows=FEW)[1]
        # A graph may hold it then, and a kernel is not looked for where it cannot be chosen.
        w, b = (torch.empty(size, dtype=HALF) for size in ((256, 8), (256,)))
        runs = [op.that_adds(w, {"b": b}).epilogue.text for op in (LIKE, other)]
        known = {"store": runs[0], "writes": 0, "draws": False, "dtype": "float16"}
        known |= {"grouped": False, "ragged_depth": False}
        known |= {"wave_percent": 100 * 9 // 66, "columns": 256, "depth": 8}
        assert "Together" in lookup.product_implementations("sm_90", HERE, reads=1, **known)
        known["store"] = runs[1]
        assert lookup.product_implementations("sm_90", HERE, reads=1, **known) == {"two_kernels"}

    def test_one_kernel_may_lose(self, gpu):
        gpu["layer"][TWO] = 1e-4
        for op, said in (("LIGHT", "s=2.0"), ("SCORES", "s=0.5")):
            assert "implementation Together -> two_kernels" in self.tune(said, op=op)[1]
        tuned_anew()
        light = fo.Linear(store=[fo.Bias("b"), fo.Scale("s")])
        name, why = chosen(light, ROWS, 256, 8, TARGET, b=(256,), s=2.0)
        assert name is None
        assert "not faster (tuned on this device" in why
        scores = fo.Matmul(store=[fo.Scale("s"), fo.Causal()])
        x, w = (torch.empty(4, 8, 512, 64, dtype=HALF, device="meta") for _ in "xw")
        choice = choices.chosen(scores.epilogue, x, w, {"s": 0.5}, TARGET)
        assert choice.tiling is None
        assert "tuned on this device" in choice.why
        assert choices.chosen(scores.epilogue, x[1:], w[1:], {"s": 0.5}, TARGET).tiling is not None

    def test_what_is_wrong_is_not_taken(self, gpu):
        gpu["layer"][TOGETHER] = "wrong"
        assert "two_kernels -> InTurns" in self.tune(f"r=T:{FEW},256", rows=FEW)[1]

    def test_what_is_refused(self, gpu):
        gpu["layer"][TWO] = "wrong"
        status, said = self.tune(f"r=T:{FEW},256", rows=FEW)
        assert status == 2
        assert "the product is wrong as it is" in said
        words = [
            part
            for word in (f"x=T:{ROWS},8", "w=T:256,8", "b=T:256", "s=2.0")
            for part in ("--operand", word)
        ]
        said = self.run("LIGHT", "--no-forward", *words)[1]
        assert "nothing to tune with --no-forward: of a Linear" in said


class TestCommand:
    def tune(self, *further, op="BLOCK", operands=(*OPERANDS,), factors=(*FACTORS,), dtype=HALF):
        """The status, and what was said."""
        given = [FACTORS[name] for name in factors] + [OPERANDS[name] for name in operands]
        words = [part for word in given for part in ("--operand", word)]
        words += ["--dtype", str(dtype).removeprefix("torch."), *further]
        outcome = CliRunner().invoke(app, ["tune", f"of_blocks:{op}", *words])
        return outcome.exit_code, said_by(outcome)

    def chosen(self, training=True):
        """How calls are run: the layers, the first one that keeps its product, the gradient."""
        op = sys.modules["of_blocks"].BLOCK
        made = {
            name: torch.empty([int(size) for size in word.partition(":")[2].split(",")], dtype=HALF)
            for name, word in {**FACTORS, **OPERANDS}.items()
            if ":" in word
        } | {"c": 30.0}
        x, w1, w2 = (made.pop(name) for name in op.inputs)
        first, second = op.shared({**made, "training": training})
        h, dy = x.new_empty(4224, 1024), x.new_empty(4224, 256)
        layer, then = op.layers[0].that_adds(w1, first), op.layers[1].that_adds(w2, second)
        wanted = frozenset({"b1"})
        return {
            "first layer": choices.chosen(layer.epilogue, x, w1, first),
            "second layer": choices.chosen(then.epilogue, h, w2, second),
            KEEPING: choices.chosen(layer.that_keeps().epilogue, x, w1, first),
            GRADIENT: product_backward.explained(layer.epilogue, wanted, dy, w2, h, first),
        }

    def test_what_is_faster_is_kept_and_used(self, cache, gpu):
        status, said = self.tune("--dry-run")
        assert status == 0, said
        before = self.chosen()
        assert [one.tiling is None for one in before.values()] == [False, True, False, False]
        assert before[GRADIENT].tiling.name == "Together"
        status, said = self.tune()
        assert status == 0, said
        for part in (*EVERY, "implementation Together -> InTurns", "2.000", "kept in"):
            assert part in said
        tuned_anew()
        after = self.chosen()
        assert after[GRADIENT].tiling.name == "InTurns"
        assert f"tuned on this device, from {cache}" in after[GRADIENT].why
        assert after["second layer"].tiling.name == "Together"
        for name in ("first layer", KEEPING):
            assert after[name] == before[name], "what was the fastest before has no row"
        gpu["layer"][TWO] = 1e-4
        assert self.tune("--no-forward")[1].count("Together -> two_kernels") == 1
        lookup.forget()
        assert self.chosen()[KEEPING].tiling is None
        assert self.chosen()["first layer"].tiling is not None

    def test_passes_are_left_out(self, gpu):
        for word, here, gone in (("forward", EVERY[2:], LAYERS), ("backward", LAYERS, EVERY[2:])):
            _, said = self.tune(f"--no-{word}", "--dry-run")
            assert all(f" {name} " in said for name in here)
            assert not any(f" {name} " in said for name in gone)
        assert "nothing to tune" in self.tune("--no-forward", "--no-backward")[1]

    def test_what_cannot_be_tuned_is_said_beside_what_can(self, gpu):
        status, said = self.tune(op="BARE", operands=("b1", "c"))
        assert status == 0
        assert "second layer: Linear: there is nothing to tune, torch's product alone runs" in said
        assert "Together -> InTurns" in said
        status, said = self.tune(op="PLAIN", operands=("b1", "b2", "r"))
        assert status == 0
        assert f"{GRADIENT}: MLP: there is nothing to tune" in said
        assert KEEPING not in said
        status, said = self.tune(dtype=torch.float32)
        assert status == 2
        assert said.count("float16 and bfloat16 alone") == 4

    def test_what_is_wrong_as_it_is(self, gpu):
        gpu["gradient"][TOGETHER] = "wrong"
        status, said = self.tune()
        assert status == 2
        assert f"the {GRADIENT} is wrong as it is" in said

    def test_an_implementation_that_is_wrong_is_not_taken(self, gpu):
        gpu["gradient"][IN_TURNS] = "wrong"
        lookup.forget()
        _, said = self.tune("--no-forward")
        assert "nothing is faster" in said

    @pytest.mark.thorough
    def test_of_recorded_calls(self, gpu, calls, monkeypatch, tmp_path):
        block = words.import_here("of_blocks").BLOCK
        made = [randn(*size, dtype=HALF) for size in ((4224, 64), (1024, 64), (256, 1024))]
        given = {"b1": made[0].new_zeros(1024), "b2": made[0].new_zeros(256), "c": 30.0}
        leaves = [one.requires_grad_() for one in made]
        with monkeypatch.context() as patch:
            patch.setattr(Target, "of", classmethod(lambda cls, device: Target.named("cpu")))
            block(*leaves, **given, r=made[0].new_zeros(4224, 256)).sum().backward()
        outcome = CliRunner().invoke(app, ["tune", "--calls", str(calls), "--import", "of_blocks"])
        assert outcome.exit_code == 0, outcome.output
        said = " ".join(outcome.output.split())
        for part in (
            ", product",
            ", gradient between products",
            "implementation Together -> InTurns",
        ):
            assert part in said
        lookup.forget()
        assert self.chosen()[GRADIENT].tiling.name == "InTurns"
        outcome = CliRunner().invoke(app, ["tune", "of_blocks:BLOCK", "--calls", str(calls)])
        assert "not both" in outcome.output
        for none in ((), ("--shape", "8,8"), ("--calls", str(calls), "--dim", "0")):
            assert "say what to tune" in CliRunner().invoke(app, ["tune", *none]).output
        others = tmp_path / "others.jsonl"
        others.write_text('{"op": "Softmax()", "x": "float32:8,64", "values": {}}\n')
        outcome = CliRunner().invoke(app, ["tune", "--calls", str(others)])
        for part in ("no call there is a product", "name a declaration in place of --calls"):
            assert part in said_by(outcome)
        assert "--no-forward" not in outcome.output
        lines = [one for one in calls.read_text().splitlines() if '"factors"' in one]
        others.write_text("".join(f"{one}\n" for one in lines if '"wanted"' not in one))
        outcome = CliRunner().invoke(app, ["tune", "--no-forward", "--calls", str(others)])
        assert "nothing to tune in these calls with --no-forward" in said_by(outcome)
        missing = CliRunner().invoke(app, ["tune", "--calls", str(tmp_path / "missing")])
        assert missing.exit_code == 2
        assert "No such file" in missing.output

    @pytest.mark.parametrize(
        ("given", "further", "part"),
        [
            ({"factors": ("x", "w1")}, (), "'w2' is missing; give --operand w2=DTYPE:N,H"),
            ({"operands": ("b1", "b2", "r")}, (), "'c' is missing; give --operand c="),
            ({}, ("--operand", "b3=T:256"), "unknown operand 'b3'"),
            ({}, ("--dim", "0"), "--dim is no option of MLP"),
        ],
    )
    def test_calls_that_do_not_fit(self, gpu, given, further, part):
        status, said = self.tune(*further, **given)
        assert status == 2
        assert part in said


#: Of which each cluster of an H200 has a tile, in both products and in the gradient.
SIZES = {"rows": (3, 5632), "k": 64, "h": 264, "n": 256}


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def hopper(self, tmp_path, monkeypatch):
        needs_hopper()
        monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("COLUMNS", "200")
        torch._dynamo.reset()
        torch_op_mlp._by_one.cache_clear()
        tuned.find.cache_clear()
        lookup.forget()
        yield
        torch_op_mlp._by_one.cache_clear()
        tuned.find.cache_clear()
        lookup.forget()

    @staticmethod
    def check_and_time(problem):
        for name in problem.kernel.names:
            config = ProductConfig(name)
            problem.check(config)
            assert 0 < problem.seconds(config) < 1e-2

    @staticmethod
    def search(problem):
        found = tuner.tune(problem)
        assert len(found.outcome.tried) == len(problem.kernel.names)
        assert all(one.seconds for one in found.outcome.tried)

    @pytest.mark.parametrize("dtype", [HALF, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("block", BLOCKS)
    def test_every_part_of_a_block(self, block, dtype):
        op = BLOCKS[block]
        factors, operands = case(op, dtype=dtype, **SIZES)
        device = torch.device("cuda", torch.cuda.current_device())
        for problem in problems(op, factors, operands, device).values():
            self.check_and_time(problem)
            if block == "gelu" and dtype is HALF:
                self.search(problem)

    @pytest.mark.parametrize(
        ("op", "sizes"),
        [
            (fo.Linear(STORES["gelu"]), {"rows": (ROWS,), "n": 256, "k": 64}),
            (fo.Linear(STORES["saving"]), {"rows": (ROWS,), "n": 256, "k": 64}),
            (fo.Matmul(SCORES["scores"]), {"pair": PAIRS["plain"]}),
            (fo.Matmul(SCORES["scores"]), {"pair": PAIRS["heads share keys"]}),
            (fo.Matmul(SCORES["scores"]), {"pair": PAIRS["one for all"]}),
        ],
    )
    def test_one_product(self, op, sizes):
        tensors = given_to(op, HALF, **sizes)
        x, other = (tensors.pop(name) for name in op.inputs)
        factors = {"x": x, "w": op.turned(other)}
        device = torch.device("cuda", torch.cuda.current_device())
        bound = choices.bind_store(op.epilogue, *factors.values(), tensors)
        problem = product.of_product(op, bound, factors, device, {})
        self.check_and_time(problem)
        self.search(problem)

    @pytest.mark.parametrize("compiles", [False, True])
    @pytest.mark.parametrize("implementation", ["InTurns", "two_kernels"])
    def test_a_row_changes_what_a_training_step_runs(self, implementation, compiles):
        """As in a process after the one that tuned: no plan has been made yet."""
        op = fo.MLP(*BLOCKS["dropout"].chains.values())
        device = torch.device("cuda", torch.cuda.current_device())
        problem = problems(op, *case(op, **SIZES), device)[GRADIENT]
        features = problem.kernel.features
        assert problem.kernel.names == ("two_kernels", "Together", "InTurns")
        assert product_backward.choose(features, Target.of(device)).tiling is not None
        outcome = Outcome(TOGETHER, ProductConfig(implementation), 2.0, 1.0, ())
        assert tuner.keep([tuner.Tuned("", "product", features, outcome)], device)
        factors, operands = case(op, "cuda", **SIZES)
        leaves = [one.requires_grad_() for one in factors]

        def call(*factors):
            return op(*factors, **operands)

        run = torch.compile(call, fullgraph=True) if compiles else call
        torch.autograd.grad(run(*leaves).float().sum(), leaves)
        if implementation == "two_kernels":
            assert "gradient" not in last_schedule()
        else:
            assert last_schedule() == f"{implementation}, gradient"

    def test_the_command(self, tmp_path, monkeypatch):
        """A run is recorded and tuned; whatever was found, a call is run by it."""
        op = BLOCKS["gelu"]
        factors, operands = case(op, "cuda", **SIZES)
        file = recording(monkeypatch, tmp_path)
        op(*(one.requires_grad_() for one in factors), **operands).float().sum().backward()
        monkeypatch.delenv("FUSEDOPS_RECORD")
        outcome = CliRunner().invoke(app, ["tune", "--calls", str(file)])
        assert outcome.exit_code == 0, outcome.output
        assert ", gradient between products" in outcome.output
        assert ", product" in outcome.output
