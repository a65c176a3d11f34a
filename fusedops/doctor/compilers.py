# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What compiles: NVRTC with its headers for GPUs, the host's compiler for CPUs, nvcc for C++."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fusedops.doctor.environment import is_offline
from fusedops.doctor.finding import Finding, Verdict, one_line
from fusedops.doctor.graphics import Device
from fusedops.errors import CompileError, CompilerNotFound, FusedOpsError
from fusedops.jit import env, host, levels, nvrtc
from fusedops.jit.key import Request
from fusedops.jit.toolkit import Toolkit, find_toolkit

__all__ = ["check_compiler", "check_cuda_headers", "check_nvcc", "check_nvrtc", "toolkit"]

OLDEST_CUDA = (12, 4)  # as include/fusedops/core/config.cuh
OLDEST_GCC, OLDEST_CLANG = 11, 12  # the first that know the levels by name (-march=x86-64-v3)
_ANY = Request("", "", "", (), ())  # a compiler is the same whatever is asked of it
_HOST = """
#include <cmath>
#include <cstdint>
extern "C" __attribute__((visibility("default"))) std::int64_t probe(std::int64_t x) {
  return x + 1;
}
"""
_CUDA = """
#include <cuda_fp16.h>
extern "C" __global__ void probe(__half* x) { x[0] = __float2half(1.0f); }
"""


def toolkit() -> Toolkit | CompilerNotFound:
    """The NVRTC that builds would take, or why there is none."""
    try:
        return find_toolkit()
    except CompilerNotFound as error:
        return error


def check_nvrtc(found: Toolkit | CompilerNotFound, devices: Sequence[Device]) -> Finding:
    """Whether NVRTC loads, and knows the GPUs that are here."""
    needed = Verdict.PROBLEM if devices and not is_offline() else Verdict.OK
    if isinstance(found, CompilerNotFound):
        said = one_line(found)
        if not devices:
            return Finding("NVRTC", f"none (no GPU here needs it): {said}")
        return Finding("NVRTC", said, needed, "pip install 'fusedops[cuda]', or set CUDA_HOME")
    try:
        version, archs = nvrtc.version(), nvrtc.supported_archs()
    except (OSError, AttributeError, FusedOpsError) as error:
        said, cure = f"{found.nvrtc}: {one_line(error)}", "install nvidia-cuda-nvrtc again"
        return Finding("NVRTC", said, needed if devices else Verdict.WARNING, cure)
    said = f"{found.nvrtc}, {_dotted(version)}, up to sm_{max(archs)}"
    newest = max((one.capability[0] * 10 + one.capability[1] for one in devices), default=0)
    if version < OLDEST_CUDA:
        cure = f"CUDA {_dotted(OLDEST_CUDA)} or later: pip install -U nvidia-cuda-nvrtc"
        return Finding("NVRTC", said, needed if devices else Verdict.WARNING, cure)
    if newest > max(archs):
        cure = f"a newer NVRTC, for sm_{newest}: pip install -U nvidia-cuda-nvrtc"
        return Finding("NVRTC", said, needed, cure)
    return Finding("NVRTC", said)


def check_cuda_headers(found: Toolkit | CompilerNotFound, devices: Sequence[Device]) -> Finding:
    """Whether the CUDA headers are NVRTC's, and compile."""
    if isinstance(found, CompilerNotFound):
        return Finding("CUDA headers", "not looked for without NVRTC")
    folder = found.include[0]
    version = _header_version(folder / "cuda.h")
    said = f"{folder}, {_dotted(version) if version else 'no cuda.h, version unknown'}"
    bad = Verdict.PROBLEM if devices and not is_offline() else Verdict.WARNING
    wheels = f"pip install -U nvidia-cuda-runtime nvidia-cuda-nvrtc (both of CUDA {found.major})"
    if version and version[0] != found.major:
        return Finding("CUDA headers", f"{said}; NVRTC is of CUDA {found.major}", bad, wheels)
    try:
        nvrtc.compile_cuda(_CUDA, "sm_80")
    except (OSError, AttributeError, FusedOpsError) as error:
        log = error.log if isinstance(error, CompileError) else error
        return Finding("CUDA headers", f"{said}; a trial fails: {one_line(log)[:200]}", bad, wheels)
    return Finding("CUDA headers", said)


