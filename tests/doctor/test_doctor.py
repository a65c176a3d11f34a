# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The doctor as a whole, and its checks of the package, torch, the cache and the environment."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys

import pytest
from typer.testing import CliRunner

import fusedops.doctor as doctor_package
from fusedops.cli import app
from fusedops.doctor import compilers, folder, machine
from fusedops.doctor.finding import Finding, Verdict
from fusedops.jit import env
from fusedops.jit.cache import Identity, Store

GPU = {"name": "GPU", "capability": (9, 0)}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    root = tmp_path / "cache"
    for name in [name for name in os.environ if name.startswith("FUSEDOPS_")]:
        monkeypatch.delenv(name)
    for name in ("CXX", "CUDA_HOME", "CUDA_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(root))
    return root


@pytest.fixture
def torch_says(tmp_path, monkeypatch):
    """Another torch for the process that is asked."""

    def install(version="2.10.0", cuda=None, usable=False, text=""):
        code = text or (
            f"__version__ = {version!r}\n"
            f"class version: cuda = {cuda!r}\n"
            f"class cuda: is_available = staticmethod(lambda: {usable!r})\n"
        )
        (tmp_path / "torch").mkdir(exist_ok=True)
        (tmp_path / "torch" / "__init__.py").write_text(code)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    return install


class TestTorch:
    def test_one_that_serves(self, torch_says):
        torch_says("2.10.0+cpu")
        finding = machine.check_torch()
        assert (finding.verdict, finding.found) == (Verdict.OK, "2.10.0+cpu, for CPUs only")

    def test_one_that_is_too_old(self, torch_says):
        torch_says("2.9.1", cuda="12.8")
        finding = machine.check_torch()
        assert finding.verdict is Verdict.PROBLEM
        assert "2.10" in finding.cure

    @pytest.mark.parametrize(
        "text",
        ["raise ImportError('broken')", "import os; os.abort()", "raise OSError('broken')", "x ="],
    )
    def test_one_that_cannot_be_imported(self, torch_says, text):
        torch_says(text=text)
        finding = machine.check_torch()
        assert finding.verdict is Verdict.PROBLEM
        assert finding.found.startswith("cannot be imported: ")

    def test_one_that_does_not_use_the_gpu(self, torch_says, monkeypatch):
        monkeypatch.setattr(machine, "ask_driver", lambda: ([GPU], ""))
        torch_says()
        assert machine.check_torch().verdict is Verdict.WARNING
        torch_says(cuda="13.0")
        assert "does not see the GPU" in machine.check_torch().cure
        torch_says(cuda="13.0", usable=True)
        assert machine.check_torch().verdict is Verdict.OK


class TestPackage:
    def test_this_one_is_whole(self):
        for check in (machine.check_headers, machine.check_runtime):
            finding = check()
            assert finding.verdict is Verdict.OK, finding

    def test_a_header_is_missing(self, tmp_path, monkeypatch):
        shutil.copytree(env.include_dir(), tmp_path / "include")
        monkeypatch.setattr(env, "include_dir", lambda: tmp_path / "include")
        (tmp_path / "include/fusedops/row/tile.cuh").unlink()
        finding = machine.check_headers()
        assert finding.verdict is Verdict.PROBLEM
        assert "lacks fusedops/row/tile.cuh" in finding.found

    def test_headers_of_another_version(self, tmp_path, monkeypatch):
        shutil.copytree(env.include_dir(), tmp_path / "include")
        monkeypatch.setattr(env, "include_dir", lambda: tmp_path / "include")
        config = tmp_path / "include/fusedops/core/config.cuh"
        text = config.read_text(encoding="utf-8")
        config.write_text(text.replace("FUSEDOPS_VERSION 100", "FUSEDOPS_VERSION 99907"))
        finding = machine.check_headers()
        assert finding.verdict is Verdict.PROBLEM
        assert "version 9.99.7" in finding.found

    def test_a_runtime_that_is_missing(self, monkeypatch):
        import fusedops

        monkeypatch.delattr(fusedops, "_runtime")
        monkeypatch.setitem(sys.modules, "fusedops._runtime", None)
        assert machine.check_runtime().verdict is Verdict.PROBLEM
        assert "pip install" in machine.check_runtime().cure
        assert machine.check_gpus().verdict is Verdict.OK
        assert compilers.check_compiler().verdict is Verdict.OK


class TestCache:
    def test_one_that_is_not_there_yet(self, cache):
        finding = folder.check_cache()
        assert finding.verdict is Verdict.OK
        assert "made by the first build" in finding.found
        assert not cache.exists()

    def test_one_that_serves_is_left_as_it_was(self, cache):
        cache.mkdir(mode=0o700)
        finding = folder.check_cache()
        assert finding.verdict is Verdict.OK, finding
        assert "locks work" in finding.found
        assert list(cache.iterdir()) == []

    def test_no_home(self, monkeypatch):
        monkeypatch.setattr(env, "cache_dir", lambda: None)
        assert folder.check_cache().verdict is Verdict.WARNING
        assert "FUSEDOPS_CACHE_DIR" in folder.check_cache().cure
        assert folder.check_entries().verdict is Verdict.OK
        monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
        assert folder.check_cache().verdict is Verdict.PROBLEM

    def test_the_home_of_nobody(self, monkeypatch):
        monkeypatch.setenv("FUSEDOPS_CACHE_DIR", "~no-such-user/cache")
        assert folder.check_cache().verdict is Verdict.WARNING

    @pytest.mark.parametrize(
        ("mode", "said"),
        [
            (0o777, "is not used: everybody may write to it (mode 777; chmod go-w"),
            (0o2770, "may write to it (mode 2770; chmod g-w"),
        ],
    )
    def test_one_that_others_may_write_to(self, cache, mode, said):
        cache.mkdir()
        cache.chmod(mode)
        finding = folder.check_cache()
        assert finding.verdict is Verdict.WARNING
        assert said in finding.found
        assert "FUSEDOPS_CACHE_DIR" in finding.cure

    @pytest.mark.parametrize("made", [True, False])
    def test_one_whose_parent_is_open_to_all(self, cache, tmp_path, monkeypatch, made):
        parent = tmp_path / "parent"
        parent.mkdir()
        parent.chmod(0o777)
        monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(parent / "cache"))
        if made:
            (parent / "cache").mkdir()
        finding = folder.check_cache()
        assert finding.verdict is Verdict.WARNING
        assert f"everybody may rename what is in {parent}" in finding.found

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
    def test_one_of_another_user(self, cache):
        cache.mkdir()
        os.chown(cache, 12345, -1)
        assert "belongs to user 12345" in folder.check_cache().found
        assert folder.check_cache().verdict is Verdict.WARNING

    def test_one_that_a_filesystem_refuses_to_make(self, monkeypatch):
        monkeypatch.setenv("FUSEDOPS_CACHE_DIR", "/proc/cache")  # writable, as its mode has it
        finding = folder.check_cache()
        assert finding.verdict is Verdict.WARNING
        assert "it cannot be made in /proc" in finding.found
        assert "FUSEDOPS_CACHE_DIR" in finding.cure

    def test_looking_makes_nothing(self, cache):
        before = {*cache.parent.iterdir()}
        folder.check_cache()
        assert {*cache.parent.iterdir()} == before

    def test_one_that_is_no_folder_or_cannot_be_made(self, cache, monkeypatch):
        cache.write_text("")
        assert folder.check_cache().verdict is Verdict.WARNING
        monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(cache / "below"))
        assert folder.check_cache().verdict is Verdict.WARNING

    @pytest.mark.parametrize(
        ("refused", "said"), [(os.R_OK, "cannot be read"), (os.W_OK, "only readable")]
    )
    def test_one_without_permissions(self, cache, monkeypatch, refused, said):
        cache.mkdir()
        monkeypatch.setattr(folder.os, "access", lambda path, mode: not mode & refused)
        assert said in folder.check_cache().found
        assert folder.check_cache().verdict is Verdict.WARNING

    def test_one_that_nothing_may_be_run_from(self, cache, monkeypatch):
        cache.mkdir()
        flags = type("Flags", (), {"f_flag": os.ST_NOEXEC})
        usage = type("Usage", (), {"free": 1 << 30})
        monkeypatch.setattr(folder.os, "statvfs", lambda path: flags)
        monkeypatch.setattr(folder.shutil, "disk_usage", lambda path: usage)
        finding = folder.check_cache()
        assert finding.verdict is Verdict.WARNING
        assert "noexec, so kernels for CPUs are loaded from memory" in finding.found

    def test_a_full_disk(self, cache, monkeypatch):
        cache.mkdir()
        usage = type("Usage", (), {"free": 1 << 20})
        monkeypatch.setattr(folder.shutil, "disk_usage", lambda path: usage)
        assert "too little room" in folder.check_cache().found

    def test_a_filesystem_without_locks(self, cache, monkeypatch):
        def refuse(descriptor, path):
            raise OSError(errno.ENOLCK, "No locks available")

        cache.mkdir()
        monkeypatch.setattr("fusedops.jit.lock.taken", refuse)
        finding = folder.check_cache()
        assert "no locks" in finding.found
        assert list(cache.iterdir()) == []

    def test_damaged_entries_and_leftovers_are_counted(self, cache):
        (cache / "one-0123456789abcdef-01234567").mkdir(parents=True)
        (cache / ".damaged-x").mkdir()
        finding = folder.check_entries()
        assert finding.verdict is Verdict.WARNING
        assert "1 damaged, such as one-" in finding.found
        assert "leftovers: 1" in finding.found
        assert finding.cure == "fusedops cache clear --damaged"

    def test_entries_that_are_not_to_be_trusted_are_not_called_damaged(self, cache):
        store = Store(cache)
        made = store.publish(Identity("one", "a" * 64, "b" * 64), {}, {"kernel.so": b""})
        made.binary.chmod(0o666)
        finding = folder.check_entries()
        assert finding.verdict is Verdict.WARNING
        assert "1 not used, such as one-" in finding.found
        assert "everybody may write to it" in finding.found
        assert "damaged" not in finding.found + finding.cure


