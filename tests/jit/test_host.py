# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The host's compiler: which one, how it is called, and what is said when it fails."""

from __future__ import annotations

import ctypes
import os
import pickle
from pathlib import Path

import pytest
from samples import HOST, LEVEL, Compiler

from fusedops.errors import CompileError, CompilerNotFound, FusedOpsError
from fusedops.jit import env, host, key, levels

V3 = ["avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe"]
V4 = [*V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"]
REQUEST = key.Request("0" * 64, HOST, LEVEL, (), ())

# Tiny, so that a process that flushes subnormals to zero multiplies it away.
SUBNORMAL = """
extern "C" __attribute__((visibility("default"))) float half(float x) { return x * 0.5f; }
"""


def test_a_library_is_compiled_and_runs(tmp_path: Path) -> None:
    binary, log = host.compile_host(HOST, LEVEL)
    (tmp_path / "kernel.so").write_bytes(binary)
    answer = ctypes.CDLL(str(tmp_path / "kernel.so")).answer
    answer.argtypes, answer.restype = [ctypes.c_int64], ctypes.c_int64
    assert answer(1) == 43
    assert log == ""


def test_loading_a_library_leaves_subnormal_numbers_alone(tmp_path: Path) -> None:
    (tmp_path / "kernel.so").write_bytes(host.compile_host(SUBNORMAL, LEVEL)[0])
    half = ctypes.CDLL(str(tmp_path / "kernel.so")).half
    half.argtypes, half.restype = [ctypes.c_float], ctypes.c_float
    assert half(2.0**-140) == 2.0**-141
    assert 5e-324 * 1.0 == 5e-324
    assert not any("fast-math" in flag for level in levels.LEVELS for flag in host.flags(level))


@pytest.mark.parametrize(
    ("features", "machine", "level"),
    [
        ([], "x86_64", "x86-64-v2"),
        (V3, "x86_64", "x86-64-v3"),
        (["abm", *(set(V3) - {"lzcnt"})], "x86_64", "x86-64-v3"),
        (V4, "x86_64", "x86-64-v4"),
        (sorted(set(V4) - {"avx512vl"}), "x86_64", "x86-64-v3"),
        (sorted(set(V4) - {"fma"}), "x86_64", "x86-64-v2"),  # a level needs all of those below
        ([], "aarch64", "aarch64"),
        ([], "arm64", "aarch64"),
    ],
)
def test_the_level_follows_the_features(features: list[str], machine: str, level: str) -> None:
    assert levels.cpu_level(features, machine) == level


def test_every_level_names_its_instruction_set() -> None:
    assert all(any(flag.startswith("-march=") for flag in host.flags(lv)) for lv in levels.LEVELS)


def test_a_refused_source_is_told_with_command_and_log() -> None:
    with pytest.raises(CompileError) as caught:
        host.compile_host("int f() { return nonsense; }", LEVEL)
    message = str(caught.value)
    assert "nonsense" in caught.value.log
    assert "nonsense" in message
    assert f"-O{env.opt_level()}" in caught.value.command
    assert " ".join(caught.value.command) in message
    assert isinstance(caught.value, FusedOpsError)


def test_a_long_log_is_cut_in_the_message_alone() -> None:
    log = "\n".join(f"line {i}" for i in range(500)) + "\nkernel.cu(3): error: wrong"
    kept = str(CompileError(["g++", "kernel.cu"], log, Path("kept/kernel.cu")))
    assert kept.startswith("a generated kernel does not compile: kernel.cu(3): error: wrong\n")
    assert "command: g++ kept/kernel.cu\n" in kept
    assert "source: kept/kernel.cu\nwhole log: kept/log.txt" in kept
    assert "line 0" not in kept
    error = CompileError(["g++"], log)
    assert "line 0" in str(error)
    assert "line 499" not in str(error)
    assert "461 more lines" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.command, again.log, again.source) == (error.command, error.log, error.source)


def test_no_compiler_says_what_was_looked_for_and_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerNotFound, match=r"c\+\+, g\+\+, clang\+\+.*apt-get install g\+\+"):
        host.find_compiler()


@pytest.mark.parametrize("named", ["/nowhere/c++", "no-such-compiler -v", "  "])
def test_a_wrong_cxx_is_told_and_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("CXX", named)
    with pytest.raises(CompilerNotFound, match="CXX must name a C"):
        host.find_compiler()


def test_a_compiler_that_does_not_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(CompilerNotFound, match=r"broken does not run: .*exit status 3"):
        host.identity(REQUEST)


