# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops doctor`: what it finds of package, variables, compilers, cache, torch and devices."""

from __future__ import annotations

import json
import os
import sys

import pytest
import torch
from typer.testing import CliRunner

from fusedops import doctor
from fusedops.cli import app
from fusedops.doctor import Finding, trial
from fusedops.errors import CompilerNotFound
from fusedops.generate.target import Target
from fusedops.jit import env, host, nvrtc

GPU = {"name": "GPU", "capability": (9, 0)}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    root = tmp_path / "cache"
    for name in [name for name in os.environ if name.startswith("FUSEDOPS_")]:
        monkeypatch.delenv(name)
    for name in ("CXX", "CUDA_HOME", "CUDA_PATH", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(root))
    host._banner.cache_clear()
    yield root
    host._banner.cache_clear()


@pytest.fixture
def gpu(monkeypatch):
    """Makes the machine one with a GPU."""
    return lambda: monkeypatch.setattr(doctor, "_ask_driver", lambda: ([GPU], ""))


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
        first, *rest = doctor.check_torch()
        assert first == Finding("torch", "2.10.0+cpu, for CPUs only")
        # Without all else of torch nothing can be tried.
        assert [one.verdict for one in rest] == ["problem"]
        assert "the trial ended early: " in rest[0].found

    def test_one_that_is_too_old(self, torch_says):
        torch_says("2.9.1", cuda="12.8")
        finding = next(doctor.check_torch())
        assert finding.verdict == "problem"
        assert "2.10" in finding.cure

    @pytest.mark.parametrize(
        "text",
        ["raise ImportError('broken')", "import os; os.abort()", "raise OSError('broken')", "x ="],
    )
    def test_one_that_cannot_be_imported(self, torch_says, text):
        torch_says(text=text)
        (finding,) = doctor.check_torch()
        assert finding.verdict == "problem"
        assert finding.found.startswith("cannot be imported: ")

    def test_one_that_does_not_answer(self, torch_says, monkeypatch):
        torch_says(text="import time; time.sleep(600)")
        monkeypatch.setattr(doctor, "SECONDS", 0.5)
        (finding,) = doctor.check_torch()
        assert finding.verdict == "problem"
        assert "no answer" in finding.found

    def test_one_that_does_not_use_the_gpu(self, torch_says, gpu):
        gpu()
        torch_says()
        assert next(doctor.check_torch()).verdict == "warning"
        torch_says(cuda="13.0")
        assert "does not see the GPU" in next(doctor.check_torch()).cure
        torch_says(cuda="13.0", usable=True)
        assert next(doctor.check_torch()).verdict == "ok"


class TestDevices:
    """A kernel for each."""

    @pytest.mark.thorough
    def test_all_that_are_here_serve(self, cache):
        first, *devices = doctor.check_torch()
        assert first.name == "torch"
        assert first.found.startswith(torch.__version__)
        gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        assert [one.name for one in devices] == ["cpu", *gpus]
        assert {one.verdict for one in devices} == {"ok"}, devices
        assert all("a softmax is built and right" in one.found for one in devices)
        assert not cache.exists()  # it was built elsewhere

    def told(self, tmp_path):
        return trial._told(torch.device("cpu"), str(tmp_path / "trial"), "problem")

    def test_this_cpu(self, tmp_path):
        told = self.told(tmp_path)
        assert told["verdict"] == "ok", told
        assert Target.named("cpu").arch in told["found"]

    def test_a_kernel_that_is_not_built(self, tmp_path, monkeypatch):
        monkeypatch.setattr(trial.Target, "of", lambda device: fail("old GPU\nuse op.unfused"))
        told = self.told(tmp_path)
        assert (told["verdict"], told["cure"]) == ("problem", trial.CURE)
        assert told["found"] == "RuntimeError: old GPU use op.unfused"

    def test_a_kernel_that_is_wrong(self, tmp_path, monkeypatch):
        monkeypatch.setattr(trial, "Softmax", lambda: lambda x: x)
        told = self.told(tmp_path)
        assert told["verdict"] == "problem"
        assert "differs from torch's by" in told["found"]

    def test_offline_nothing_is_built(self, tmp_path, monkeypatch):
        monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
        told = self.told(tmp_path)
        assert told["verdict"] == "ok"
        assert "FUSEDOPS_OFFLINE=1" in told["found"]

    def test_the_tuning_files_of_a_gpu(self, tmp_path, monkeypatch):
        """That of this machine, which cannot be used, and that of the package."""
        monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
        monkeypatch.setattr(trial.Target, "of", lambda device: Target.named("sm_90"))

        def find(arch, device):
            trial.warnings.warn("the tuning file in /x is not used", RuntimeWarning, stacklevel=1)

        monkeypatch.setattr(trial.tuned, "find", find)
        told = self.told(tmp_path)
        assert told["verdict"] == "warning"
        assert "(sm_90), tuned by sm_90.json" in told["found"]
        assert "the tuning file in /x is not used" in told["found"]