class TestEnvironment:
    @pytest.mark.parametrize(
        ("name", "value", "verdict", "word"),
        [
            ("FUSEDOPS_OFFLINE", "1", Verdict.OK, ""),
            ("FUSEDOPS_OFFLINE", "yes", Verdict.PROBLEM, "0 or 1"),
            ("FUSEDOPS_VERBOSE", "2", Verdict.PROBLEM, "0 or 1"),
            ("FUSEDOPS_OPT_LEVEL", "4", Verdict.PROBLEM, "0, 1, 2 or 3"),
            ("FUSEDOPS_CACHEDIR", "/x", Verdict.WARNING, "did you mean FUSEDOPS_CACHE_DIR?"),
            ("FUSEDOPS_QQQQQQQ", "1", Verdict.WARNING, "unset it"),
            ("CUDA_HOME", "/no/such/toolkit", Verdict.WARNING, "CUDA toolkit"),
            ("CXX", "g++", Verdict.OK, ""),
            ("CXX", "/nope/g++", Verdict.WARNING, "mend or unset CXX"),
        ],
    )
    def test_a_variable(self, monkeypatch, name, value, verdict, word):
        monkeypatch.setenv(name, value)
        (finding,) = [one for one in machine.check_environment() if one.name == name]
        assert finding.verdict is verdict
        assert word in finding.cure
        assert repr(value) in finding.found

    def test_none(self, monkeypatch):
        for name in machine.KNOWN:
            monkeypatch.delenv(name, raising=False)
        assert [one.verdict for one in machine.check_environment()] == [Verdict.OK]

    def test_every_variable_of_ours_is_known(self):
        documented = set(env.__doc__.split("``")[1::2])
        assert {name for name in documented if name.startswith("FUSEDOPS_")} == set(machine.KNOWN)


