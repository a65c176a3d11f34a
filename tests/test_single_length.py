# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A long row whose length recurs gets a kernel of its own in the background, and keeps its bits."""

from types import SimpleNamespace

import pytest
import torch
from cases import randn

import fusedops as fo
from fusedops import _runtime
from fusedops.bind.bind import bind
from fusedops.errors import CompileError
from fusedops.generate.target import Target
from fusedops.jit import nvrtc
from fusedops.plan.forward import describe
from fusedops.run import single_length

LONG = (30522, 50257, 128256, 151936, 200001)


def described(columns, single, op=fo.LogSoftmax(), dtype=torch.float16):  # noqa: B008
    x = torch.empty((64, columns), dtype=dtype, device="meta")
    return describe(bind(op, x, {}, {}), Target.named("sm_90"), single=single)


@pytest.mark.parametrize("op", [fo.LogSoftmax(), fo.LayerNorm()], ids=lambda op: op.name)
@pytest.mark.parametrize("columns", LONG)
def test_it_has_the_tile_of_its_bucket(columns, op):
    bucket, own = (described(columns, single, op).tile for single in (False, True))
    assert own.tile == bucket.tile
    assert own.cluster == bucket.cluster
    assert bucket.even
    assert not own.even
    assert own.lengths == (columns, columns)
    # Every thread has so many full packs in the last chunk of the row, which is the shortest.
    blocks = max(own.cluster, own.chunks)
    of_last = columns - (blocks - 1) * own.chunk
    assert own.full * own.threads * own.width <= max(of_last, 0)
    assert own.full >= bucket.full


@pytest.mark.parametrize("columns", [257, 1023, 4096, 12288])
def test_rows_in_one_piece_keep_the_kernel_of_their_bucket(columns):
    assert described(columns, True).variant.key == described(columns, False).variant.key


@pytest.mark.parametrize("columns", [50257, 128256])
def test_it_compiles_without_spills(columns):
    variant = described(columns, True).variant
    assert f", {described(columns, True).tile.chunk}>" in variant.source
    _, log = nvrtc.compile_cuda(variant.source, variant.arch)
    assert "in whatever room" not in log  # NVRTC 13.0 needs room for one block less


class Built:
    """A stand-in for a call on a GPU, and what becomes of the kernel for its length."""

    def __init__(self, fails=False):
        self.fails = fails
        self.built = self.loaded = 0
        variant = SimpleNamespace(key="bucket")
        tile = SimpleNamespace(even=True, storage="cluster")
        self.info = SimpleNamespace(variant=variant, tile=tile, geometry=SimpleNamespace(columns=7))
        self.own = SimpleNamespace(variant=SimpleNamespace(build=self.build, kernel=self.kernel))

    def build(self):
        self.built += 1
        if self.fails:
            raise CompileError("no")

    def kernel(self):
        self.loaded += 1

    def ask(self):
        return single_length.calls_until_next(self.info, lambda: self.own)

    def runs(self):
        return single_length.replaced(self.info, lambda: self.own)


@pytest.fixture(autouse=True)
def nothing_known():
    single_length.forget()
    yield
    single_length.forget()


def wait(key=("bucket", 7)):
    single_length._states[key].exception()


@pytest.fixture
def capturing(monkeypatch):
    """Whether a graph is being captured."""
    now = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: now[0])
    return now


def test_the_second_plan_builds_and_the_third_loads(capturing):
    call = Built()
    assert call.ask() == single_length.CALLS
    assert call.ask() == single_length.CALLS
    wait()
    assert (call.built, call.loaded) == (1, 0)
    assert call.runs() is call.info
    capturing[0] = True  # a module shall not be loaded then
    assert call.ask() == single_length.CALLS
    assert (call.built, call.loaded) == (1, 0)
    capturing[0] = False
    assert call.ask() == 1  # the very next call is planned with it
    assert (call.built, call.loaded) == (1, 1)
    assert call.runs() is call.own


def test_one_that_cannot_be_built_is_not_tried_again(capturing):
    call = Built(fails=True)
    call.ask(), call.ask()
    wait()
    assert call.ask() == 0
    assert (call.built, call.loaded) == (1, 0)
    assert call.runs() is call.info


@pytest.mark.parametrize(
    "stop", [{"FUSEDOPS_BACKGROUND": "0"}, {"FUSEDOPS_OFFLINE": "1"}, "a forked child"], ids=str
)
def test_nothing_is_built_where_that_is_not_wanted(stop, monkeypatch):
    if isinstance(stop, dict):
        for name, value in stop.items():
            monkeypatch.setenv(name, value)
    else:
        monkeypatch.setattr(single_length, "_process", 1)
    call = Built()
    assert [call.ask() for _ in range(3)] == [0, 0, 0]
    assert call.built == 0


def test_the_number_of_lengths_in_mind_is_bounded(monkeypatch):
    monkeypatch.setattr(single_length, "MOST", 1)
    first, second = Built(), Built()
    second.info.geometry.columns = 8
    assert (first.ask(), second.ask()) == (single_length.CALLS, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [50257, 128256])
@pytest.mark.parametrize("op", [fo.LogSoftmax(), fo.LayerNorm()], ids=lambda op: op.name)
def test_bits_are_the_same_before_and_after(op, columns):
    op = type(op)(op.load, op.store)  # with no plans yet
    x = randn(40, columns, dtype=torch.float16, device="cuda")
    before = op(x)
    assert "columns alone" not in str(op.explain(x))
    single_length.settle(lambda: op(x))
    assert "columns alone" in str(op.explain(x))
    for _ in range(3):
        y = torch.full_like(before, torch.nan)
        op(x, out=y)
        assert torch.equal(y, before)
        assert torch.equal(op(x), before)
    assert _runtime.last_plan().info == "cluster"
