# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Threads build once and forks never hang, whatever their parent was in the middle of."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from samples import HOST, LEVEL, Compiler

import fusedops as fo
from fusedops.generate import variant
from fusedops.jit import build, lock, store
from fusedops.jit.cache import Identity, Store

THREADS = 32
SECONDS = 30.0  # after which a child hangs
IDENTITY = Identity("name", "a" * 64, "b" * 64)


def at_once(work: Callable[[], object]) -> list[object]:
    """`work` in many threads that begin together."""
    gate = threading.Barrier(THREADS)

    def one(_: int) -> object:
        gate.wait()
        return work()

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, range(THREADS)))


def in_a_fork(work: Callable[[], object]) -> bool:
    """Whether a forked child comes to the end of `work`, and finds it true."""
    if not (child := os.fork()):
        status = 1
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    limit = time.monotonic() + SECONDS
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        if time.monotonic() > limit:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.01)


def make() -> str:
    return build(HOST, name="h", arch=LEVEL).origin


def softmax(name: str) -> bool:
    """An op that no other test has, by the operand's name, is right.

    Compared without an operator of torch, whose OpenMP threads do not outlive a fork.
    """
    op, x = fo.Softmax(load=[fo.Scale(name)]), torch.arange(24.0).reshape(3, 8)
    powers = [math.exp(0.5 * column) for column in range(8)]
    wanted = [power / sum(powers) for power in powers]
    return all(row == pytest.approx(wanted) for row in op(x, **{name: 0.5}).tolist())


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant, "_kernels", {})


def test_threads_that_call_an_op_first_compile_it_once(compiler: Compiler, cold: None) -> None:
    op, x = fo.Softmax(load=[fo.Scale("s")]), torch.arange(24.0).reshape(3, 8)
    wanted = op.unfused(x, s=0.5)
    assert all(torch.allclose(y, wanted) for y in at_once(lambda: op(x, s=0.5)))
    assert compiler.compilations == 1


def no_locks(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    # Other processes have locks, and would take an unlocked folder in theirs for an abandoned one.
    own = cache.with_name("temporary")
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))


def no_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("no folder")


@pytest.mark.filterwarnings("ignore:the cache folder:RuntimeWarning")
@pytest.mark.parametrize("spoil", [lambda *_: None, no_locks, no_cache])
def test_threads_build_once_where_files_do_not_lock(
    compiler: Compiler,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    spoil(cache, monkeypatch)
    origins = at_once(make)
    assert sorted(map(str, origins)) == ["cache"] * (THREADS - 1) + ["compiled"]
    assert compiler.compilations == 1


def test_threads_are_told_once(cache: Path) -> None:
    cache.write_text("no folder")
    with pytest.warns(RuntimeWarning) as told:
        at_once(store.shared_store)
    assert len(told) == 1


def test_a_fork_builds_and_calls(cold: None) -> None:
    assert in_a_fork(lambda: softmax("in_a_fork"))


@pytest.mark.thorough
def test_a_fork_while_a_thread_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: None
) -> None:
    slow = Compiler(tmp_path, seconds=1)
    monkeypatch.setenv("CXX", str(slow.path))
    builder = threading.Thread(target=softmax, args=("slow",))
    builder.start()
    while slow.compilations == 0:
        time.sleep(0.01)
    assert in_a_fork(lambda: softmax("slow"))  # the same variant: waits for its parent's
    builder.join()
    assert slow.compilations == 1


@pytest.mark.thorough
@pytest.mark.parametrize("moment", range(12))
def test_a_fork_at_any_moment_of_a_build(cold: None, moment: int) -> None:
    builder = threading.Thread(target=softmax, args=("any",))
    builder.start()
    time.sleep(0.001 * 2**moment)
    assert in_a_fork(lambda: softmax("any"))
    builder.join()