def test_the_worst_circumstances_are_no_traceback(tmp_path, monkeypatch, torch_says):
    """No torch, no compiler, no NVRTC, no home."""
    from fusedops.errors import CompilerNotFound

    def missing():
        raise CompilerNotFound("none")

    torch_says(text="raise ImportError('gone')")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(env, "cache_dir", lambda: None)
    monkeypatch.setattr(env, "cuda_homes", lambda: [])
    monkeypatch.setattr(compilers, "find_toolkit", missing)
    monkeypatch.setenv("FUSEDOPS_VERBOSE", "loud")
    compilers.host._banner.cache_clear()
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 1
    said = json.loads(done.stdout)
    assert said["verdict"] == "problem"
    verdicts = {check["name"]: check["verdict"] for check in said["checks"]}
    bad = {name for name, verdict in verdicts.items() if verdict == "problem"}
    assert bad == {"torch", "host compiler", "FUSEDOPS_VERBOSE"}
    assert all(check["cure"] for check in said["checks"] if check["verdict"] != "ok")


def test_a_table_for_people(monkeypatch):
    findings = [Finding("this", "[x]"), Finding("that", "old", Verdict.WARNING, "mend it")]
    monkeypatch.setattr(doctor_package, "examine", lambda: iter(findings))
    done = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "100"})
    assert done.exit_code == 0
    for text in ("[x]", "warning", "mend it", "fusedops works"):
        assert text in done.output


def test_a_check_that_fails_does_not_keep_others_from_running(monkeypatch):
    def fail():
        raise RuntimeError("out of order")

    monkeypatch.setattr(doctor_package, "check_headers", fail)
    monkeypatch.setattr(doctor_package, "check_torch", lambda: Finding("torch", "there"))
    findings = {finding.name: finding for finding in doctor_package.examine()}
    assert findings["headers"].found == "RuntimeError: out of order"
    assert findings["headers"].verdict is Verdict.PROBLEM
    assert "cache" in findings
