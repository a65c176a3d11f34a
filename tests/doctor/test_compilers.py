# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Compilers that are missing, old, broken or whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusedops.doctor import compilers
from fusedops.doctor.finding import Verdict
from fusedops.doctor.graphics import Device
from fusedops.errors import CompilerNotFound
from fusedops.jit import host, nvrtc
from fusedops.jit.toolkit import Toolkit

GPU = (Device("GPU", (9, 0), 1 << 30),)


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
        finding = compilers.check_compiler(None, ())
        assert finding.verdict is Verdict.OK, finding
        assert "compiles and loads" in finding.found

    def test_none_is_a_problem_unless_a_gpu_does_the_work(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        finding = compilers.check_compiler(None, ())
        assert finding.verdict is Verdict.PROBLEM
        assert "apt-get install g++" in finding.cure
        assert compilers.check_compiler(None, GPU).verdict is Verdict.WARNING
        monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
        assert compilers.check_compiler(None, ()).verdict is Verdict.WARNING

    @pytest.mark.parametrize("named", ["no-such-compiler", "'open"])
    def test_a_name_that_names_none(self, monkeypatch, named):
        monkeypatch.setenv("CXX", named)
        finding = compilers.check_compiler(None, ())
        assert finding.verdict is Verdict.PROBLEM
        assert "CXX" in finding.found

    def test_one_that_is_too_old(self, monkeypatch, tmp_path):
        says = "echo 'g++ (Test) version 9.4.0' >&2; echo 'g++ (Test) 9.4.0'; exit 0"
        refuses = "echo \"error: bad value 'x86-64-v3' for '-march='\"; exit 1"
        text = f'case "$*" in --version|-v) {says};; esac\n{refuses}'
        monkeypatch.setenv("CXX", str(script(tmp_path / "old-c++", text)))
        finding = compilers.check_compiler(None, ())
        assert finding.verdict is Verdict.PROBLEM
        assert "9.4.0; a trial fails: error: bad value" in finding.found
        assert "GCC 11 or clang 12" in finding.cure

    def test_one_that_makes_what_does_not_load(self, monkeypatch):
        monkeypatch.setattr(host, "compile_host", lambda source, arch: (b"not an ELF file", ""))
        finding = compilers.check_compiler(None, ())
        assert finding.verdict is Verdict.PROBLEM
        assert "does not load: OSError" in finding.found


def toolkit(folder: Path, major: int = 13, version: str = "") -> Toolkit:
    """An NVRTC that is none, with or without a version in its headers."""
    folder.joinpath(f"libnvrtc.so.{major}").write_bytes(b"not an ELF file")
    if version:
        folder.joinpath("cuda.h").write_text(f"#define CUDA_VERSION {version}\n")
    return Toolkit(folder / f"libnvrtc.so.{major}", (folder,))


class TestNvrtc:
    def test_none_is_a_problem_where_there_is_a_gpu(self):
        missing = CompilerNotFound("NVRTC was not found in /a, /b.")
        assert compilers.check_nvrtc(missing, ()).verdict is Verdict.OK
        finding = compilers.check_nvrtc(missing, GPU)
        assert finding.verdict is Verdict.PROBLEM
        assert "fusedops[cuda]" in finding.cure
        assert compilers.check_cuda_headers(missing, GPU).verdict is Verdict.OK

    def test_one_that_does_not_load(self, tmp_path, monkeypatch):
        found = toolkit(tmp_path)
        monkeypatch.setattr(nvrtc, "find_toolkit", lambda: found)
        finding = compilers.check_nvrtc(found, GPU)
        assert finding.verdict is Verdict.PROBLEM
        assert str(found.nvrtc) in finding.found

    def test_one_that_does_not_know_the_gpu(self, tmp_path, monkeypatch):
        monkeypatch.setattr(nvrtc, "version", lambda: (12, 6))
        monkeypatch.setattr(nvrtc, "supported_archs", lambda: [80, 90])
        found = toolkit(tmp_path, 12)
        assert compilers.check_nvrtc(found, GPU).verdict is Verdict.OK
        finding = compilers.check_nvrtc(found, (Device("GPU", (10, 3), 1),))
        assert finding.verdict is Verdict.PROBLEM
        assert "12.6, up to sm_90" in finding.found
        assert "sm_103" in finding.cure

    def test_one_that_is_too_old(self, tmp_path, monkeypatch):
        monkeypatch.setattr(nvrtc, "version", lambda: (12, 3))
        monkeypatch.setattr(nvrtc, "supported_archs", lambda: [80, 90])
        finding = compilers.check_nvrtc(toolkit(tmp_path, 12), GPU)
        assert finding.verdict is Verdict.PROBLEM
        assert "12.4" in finding.cure


class TestHeaders:
    def test_those_of_another_version(self, tmp_path):
        finding = compilers.check_cuda_headers(toolkit(tmp_path, 13, "12080"), GPU)
        assert finding.verdict is Verdict.PROBLEM
        assert "12.8; NVRTC is of CUDA 13" in finding.found

    def test_those_that_do_not_compile(self, tmp_path, monkeypatch):
        found = toolkit(tmp_path, 13, "13000")
        monkeypatch.setattr(nvrtc, "find_toolkit", lambda: found)
        assert compilers.check_cuda_headers(found, GPU).verdict is Verdict.PROBLEM
        assert compilers.check_cuda_headers(found, ()).verdict is Verdict.WARNING

    def test_those_of_this_machine_compile(self):
        found = compilers.toolkit()
        if isinstance(found, CompilerNotFound):
            pytest.skip("no NVRTC here")
        finding = compilers.check_cuda_headers(found, GPU)
        assert finding.verdict is Verdict.OK, finding


class TestNvcc:
    @pytest.mark.parametrize(
        ("text", "verdict"),
        [
            ("echo 'release 13.0, V13.0.88'", Verdict.OK),
            ("echo 'release 12.0, V12.0.1'", Verdict.WARNING),
            ("exit 3", Verdict.WARNING),
        ],
    )
    def test_it_is_optional_but_told(self, tmp_path, monkeypatch, text, verdict):
        script(tmp_path / "nvcc", text)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        assert compilers.check_nvcc().verdict is verdict

    def test_none_is_fine(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(compilers.env, "cuda_homes", lambda: [])
        assert compilers.check_nvcc().verdict is Verdict.OK