# A process that has imported fusedops and called nothing. A thread makes the first calls; whenever
# it imports something of ours, it waits until the process forks, unless that waits for the import.
# Each child makes the same calls.
FIRST_CALLS = """
import os, signal, sys, threading, time
import torch
import fusedops as fo

torch.set_num_threads(1)
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("fusedops.") and threading.current_thread() is thread:
            names.append(name)
            while state[-1] != "forking":
                time.sleep(0.01)
            time.sleep(0.05)

def call():
    x = torch.randn(4, 8, requires_grad=True)
    fo.Softmax(load=[fo.Scale("s")])(x, s=0.5).sum().backward()

names, state, thread = [], ["idle"], threading.Thread(target=call)
sys.meta_path.insert(0, Slow())
torch.randn(4, 8, requires_grad=True).sum().backward()  # what torch itself imports late
thread.start()
children = seen = 0
while thread.is_alive():
    if len(names) == seen:
        time.sleep(0.01)
        continue
    state.append("forking")
    if child := os.fork():
        seen, children = len(names), children + 1
        state.append("idle")
        limit = time.monotonic() + SECONDS
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.monotonic() > limit:
                os.kill(child, signal.SIGKILL)
                sys.stderr.write(f"a child hangs, forked during the import of {names[-1]}")
                sys.stderr.flush()
                os._exit(1)  # the thread may wait for a fork
            time.sleep(0.01)
    else:
        call()
        os._exit(0)
thread.join()
sys.exit(None if children > 1 else f"only {children} forks, for {names}")
"""


@pytest.mark.thorough
def test_a_fork_while_a_thread_imports_what_the_first_calls_need(tmp_path: Path) -> None:
    """In a process of its own, for here everything is imported."""
    script = tmp_path / "first_calls.py"
    script.write_text(FIRST_CALLS.replace("SECONDS", str(SECONDS)))
    environment = {**os.environ, "FUSEDOPS_RECORD": str(tmp_path / "calls")}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").exists()


def test_a_fork_does_not_prolong_its_parents_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    def has_none() -> bool:
        links = [
            str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()
        ]
        return str(path) not in links

    with lock.among_processes(path, 0.0):
        assert not has_none()
        assert in_a_fork(has_none)
    with lock.opened(path) as descriptor:
        assert lock.taken(descriptor, path)


@pytest.mark.parametrize("reused", [False, True])
def test_a_fork_after_others_closed_a_lock_file(tmp_path: Path, reused: bool) -> None:
    """Such as a program that closes all descriptors, and goes on to open its own."""

    def take_guard() -> bool:
        held = lock.guard.acquire(timeout=1.0)
        if held:
            lock.guard.release()
        return held

    def is_open(descriptor: int) -> bool:
        with contextlib.suppress(OSError):
            return bool(os.fstat(descriptor))
        return False

    def right() -> bool:
        with ThreadPoolExecutor(1) as pool:
            free = pool.submit(take_guard).result()
        return free and is_open(closed) is reused and not is_open(kept)

    with lock.opened(tmp_path / "kept", os.O_CREAT) as kept:
        with lock.opened(tmp_path / "closed", os.O_CREAT) as closed:
            os.close(closed)
            if reused:
                assert os.open(tmp_path, os.O_RDONLY) == closed
            assert in_a_fork(right)
        assert is_open(closed) is reused
        assert is_open(kept)
    if reused:
        os.close(closed)


def test_a_fork_while_a_thread_has_the_variant(tmp_path: Path) -> None:
    """The lock among threads: its owner does not exist in the child."""
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as held:
        pool.submit(held.enter_context, lock.among_threads("name", 0.0)).result()
        began = time.monotonic()

        def take() -> bool:
            with lock.among_threads("name", SECONDS):
                return time.monotonic() - began < SECONDS / 2

        assert in_a_fork(take)


def test_a_variant_keeps_others_out_and_not_other_variants(tmp_path: Path) -> None:
    shared, other = Store(tmp_path), Identity("name", "c" * 64, "d" * 64)
    with ThreadPoolExecutor(1) as pool, shared.lock(IDENTITY):

        def enter(identity: Identity) -> bool:
            with shared.lock(identity):
                return True

        assert pool.submit(enter, other).result(timeout=5)
        same = pool.submit(enter, IDENTITY)
        time.sleep(0.2)
        assert not same.done()
    assert same.result(timeout=5)
