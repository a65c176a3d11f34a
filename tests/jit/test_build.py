# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Building as a whole: what is compiled, what is not, and what failure says."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from samples import CUDA, HOST, LEVEL, Compiler

import fusedops
from fusedops.errors import (
    CompileError,
    CompilerNotFound,
    FusedOpsError,
    MissingVariantError,
    UnsupportedError,
)
from fusedops.jit import build, cached, env, host
from fusedops.jit import build as build_function

PATHS = [str(Path(folder).parent) for folder in fusedops.__path__]
build_module = sys.modules[build_function.__module__]


def in_a_new_process(code: str) -> str:
    script = f"import sys\nsys.path[:0] = {PATHS!r}\n{code}"
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_cubin_is_built_and_cached(cache: Path) -> None:
    first = build(CUDA, name="twice", arch="sm_90")
    second = build(CUDA, name="twice", arch="sm_90")
    assert (first.origin, second.origin) == ("compiled", "cache")
    assert first.binary.read_bytes().startswith(b"\x7fELF")
    assert {path.name for path in first.folder.iterdir()} == {
        "kernel.cu",
        "kernel.cubin",
        "kernel.ptx",
        "meta.json",
    }
    assert first.read("kernel.ptx").lstrip().startswith(b"//")
    assert b".target sm_90" in first.read("kernel.ptx")
    with pytest.raises(MissingVariantError, match=r"holds no kernel\.so"):
        first.read("kernel.so")
    assert build(CUDA, name="twice", arch="sm_80").folder != first.folder


