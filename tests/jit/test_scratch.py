# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Temporary folders go with their owner, and are reclaimed where it was killed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from samples import HOST, LEVEL, Compiler

import fusedops
from fusedops.jit import build, lock, scratch

PREFIX = ".tmp-"
OWNER = f"""
import sys, time
sys.path[:0] = {[str(Path(folder).parent) for folder in fusedops.__path__]!r}
from fusedops.jit import scratch
from pathlib import Path
with scratch.scratch(Path(sys.argv[1]), {PREFIX!r}) as folder:
    (folder / "half").write_text("half")
    print("made", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of writing a temporary folder."""
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_its_owners_alone_and_goes_at_the_end(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with scratch.scratch(tmp_path, PREFIX) as folder:
            assert folder.stat().st_mode & 0o777 == 0o700
            assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
            (folder / "file").write_text("")
    finally:
        os.umask(before)
    assert names(tmp_path) == []


@pytest.mark.thorough
def test_a_folder_in_use_is_left_alone(tmp_path: Path, owner: subprocess.Popen[str]) -> None:
    before = names(tmp_path)
    assert len(before) == 2
    assert [*scratch.abandoned(tmp_path, PREFIX)] == []
    scratch.reclaim(tmp_path, PREFIX)
    assert names(tmp_path) == before


@pytest.mark.thorough
def test_a_killed_owners_folder_is_reclaimed_by_the_next(
    tmp_path: Path, owner: subprocess.Popen[str]
) -> None:
    (left,) = (path for path in tmp_path.iterdir() if path.is_dir())
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert [*scratch.abandoned(tmp_path, PREFIX)] == [left]
    assert left.is_dir()
    with scratch.scratch(tmp_path, PREFIX) as folder:
        assert names(tmp_path) == [folder.name, f"{folder.name}.lock"]


def test_a_folder_that_could_not_be_emptied_keeps_its_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that outlives its parent deletes a file between its listing and its removal."""
    remove = shutil.rmtree

    def of_two(folder: Path) -> None:
        monkeypatch.setattr(shutil, "rmtree", remove)
        raise FileNotFoundError(folder / "ccAbCdEf.s")

    with scratch.scratch(tmp_path, PREFIX) as folder:
        monkeypatch.setattr(shutil, "rmtree", of_two)
    assert folder.exists()
    scratch.reclaim(tmp_path, PREFIX)
    assert not [*tmp_path.iterdir()]


def test_a_lock_file_without_its_folder_is_reclaimed(tmp_path: Path) -> None:
    (tmp_path / ".tmp-x.lock").touch()
    scratch.reclaim(tmp_path, PREFIX)
    assert names(tmp_path) == []


def test_without_locks_age_decides(tmp_path: Path, no_locks: None) -> None:
    for name, age in (("old", 2 * scratch.LEFTOVER_SECONDS), ("young", 60)):
        (tmp_path / f".tmp-{name}").mkdir()
        file = tmp_path / f".tmp-{name}.lock"
        file.touch()
        os.utime(file, (time.time() - age,) * 2)
    with scratch.scratch(tmp_path, PREFIX) as folder:
        assert folder.is_dir()
    assert names(tmp_path) == [".tmp-young", ".tmp-young.lock"]


def test_a_maker_whose_lock_file_was_reclaimed_takes_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between making the lock file and locking it."""
    taken, robbed = lock.taken, []

    def rob(descriptor: int, path: Path) -> bool:
        if not robbed:
            robbed.append(path)
            path.unlink()
        return taken(descriptor, path)

    monkeypatch.setattr(lock, "taken", rob)
    with scratch.scratch(tmp_path, PREFIX) as folder:
        assert names(tmp_path) == [folder.name, f"{folder.name}.lock"]
        assert robbed[0].name != f"{folder.name}.lock"


def another_users(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(folder, 12345, -1)


def another_users_lock(folder: Path) -> None:
    another_users(folder.with_name(folder.name + ".lock"))


def linked_lock(folder: Path) -> None:
    file = folder.with_name(folder.name + ".lock")
    file.unlink()
    file.symlink_to(folder / "file")


@pytest.mark.parametrize("spoil", [another_users, another_users_lock, linked_lock])
def test_what_is_another_users_is_not_removed(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    folder = tmp_path / ".tmp-x"
    folder.mkdir()
    (folder / "file").touch()
    (tmp_path / ".tmp-x.lock").touch()
    spoil(folder)
    scratch.reclaim(tmp_path, PREFIX)
    assert (folder / "file").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").touch()
    (tmp_path / ".tmp-x").symlink_to(mine)
    (tmp_path / ".tmp-x.lock").touch()
    scratch.reclaim(tmp_path, PREFIX)
    assert (mine / "file").exists()


def test_what_only_has_such_a_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".tmp-mine").mkdir()
    os.utime(tmp_path / ".tmp-mine", (0, 0))
    scratch.reclaim(tmp_path, PREFIX)
    assert names(tmp_path) == [".tmp-mine"]


def test_a_fork_leaves_its_parents_folder_alone(tmp_path: Path) -> None:
    held = scratch.scratch(tmp_path, PREFIX)
    folder = held.__enter__()
    if not (child := os.fork()):
        held.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.is_dir()
    assert [*scratch.abandoned(tmp_path, PREFIX)] == []
    held.__exit__(None, None, None)
    assert names(tmp_path) == []


def test_the_compilers_temporary_files_go_there_too(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.path.write_text(
        compiler.path.read_text().replace("sleep", f'echo "$TMPDIR $PWD" >> {tmp_path}/told; sleep')
    )
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(tmp_path))
    build(HOST, name="h", arch=LEVEL)
    temporary, working = (tmp_path / "told").read_text().split()
    assert temporary == working
    assert Path(temporary).parent == tmp_path
    assert not Path(temporary).exists()


def test_a_base_where_everybody_may_rename_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases = [tmp_path / name for name in ("open", "sticky")]
    for base, mode in zip(bases, (0o777, 0o1777), strict=True):
        base.mkdir()
        base.chmod(mode)
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(bases[0]))
    with pytest.raises(PermissionError, match=r"open: .*: set TMPDIR to one"), scratch.anywhere():
        pass
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(bases[1]))
    with scratch.anywhere() as folder:
        assert folder.parent == bases[1]
