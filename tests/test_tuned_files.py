# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What tuning finds is kept and used, by `fusedops tune` and later processes."""

import contextlib
import itertools
import json
import re
import threading
import warnings

import pytest
import torch
from test_tuning import CALLS, HERE, KINDS, TARGET, Fake, candidates, softmax, tensor
from typer.testing import CliRunner

from fusedops import exporting as exported
from fusedops.bind.bind import bind
from fusedops.cli import app
from fusedops.explain.forward import explain
from fusedops.flagship import ATTENTION
from fusedops.generate import tuned
from fusedops.generate.target import Target
from fusedops.jit.store import shared_store
from fusedops.schedule import lookup
from fusedops.schedule.launch import LaunchConfig
from fusedops.schedule.tuning_file import text_of
from fusedops.tuning import problem, tuner
from fusedops.tuning.problem import fewer_rows, filled, kernel_of, of_pass


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
    content = tuner.empty("sm_90", HERE)
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
        content = tuner.put(tuner.empty("sm_90", HERE), one, {})
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

    def test_who_keeps_at_the_same_time_waits(self, cache, monkeypatch):
        """A second process that kept a row between another's reading and writing would lose it."""
        monkeypatch.setattr(tuner.Target, "of", classmethod(lambda cls, device: TARGET))
        first, second = (
            result(CALLS[name], "forward", other_config(CALLS[name], "forward"))
            for name in ("attention", "norm")
        )
        other = threading.Thread(target=tuner.keep, args=([second], None))
        put = tuner.put

        def put_while_another_keeps(content, found, measured):
            if found is first:
                other.start()
                other.join(0.5)
            return put(content, found, measured)

        monkeypatch.setattr(tuner, "put", put_while_another_keeps)
        tuner.keep([first], None)
        other.join()
        forget()
        assert len(tuned.find("sm_90", HERE.name).rules["forward"]) == 2

    def test_nothing_faster_is_nothing_kept(self, cache):
        kernel = kernel_of(CALLS["norm"], "forward", TARGET)
        same = result(CALLS["norm"], "forward", kernel.schedule.launch)
        empty = tuner.empty("sm_90", HERE)
        assert tuner.put(empty, same, {}) == empty

    def test_the_cache_lists_it(self, cache):
        kept(result(CALLS["norm"], "forward", other_config(CALLS["norm"], "forward")))
        said = CliRunner().invoke(app, ["cache", "list"])
        assert said.exit_code == 0
        assert f"launch configurations tuned on {HERE.name}" in said.output
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


def published(text):
    """An entry of the cache with such a file: whole, whatever is in it."""
    identity = tuned._identity("sm_90", HERE.name, json.dumps("other"))
    return shared_store().publish(identity, {}, {tuned.FILE: text}).folder / tuned.FILE


def right_text(**changes):
    return text_of({**tuner.empty("sm_90", HERE), **changes}).encode()


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
        row = tuner.row_of(
            kernel.features, kernel.schedule.launch, {"case": 91.234}, {"driver": "1"}
        )
        assert row["percent"] == {"case": 91.2}
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["measured"]["date"])
        content = tuner.with_row(tuner.empty("sm_90", HERE), kind, row)
        assert json.loads(text_of(content)) == content


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
            def __init__(self, bound, kind, device, options):
                super().__init__(lambda config: 1e-5 if config.min_threads_per_sm != 1280 else 8e-6)
                self.kernel, self.case = kernel_of(bound, kind, TARGET), kind

            def percent(self, seconds):
                return 7e-4 / seconds

        monkeypatch.setattr(problem, "of_pass", Fast)

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

    def test_a_file_that_takes_no_such_row(self, cache, gpu):
        """Its row is for the same kernel in other words, so that the new row would hide it."""
        assert invoke(*SHAPE, *OPERANDS, "--no-backward").exit_code == 0
        forget()
        content = tuned.content_of(tuned.find("sm_90", HERE.name))
        (row,) = content["forward"]
        row["when"] = {name: [value] for name, value in row["when"].items()}
        row["set"] = {"min_threads_per_sm": 640, "rows_per_block": 2}
        tuned.keep(content)
        forget()
        outcome = invoke(*SHAPE, *OPERANDS, "--no-backward")
        assert (outcome.exit_code, type(outcome.exception)) == (1, SystemExit)
        assert "could not be kept: the new file, forward[1]" in said(outcome)

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


def test_what_changed_is_told_with_both_values():
    before = LaunchConfig()
    after = before._replace(rows_per_block=2)
    outcome = tuner.Outcome(before, after, 2.0, 1.0, ())
    assert tuner.difference(outcome) == f"rows_per_block {before.rows_per_block} -> 2"
    assert tuner.difference(outcome._replace(after=before)) == "nothing changed"


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["attention", "norm"])
def test_on_a_gpu(cache, which, kind):
    """Some trials of a real kernel; bits of what is used afterwards are those of before."""
    device = torch.device("cuda", torch.cuda.current_device())
    bound = CALLS[which]
    op = bound.op
    found = of_pass(bound, kind, device, {})
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


def test_an_export_does_not_depend_on_it(cache, monkeypatch):
    monkeypatch.setattr(exported.Target, "of", classmethod(lambda cls, device: TARGET))
    target = exported.target_of(None, torch.device("cuda", 0), None)
    assert target == Target("sm_90", HERE._replace(name=""))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", CALLS.values(), ids=CALLS)
def test_no_row_makes_a_kernel_that_cannot_be(cache, bound, kind):
    """A file edited by hand, say: what a kernel cannot do is not asked of it."""
    odd = {"rows_per_block": 7, "prefetch": "across_rows", "prefetch_distance": 3}
    many = {"min_threads_per_sm": 10**6, "persistent_threads_per_sm": 10**6, "persistent": True}
    rule = {"when": {}, "set": {**odd, **many, "smem_staged": True, "relay_handshake": True}}
    tuned.keep({**tuner.empty("sm_90", HERE), kind: [rule]})
    forget()
    schedule = kernel_of(bound, kind, TARGET).schedule
    launch, features = schedule.launch, schedule.features
    assert schedule.threads_per_block % 32 == 0
    assert schedule.threads_per_block <= 512
    assert schedule.threads <= 32 or launch.rows_per_block == 1
    assert launch.min_threads_per_sm <= HERE.threads_per_sm
    if kind == "backward":
        assert not launch.persistent or features.read_once
        assert launch.prefetch != "across_rows" or not (launch.persistent or features.sums)
    assert not launch.relay_handshake or schedule.cluster > 1