def check_nvcc() -> Finding:
    """Which nvcc C++ projects would find; the package itself never calls it."""
    homes = [str(home / "bin") for home in env.cuda_homes()]
    found = next(filter(None, (shutil.which("nvcc", path=path) for path in (None, *homes))), None)
    use = "only C++ projects need it"
    if found is None:
        return Finding("nvcc", f"none ({use})")
    try:
        done = subprocess.run(
            [found, "--version"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("nvcc", f"{found}: {one_line(error)} ({use})", Verdict.WARNING, "mend nvcc")
    number = re.search(r"release (\d+)\.(\d+)", done.stdout)
    version = (int(number[1]), int(number[2])) if number else None
    said = f"{found}, {_dotted(version) if version else 'version unknown'} ({use})"
    if version and version < OLDEST_CUDA:
        cure = f"for C++ projects install CUDA {_dotted(OLDEST_CUDA)} or later"
        return Finding("nvcc", said, Verdict.WARNING, cure)
    return Finding("nvcc", said)


def check_compiler(level: str | None, devices: Sequence[Device]) -> Finding:
    """Whether the host's compiler makes a library that loads.

    Args:
        level: The CPU's instruction-set level; the least one if it is unknown.
        devices: The GPUs: where there is one, tensors on it need no host compiler.
    """
    bad = Verdict.WARNING if devices or is_offline() else Verdict.PROBLEM
    try:
        command = host.find_compiler()
        identity = host.identity(_ANY)
    except CompilerNotFound as error:
        cure = "install one (apt-get install g++, dnf install gcc-c++, conda install gxx)"
        return Finding("host compiler", one_line(error), bad, cure)
    except ValueError as error:  # of shlex, for a CXX with an open quote
        return Finding("host compiler", f"CXX: {one_line(error)}", bad, "mend or unset CXX")
    said = f"{shlex.join(command)}, {identity['name']} {identity['version']}"
    needs = f"GCC {OLDEST_GCC} or clang {OLDEST_CLANG}, or a later one"
    try:
        library, _ = host.compile_host(_HOST, level or levels.cpu_level(()))
    except CompileError as error:
        cure = f"install {needs}, whole with its headers, or set CXX to it"
        failed = f"a trial fails: {one_line(error.log)[:200]}"
        return Finding("host compiler", f"{said}; {failed}", bad, cure)
    except OSError as error:
        cure = "set TMPDIR to a folder of your own with free space"
        return Finding("host compiler", f"{said}; {one_line(error)}", bad, cure)
    if failure := _load(library):
        cure = (
            "see that the compiler is one for this machine, and that TMPDIR is not mounted noexec"
        )
        failed = f"what it makes does not load: {failure}"
        return Finding("host compiler", f"{said}; {failed}", bad, cure)
    return Finding("host compiler", f"{said}; compiles and loads")


def _load(library: bytes) -> str:
    """Loads a library in another process, which may die of it; what went wrong, or nothing."""
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).probe(41))"
    with tempfile.TemporaryDirectory(prefix="fusedops-") as folder:
        path = Path(folder, "probe.so")
        path.write_bytes(library)
        command = [sys.executable, "-I", "-c", code, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stdout.strip() == "42":
        return ""
    last = done.stderr.strip().splitlines()[-1:]
    return last[0] if last else f"exit status {done.returncode}"


def _header_version(header: Path) -> tuple[int, int] | None:
    try:
        text = header.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    number = re.search(r"^#define CUDA_VERSION (\d+)", text, re.MULTILINE)
    return (int(number[1]) // 1000, int(number[1]) % 1000 // 10) if number else None


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