def test_asking_for_what_is_cached_never_compiles(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cached(HOST, name="h", arch=LEVEL) is None
    assert compiler.compilations == 0
    built = build(HOST, name="h", arch=LEVEL)
    found = cached(HOST, name="h", arch=LEVEL)
    assert found is not None
    assert (found.folder, found.origin) == (built.folder, "cache")
    assert cached(HOST + "\n", name="h", arch=LEVEL) is None
    assert compiler.compilations == 1
    monkeypatch.setenv("CXX", "no-such-compiler")  # then any compiler's will do, as for build
    assert cached(HOST, name="h", arch=LEVEL) is not None


@pytest.mark.parametrize("arch", ["sm_", "sm_9x", "compute_90", "x86-64-v9", "haswell", ""])
def test_an_unknown_arch_is_refused(arch: str) -> None:
    with pytest.raises(UnsupportedError, match=f"arch must be sm_NN.*{LEVEL}.*got '{arch}'"):
        build(HOST, name="h", arch=arch)


def test_offline_never_compiles(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
    with pytest.raises(
        MissingVariantError, match=r"Softmax\(load=\[\]\).*once without FUSEDOPS_OFFLINE=1"
    ) as caught:
        build(HOST, name="h", arch=LEVEL, declaration="Softmax(load=[])")
    assert LEVEL in str(caught.value)
    assert compiler.compilations == 0


def test_offline_a_damaged_entry_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build(HOST, name="h", arch=LEVEL).folder
    (folder / "kernel.so").write_bytes(b"damaged")
    monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
    reason = f"found only {folder.name}, which is not used: kernel.so is not what was written"
    with pytest.raises(MissingVariantError, match=reason):
        build(HOST, name="h", arch=LEVEL)


@pytest.mark.parametrize("absent", ["offline", "no compiler"])
def test_without_a_compiler_any_entry_serves_newest_compiler_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    folders = {}
    for version in ("9.4.0", "12.2.0"):
        monkeypatch.setenv("CXX", str(Compiler(tmp_path, version=version).path))
        host._banner.cache_clear()
        folders[version] = build(HOST, name="h", arch=LEVEL).folder
    assert folders["9.4.0"] != folders["12.2.0"]
    if absent == "offline":
        monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
    else:
        monkeypatch.setenv("CXX", "/nowhere/c++")
    served = build(HOST, name="h", arch=LEVEL)
    assert (served.folder, served.origin) == (folders["12.2.0"], "cache")
    (folders["12.2.0"] / "kernel.so").write_bytes(b"damaged")
    assert build(HOST, name="h", arch=LEVEL).folder == folders["9.4.0"]


def test_another_compiler_builds_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origins = []
    for version in ("9.4.0", "12.2.0", "9.4.0"):
        monkeypatch.setenv("CXX", str(Compiler(tmp_path, version=version).path))
        host._banner.cache_clear()
        origins.append(build(HOST, name="h", arch=LEVEL).origin)
    assert origins == ["compiled", "compiled", "cache"]


def test_no_compiler_and_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(CompilerNotFound, match="CXX"):
        build(HOST, name="h", arch=LEVEL)


@pytest.mark.parametrize(("arch", "file"), [(LEVEL, "kernel.cpp"), ("sm_90", "kernel.cu")])
def test_a_refused_source_is_kept(cache: Path, arch: str, file: str) -> None:
    source = "int f() { return nonsense; }\n"
    with pytest.raises(CompileError) as caught:
        build(source, name="bad", arch=arch)
    kept = caught.value.source
    assert kept is not None
    assert kept.name == file
    assert cache in kept.parents
    assert kept.read_text() == source
    assert "nonsense" in kept.with_name("log.txt").read_text()
    assert str(kept) in str(caught.value)


def test_an_edited_header_builds_anew(headers: Path, compiler: Compiler) -> None:
    source = "#include <fusedops/c.cuh>\n" + HOST
    assert build(source, name="h", arch=LEVEL).origin == "compiled"
    assert build(source, name="h", arch=LEVEL).origin == "cache"
    (headers / "fusedops" / "c.cuh").write_text("#pragma once\n// edited\n")
    assert build(source, name="h", arch=LEVEL).origin == "compiled"
    assert compiler.compilations == 2


def test_what_compiled_while_a_header_changed_is_not_kept(
    headers: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meddle(source: str, arch: str) -> tuple[dict[str, bytes], str]:
        (headers / "fusedops" / "c.cuh").write_text("// edited\n")
        return {"kernel.so": b"binary"}, ""

    backend = build_module._HOST
    monkeypatch.setattr(
        build_module,
        "_HOST",
        build_module._Backend(backend.source, backend.flags, backend.identity, meddle),
    )
    with pytest.raises(FusedOpsError, match="headers changed"):
        build("#include <fusedops/c.cuh>\n", name="h", arch=LEVEL)
    assert not list(cache.glob("h-*"))


def test_verbose_shows_command_and_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    build(HOST, name="quiet", arch=LEVEL)
    monkeypatch.setenv("FUSEDOPS_VERBOSE", "1")
    build(HOST + "#warning look here\n", name="told", arch=LEVEL)
    told = capfd.readouterr().err
    assert "quiet" not in told
    assert f"told: kernel.cpp -std=c++17 -O{env.opt_level()}" in told
    assert "look here" in told


@pytest.mark.thorough
def test_importing_runs_no_compiler_and_loads_no_nvrtc() -> None:
    code = """
import torch  # which may load NVRTC itself: only what happens from here on is ours
def audit(event, arguments):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.system"):
        raise SystemExit(f"{event} {arguments}")
    if event == "ctypes.dlopen" and "nvrtc" in str(arguments[0]):
        raise SystemExit(f"{event} {arguments}")
sys.addaudithook(audit)
import fusedops
import fusedops.jit.nvrtc
print("imported")
"""
    assert in_a_new_process(code) == "imported\n"


@pytest.mark.thorough
@pytest.mark.parametrize(("source", "arch"), [(HOST, LEVEL), (CUDA, "sm_90")])
def test_from_the_cache_is_quick_from_the_first_call(source: str, arch: str) -> None:
    """By what it does, which no busy machine changes; benchmarks/host.py has the times."""
    build(source, name="k", arch=arch)
    code = f"""
import json
import torch  # which may load NVRTC itself: only what happens from here on is ours
started, loaded, calls = [], [], 0
def note(event, arguments):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.fork"):
        started.append(arguments[1][1:])
    if event == "ctypes.dlopen" and "nvrtc" in str(arguments[0]):
        loaded.append(str(arguments[0]))
def count(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")
sys.addaudithook(note)
from fusedops.jit import build
counts = []
for _ in range(2):
    calls = 0
    sys.setprofile(count)
    origin = build({source!r}, name="k", arch={arch!r}).origin
    sys.setprofile(None)
    counts.append(calls)
print(json.dumps([origin, started, counts, loaded]))
"""
    origin, started, (first, second), loaded = json.loads(in_a_new_process(code))
    # A C++ compiler says its version once a process, which is part of the key.
    assert (origin, started, loaded) == ("cache", [["-v"]] * (source == HOST), [])
    assert first < 10000  # 5700 take a few milliseconds
    assert second < 2000  # 900 a fraction of one


# What g++ and clang++ would take up from their environment, with a value that would change the
# result of compiling READS, or would make it fail or write a file.
INFLUENCES = {
    "CPATH": "{folder}",
    "CPLUS_INCLUDE_PATH": "{folder}",
    "GCC_EXEC_PREFIX": "{folder}/none-",
    "COMPILER_PATH": "{folder}",
    "DEPENDENCIES_OUTPUT": "{folder}/written",
    "SUNPRO_DEPENDENCIES": "{folder}/written",
    "SOURCE_DATE_EPOCH": "0",
    "LD_RUN_PATH": "{folder}",
}
READS = """
#if __has_include(<implicit.h>)
#include <implicit.h>
#endif
extern "C" __attribute__((visibility("default"))) const char* date() { return __DATE__; }
"""


@pytest.mark.parametrize("name", INFLUENCES)
def test_what_the_environment_says_does_not_change_what_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "implicit.h").write_text('extern "C" int implicit() { return 1; }\n')
    broken = tmp_path / "as"  # where COMPILER_PATH leads
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    plain = host.compile_host(READS, LEVEL)
    monkeypatch.setenv(name, INFLUENCES[name].format(folder=tmp_path))
    host._banner.cache_clear()
    assert host.compile_host(READS, LEVEL) == plain
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize("change", ["source", "arch", "flags", "header", "version", "CXX"])
def test_each_input_alone_builds_anew(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(build_module, "_HOST", fake_backend())
    version = "12.2.0"
    monkeypatch.setenv("CXX", str(Compiler(tmp_path, version=version).path))
    given = {"source": "#include <fusedops/c.cuh>\n", "name": "h", "arch": "x86-64-v2"}
    first = build(**given)
    assert build(**given).origin == "cache"
    if change == "source":
        given["source"] += " "
    elif change == "arch":
        given["arch"] = "x86-64-v3"
    elif change == "flags":
        monkeypatch.setattr(build_module, "_HOST", fake_backend(flags=("-O0",)))
    elif change == "header":
        (headers / "fusedops" / "c.cuh").write_text("#pragma once \n")
    elif change == "version":
        Compiler(tmp_path, version="12.2.1")
    else:
        monkeypatch.setenv("CXX", f"{tmp_path}/counting-c++ -m64")
    host._banner.cache_clear()
    again = build(**given)
    assert again.origin == "compiled"
    assert again.folder != first.folder


@pytest.mark.parametrize("change", ["PATH", "touched", "moved", "directory"])
def test_what_decides_nothing_builds_nothing(
    headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(build_module, "_HOST", fake_backend())
    given = {"source": "#include <fusedops/c.cuh>\n", "name": "h", "arch": LEVEL}
    first = build(**given)
    if change == "PATH":
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "c++").symlink_to(Path(host.find_compiler()[0]).resolve())
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    elif change == "touched":
        for path in headers.rglob("*"):
            os.utime(path, (0, 0))
    elif change == "moved":
        shutil.copytree(headers, tmp_path / "moved")
        monkeypatch.setattr("fusedops.jit.env.include_dir", lambda: tmp_path / "moved")
    elif change == "directory":
        monkeypatch.chdir(tmp_path)
    host._banner.cache_clear()
    again = build(**given)
    assert again.origin == "cache"
    assert again.folder == first.folder


def fake_backend(flags: tuple[str, ...] = ("-O3",)) -> build_module._Backend:
    """The host's, which compiles nothing."""
    return dataclasses.replace(
        build_module._HOST,
        flags=lambda arch: flags,
        compile=lambda source, arch: ({"kernel.so": b"binary"}, ""),
    )
