# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What compiles: NVRTC with its headers for GPUs, the host's compiler for CPUs."""

from __future__ import annotations

import ctypes
import shlex
import tempfile

from fusedops.doctor.finding import Finding, Verdict, one_line
from fusedops.doctor.machine import MEND_CXX, ask_compiler, ask_driver, is_offline
from fusedops.errors import CompileError, CompilerNotFound, FusedOpsError
from fusedops.jit import env, host, levels, nvrtc
from fusedops.jit.toolkit import find_toolkit

__all__ = ["check_compiler", "check_nvrtc"]

OLDEST_CUDA = (12, 4)  # as include/fusedops/core/config.cuh
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


def check_nvrtc() -> Finding:
    """Whether NVRTC compiles with its headers, knows the GPUs, and serves the driver."""
    devices, _ = ask_driver()
    bad = Verdict.PROBLEM if devices and not is_offline() else Verdict.WARNING
    try:
        toolkit = find_toolkit()
    except CompilerNotFound as error:
        if not devices:
            return Finding("NVRTC", f"none (no GPU here needs it): {one_line(error)}")
        cure = "pip install 'fusedops[cuda]', or set CUDA_HOME"
        return Finding("NVRTC", one_line(error), bad, cure)
    major, said, cure = toolkit.major, f"{toolkit.nvrtc}", ""
    try:
        version, archs = nvrtc.version(), nvrtc.supported_archs()
        said += f", {_dotted(version)}, up to sm_{max(archs)}, headers {toolkit.include[0]}"
        nvrtc.compile_cuda(_CUDA, "sm_80")
    except (OSError, AttributeError, FusedOpsError) as error:
        log = error.log if isinstance(error, CompileError) else error
        cure = f"pip install -U nvidia-cuda-nvrtc nvidia-cuda-runtime (both of CUDA {major})"
        return Finding("NVRTC", f"{said}; a trial fails: {one_line(log)[:200]}", bad, cure)
    newest = max((one["capability"] for one in devices), default=(0, 0))
    if version < OLDEST_CUDA:
        cure = f"CUDA {_dotted(OLDEST_CUDA)} or later: pip install -U nvidia-cuda-nvrtc"
    elif newest[0] * 10 + newest[1] > max(archs):
        cure = f"a newer NVRTC, for sm_{newest[0]}{newest[1]}: pip install -U nvidia-cuda-nvrtc"
    elif devices and (driver := _driver_major()) < major:
        said += f"; what it makes does not load with a driver for CUDA {driver}"
        cure = (
            f"update the driver to one for CUDA {major}, or add NVRTC for CUDA {driver}: "
            f"pip install nvidia-cuda-nvrtc-cu{driver} nvidia-cuda-runtime-cu{driver}"
        )
    return Finding("NVRTC", said, bad if cure else Verdict.OK, cure)


def check_compiler() -> Finding:
    """Whether the host's compiler makes a library that loads, which only tensors on a CPU need."""
    bad = Verdict.WARNING if ask_driver()[0] or is_offline() else Verdict.PROBLEM
    identity, reason = ask_compiler()
    if reason:
        cure = "install one (apt-get install g++, dnf install gcc-c++, conda install gxx)"
        return Finding("host compiler", reason, bad, MEND_CXX if env.cxx() else cure)
    level = _cpu_level()
    command = shlex.join(host.find_compiler())
    said = f"{command}, {identity['name']} {identity['version']}, for {level}"
    try:
        library, _ = host.compile_host(_HOST, level)
    except CompileError as error:
        # The first that know the levels by name (-march=x86-64-v3).
        cure = "install GCC 11 or clang 12, or a later one, with its headers, or set CXX to it"
        failed = f"a trial fails: {one_line(error.log)[:200]}"
        return Finding("host compiler", f"{said}; {failed}", bad, cure)
    except OSError as error:
        cure = "set TMPDIR to a folder of your own with free space"
        return Finding("host compiler", f"{said}; {one_line(error)}", bad, cure)
    try:
        with tempfile.NamedTemporaryFile(prefix="fusedops-", suffix=".so") as file:
            file.write(library)
            file.flush()
            ctypes.CDLL(file.name).probe(41)
    except (OSError, AttributeError) as error:
        cure = "set CXX to a compiler for this machine; mount TMPDIR without noexec"
        failed = f"what it makes does not load: {one_line(error)}"
        return Finding("host compiler", f"{said}; {failed}", bad, cure)
    return Finding("host compiler", f"{said}; compiles and loads")


def _cpu_level() -> str:
    """The level that kernels for this CPU are built for; the least without the runtime."""
    try:
        from fusedops import _runtime
    except ImportError:
        return levels.cpu_level(())
    return levels.cpu_level(_runtime.cpu_features())


def _driver_major() -> int:
    from fusedops import _runtime

    return _runtime.driver_version() // 1000


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
