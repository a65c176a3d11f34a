# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A cache folder that cannot be used is told once and worked around."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from samples import HOST, LEVEL, Compiler
from typer.testing import CliRunner

import fusedops
from fusedops.cli import app
from fusedops.doctor import check_cache
from fusedops.errors import MissingVariantError
from fusedops.jit import build, env, host
from fusedops.jit import cache as cache_module


def make() -> str:
    return build(HOST, name="h", arch=LEVEL).origin


def empty(cache: Path) -> None:
    cache.mkdir(mode=0o700)


def open_to_all(cache: Path) -> None:
    empty(cache)
    cache.chmod(0o777)


def of_another(cache: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    empty(cache)
    os.chown(cache, 12345, -1)


def a_file(cache: Path) -> None:
    cache.write_text("")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (open_to_all, "everybody may write to it"),
        (of_another, "belongs to user 12345"),
        (a_file, "it is no folder"),
    ],
)
def test_a_folder_that_cannot_be_used(
    compiler: Compiler, cache: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    spoil(cache)
    with pytest.warns(RuntimeWarning, match=reason) as told:
        origins = [make(), make()]
    assert origins == ["compiled", "cache"]  # this process keeps what it has built
    assert len(told) == 1
    assert "compiled anew in each process; set FUSEDOPS_CACHE_DIR" in str(told[0].message)
    assert told[0].filename == __file__  # whose code made the call, not where it is said
    assert compiler.compilations == 1
    assert not cache.is_dir() or list(cache.iterdir()) == []


def test_offline_nothing_is_said_to_be_compiled(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all(cache)
    monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
    with (
        pytest.warns(RuntimeWarning, match="missing from it is an error while FUSEDOPS_OFFLINE=1"),
        pytest.raises(MissingVariantError),
    ):
        make()


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match="cannot be made: Not a directory"):
        assert make() == "compiled"


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("FUSEDOPS_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(env.Path, "home", no_home)
    with pytest.warns(RuntimeWarning, match="no home folder"):
        assert make() == "compiled"


def test_a_full_disk(cache: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    write = cache_module._write

    def full(path: Path, content: bytes) -> None:
        if cache in path.parents:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(cache_module, "_write", full)
    with pytest.warns(RuntimeWarning, match="cannot be written: No space left") as told:
        origins = [make(), make()]
    assert origins == ["compiled", "cache"]
    assert len(told) == 1
    assert compiler.compilations == 1


@pytest.fixture
def open_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache that an ordinary user can reach, made by whoever runs the tests."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_is_only_readable(open_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(open_cache))
    entry = build(HOST, name="h", arch=LEVEL).folder
    for path in (entry, *entry.iterdir()):  # ours alone otherwise
        path.chmod(0o755)
    script = f"""
import sys, warnings
sys.path[:0] = {[str(Path(folder).parent) for folder in fusedops.__path__]!r}
from fusedops.jit import build
import filelock, os
os.setuid(65534)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    origins = [build(source, name="h", arch={LEVEL!r}).origin
               for source in ({HOST!r}, {HOST!r} + "//", {HOST!r} + "//")]
print(*origins, [str(w.message) for w in told])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.stdout.startswith("cache compiled cache"), done.stderr
    assert done.stdout.count("cannot be written") == 1


def test_a_usable_folder_is_not_talked_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make()


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"FUSEDOPS_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/fusedops"),
        ({"HOME": "/c"}, "/c/.cache/fusedops"),
        ({"FUSEDOPS_CACHE_DIR": "~/kernels", "HOME": "/c"}, "/c/kernels"),
        ({"FUSEDOPS_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/fusedops"),
    ],
)
def test_where_the_cache_is(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    for name in ("FUSEDOPS_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert env.cache_dir() == Path(folder)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"HOME": "rel"}, "to keep the cache in: HOME must be a full path, got 'rel'"),
        ({"HOME": ""}, "no home folder to keep the cache in: HOME must be a full path, got ''"),
        (
            {"FUSEDOPS_CACHE_DIR": "~/x", "HOME": "rel"},
            "FUSEDOPS_CACHE_DIR='~/x' leads to no folder: HOME must be a full path, got 'rel'",
        ),
        (
            {"FUSEDOPS_CACHE_DIR": "~no-such-user/x", "HOME": "/c"},
            "FUSEDOPS_CACHE_DIR='~no-such-user/x' leads to no folder",
        ),
    ],
)
def test_a_variable_that_leads_nowhere_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FUSEDOPS_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert env.cache_dir() is None
    with pytest.warns(RuntimeWarning, match=re.escape(reason)):
        assert make() == "compiled"
    assert reason in check_cache().found
    assert reason in CliRunner().invoke(app, ["cache", "list"]).output


def test_the_level_of_optimisation_is_a_flag_of_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for value, flag in [("", "-O3"), ("0", "-O0"), ("1", "-O1"), ("3", "-O3")]:
        monkeypatch.setenv("FUSEDOPS_OPT_LEVEL", value)
        assert flag in host.flags("x86-64-v3")
    monkeypatch.setenv("FUSEDOPS_OPT_LEVEL", "fast")
    with pytest.raises(ValueError, match="FUSEDOPS_OPT_LEVEL must be 0, 1, 2 or 3, got 'fast'"):
        host.flags("x86-64-v3")


@pytest.mark.parametrize("name", ["FUSEDOPS_OFFLINE", "FUSEDOPS_VERBOSE"])
def test_a_flag_is_0_or_1(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    read = {"FUSEDOPS_OFFLINE": env.offline, "FUSEDOPS_VERBOSE": env.verbose}[name]
    for value, meaning in [("", False), ("0", False), ("1", True)]:
        monkeypatch.setenv(name, value)
        assert read() is meaning
    monkeypatch.setenv(name, "yes")
    with pytest.raises(ValueError, match=f"{name} must be 0 or 1, got 'yes'"):
        read()