def test_arguments_in_cxx_are_used_and_identify(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = host.identity(REQUEST)
    monkeypatch.setenv("CXX", f"env A=b {compiler.path}")
    assert host.identity(REQUEST) == {**plain, "arguments": "A=b"}
    host.compile_host(HOST, LEVEL)
    assert compiler.compilations == 1
    monkeypatch.setenv("CXX", f"{compiler.path} -DONE -pipe")
    assert host.identity(REQUEST)["arguments"] == "-DONE -pipe"


def test_where_a_compiler_lies_behind_a_wrapper_is_not_its_identity(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = host.identity(REQUEST)
    monkeypatch.setenv("PATH", str(compiler.path.parent), prepend=os.pathsep)
    for wrapped in (f"env {compiler.path}", f"env {compiler.path.name}"):
        monkeypatch.setenv("CXX", wrapped)
        assert host.identity(REQUEST) == plain
    for wrapped in (str(compiler.path), compiler.path.name):
        monkeypatch.setenv("CXX", f"env -u A {wrapped}")
        assert host.identity(REQUEST)["arguments"] == f"-u A {compiler.path.name}"


@pytest.mark.parametrize(
    "argument",
    [
        *("-include {}", "-include{}", "-I{}", "-I.", "-isystem {}", "@{}", "-B{}", "-L."),
        *("-specs={}", "--sysroot={}", "--sysroot .", "-fplugin=x.so", "-Wl,-Tx", "-Xclang -x"),
        *("{}", "-fdebug-prefix-map={}=x"),
    ],
)
def test_an_argument_that_names_a_file_is_refused(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    """What is in the file would decide what is built, and the key does not cover it."""
    (tmp_path / "file").write_text("#define VALUE 1\n")
    given = argument.format(tmp_path / "file")
    monkeypatch.setenv("CXX", f"{compiler.path} -O2 {given}")
    with pytest.raises(CompilerNotFound, match=r"CXX must not name files.*; leave it") as caught:
        host.identity(REQUEST)
    assert repr(given.split()[0]) in str(caught.value)


def test_the_name_that_a_compiler_is_called_by_is_not_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = host.identity(REQUEST)
    other = tmp_path / "x86_64-test-linux-gnu-g++-99"
    other.symlink_to(os.path.realpath(host.find_compiler()[0]))
    monkeypatch.setenv("CXX", str(other))
    assert host.identity(REQUEST) == plain


def test_the_version_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(Compiler(tmp_path, version="14.1.0").path))
    identity = host.identity(REQUEST)
    assert identity["version"] == "14.1.0"
    assert identity["banner"] == "gcc version 14.1.0 (Test)"


GCC_SAYS = """Using built-in specs.
COLLECT_GCC={path}
Target: x86_64-linux-gnu
Configured with: ../src/configure --prefix={path} --with-arch=x86-64
Thread model: posix
gcc version 12.2.0 (Debian 12.2.0-14)
"""
CLANG_SAYS = """Debian clang version 19.1.4
Target: x86_64-pc-linux-gnu
Thread model: posix
InstalledDir: {path}/bin
Configuration file: {path}/clang.cfg
Selected GCC installation: {path}/lib/gcc/x86_64-linux-gnu/12
"""


def says(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What identifies a compiler that answers `text`."""
    folder.mkdir(exist_ok=True)
    (folder / "says").write_text(text.format(path=folder))
    (folder / "c++").write_text(f"#!/bin/sh\ncat '{folder}/says' >&2\n")
    (folder / "c++").chmod(0o755)
    monkeypatch.setenv("CXX", str(folder / "c++"))
    host._banner.cache_clear()
    return host.identity(REQUEST)


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        (GCC_SAYS, "gcc", "12.2.0"),
        (CLANG_SAYS, "clang", "19.1.4"),
        ("gcc version 15 (experimental)\n", "gcc", "15"),
        ("Intel(R) oneAPI DPC++/C++ Compiler 2024.0.0 (2024.0.0.20231017)\n", "gcc", "2024.0.0"),
    ],
)
def test_a_compiler_is_known_by_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, version: str
) -> None:
    found = says(tmp_path, text, monkeypatch)
    assert (found["name"], found["version"]) == (name, version)
    assert str(tmp_path) not in found["banner"]


@pytest.mark.parametrize("text", [GCC_SAYS, CLANG_SAYS])
def test_where_a_compiler_lies_is_not_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "clang.cfg").write_text("-O1")
    here = says(tmp_path / "here", text, monkeypatch)
    assert says(tmp_path / "there", text, monkeypatch) == here


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (GCC_SAYS, "12.2.0 (", "12.2.1 ("),
        (GCC_SAYS, "Debian 12.2.0-14", "Debian 12.2.0-15"),
        (GCC_SAYS, "Target: x86_64", "Target: i686"),
        (GCC_SAYS, "--with-arch=x86-64", "--with-arch=native"),
        (CLANG_SAYS, "19.1.4", "19.1.5"),
        (CLANG_SAYS, "gnu/12", "gnu/13"),
        (CLANG_SAYS, "Configuration file", "No file"),
    ],
)
def test_a_compiler_that_differs_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, old: str, new: str
) -> None:
    plain = says(tmp_path, text, monkeypatch)
    assert says(tmp_path, text.replace(old, new), monkeypatch) != plain


def test_what_clangs_own_files_say_is_its_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clang.cfg").write_text("-O1")
    plain = says(tmp_path, CLANG_SAYS, monkeypatch)
    (tmp_path / "clang.cfg").write_text("-O2")
    assert says(tmp_path, CLANG_SAYS, monkeypatch) != plain


@pytest.mark.parametrize("text", ["", "a compiler\n", "version unknown\n"])
def test_a_compiler_without_a_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    with pytest.raises(CompilerNotFound, match=r"does not say its version: .*c\+\+ -v must print"):
        says(tmp_path, text, monkeypatch)
