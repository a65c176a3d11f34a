# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning: what is tried, what is chosen, what is kept and used, without a GPU but for the last."""

import contextlib
import functools
import itertools
import json
import re
import warnings

import pytest
import torch
from cases import raises
from typer.testing import CliRunner

import fusedops as fo
from fusedops import testing
from fusedops.bind.bind import bind
from fusedops.cli import app
from fusedops.errors import CompileError
from fusedops.explain.forward import explain
from fusedops.flagship import ADD_NORM, ATTENTION
from fusedops.generate import tuned
from fusedops.generate.target import Target
from fusedops.jit.store import shared_store
from fusedops.schedule import lookup, override
from fusedops.schedule.architectures import GPUS
from fusedops.schedule.launch import LaunchConfig
from fusedops.schedule.tuning_file import text_of
from fusedops.tuning import problem as problems
from fusedops.tuning import rows, tuner
from fusedops.tuning.candidates import steps
from fusedops.tuning.inputs import fewer_rows, filled
from fusedops.tuning.problem import Problem, kernel_of
from fusedops.tuning.search import search

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
            return 1 + far + (config.prefetch != "bulk") + abs(config.prefetch_distance - 174) / 1e3

        outcome = self.found(Fake(seconds))
        assert outcome.after.min_threads_per_sm == 1280
        assert outcome.after.prefetch == "bulk"
        assert outcome.after.prefetch_distance == 174
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


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own, and nothing that was looked up in another."""
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
    with fresh():
        yield tmp_path / "cache"


@contextlib.contextmanager
def fresh():
    """As in another process."""

    def forget():
        tuned.find.cache_clear()
        lookup.forget()

    forget()
    yield
    forget()


def forget():
    with fresh():
        pass


def result(bound, kind, config, percent=(80.0, 90.0)):
    """What tuning that found this configuration gives."""
    kernel = kernel_of(bound, kind, TARGET)
    before = kernel.schedule.launch
    outcome = tuner.Outcome(before, config, 2.0, 1.0, ())
    return tuner.Tuned("case", kind, kernel.features, outcome, *percent)


def kept(*results):
    content = rows.empty("sm_90", HERE)
    for one in results:
        content = tuner.put(content, one, {"device": HERE.name})
    return tuned.keep(content)


def other_config(bound, kind):
    launch = kernel_of(bound, kind, TARGET).schedule.launch
    return launch._replace(min_threads_per_sm=1280 if launch.min_threads_per_sm != 1280 else 640)


class TestTunedFiles:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("bound", CALLS.values(), ids=CALLS)
    def test_what_was_tuned_is_used_later(self, cache, bound, kind):
        before = kernel_of(bound, kind, TARGET).schedule
        config = other_config(bound, kind)
        path = kept(result(bound, kind, config))
        assert path.is_relative_to(cache)
        forget()
        after = kernel_of(bound, kind, TARGET).schedule
        assert after.launch == config
        assert after.tuned == str(path)
        assert (after.tile, after.storage) == (before.tile, before.storage)

    def test_others_are_as_they_were(self, cache):
        kept(result(CALLS["attention"], "forward", other_config(CALLS["attention"], "forward")))
        forget()
        others = [bound for name, bound in CALLS.items() if name != "attention"]
        elsewhere = Target("sm_90", HERE._replace(name="NVIDIA Other GPU"))
        for bound, kind in itertools.product(others, KINDS):
            assert kernel_of(bound, kind, TARGET).schedule.tuned == ""
        for target in (elsewhere, Target.named("sm_90"), Target("sm_100", HERE)):
            assert kernel_of(CALLS["attention"], "forward", target).schedule.tuned == ""
        assert kernel_of(CALLS["attention"], "backward", TARGET).schedule.tuned == ""

    def test_any_number_of_rows_has_it(self, cache):
        bound = softmax()
        config = other_config(bound, "forward")
        kept(result(bound, "forward", config))
        forget()
        x, operands = fewer_rows(bound, 1 << 16)
        fewer = bind(bound.op, x, operands, {})
        assert kernel_of(fewer, "forward", TARGET).schedule.launch == config

    def test_later_results_are_added_or_replace(self, cache):
        first, second = CALLS["attention"], CALLS["norm"]
        one = result(first, "forward", other_config(first, "forward"))
        content = tuner.put(rows.empty("sm_90", HERE), one, {})
        content = tuner.put(content, result(second, "forward", other_config(second, "forward")), {})
        assert len(content["forward"]) == 2
        again = result(first, "forward", other_config(first, "forward")._replace(rows_per_block=2))
        content = tuner.put(content, again, {})
        assert len(content["forward"]) == 2
        assert content["forward"][0]["set"]["rows_per_block"] == 2
        tuned.keep(content)
        found = tuned.find("sm_90", HERE.name)
        assert tuned.content_of(found) == content

    def test_there_is_one_file_of_a_device(self, cache):
        for threads in (512, 640, 512):
            config = other_config(CALLS["norm"], "forward")._replace(min_threads_per_sm=threads)
            path = kept(result(CALLS["norm"], "forward", config))
            assert [*cache.glob(f"tuning*/{tuned.FILE}")] == [path]
            forget()
            launch = kernel_of(CALLS["norm"], "forward", TARGET).schedule.launch
            assert launch.min_threads_per_sm == threads

    def test_nothing_faster_is_nothing_kept(self, cache):
        kernel = kernel_of(CALLS["norm"], "forward", TARGET)
        same = result(CALLS["norm"], "forward", kernel.schedule.launch)
        empty = rows.empty("sm_90", HERE)
        assert tuner.put(empty, same, {}) == empty

    def test_the_cache_lists_it(self, cache):
        kept(result(CALLS["norm"], "forward", other_config(CALLS["norm"], "forward")))
        said = CliRunner().invoke(app, ["cache", "list"])
        assert said.exit_code == 0
        assert "tuning" in said.output
        assert CliRunner().invoke(app, ["cache", "verify"]).exit_code == 0
        assert CliRunner().invoke(app, ["cache", "clear", "--all", "--yes"]).exit_code == 0
        forget()
        assert tuned.find("sm_90", HERE.name) is None

    def test_explain_names_the_file(self, cache):
        bound = CALLS["norm"]
        path = kept(*(result(bound, kind, other_config(bound, kind)) for kind in KINDS))
        forget()
        gamma = bound.operands["gamma"].requires_grad_()
        given = bind(bound.op, bound.x, {**bound.operands, "gamma": gamma}, {})
        with torch.enable_grad():
            bare = given._replace(x=torch.empty(500, 4096), operands=on_cpu(given.operands))
            told = explain(bare, TARGET)
        assert f"tuned on this device, from {path}" in told.why
        assert f"tuned on this device, from {path}" in told.backward
        assert "tuned on" not in explain(bare, Target.named("sm_90")).why


def on_cpu(operands):
    like = {name: torch.empty(value.shape, dtype=value.dtype) for name, value in operands.items()}
    return {name: value.requires_grad_() for name, value in like.items()}


def overwrite(path, text):
    path.write_bytes(text)


def published(text, arch="sm_90", device=HERE.name):
    """An entry of the cache with such a file: whole, whatever is in it."""
    identity = tuned._identity("sm_90", HERE.name, json.dumps("other"))
    return shared_store().publish(identity, {}, {tuned.FILE: text}).folder / tuned.FILE


def right_text(**changes):
    return text_of({**rows.empty("sm_90", HERE), **changes}).encode()


UNUSABLE = {
    "damaged": lambda: overwrite(kept_norm(), b"{}"),
    "no JSON": lambda: published(b"{"),
    "another format": lambda: published(right_text(format=0)),
    "another architecture": lambda: published(right_text(arch="sm_100")),
    "another device": lambda: published(
        right_text(device={"name": "A40", "threads_per_sm": 1536, "l2_bytes": 1})
    ),
    "unknown fields": lambda: published(right_text(forward=[{"when": {}, "set": {"threads": 5}}])),
    "everybody's": lambda: kept_norm().parent.chmod(0o777),
    "without the file": lambda: shared_store().publish(
        tuned._identity("sm_90", HERE.name, json.dumps("other")), {}, {"other.json": b"{}"}
    ),
}


def kept_norm():
    return kept(result(CALLS["norm"], "forward", other_config(CALLS["norm"], "forward")))


@pytest.mark.parametrize("spoil", UNUSABLE.values(), ids=UNUSABLE)
def test_a_file_that_cannot_be_used_is_told_once(cache, spoil):
    wanted = kernel_of(CALLS["norm"], "forward", Target.named("sm_90")).schedule
    spoil()
    forget()
    with pytest.warns(RuntimeWarning, match="tuning file in .* is not used: .*fusedops tune"):
        found = kernel_of(CALLS["norm"], "forward", TARGET).schedule
    assert (found, found.tuned) == (wanted, "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel_of(CALLS["attention"], "forward", TARGET)


def test_rows_go_through_a_file():
    for bound, kind in itertools.product(CALLS.values(), KINDS):
        kernel = kernel_of(bound, kind, TARGET)
        row = rows.row(kernel.features, kernel.schedule.launch, {"case": 91.234}, {"driver": "1"})
        assert row["percent"] == {"case": 91.2}
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["measured"]["date"])
        content = rows.put(rows.empty("sm_90", HERE), kind, row)
        assert json.loads(text_of(content)) == content


class TestForcing:
    def test_it_ends_with_its_block(self):
        config = LaunchConfig(min_threads_per_sm=640)
        with testing.force_launch(forward=config):
            assert override.current().forward == config
            with testing.force_schedule("streaming"):
                assert override.current() == ("streaming", config, None)
            assert override.current() == (None, config, None)
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
    monkeypatch.setattr(problems, "target_of", lambda device: TARGET)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 24, 1 << 24))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(problems.clock, "sets", lambda size: 2)
    monkeypatch.setattr(problems, "CHECKED", 1 << 12)
    monkeypatch.setattr(problems.ceiling, "of_bytes", lambda size, reads: size * (reads + 1) / 1e12)
    monkeypatch.setattr(problems, "explain", lambda bound: explain(bound, TARGET))
    timed = []

    def clock(calls):
        results = [call() for call in calls]
        timed.append((override.current(), results))
        return 1e-6

    monkeypatch.setattr(Problem, "_clock", property(lambda self: clock))
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
    found = Problem(op, bound, kind, torch.device("cpu"), {})
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
    found = Problem(bound.op, bound, "forward", torch.device("cpu"), {})
    runs = found._comparison._first
    honest = runs.run

    def off(name, change):
        return {**honest(), name: change(honest()[name])}

    monkeypatch.setattr(runs, "run", functools.partial(off, "y", lambda y: y + 1e-3))
    with pytest.raises(AssertionError, match=r"^Softmax.*what='y'"):
        found.check(LaunchConfig())
    # Within the bound, and other bits all the same.
    next_to = functools.partial(torch.nextafter, other=torch.ones(()))
    monkeypatch.setattr(runs, "run", functools.partial(off, "gradient of x", next_to))
    with pytest.raises(AssertionError, match="'gradient of x, run again'"):
        found.check(LaunchConfig())


SHAPE = ["fusedops.flagship:ATTENTION", "--shape", "2,4,16,512", "--dtype", "float16"]
GIVEN = ["scale=0.5", "pair_bias=T:4,16,512", "padding=bool:2,1,1,512", "p=0"]
OPERANDS = [word for given in GIVEN for word in ("--operand", given)]


EMPTY = [word.replace("bool:2", "bool:0") for word in OPERANDS]


def invoke(*arguments):
    return CliRunner().invoke(app, ["tune", *arguments])


def said(outcome):
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", outcome.output).split())


class TestCommand:
    @pytest.fixture
    def gpu(self, monkeypatch):
        """A GPU on which 1280 threads are best, in each pass; nothing runs on it."""
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
        monkeypatch.setattr(tuner.Target, "of", classmethod(lambda cls, device: TARGET))

        class Fast(Fake):
            def __init__(self, op, bound, kind, device, options):
                super().__init__(lambda config: 1e-5 if config.min_threads_per_sm != 1280 else 8e-6)
                self.kernel = kernel_of(bound, kind, TARGET)

            def percent(self, seconds):
                return 7e-4 / seconds

        monkeypatch.setattr(tuner, "Problem", Fast)

    def test_what_is_found_is_kept_and_used(self, cache, gpu):
        outcome = invoke(*SHAPE, *OPERANDS)
        assert outcome.exit_code == 0, outcome.output
        text = said(outcome)
        assert "10.0 us, 70.0 %" in text
        assert "8.0 us, 87.5 %" in text
        assert "1.250" in text
        assert f"kept in {cache}" in text
        forget()
        given = {"scale": 0.5, "p": 0, "padding": tensor(2, 1, 1, 512, dtype=torch.bool)}
        given["pair_bias"] = tensor(4, 16, 512)
        bound = bind(ATTENTION, tensor(2, 4, 16, 512), given, {})
        for kind in KINDS:
            schedule = kernel_of(bound, kind, TARGET).schedule
            assert schedule.launch.min_threads_per_sm == 1280
            assert schedule.tuned
        again = invoke(*SHAPE, *OPERANDS)
        assert "nothing is faster" in said(again)

    def test_one_pass_and_nothing_kept(self, cache, gpu):
        outcome = invoke(*SHAPE, *OPERANDS, "--no-backward", "--dry-run")
        assert outcome.exit_code == 0, outcome.output
        assert "forward" in outcome.output
        assert "backward" not in outcome.output
        assert not [*cache.glob("tuning*")]

    @pytest.mark.parametrize(
        ("arguments", "parts"),
        [
            (SHAPE, ("scale",)),
            (["fusedops.flagship:NONE"], ("NONE",)),
            ([*SHAPE, *OPERANDS, "--no-forward", "--no-backward"], ("nothing to tune",)),
            ([*SHAPE, *OPERANDS, "--device", "3"], ("below 1",)),
            ([*SHAPE[:3], "--dtype", "nonsense", *OPERANDS], ("nonsense",)),
            (
                [*SHAPE[:1], "--shape", "0,4,16,512", "--dtype", "float16", *EMPTY],
                ("no kernel to tune",),
            ),
        ],
    )
    def test_what_is_refused(self, cache, gpu, arguments, parts):
        outcome = invoke(*arguments)
        assert outcome.exit_code == 2
        for part in parts:
            assert part in said(outcome)

    def test_a_machine_without_a_gpu(self, cache, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        outcome = invoke(*SHAPE, *OPERANDS)
        assert outcome.exit_code == 2
        for part in ("no NVIDIA GPU", "on a machine that has one", "fusedops doctor"):
            assert part in said(outcome)

    def test_a_cache_that_cannot_be_written(self, gpu, monkeypatch, tmp_path):
        monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "file"))
        (tmp_path / "file").write_text("no folder")
        outcome = invoke(*SHAPE, *OPERANDS)
        assert outcome.exit_code == 2
        assert "--dry-run" in said(outcome)

    def test_offline(self, cache, gpu, monkeypatch):
        monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
        assert "unset it" in said(invoke(*SHAPE, *OPERANDS))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["attention", "norm"])
def test_on_a_gpu(cache, which, kind):
    """Some trials of a real kernel; bits of what is used afterwards are those of before."""
    device = torch.device("cuda", torch.cuda.current_device())
    bound = CALLS[which]
    op = bound.op
    options = {}
    found = Problem(op, bound, kind, device, options)
    kernel = found.kernel
    before = kernel.schedule.launch
    own = kernel.distinct(before)
    config = next(one for one in candidates(kernel) if kernel.distinct(one) != own)
    for one in (before, config):
        found.check(one)
        assert 0 < found.percent(found.seconds(one)) < 150
    given = filled({"x": bound.x[:40], **bound.operands}, bound.columns, device)
    x = given.pop("x")
    given = {k: v[:40] if k == "mask" else v for k, v in given.items()}
    plain = step(op, x[: len(x)], given)
    target = Target.of(device)
    outcome = tuner.Outcome(before, config, 2.0, 1.0, ())
    one = tuner.Tuned("case", kind, kernel.features, outcome, 80.0, 90.0)
    assert tuner.keep([one], device)
    forget()
    fresh_op = type(op)(load=op.load, store=op.store)
    again = step(fresh_op, x[: len(x)], given)
    assert kernel_of(bound, kind, target).schedule.tuned
    for first, second in zip(plain, again, strict=True):
        assert torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def step(op, x, given):
    """The result and the gradient of x."""
    x = x.detach().requires_grad_()
    y = op(x, **given)
    dy = torch.ones_like(y)
    (dx,) = torch.autograd.grad(y, [x], dy)
    return y.detach(), dx
