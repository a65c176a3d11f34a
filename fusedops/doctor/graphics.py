# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA driver and the GPUs, as the driver's own library tells; no context is made."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

from fusedops.doctor.finding import Finding, Verdict

__all__ = ["Device", "Driver", "ask_driver", "check_driver", "check_gpus"]

OLDEST = (12, 0)  # CUDA versions: csrc/driver.cpp calls what came with it
CAPABILITY = (8, 0)
RELEASES = {12: "525.60.13", 13: "580.65.06"}  # the first drivers of these CUDA versions
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
LIBRARY = "libcuda.so.1"
_SAYS = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Device:
    """One GPU."""

    name: str
    capability: tuple[int, int]
    memory: int


@dataclass(frozen=True)
class Driver:
    """What the driver's library says of itself and of the machine.

    Attributes:
        cuda: The newest CUDA version that it supports; None if there is no driver.
        release: Its own version, where the system tells.
        devices: The GPUs that this process may use.
        error: Why there are none, in the driver's words.
    """

    cuda: tuple[int, int] | None = None
    release: str = ""
    devices: tuple[Device, ...] = ()
    error: str = ""


def ask_driver() -> Driver:
    """Asks the driver, if there is one."""
    try:
        library = ctypes.CDLL(LIBRARY)
        number = ctypes.c_int()
        status = library.cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as error:
        return Driver(error=str(error))
    if status != 0:
        return Driver(error=f"cuDriverGetVersion: CUDA error {status}")
    cuda = (number.value // 1000, number.value % 1000 // 10)
    devices, reason = _devices(library)
    return Driver(cuda, _release(), devices, reason)


def check_driver(driver: Driver, nvrtc: int | None) -> Finding:
    """Whether there is a driver, and whether it loads what NVRTC (of that major version) makes."""
    if driver.cuda is None:
        return Finding("NVIDIA driver", "none: tensors on the CPU only")
    found = f"for CUDA {_dotted(driver.cuda)}"
    if driver.release:
        found = f"{driver.release}, {found}"
    if driver.cuda < OLDEST:
        cure = f"update the driver: CUDA {_dotted(OLDEST)} needs {RELEASES[12]} or later"
        return Finding("NVIDIA driver", found, _if_used(driver), cure)
    if nvrtc is not None and nvrtc > driver.cuda[0]:
        release = f" ({RELEASES[nvrtc]} or later)" if nvrtc in RELEASES else ""
        older = driver.cuda[0]
        cure = (
            f"update the driver to one for CUDA {nvrtc}{release}, or add NVRTC for CUDA {older}: "
            f"pip install nvidia-cuda-nvrtc-cu{older} nvidia-cuda-runtime-cu{older}"
        )
        found += f"; it does not load what NVRTC {nvrtc} makes"
        return Finding("NVIDIA driver", found, _if_used(driver), cure)
    return Finding("NVIDIA driver", found)


def check_gpus(driver: Driver) -> Finding:
    """Whether the GPUs are new enough."""
    if driver.cuda is None:
        return Finding("GPU", "none: tensors on the CPU only")
    if not driver.devices:
        if driver.error:
            cure = "see that the driver's kernel module is loaded and matches " + LIBRARY
            return Finding("GPU", f"none: {driver.error}", Verdict.WARNING, cure)
        return Finding("GPU", "none that this process may use (CUDA_VISIBLE_DEVICES?)")
    found = ", ".join(
        f"{index}: {one.name} (sm_{one.capability[0]}{one.capability[1]}, "
        f"{one.memory / 2**30:.0f} GiB)"
        for index, one in enumerate(driver.devices)
    )
    old = [index for index, one in enumerate(driver.devices) if one.capability < CAPABILITY]
    if old:
        which = ", ".join(f"cuda:{index}" for index in old)
        cure = f"{which}: older than sm_80, use other GPUs or tensors on the CPU"
        every = len(old) == len(driver.devices)
        return Finding("GPU", found, Verdict.PROBLEM if every else Verdict.WARNING, cure)
    return Finding("GPU", found)


def _if_used(driver: Driver) -> Verdict:
    return Verdict.PROBLEM if driver.devices else Verdict.WARNING


def _devices(library: ctypes.CDLL) -> tuple[tuple[Device, ...], str]:
    """The GPUs, or the reason why there are none."""
    count, handle = ctypes.c_int(), ctypes.c_int()
    if status := library.cuInit(0):
        # 100: no GPU is there. All else is out of order.
        return (
            (),
            "" if status == 100 else f"cuInit: CUDA error {status}{_meaning(library, status)}",
        )
    if status := library.cuDeviceGetCount(ctypes.byref(count)):
        return (), f"cuDeviceGetCount: CUDA error {status}"
    devices = []
    for index in range(count.value):
        name, memory = ctypes.create_string_buffer(256), ctypes.c_size_t()
        library.cuDeviceGet(ctypes.byref(handle), index)
        library.cuDeviceGetName(name, len(name), handle)
        library.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
        major, minor = (_attribute(library, which, handle) for which in (_MAJOR, _MINOR))
        devices.append(Device(name.value.decode(errors="replace"), (major, minor), memory.value))
    return tuple(devices), ""


def _attribute(library: ctypes.CDLL, which: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    library.cuDeviceGetAttribute(ctypes.byref(value), which, device)
    return value.value


def _meaning(library: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorString(status, ctypes.byref(text))
    return f" ({text.value.decode(errors='replace')})" if text.value else ""


def _release() -> str:
    try:
        said = _SAYS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", said)
    return found[0] if found else ""


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
