# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Machines that are not this one: a driver that says what a test wants, and folders of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fusedops.doctor import graphics
from fusedops.jit import host

DRIVER = """
#include <cstddef>
#include <cstdlib>
#include <cstring>
static int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}
extern "C" {
int cuDriverGetVersion(int* version) { *version = number("FAKE_CUDA", 13000); return 0; }
int cuInit(unsigned) { return number("FAKE_INIT", 0); }
int cuGetErrorString(int, const char** text) { *text = "as the test says"; return 0; }
int cuDeviceGetCount(int* count) { *count = number("FAKE_GPUS", 1); return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetName(char* name, int, int) { std::strcpy(name, "Fake GPU"); return 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = size_t(80) << 30; return 0; }
int cuDeviceGetAttribute(int* value, int which, int device) {
  const int capability = number(device ? "FAKE_OTHER" : "FAKE_CAPABILITY", 90);
  *value = which == 75 ? capability / 10 : capability % 10;
  return 0;
}
}
"""


@pytest.fixture(scope="session")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    library = folder / "libcuda.so.1"
    command = [*host.find_compiler(), "-shared", "-fPIC", "driver.cpp", "-o", library.name]
    subprocess.run(command, cwd=folder, check=True)
    return library


@pytest.fixture
def machine(
    driver_library: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., graphics.Driver]:
    """What the driver of a machine says: `machine(cuda=12040, gpus=2, capability=75)`."""
    monkeypatch.setattr(graphics, "LIBRARY", str(driver_library))

    def ask(**facts: int) -> graphics.Driver:
        for name, value in facts.items():
            monkeypatch.setenv(f"FAKE_{name.upper()}", str(value))
        return graphics.ask_driver()

    return ask
