# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Wherever the cache is, and whatever happens to it, calls are right and one warning says why."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from cases import thorough
from samples import Compiler

import fusedops as fo
from fusedops import _runtime
from fusedops.generate import variant
from fusedops.jit import Artifact, builder, env, scratch
from fusedops.jit import cache as cache_module
from fusedops.jit.cache import Store

FULL = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO]


def call() -> bool:
    """Whether an op is right in what would be a new process."""
    variant._kernels.clear()
    op, x = fo.Softmax(load=[fo.Scale("s")]), torch.arange(24.0).reshape(3, 8)
    return torch.allclose(op(x, s=0.5), op.unfused(x, s=0.5))


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant, "_kernels", {})


@pytest.fixture
def one_warning() -> Iterator[list[str]]:
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield texts
    texts += [str(warning.message) for warning in told]
    assert len(texts) == 1, texts
    assert "set FUSEDOPS_CACHE_DIR" in texts[0]


def failing(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, number: int) -> list[str]:
    """Make the function `name` of `owner` fail where it is given a path in the cache."""
    real, failed = getattr(owner, name), []

    def fail(*arguments: object, **options: object) -> object:
        if any("/cache" in str(argument) for argument in arguments):
            failed.append(name)
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, fail)
    return failed


@pytest.mark.thorough
@pytest.mark.parametrize("number", [FULL[0], *thorough(*FULL[1:])], ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (cache_module, "_write"),
        (cache_module, "_flush"),
        (cache_module, "_renamed"),
        (scratch.lock, "opened"),
        (Path, "mkdir"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_step_of_writing_may_fail(
    cache: Path,
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    number: int,
    one_warning: list[str],
) -> None:
    failed = failing(monkeypatch, owner, name, number)
    assert call()
    assert call()
    assert failed
    assert compiler.compilations == 1
    assert not cache.exists() or not [*Store(cache).entries()]


def test_a_limit_on_the_size_of_files(
    cache: Path, monkeypatch: pytest.MonkeyPatch, one_warning: list[str]
) -> None:
    """A real one: the system cuts the file short in the middle."""
    write, limits = cache_module._write, resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(path: Path, content: bytes) -> None:
        if cache in path.parents:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            write(path, content)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(cache_module, "_write", limited)
    assert call()
    assert call()
    assert [path.name for path in cache.iterdir()] == [".locks"]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of a few pages."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no filesystem may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_filesystem_that_is_full(
    small: Path, monkeypatch: pytest.MonkeyPatch, one_warning: list[str]
) -> None:
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(small / "cache"))
    assert call()
    assert call()
    assert not [*Store(small / "cache").entries()]


def test_a_filesystem_that_is_read_only(
    small: Path, monkeypatch: pytest.MonkeyPatch, one_warning: list[str]
) -> None:
    (small / "cache").mkdir(mode=0o700)
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(small / "cache"))
    assert call()
    assert call()


def test_a_filesystem_that_nothing_may_be_run_from(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["mount", "-o", "remount,noexec,size=4m", str(small)], check=True)
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(small / "cache"))
    assert call()
    assert call()
    assert len([*Store(small / "cache").entries()]) == 1
    assert "/memfd:softmax_scale" in Path("/proc/self/maps").read_text()


def test_without_a_cache_the_library_is_loaded_from_memory(
    cache: Path, compiler: Compiler, one_warning: list[str]
) -> None:
    cache.write_text("no folder")
    assert call()
    assert call()
    assert compiler.compilations == 1


@pytest.mark.thorough
def test_libraries_from_memory_are_not_mistaken_for_one_another(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_file(built: Artifact) -> int:
        raise FileNotFoundError("not from its file")

    monkeypatch.setattr(builder, "_file", no_file)
    x = torch.arange(24.0).reshape(3, 8)
    before = {*Path("/proc/self/fd").iterdir()}
    for op in (fo.Softmax(), fo.RMSNorm(), fo.LogSoftmax()):
        assert torch.allclose(op(x), op.unfused(x))
    assert {*Path("/proc/self/fd").iterdir()} == before  # a library does without its descriptor


@pytest.mark.thorough
def test_temporary_files_go_elsewhere_if_tmpdir_is_unusable(tmp_path: Path) -> None:
    code = "from fusedops.jit import scratch\nwith scratch.anywhere() as folder: print(folder)"
    environment = {**os.environ, "TMPDIR": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not Path(done.stdout.strip()).is_relative_to(tmp_path)


def test_a_cache_that_vanishes_between_calls_is_made_again(cache: Path, compiler: Compiler) -> None:
    assert call()
    shutil.rmtree(cache)
    assert call()
    assert compiler.compilations == 2
    assert len([*Store(cache).entries()]) == 1


def test_a_cache_that_vanishes_while_it_compiles_is_made_again(
    cache: Path, compiler: Compiler
) -> None:
    compiler.path.write_text(compiler.path.read_text().replace("sleep", f"rm -rf '{cache}'; sleep"))
    assert call()
    assert call()
    assert compiler.compilations == 1
    assert len([*Store(cache).entries()]) == 1


@pytest.mark.parametrize("moment", ["_write", "_flush"])
def test_a_cache_that_vanishes_while_it_is_written(
    cache: Path, monkeypatch: pytest.MonkeyPatch, moment: str, one_warning: list[str]
) -> None:
    real = getattr(cache_module, moment)

    def vanish(path: Path, *arguments: bytes) -> None:
        if cache in path.parents:
            shutil.rmtree(cache)
        real(path, *arguments)

    monkeypatch.setattr(cache_module, moment, vanish)
    assert call()


def test_that_the_cache_vanished_before_the_entry_was_in_place_is_what_is_said(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = cache_module._flush

    def vanish(folder: Path) -> None:
        flush(folder)
        if cache in folder.parents:
            shutil.rmtree(cache)

    monkeypatch.setattr(cache_module, "_flush", vanish)
    with pytest.warns(RuntimeWarning, match="cannot be written: No such file or directory"):
        assert call()


def test_an_entry_that_vanishes_between_reading_and_loading(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(path: str | bytes, symbol: str) -> _runtime.Kernel:
        shutil.rmtree(cache, ignore_errors=True)
        return load(path, symbol)

    load = _runtime.load_host
    monkeypatch.setattr(_runtime, "load_host", vanish)
    assert call()


NAMES = ["with spaces", "ünï-cödé-日本", os.fsdecode(b"not-utf8-\xff\xfe"), "quote'\"$HOME;"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES, ids=["spaces", "letters", "bytes", "shell"])
def test_any_path_serves(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call()
        assert call()
    assert compiler.compilations == 1
    assert len([*Store(folder / "cache").entries()]) == 1


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert call()  # with a cache by its full path
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", "relative")
    assert env.cache_dir() is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    "spoil",
    [
        lambda home: None,
        lambda home: home.write_text("a file"),
        lambda home: home.symlink_to("nowhere"),
        lambda home: home.symlink_to(home),
    ],
    ids=["missing", "a file", "a link to nothing", "a link to itself"],
)
def test_a_home_that_is_no_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], None],
) -> None:
    home = tmp_path / "home"
    spoil(home)
    monkeypatch.setenv("HOME", str(home))
    for name in ("FUSEDOPS_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert call()
    assert len(told) == (0 if home.is_dir() else 1)
