# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Entries on disk: whole or not there, and built once among any number of processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from samples import HOST, LEVEL, Compiler

import fusedops
from fusedops.jit import Artifact, build, env
from fusedops.jit import cache as cache_module
from fusedops.jit.cache import Identity, Store

IDENTITY = Identity("name", "a" * 64, "b" * 64)
META = {"compiler": {"version": "1.0"}, "date": "2026-01-01"}
FILES = {"kernel.cpp": b"source", "kernel.so": b"binary"}

# A process that builds HOST, and says whether it compiled.
BUILDER = f"""
import sys
sys.path[:0] = {[str(Path(folder).parent) for folder in fusedops.__path__]!r}
from fusedops.jit import build
print(build({HOST!r}, name="h", arch={LEVEL!r}).origin)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def make() -> Artifact:
    return build(HOST, name="h", arch=LEVEL, declaration="Softmax()")


def test_an_entry_holds_source_binary_and_record(cache: Path) -> None:
    made = make()
    assert made.origin == "compiled"
    assert made.folder.parent == cache
    assert cache.stat().st_mode & 0o777 == 0o700
    assert made.folder.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in made.folder.iterdir()} == {"kernel.cpp", "kernel.so", "meta.json"}
    assert (made.folder / "kernel.cpp").read_text() == HOST
    meta = json.loads((made.folder / "meta.json").read_text())
    assert made.folder.name == f"h-{meta['request'][:16]}-{meta['build'][:8]}"
    assert meta["binary"] == "kernel.so"
    assert meta["files"].keys() == {"kernel.cpp", "kernel.so"}
    assert meta["files"]["kernel.so"]["size"] == made.binary.stat().st_size
    assert meta["declaration"] == "Softmax()"
    assert meta["arch"] == LEVEL
    assert meta["compiler"]["version"]
    assert f"-O{env.opt_level()}" in meta["flags"]
    assert not [path for path in cache.iterdir() if path.name.startswith(".tmp-")]


def test_the_second_build_comes_from_the_cache(compiler: Compiler) -> None:
    first, second = make(), make()
    assert (first.origin, second.origin) == ("compiled", "cache")
    assert (second.folder, second.binary) == (first.folder, first.binary)
    assert compiler.compilations == 1


def truncate(entry: Path) -> None:
    binary = entry / "kernel.so"
    binary.write_bytes(binary.read_bytes()[:-1])


def flip(entry: Path) -> None:
    binary = entry / "kernel.so"
    content = bytearray(binary.read_bytes())
    content[100] ^= 1
    binary.write_bytes(content)


def garble(entry: Path) -> None:
    (entry / "meta.json").write_text("{")


def misname(entry: Path) -> None:
    """Another variant's entry under this one's name, as after a collision of the short digests."""
    meta = json.loads((entry / "meta.json").read_text())
    (entry / "meta.json").write_text(json.dumps({**meta, "request": "0" * 64}))


def lose_binary(entry: Path) -> None:
    (entry / "kernel.so").unlink()


def lose_meta(entry: Path) -> None:
    (entry / "meta.json").unlink()


def disown(entry: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(entry, 12345, -1)


@pytest.mark.parametrize(
    "damage", [truncate, flip, garble, misname, lose_binary, lose_meta, disown]
)
def test_a_damaged_entry_is_set_aside_and_rebuilt(
    compiler: Compiler, cache: Path, damage: Callable[[Path], None]
) -> None:
    first = make()
    intact = first.binary.read_bytes()
    damage(first.folder)
    again = make()
    assert again.origin == "compiled"
    assert compiler.compilations == 2
    assert again.binary.read_bytes() == intact
    assert len(list(cache.glob(".damaged-*"))) == 1
    assert make().origin == "cache"


def test_a_file_where_the_entry_should_be_is_set_aside(cache: Path) -> None:
    first = make()
    for path in first.folder.iterdir():
        path.unlink()
    first.folder.rmdir()
    first.folder.write_text("in the way")
    assert make().origin == "compiled"
    assert make().origin == "cache"


def test_the_one_who_comes_second_takes_the_first_ones_entry(store: Store) -> None:
    first = store.publish(IDENTITY, META, FILES)
    second = store.publish(IDENTITY, META, {**FILES, "kernel.so": b"another"})
    assert second.binary.read_bytes() == first.binary.read_bytes() == b"binary"
    assert [path.name for path in store.root.iterdir()] == [IDENTITY.folder]


def test_a_failed_publication_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.publish(IDENTITY, META, FILES)
    assert list(store.root.iterdir()) == []


def test_the_newest_compiler_is_first(store: Store) -> None:
    for build_digest, version, date in [
        ("b" * 64, "9.4", "2026-01-03"),
        ("c" * 64, "12.2", "2026-01-01"),
        ("d" * 64, "12.2", "2026-01-02"),
    ]:
        meta = {"compiler": {"version": version}, "date": date}
        store.publish(Identity("name", IDENTITY.request, build_digest), meta, FILES)
    store.publish(Identity("name", "e" * 64, "f" * 64), META, FILES)
    newest = store.newest(IDENTITY.request)
    assert newest is not None
    assert newest.meta["build"] == "d" * 64
    (newest.folder / "kernel.so").write_bytes(b"")
    newest = store.newest(IDENTITY.request)
    assert newest is not None
    assert newest.meta["build"] == "c" * 64


@pytest.mark.parametrize("name", ["a/b", "../up", "ünï cödé", "x" * 500, ""])
def test_any_name_makes_a_plain_folder(store: Store, name: str) -> None:
    entry = store.publish(Identity(name, "a" * 64, "b" * 64), META, FILES)
    assert entry.folder.parent == store.root
    assert len(entry.folder.name) < 100


@pytest.mark.thorough
def test_processes_that_race_compile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Compiler(tmp_path, seconds=0.5)  # so that all of them find the cache empty
    monkeypatch.setenv("CXX", str(counting.path))
    command = [sys.executable, "-c", BUILDER]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    origins = sorted(racer.communicate(timeout=120)[0].strip() for racer in racers)
    assert origins == ["cache"] * 3 + ["compiled"]
    assert counting.compilations == 1


@pytest.mark.thorough
def test_a_lock_dies_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    slow = Compiler(tmp_path, seconds=60)
    monkeypatch.setenv("CXX", str(slow.path))
    owner = subprocess.Popen([sys.executable, "-c", BUILDER], start_new_session=True)
    wait_for(lambda: slow.compilations == 1)
    os.killpg(owner.pid, signal.SIGKILL)
    owner.wait()
    monkeypatch.setenv("CXX", str(Compiler(tmp_path).path))
    started = time.monotonic()
    assert make().origin == "compiled"
    assert time.monotonic() - started < 45  # the slow compiler takes 60


@pytest.mark.thorough
def test_a_stuck_owner_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    slow = Compiler(tmp_path, seconds=60)
    monkeypatch.setenv("CXX", str(slow.path))
    owner = subprocess.Popen([sys.executable, "-c", BUILDER], start_new_session=True)
    try:
        wait_for(lambda: slow.compilations == 1)
        monkeypatch.setenv("CXX", str(Compiler(tmp_path).path))
        monkeypatch.setattr(cache_module, "LOCK_SECONDS", 0.2)
        assert make().origin == "compiled"
        assert make().origin == "cache"
    finally:
        os.killpg(owner.pid, signal.SIGKILL)
        owner.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit, "nothing happened for a minute"
        time.sleep(0.02)
