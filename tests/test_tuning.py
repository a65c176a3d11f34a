# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning: what is tried, what is chosen, and that it is checked before it is timed."""

import contextlib
import functools
import itertools
import types

import pytest
import torch
from cases import raises

import fusedops as fo
from fusedops import testing
from fusedops.bind.bind import bind
from fusedops.errors import CompileError
from fusedops.explain.forward import explain
from fusedops.flagship import ADD_NORM, ATTENTION
from fusedops.generate.target import Target
from fusedops.schedule import override
from fusedops.schedule.architectures import GPUS
from fusedops.schedule.launch import LaunchConfig
from fusedops.tuning import problem as problems
from fusedops.tuning.problem import fewer_rows, filled, kernel_of, of_pass
from fusedops.tuning.search import search, steps

HERE = GPUS["sm_90"]._replace(name="NVIDIA Test GPU")
TARGET = Target("sm_90", HERE)
HALF = torch.float16


def tensor(*shape, dtype=HALF):
    return torch.empty(shape, dtype=dtype, device="meta")


def softmax(columns=3000, dtype=HALF):
    op = fo.Softmax(load=[fo.Scale("scale"), fo.Bias("bias"), fo.Mask("mask")])
    given = {"scale": 0.5, "bias": tensor(16, 7, columns, dtype=dtype)}
    mask = tensor(32, 1, 1, columns, dtype=torch.bool)
    return bind(op, tensor(32, 16, 7, columns, dtype=dtype), {**given, "mask": mask}, {})


def norm(columns, dtype=HALF):
    vector = tensor(columns, dtype=dtype)
    op = fo.LayerNorm(store=[fo.Affine("gamma", "beta")])
    return bind(op, tensor(500, columns, dtype=dtype), {"gamma": vector, "beta": vector}, {})


CALLS = {
    "attention": softmax(),
    "odd": bind(fo.Softmax(), tensor(8, 1023), {}, {}),
    "staged": bind(fo.Softmax(), tensor(8, 12289), {}, {}),
    "short": norm(64),
    "norm": norm(4096, torch.float32),
    "long": norm(65536),
    "softmax of a vocabulary": bind(fo.Softmax(), tensor(8, 151936), {}, {}),
    "read twice": norm(1 << 20),
}
KINDS = ("forward", "backward")


class Fake:
    """A trial whose times follow from the configuration."""

    def __init__(self, seconds, wrong=lambda config: False, failing=lambda config: False):
        self.times, self.wrong, self.failing = seconds, wrong, failing
        self.checked, self.timed = [], []

    def check(self, config):
        self.checked.append(config)
        if self.failing(config):
            raise CompileError([], "too many registers", None)
        assert not self.wrong(config)

    def seconds(self, config):
        assert self.checked[-1] == config or config in self.checked, "timed before it was checked"
        self.timed.append(config)
        return self.times(config)


def candidates(kernel):
    """All configurations that the first round tries."""
    start = kernel.schedule.launch
    for _, step in steps(kernel):
        yield from (config for config in step(start) if kernel.allows(config))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", CALLS.values(), ids=CALLS)
class TestCandidates:
    def test_they_differ_and_change_no_tile(self, bound, kind):
        kernel = kernel_of(bound, kind, TARGET)
        found = {kernel.distinct(config) for config in candidates(kernel)}
        assert len(found) > (1 if bound is CALLS["read twice"] else 5)
        for config in candidates(kernel):
            with testing.force_launch(**{kind: config}):
                now = kernel_of(bound, kind, TARGET).schedule
            assert now.tile == kernel.schedule.tile
            assert now.storage == kernel.schedule.storage
            assert now.launch == config, "it is used as it is"

    def test_they_keep_to_the_limits(self, bound, kind):
        small = GPUS["sm_90"]._replace(threads_per_sm=1024, name="small", bulk_copies=False)
        kernel = kernel_of(bound, kind, Target("sm_90", small))
        for config in candidates(kernel):
            assert config.min_threads_per_sm <= 1024
            assert kernel.schedule.threads * config.rows_per_block <= 512
            assert kind == "backward" or (config.prefetch, config.smem_staged) == ("never", False)


def test_what_compiles_alike_is_tried_once():
    kernel = kernel_of(CALLS["norm"], "forward", TARGET)
    trial = Fake(lambda config: 1.0)
    search(kernel, trial)
    assert len({kernel.distinct(config) for config in trial.timed}) == len(trial.timed)


