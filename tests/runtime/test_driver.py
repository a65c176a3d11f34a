# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What is said where the NVIDIA driver is not what a kernel needs; no GPU, and a driver of ours."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fusedops import _runtime

DRIVER = r"""
#include <stdlib.h>
#include <string.h>
#define OK(name) int name() { return 0; }
static int number(const char* name) { const char* v = getenv(name); return v ? atoi(v) : 0; }
int cuInit(unsigned flags) { return number("FAKE_INIT"); }
int cuDriverGetVersion(int* version) { *version = number("FAKE_VERSION"); return 0; }
int cuGetErrorName(int error, const char** name) { *name = "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int error, const char** text) { *text = "as asked"; return 0; }
int cuLibraryLoadData(void** library) { return number("FAKE_LOAD"); }
int cuLibraryGetKernel(void** kernel) { return number("FAKE_FIND"); }
OK(cuDeviceGetCount) OK(cuDeviceGet) OK(cuDeviceGetName) OK(cuDeviceGetAttribute)
OK(cuDevicePrimaryCtxRetain) OK(cuCtxGetCurrent) OK(cuCtxPushCurrent_v2) OK(cuCtxPopCurrent_v2)
OK(cuKernelGetFunction) OK(cuKernelGetAttribute) OK(cuKernelSetAttribute)
OK(cuThreadExchangeStreamCaptureMode)
#ifndef OLD
OK(cuLaunchKernelEx) OK(cuTensorMapEncodeTiled)
#endif
"""


@pytest.fixture(scope="module")
def drivers(tmp_path_factory, library):
    """Folders with a libcuda.so.1 each, a recent and an old one; of `library` only the compiler."""
    compiler = os.environ.get("CC", "cc")
    folder = tmp_path_factory.mktemp("drivers")
    for name, options in {"recent": (), "old": ("-DOLD",)}.items():
        (folder / name).mkdir()
        (folder / "driver.c").write_text(DRIVER)
        target = str(folder / name / "libcuda.so.1")
        command = [compiler, "-shared", "-fPIC", *options, "driver.c", "-o", target]
        subprocess.run(command, cwd=folder, check=True)
    return folder


def loading(folder, **environment):
    """What loading a kernel raises under such a driver."""
    code = (  # without torch, which takes seconds to import
        "import importlib.util as u;"
        f"s = u.spec_from_file_location('_runtime', {_runtime.__file__!r});"
        "m = u.module_from_spec(s); s.loader.exec_module(m); m.load_cuda(b'cubin', 'k')"
    )
    asked = {f"FAKE_{name.upper()}": str(value) for name, value in environment.items()}
    variables = {**os.environ, "LD_LIBRARY_PATH": str(folder), **asked}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (0, None),
        (222, r"the driver supports CUDA 12.4, and an NVRTC of a later release made this PTX: "),
        (209, r"the driver supports CUDA 12.4, and the kernel was built for another GPU, or by a "),
        (221, r"the driver supports CUDA 12.4 and has no compiler for PTX"),
        (2, "loading the CUDA kernel k (5 bytes) failed: CUDA_ERROR_FAKE (as asked)"),
    ],
)
def test_what_a_driver_refuses_is_told_with_a_cure(drivers, load, words):
    done = loading(drivers / "recent", load=load, version=12040)
    if words is None:
        assert done.returncode == 0, done.stderr
    else:
        assert words in done.stderr
        assert ("update the driver" in done.stderr) == (load in (222, 209))


def test_what_a_driver_refuses_late_is_told_alike(drivers):
    """It may look at an image only when a kernel is asked for."""
    done = loading(drivers / "recent", find=222, version=12040)
    assert "the driver supports CUDA 12.4, and an NVRTC of a later release" in done.stderr


def test_a_driver_that_is_too_old_says_what_is_needed(drivers):
    done = loading(drivers / "old", version=11080)
    assert "the NVIDIA driver has no cuLaunchKernelEx" in done.stderr
    assert "fusedops needs a driver for CUDA 12.0 or later; update the driver" in done.stderr


def test_a_driver_that_does_not_start_is_told(drivers):
    done = loading(drivers / "recent", init=100, version=12040)
    assert "cuInit failed: CUDA_ERROR_FAKE" in done.stderr
