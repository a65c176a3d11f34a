# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Compilers that are missing, old, broken or whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusedops.doctor import compilers
from fusedops.doctor.finding import Verdict
from fusedops.errors import CompileError, CompilerNotFound
from fusedops.jit import host, nvrtc
from fusedops.jit.toolkit import Toolkit


@pytest.fixture
def gpu(monkeypatch):
    """Makes the machine one with a GPU."""

    def add(capability=(9, 0)):
        devices = [{"name": "GPU", "capability": capability}]
        monkeypatch.setattr(compilers, "ask_driver", lambda: (devices, ""))
        monkeypatch.setattr(compilers, "_driver_major", lambda: 13)

    return add


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    for name in ("CXX", "FUSEDOPS_OFFLINE", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    host._banner.cache_clear()
    nvrtc._library.cache_clear()
    yield
    host._banner.cache_clear()
    nvrtc._library.cache_clear()


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


class TestHost:
    def test_this_one_compiles_and_loads(self):
        finding = compilers.check_compiler()
        assert finding.verdict is Verdict.OK, finding
        assert "compiles and loads" in finding.found

    def test_none_is_a_problem_unless_a_gpu_does_the_work(self, monkeypatch, tmp_path, gpu):
        monkeypatch.setenv("PATH", str(tmp_path))
        finding = compilers.check_compiler()
        assert finding.verdict is Verdict.PROBLEM
        assert "apt-get install g++" in finding.cure
        monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
        assert compilers.check_compiler().verdict is Verdict.WARNING
        monkeypatch.delenv("FUSEDOPS_OFFLINE")
        gpu()
        assert compilers.check_compiler().verdict is Verdict.WARNING

    @pytest.mark.parametrize("named", ["/nope/g++", "'open", "g++ -I/tmp", "true"])
    def test_a_name_that_names_none(self, monkeypatch, named):
        monkeypatch.setenv("CXX", named)
        finding = compilers.check_compiler()
        assert finding.verdict is Verdict.PROBLEM
        assert "CXX" in finding.found
        assert finding.cure == "mend or unset CXX"
        monkeypatch.delenv("CXX")
        assert compilers.check_compiler().verdict is Verdict.OK

    def test_one_that_is_too_old(self, monkeypatch, tmp_path):
        says = "echo 'g++ (Test) version 9.4.0' >&2; echo 'g++ (Test) 9.4.0'; exit 0"
        refuses = "echo \"error: bad value 'x86-64-v3' for '-march='\"; exit 1"
        text = f'case "$*" in --version|-v) {says};; esac\n{refuses}'
        monkeypatch.setenv("CXX", str(script(tmp_path / "old-c++", text)))
        finding = compilers.check_compiler()
        assert finding.verdict is Verdict.PROBLEM
        assert "9.4.0, for " in finding.found
        assert "a trial fails: error: bad value" in finding.found
        assert "GCC 11 or clang 12" in finding.cure

    def test_one_that_makes_what_does_not_load(self, monkeypatch):
        monkeypatch.setattr(host, "compile_host", lambda source, arch: (b"not an ELF file", ""))
        finding = compilers.check_compiler()
        assert finding.verdict is Verdict.PROBLEM
        assert "does not load: " in finding.found


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """Installs an NVRTC that is none, of some version."""

    def install(major=13, version=None, archs=(80, 90)):
        library = tmp_path / f"libnvrtc.so.{major}"
        library.write_bytes(b"not an ELF file")
        found = Toolkit(library, (tmp_path,))
        for module in (nvrtc, compilers):
            monkeypatch.setattr(module, "find_toolkit", lambda: found)
        if version is not None:
            monkeypatch.setattr(nvrtc, "version", lambda: version)
            monkeypatch.setattr(nvrtc, "supported_archs", lambda: [*archs])
            monkeypatch.setattr(nvrtc, "compile_cuda", lambda source, arch: (b"", ""))
        return found

    return install


class TestNvrtc:
    def test_none_is_a_problem_where_there_is_a_gpu(self, monkeypatch, gpu):
        def missing():
            raise CompilerNotFound("NVRTC was not found in /a, /b.")

        monkeypatch.setattr(compilers, "find_toolkit", missing)
        assert compilers.check_nvrtc().verdict is Verdict.OK
        gpu()
        finding = compilers.check_nvrtc()
        assert finding.verdict is Verdict.PROBLEM
        assert "fusedops[cuda]" in finding.cure

    def test_one_that_does_not_load(self, toolkit, gpu):
        gpu()
        found = toolkit()
        finding = compilers.check_nvrtc()
        assert finding.verdict is Verdict.PROBLEM
        assert str(found.nvrtc) in finding.found

    def test_one_that_does_not_know_the_gpu(self, toolkit, gpu):
        toolkit(12, (12, 6))
        gpu()
        assert compilers.check_nvrtc().verdict is Verdict.OK
        gpu((10, 3))
        finding = compilers.check_nvrtc()
        assert finding.verdict is Verdict.PROBLEM
        assert "12.6, up to sm_90" in finding.found
        assert "sm_103" in finding.cure

    def test_one_that_is_too_old(self, toolkit, gpu):
        gpu()
        toolkit(12, (12, 3))
        finding = compilers.check_nvrtc()
        assert finding.verdict is Verdict.PROBLEM
        assert "12.4" in finding.cure

    def test_one_that_is_newer_than_the_driver(self, toolkit, gpu, monkeypatch):
        gpu()
        toolkit(13, (13, 0))
        assert compilers.check_nvrtc().verdict is Verdict.OK
        monkeypatch.setattr(compilers, "_driver_major", lambda: 12)
        finding = compilers.check_nvrtc()
        assert finding.verdict is Verdict.PROBLEM
        assert "driver for CUDA 12" in finding.found
        assert "nvidia-cuda-nvrtc-cu12" in finding.cure

    def test_headers_that_do_not_compile(self, toolkit, monkeypatch, gpu):
        def refuse(source, arch):
            raise CompileError(("nvrtc",), "no such file")

        toolkit(13, (13, 0))
        monkeypatch.setattr(nvrtc, "compile_cuda", refuse)
        assert compilers.check_nvrtc().verdict is Verdict.WARNING
        gpu()
        finding = compilers.check_nvrtc()
        assert finding.verdict is Verdict.PROBLEM
        assert "a trial fails: no such file" in finding.found

    def test_this_machines_compiles(self):
        finding = compilers.check_nvrtc()
        if finding.found.startswith("none"):
            pytest.skip("no NVRTC here")
        assert finding.verdict is Verdict.OK, finding