class TestSearch:
    def found(self, trial, kind="forward"):
        return search(kernel_of(CALLS["attention"], kind, TARGET), trial)

    def test_the_fastest_is_found(self):
        def seconds(config):
            far = abs(config.min_threads_per_sm - 1280) / 1280
            return 1 + far + (config.prefetch != "bulk") + abs(config.prefetch_distance - 170) / 1e3

        outcome = self.found(Fake(seconds))
        assert outcome.after.min_threads_per_sm == 1280
        assert outcome.after.prefetch == "bulk"
        assert outcome.after.prefetch_distance == 170
        assert outcome.faster > 1
        assert outcome.seconds_after == seconds(outcome.after)

    def test_nothing_is_changed_for_little(self):
        outcome = self.found(Fake(lambda config: 1 - config.min_threads_per_sm * 1e-7))
        assert outcome.after == outcome.before
        assert outcome.faster == 1

    def test_what_is_only_fast_once_is_not_taken(self):
        times = itertools.chain([1.0, 0.5], itertools.repeat(1.0))
        outcome = self.found(Fake(lambda config: next(times)))
        assert outcome.after == outcome.before

    def test_what_is_wrong_is_never_timed(self):
        trial = Fake(
            lambda config: 1.0 if config.min_threads_per_sm else 0.1,
            wrong=lambda config: config.min_threads_per_sm == 0,
        )
        outcome = self.found(trial)
        assert outcome.after == outcome.before
        assert all(config.min_threads_per_sm for config in trial.timed)
        assert any(one.reason == "its results are wrong" for one in outcome.tried)

    def test_what_cannot_be_built_is_passed_over(self):
        trial = Fake(
            lambda config: 1.0 / (1 + config.min_threads_per_sm),
            failing=lambda config: config.min_threads_per_sm > 1024,
        )
        assert self.found(trial).after.min_threads_per_sm == 1024

    def test_what_is_wrong_as_it_is_ends_it(self):
        with pytest.raises(AssertionError):
            self.found(Fake(lambda config: 1.0, wrong=lambda config: True))

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("bound", CALLS.values(), ids=CALLS)
    def test_every_step_can_win(self, bound, kind):
        """Whatever is fastest among what a step offers is in the end taken."""
        kernel = kernel_of(bound, kind, TARGET)
        for own in {kernel.distinct(one) for one in candidates(kernel)}:
            trial = Fake(lambda other, own=own: 1.0 if kernel.distinct(other) == own else 2.0)
            outcome = search(kernel, trial)
            assert kernel.distinct(outcome.after) == own


class TestForcing:
    def test_it_ends_with_its_block(self):
        config = LaunchConfig(min_threads_per_sm=640)
        with testing.force_launch(forward=config):
            assert override.current().forward == config
            with testing.force_schedule("streaming"):
                assert override.current() == ("streaming", config, None, None)
            assert override.current() == (None, config, None, None)
        assert override.current() == override.Override()

    def test_each_pass_has_its_own(self):
        config = LaunchConfig(min_threads_per_sm=640)
        plain = {kind: kernel_of(CALLS["norm"], kind, TARGET).schedule for kind in KINDS}
        for kind, other in (KINDS, KINDS[::-1]):
            with testing.force_launch(**{kind: config}):
                assert kernel_of(CALLS["norm"], kind, TARGET).schedule.launch == config
                assert kernel_of(CALLS["norm"], other, TARGET).schedule == plain[other]

    def test_only_configurations_are_taken(self):
        with (
            raises(TypeError, "force_launch", "backward", "LaunchConfig"),
            testing.force_launch(backward={"persistent": True}),
        ):
            pass

    def test_explain_says_so(self):
        with testing.force_launch(forward=LaunchConfig(min_threads_per_sm=640)):
            told = explain(bind(fo.Softmax(), torch.empty(4, 256), {}, {}), Target.named("sm_90"))
        assert "forced by fusedops.testing" in told.why


