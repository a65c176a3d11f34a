# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of this machine for `fusedops doctor`: torch, GPUs, compilers, cache; each with a cure.

No check raises for what it finds. This process imports no torch and makes no CUDA context: a
process of its own does, since a broken torch or driver may take its process with it.

May import: version, errors, _runtime, jit, schedule, generate, ops.
"""

from __future__ import annotations

import difflib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fusedops.errors import CompilerNotFound
from fusedops.jit import env, host, nvrtc, store
from fusedops.jit.key import Request
from fusedops.jit.nvrtc import find_toolkit
from fusedops.version import __version__

if TYPE_CHECKING:
    from fusedops._runtime import DeviceProperties

__all__ = ["Finding", "Verdict", "examine"]

#: How it stands; only a problem keeps fusedops from working.
Verdict: TypeAlias = Literal["ok", "warning", "problem"]

OLDEST_TORCH, OLDEST_GPU = (2, 10), (8, 0)
SECONDS = 300  # for a process that imports torch and builds a kernel for each device
KNOWN = ("FUSEDOPS_CACHE_DIR", *env.CHOICES, "FUSEDOPS_RECORD")
#: In what the runtime says where there is no GPU and nothing is wrong.
_NO_GPU = ("no NVIDIA driver", "NO_DEVICE", "INVALID_DEVICE", "_runtime")
_ANY = Request("", "", "", (), ())  # a compiler is the same whatever is asked of it
# CUDA is asked only of a build that has it. The path is this process's.
_TRIAL = """
import json, sys
sys.path[:] = {path!r}
import torch
cuda = torch.version.cuda
usable = bool(cuda) and torch.cuda.is_available()
print(json.dumps({{"torch": torch.__version__, "cuda": cuda, "usable": usable}}), flush=True)
from fusedops.doctor.trial import try_devices
try_devices()
"""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str  # what was looked at
    found: str  # what is there
    verdict: Verdict = "ok"  # how that stands
    cure: str = ""  # what to do about it; empty where nothing is to be done


def examine() -> Iterator[Finding]:
    """Run every check, in the order in which one depends on another."""
    checks: dict[str, Callable[[], Finding | Iterator[Finding]]] = {
        "fusedops": check_package,
        "environment": check_variables,
        "GPU": check_gpus,
        "NVRTC": check_nvrtc,
        "host compiler": check_compiler,
        "cache": check_cache,
        "torch": check_torch,
    }
    for name, check in checks.items():
        try:
            given = check()
            yield from [given] if isinstance(given, Finding) else given
        except Exception as error:  # whatever a machine comes up with: the other checks go on
            said = f"{type(error).__name__}: {_line(error)}"
            yield Finding(name, said, "problem", "please report this as a bug of the doctor")


def check_package() -> Finding:
    """Check the versions of fusedops and Python, and that the C++ extension loads."""
    found = f"{__version__}, Python {platform.python_version()} ({sys.executable})"
    try:
        from fusedops import _runtime
    except ImportError as error:
        cure = "pip install --force-reinstall --no-deps fusedops (in a checkout: pip install -e .)"
        return Finding("fusedops", f"{found}; {_line(error)}", "problem", cure)
    return Finding("fusedops", f"{found}, {_runtime.__file__}")


def check_variables() -> Iterator[Finding]:
    """Check each environment variable FUSEDOPS_...: whether anything reads it, and its value."""
    for name in sorted(name for name in os.environ if name.startswith("FUSEDOPS_")):
        value = os.environ[name]
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, 1)
            cure = f"unset it{f', or did you mean {near[0]}?' if near else ''}"
            yield Finding(name, f"{value!r}; nothing reads it", "warning", cure)
        elif value and value not in env.CHOICES.get(name, (value,)):
            cure = f"set it to {env.listed(name)}, or unset it"
            yield Finding(name, repr(value), "problem", cure)
        else:
            yield Finding(name, repr(value))


def check_gpus() -> Finding:
    """Check that the GPUs and their driver are new enough; a machine without a GPU is fine."""
    devices, reason = _ask_driver()
    if not devices:
        if any(text in reason for text in _NO_GPU):
            return Finding("GPU", f"none, tensors on the CPU only ({reason})")
        cure = "update the driver; see that its kernel module is loaded and matches libcuda.so.1"
        return Finding("GPU", reason, "problem", cure)
    found = ", ".join(
        "{}: {} (sm_{}{})".format(at, one["name"], *one["capability"])
        for at, one in enumerate(devices)
    )
    old = [f"cuda:{at}" for at, one in enumerate(devices) if one["capability"] < OLDEST_GPU]
    if old:
        cure = f"{', '.join(old)}: older than sm_80, use other GPUs or tensors on the CPU"
        verdict: Verdict = "problem" if len(old) == len(devices) else "warning"
        return Finding("GPU", found, verdict, cure)
    return Finding("GPU", found)


def check_nvrtc() -> Finding:
    """Find the NVRTC and the CUDA headers that compile for GPUs."""
    try:
        known = nvrtc.identity(_ANY)
        found = find_toolkit()
    except CompilerNotFound as error:
        if not _ask_driver()[0]:
            return Finding("NVRTC", f"none (no GPU here needs it): {_line(error)}")
        bad: Verdict = "warning" if _is_offline() else "problem"
        cure = "pip install 'fusedops[cuda]', or set CUDA_HOME"
        return Finding("NVRTC", _line(error), bad, cure)
    return Finding("NVRTC", f"{found.nvrtc}, {known['version']}, headers {found.include[0]}")


def check_compiler() -> Finding:
    """Find the host C++ compiler, which only tensors on a CPU need."""
    try:
        known = host.identity(_ANY)
    except (CompilerNotFound, ValueError) as error:  # ValueError: CXX has an open quote
        bad: Verdict = "warning" if _ask_driver()[0] or _is_offline() else "problem"
        cure = "install one (apt-get install g++, dnf install gcc-c++, conda install gxx)"
        if env.cxx():
            return Finding("host compiler", f"CXX: {_line(error)}", bad, "mend or unset CXX")
        return Finding("host compiler", _line(error), bad, cure)
    command = shlex.join(host.find_compiler())
    return Finding("host compiler", f"{command}, {known['name']} {known['version']}")


def check_cache() -> Finding:
    """Check that kernels can be kept in the user's cache folder; offline, that it has some.

    That is asked as a call asks it.
    """
    cure, found = "mend that, or set FUSEDOPS_CACHE_DIR to a folder of your own", store.usable()
    if isinstance(found, str):
        return Finding("cache", found, "problem" if _is_offline() else "warning", cure)
    said = f"{found.root}, {shutil.disk_usage(found.root).free / 2**30:.1f} GiB free"
    if _is_offline():
        if next(found.root.glob("*/meta.json"), None) is None:
            cure = (
                "FUSEDOPS_OFFLINE=1 needs a filled cache (`fusedops build`): unset it, or fill it"
            )
            return Finding("cache", f"{said}, empty", "problem", cure)
    elif reason := store.unwritable():
        return Finding("cache", reason, "warning", cure)
    return Finding("cache", said)


def check_torch() -> Iterator[Finding]:
    """Check torch's version, and build and run a kernel on each device that it can use."""
    command = [sys.executable, "-c", _TRIAL.format(path=sys.path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        cure = "see that `python -c 'import torch'` ends, and that the disk and GPUs are not stuck"
        yield Finding("torch", f"no answer in {SECONDS} s", "problem", cure)
        return
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    if not lines:
        cure = "pip install 'torch>=2.10'"
        yield Finding("torch", f"cannot be imported: {last}", "problem", cure)
        return
    yield _of_torch(**lines[0])
    for line in lines[1:]:
        yield Finding(**line)
    if done.returncode != 0:
        cure = "mend what it says; else please report it as a bug"
        yield Finding("devices", f"the trial ended early: {last}", "problem", cure)


def _of_torch(torch: str, cuda: str | None, usable: bool) -> Finding:
    found = f"{torch}, {f'for CUDA {cuda}' if cuda else 'for CPUs only'}"
    number = re.match(r"(\d+)\.(\d+)", torch)
    if number is None or (int(number[1]), int(number[2])) < OLDEST_TORCH:
        return Finding("torch", found, "problem", "pip install 'torch>=2.10'")
    if _ask_driver()[0] and not usable:
        cure = "torch does not see the GPU: see that the driver is one for torch's CUDA"
        if not cuda:
            cure = "install a build of torch for CUDA to use the GPU (see pytorch.org)"
        return Finding("torch", f"{found}, no GPU usable", "warning", cure)
    return Finding("torch", found)


def _ask_driver() -> tuple[list[DeviceProperties], str]:
    """The GPUs that this process may use, or why there are none; makes no CUDA context."""
    try:
        from fusedops import _runtime

        devices = [_runtime.device(index) for index in range(_runtime.device_count())]
        if not devices:
            _runtime.device(0)  # says why
    except (ImportError, RuntimeError) as error:
        return [], _line(error)
    return devices, ""


def _is_offline() -> bool:
    """Whether nothing will be compiled; a flag that is neither 0 nor 1 has its own finding."""
    return os.environ.get("FUSEDOPS_OFFLINE") == "1"


def _line(error: Any) -> str:
    """An error's text without its line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