def fail(text):
    raise RuntimeError(text)


class TestPackage:
    def test_this_one_is_whole(self):
        assert doctor.check_package().verdict == "ok"

    def test_a_runtime_that_is_missing(self, monkeypatch):
        import fusedops

        monkeypatch.delattr(fusedops, "_runtime")
        monkeypatch.setitem(sys.modules, "fusedops._runtime", None)
        assert doctor.check_package().verdict == "problem"
        assert "pip install" in doctor.check_package().cure
        assert doctor.check_gpus().verdict == "ok"
        assert doctor.check_compiler().verdict == "ok"


class TestCompilers:
    def test_this_one(self):
        finding = doctor.check_compiler()
        assert finding.verdict == "ok", finding

    def test_none_is_a_problem_unless_a_gpu_does_the_work(self, monkeypatch, tmp_path, gpu):
        monkeypatch.setenv("PATH", str(tmp_path))
        finding = doctor.check_compiler()
        assert finding.verdict == "problem"
        assert "apt-get install g++" in finding.cure
        monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
        assert doctor.check_compiler().verdict == "warning"
        monkeypatch.delenv("FUSEDOPS_OFFLINE")
        gpu()
        assert doctor.check_compiler().verdict == "warning"

    @pytest.mark.parametrize("named", ["/nope/g++", "'open", "g++ -I/tmp", "true"])
    def test_a_name_that_names_none(self, monkeypatch, named):
        monkeypatch.setenv("CXX", named)
        finding = doctor.check_compiler()
        assert finding.verdict == "problem"
        assert "CXX" in finding.found
        assert finding.cure == "mend or unset CXX"

    def test_no_nvrtc_is_a_problem_where_there_is_a_gpu(self, monkeypatch, gpu):
        def missing(request):
            raise CompilerNotFound("NVRTC was not found in /a, /b.")

        monkeypatch.setattr(nvrtc, "identity", missing)
        assert doctor.check_nvrtc().verdict == "ok"
        gpu()
        finding = doctor.check_nvrtc()
        assert finding.verdict == "problem"
        assert "fusedops[cuda]" in finding.cure