class TestInputs:
    def test_fewer_rows_share_what_they_shared(self):
        bound = softmax()
        x, operands = fewer_rows(bound, 3000 * 7 * 16)
        assert x.shape == (2, 2, 7, 3000) or x.numel() <= 3000 * 7 * 16
        assert operands["bias"].shape == (x.shape[1], 7, 3000)
        assert operands["mask"].shape == (x.shape[0], 1, 1, 3000)
        assert operands["scale"] == 0.5
        bind(bound.op, x, operands, {})

    def test_few_rows_stay_as_they_are(self):
        bound = CALLS["odd"]
        x, _ = fewer_rows(bound, 1)
        assert x.shape == (2, 1023)
        assert fewer_rows(bound, 1 << 20)[0] is bound.x

    def test_values(self):
        like = {
            "x": tensor(2, 5).t(),
            "flags": tensor(40, 100, dtype=torch.bool),
            "counts": tensor(100, dtype=torch.int32),
            "shared": tensor(1, 100).expand(7, 100),
            "p": 0.5,
        }
        found = filled(like, 100, torch.device("cpu"))
        for name in ("x", "flags", "counts", "shared"):
            assert found[name].shape == like[name].shape
            assert found[name].stride() == like[name].stride()
        assert 0.1 < found["flags"].float().mean() < 0.3
        assert 50 <= found["counts"].min() <= found["counts"].max() <= 100
        assert found["p"] == 0.5


@pytest.fixture
def on_cpu_as_if(monkeypatch):
    """Calls run on the CPU, where a launch configuration says nothing, as if it were a GPU."""
    monkeypatch.setattr(problems, "Target", types.SimpleNamespace(of=lambda device: TARGET))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 24, 1 << 24))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(problems.clock, "sets", lambda size: 2)
    monkeypatch.setattr(problems, "CHECKED", 1 << 12)
    monkeypatch.setattr(problems.clock, "of_bytes", lambda size, reads: size * (reads + 1) / 1e12)
    monkeypatch.setattr(problems, "explain", lambda bound: explain(bound, TARGET))
    timed = []

    def clock(calls):
        results = [call() for call in calls]
        timed.append((override.current(), results))
        return 1e-6

    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(problems.clock, "side_stream", lambda: None)
    for name in ("graph_seconds", "queue_seconds"):
        monkeypatch.setattr(problems.clock, name, clock)
    return timed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", [ATTENTION, ADD_NORM], ids=["attention", "add_norm"])
def test_a_problem_runs_and_checks_its_call(on_cpu_as_if, op, kind):
    columns = 96
    x = tensor(2, 3, 20, columns, dtype=torch.float32)
    values = {
        "scale": 0.5,
        "pair_bias": tensor(3, 20, columns, dtype=torch.float32),
        "padding": tensor(2, 1, 1, columns, dtype=torch.bool),
        "p": 0.1,
        "bias": tensor(columns, dtype=torch.float32),
        "residual": tensor(2, 3, 20, columns, dtype=torch.float32),
        "gamma": tensor(columns, dtype=torch.float32),
        "beta": tensor(columns, dtype=torch.float32),
    }
    bound = bind(op, x, {name: values[name] for name in op.slots}, {})
    found = of_pass(bound, kind, torch.device("cpu"), {})
    config = found.kernel.schedule.launch
    found.check(config)
    assert found.seconds(config) == 1e-6
    ((forced, results),) = on_cpu_as_if
    assert forced == override.Override(**{kind: config})
    assert len(results) == 2
    elements = x.numel() * 4
    assert (3 if kind == "backward" else 2) * elements <= found.bytes < 8 * elements
    assert found.percent(1e-6) == pytest.approx(found.bytes / 1e12 / 1e-6 * 100)


def test_a_problem_sees_what_is_wrong(on_cpu_as_if, monkeypatch):
    bound = bind(fo.Softmax(), tensor(4, 64, dtype=torch.float32), {}, {})
    found = of_pass(bound, "forward", torch.device("cpu"), {})
    comparison = found.comparison
    honest = comparison.run

    def off(name, change):
        return {**honest(), name: change(honest()[name])}

    monkeypatch.setattr(comparison, "run", functools.partial(off, "y", lambda y: y + 1e-3))
    with pytest.raises(AssertionError, match=r"^Softmax.*what='y'"):
        found.check(LaunchConfig())
    # Within the bound, and other bits all the same.
    next_to = functools.partial(torch.nextafter, other=torch.ones(()))
    monkeypatch.setattr(comparison, "run", functools.partial(off, "gradient of x", next_to))
    with pytest.raises(AssertionError, match="'gradient of x, run again'"):
        found.check(LaunchConfig())
