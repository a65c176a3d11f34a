# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Drivers and GPUs of all kinds, played by a library that answers as the driver's does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusedops.jit import host

DRIVER = """
#include <cstdlib>
#include <cstring>
#define OK(name) int name() { return 0; }
static int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}
extern "C" {
int cuDriverGetVersion(int* version) { *version = number("FAKE_CUDA", 13000); return 0; }
int cuInit(unsigned) { return number("FAKE_INIT", 0); }
int cuGetErrorName(int error, const char** text) {
  *text = error == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_FAKE";
  return 0;
}
int cuGetErrorString(int, const char** text) { *text = "as the test says"; return 0; }
int cuDeviceGetCount(int* count) { *count = number("FAKE_GPUS", 1); return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetName(char* name, int, int) { std::strcpy(name, "Fake GPU"); return 0; }
int cuDeviceGetAttribute(int* value, int which, int device) {
  const int capability = number(device ? "FAKE_OTHER" : "FAKE_CAPABILITY", 90);
  *value = which == 75 ? capability / 10 : capability % 10;
  return 0;
}
OK(cuDevicePrimaryCtxRetain) OK(cuCtxGetCurrent) OK(cuCtxPushCurrent_v2) OK(cuCtxPopCurrent_v2)
OK(cuLibraryLoadData) OK(cuLibraryGetKernel) OK(cuKernelGetFunction) OK(cuKernelGetAttribute)
OK(cuKernelSetAttribute) OK(cuThreadExchangeStreamCaptureMode)
#ifndef OLD
OK(cuLaunchKernelEx) OK(cuTensorMapEncodeTiled)
#endif
}
"""
ASK = """
import json, sys
sys.argv = ["fusedops"]  # which imports no torch
from fusedops.doctor import check_gpus
one = check_gpus()
print(json.dumps([one.verdict, one.found, one.cure]))
"""


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with a libcuda.so.1 each: a recent, an old, and a broken one."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    for name, options in {"recent": (), "old": ("-DOLD",)}.items():
        (folder / name).mkdir()
        library = str(folder / name / "libcuda.so.1")
        command = [*host.find_compiler(), "-shared", "-fPIC", *options, "driver.cpp", "-o", library]
        subprocess.run(command, cwd=folder, check=True)
    (folder / "broken").mkdir()
    (folder / "broken" / "libcuda.so.1").write_text("not an ELF file")
    return folder


def ask(folder: Path, **facts: int) -> tuple[str, str, str]:
    """Verdict, finding and cure under such a driver."""
    asked = {f"FAKE_{name.upper()}": str(value) for name, value in facts.items()}
    variables = {**os.environ, "LD_LIBRARY_PATH": str(folder), **asked}
    command = [sys.executable, "-c", ASK]
    done = subprocess.run(command, env=variables, capture_output=True, check=True, cwd=folder)
    verdict, found, cure = json.loads(done.stdout)
    return verdict, found, cure


def test_a_gpu_that_serves(drivers):
    assert ask(drivers / "recent")[:2] == ("ok", "0: Fake GPU (sm_90)")


def test_a_driver_without_a_gpu_is_fine(drivers):
    verdict, found, _ = ask(drivers / "recent", init=100)
    assert verdict == "ok"
    assert "CPU only" in found


def test_what_is_no_driver_is_none(drivers):
    verdict, found, _ = ask(drivers / "broken")
    assert verdict == "ok"
    assert "CPU only" in found


def test_a_driver_that_does_not_start_is_told(drivers):
    verdict, found, cure = ask(drivers / "recent", init=803)
    assert verdict == "problem"
    assert "CUDA_ERROR_FAKE (as the test says)" in found
    assert "kernel module" in cure


def test_a_driver_that_is_too_old(drivers):
    verdict, found, cure = ask(drivers / "old")
    assert verdict == "problem"
    assert "needs a driver for CUDA 12.0 or later" in found
    assert "update the driver" in cure


def test_a_gpu_that_is_too_old(drivers):
    verdict, found, cure = ask(drivers / "recent", capability=75)
    assert verdict == "problem"
    assert "sm_80" in cure
    verdict, found, cure = ask(drivers / "recent", gpus=2, capability=75, other=90)
    assert verdict == "warning"
    assert "cuda:0" in cure
    assert found == "0: Fake GPU (sm_75), 1: Fake GPU (sm_90)"