class TestCache:
    def test_one_that_serves(self, cache):
        finding = doctor.check_cache()
        assert finding.verdict == "ok", finding
        assert str(cache) in finding.found
        assert list(cache.iterdir()) == []

    def test_no_home(self, monkeypatch):
        monkeypatch.setattr(env, "cache_dir", lambda: None)
        assert doctor.check_cache().verdict == "warning"
        assert "FUSEDOPS_CACHE_DIR" in doctor.check_cache().cure
        monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
        assert doctor.check_cache().verdict == "problem"

    def test_one_that_others_may_write_to(self, cache):
        cache.mkdir()
        cache.chmod(0o777)
        finding = doctor.check_cache()
        assert finding.verdict == "warning"
        assert "is not used: everybody may write to it (mode 777; chmod go-w" in finding.found
        assert "FUSEDOPS_CACHE_DIR" in finding.cure

    @pytest.mark.parametrize("folder", ["/proc/cache", "file", "file/below"])
    def test_one_that_cannot_be_made(self, monkeypatch, tmp_path, folder):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / folder))
        assert doctor.check_cache().verdict == "warning"

    def test_one_that_cannot_be_written(self, cache, monkeypatch):
        cache.mkdir()
        monkeypatch.setattr("fusedops.jit.store.os.access", lambda path, mode: False)
        assert "cannot be written" in doctor.check_cache().found
        assert doctor.check_cache().verdict == "warning"

    def test_offline_it_must_hold_something(self, cache, monkeypatch):
        monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
        assert doctor.check_cache().verdict == "problem"
        assert "fusedops build" in doctor.check_cache().cure
        (cache / "one").mkdir()
        (cache / "one" / "meta.json").write_text("{}")
        monkeypatch.setattr("fusedops.jit.store.os.access", lambda path, mode: False)
        assert doctor.check_cache().verdict == "ok"


class TestVariables:
    @pytest.mark.parametrize(
        ("name", "value", "verdict", "word"),
        [
            ("FUSEDOPS_OFFLINE", "1", "ok", ""),
            ("FUSEDOPS_OFFLINE", "yes", "problem", "0 or 1"),
            ("FUSEDOPS_VERBOSE", "2", "problem", "0 or 1"),
            ("FUSEDOPS_OPT_LEVEL", "4", "problem", "0, 1, 2 or 3"),
            ("FUSEDOPS_CACHEDIR", "/x", "warning", "did you mean FUSEDOPS_CACHE_DIR?"),
            ("FUSEDOPS_QQQQQQQ", "1", "warning", "unset it"),
        ],
    )
    def test_one_that_is_set(self, monkeypatch, name, value, verdict, word):
        monkeypatch.setenv(name, value)
        (finding,) = [one for one in doctor.check_variables() if one.name == name]
        assert finding.verdict == verdict
        assert word in finding.cure
        assert repr(value) in finding.found

    def test_every_variable_of_ours_is_known(self):
        documented = set(env.__doc__.split("``")[1::2])
        assert {name for name in documented if name.startswith("FUSEDOPS_")} == set(doctor.KNOWN)


def test_the_worst_circumstances_are_no_traceback(tmp_path, monkeypatch, torch_says):
    """No torch, no compiler, no home."""
    torch_says(text="raise ImportError('gone')")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(env, "cache_dir", lambda: None)
    monkeypatch.setenv("FUSEDOPS_VERBOSE", "loud")
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 1
    said = json.loads(done.stdout)
    assert said["verdict"] == "problem"
    verdicts = {check["name"]: check["verdict"] for check in said["checks"]}
    bad = {name for name, verdict in verdicts.items() if verdict == "problem"}
    assert bad == {"torch", "host compiler", "FUSEDOPS_VERBOSE"}
    assert all(check["cure"] for check in said["checks"] if check["verdict"] != "ok")


def test_a_table_for_people(monkeypatch):
    findings = [Finding("this", "[x]"), Finding("that", "old", "warning", "mend it")]
    monkeypatch.setattr(doctor, "examine", lambda: iter(findings))
    done = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "100"})
    assert done.exit_code == 0
    for text in ("[x]", "warning", "mend it", "fusedops works"):
        assert text in done.output


def test_a_check_that_fails_does_not_keep_others_from_running(monkeypatch):
    monkeypatch.setattr(doctor, "check_nvrtc", lambda: fail("out of order"))
    monkeypatch.setattr(doctor, "check_torch", lambda: Finding("torch", "there"))
    findings = {finding.name: finding for finding in doctor.examine()}
    assert findings["NVRTC"].found == "RuntimeError: out of order"
    assert findings["NVRTC"].verdict == "problem"
    assert "cache" in findings
