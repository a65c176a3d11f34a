# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What is there before anything is built: Python, the package, torch, GPUs, and the environment."""

from __future__ import annotations

import difflib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fusedops.doctor.finding import Finding, Verdict, one_line
from fusedops.errors import CompilerNotFound
from fusedops.jit import env, host
from fusedops.jit.key import Request, closure, digest
from fusedops.version import __version__

if TYPE_CHECKING:
    from fusedops._runtime import DeviceProperties

__all__ = [
    "MEND_CXX",
    "ask_compiler",
    "ask_driver",
    "check_environment",
    "check_gpus",
    "check_headers",
    "check_python",
    "check_runtime",
    "check_torch",
    "is_offline",
]

REINSTALL = "pip install --force-reinstall --no-deps fusedops (in a checkout: pip install -e .)"
MEND_CXX = "mend or unset CXX"
OLDEST_TORCH, OLDEST_GPU = (2, 10), (8, 0)
#: In what the runtime says where there is no GPU and nothing is wrong.
_NO_GPU = ("no NVIDIA driver", "NO_DEVICE", "INVALID_DEVICE", "_runtime")
FOLDERS = ("CUDA_HOME", "CUDA_PATH")
KNOWN = ("FUSEDOPS_CACHE_DIR", *env.CHOICES, "FUSEDOPS_RECORD")
_ANY = Request("", "", "", (), ())  # a compiler is the same whatever is asked of it
# CUDA is asked only of a build that has it.
_ASK_TORCH = """
import json, torch
cuda = torch.version.cuda
usable = bool(cuda) and torch.cuda.is_available()
print("\\n" + json.dumps([torch.__version__, cuda, usable]))
"""


def check_python() -> Finding:
    """Which Python runs which fusedops."""
    free = not getattr(sys, "_is_gil_enabled", lambda: True)()
    found = (
        f"fusedops {__version__}, {platform.python_implementation()} "
        f"{platform.python_version()}{', free-threaded' if free else ''} ({sys.executable})"
    )
    if free:
        cure = "run Python with its GIL: without it fusedops is not tested"
        return Finding("Python", found, Verdict.WARNING, cure)
    return Finding("Python", found)


def check_runtime() -> Finding:
    """Whether the compiled module is there and loads."""
    try:
        from fusedops import _runtime
    except ImportError as error:
        return Finding("runtime", one_line(error), Verdict.PROBLEM, REINSTALL)
    return Finding("runtime", str(_runtime.__file__))


def check_headers() -> Finding:
    """Whether all C++ headers are there, of the package's version."""
    folder = env.include_dir()
    try:
        config = (folder / "fusedops" / "core" / "config.cuh").read_text(encoding="utf-8")
        roots = [str(file.relative_to(folder)) for file in folder.glob("fusedops/**/*.cuh")]
        reached = closure(roots, [folder])
    except (OSError, ValueError) as error:
        return Finding("headers", one_line(error), Verdict.PROBLEM, REINSTALL)
    own = {name: content for name, content in reached.items() if name.startswith("fusedops/")}
    if missing := sorted(name for name, content in own.items() if content is None):
        found = f"{folder} lacks {', '.join(missing)}"
        return Finding("headers", found, Verdict.PROBLEM, REINSTALL)
    number = re.search(r"^#define FUSEDOPS_VERSION (\d+)", config, re.MULTILINE)
    major, rest = divmod(int(number[1]) if number else 0, 10000)
    version = f"{major}.{rest // 100}.{rest % 100}"
    found = f"{folder}, {len(own)} files, digest {digest(own)[:16]}"
    if version != __version__:
        found += f", of version {version}, not {__version__}"
        return Finding("headers", found, Verdict.PROBLEM, REINSTALL)
    return Finding("headers", found)


def check_torch() -> Finding:
    """Whether torch is there, new enough, and able to use the GPUs that are here.

    It is asked in a process of its own: a broken one may take its process with it.
    """
    cure = "pip install 'torch>=2.10'"
    # As this process: without the folder that it was started in.
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{_ASK_TORCH}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            return Finding("torch", f"cannot be imported: {last[0]}", Verdict.PROBLEM, cure)
        version, cuda, usable = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return Finding("torch", f"does not answer: {one_line(error)}", Verdict.PROBLEM, cure)
    found = f"{version}, {f'for CUDA {cuda}' if cuda else 'for CPUs only'}"
    number = re.match(r"(\d+)\.(\d+)", version)
    if number is None or (int(number[1]), int(number[2])) < OLDEST_TORCH:
        return Finding("torch", found, Verdict.PROBLEM, cure)
    if ask_driver()[0] and not usable:
        cure = "torch does not see the GPU: see that the driver is one for torch's CUDA"
        if not cuda:
            cure = "install a build of torch for CUDA to use the GPU (see pytorch.org)"
        return Finding("torch", f"{found}, no GPU usable", Verdict.WARNING, cure)
    return Finding("torch", found)


def ask_driver() -> tuple[list[DeviceProperties], str]:
    """The GPUs that this process may use, or why there are none; makes no CUDA context."""
    try:
        from fusedops import _runtime

        devices = [_runtime.device(index) for index in range(_runtime.device_count())]
        if not devices:
            _runtime.device(0)  # says why
    except (ImportError, RuntimeError) as error:
        return [], one_line(error)
    return devices, ""


def ask_compiler() -> tuple[dict[str, str], str]:
    """What the host's compiler says of itself, or why there is none."""
    try:
        return host.identity(_ANY), ""
    except CompilerNotFound as error:
        return {}, one_line(error)
    except ValueError as error:  # of shlex, for a CXX with an open quote
        return {}, f"CXX: {one_line(error)}"


def check_gpus() -> Finding:
    """Whether the GPUs and their driver are new enough; that there are none is fine."""
    devices, reason = ask_driver()
    if not devices:
        if any(text in reason for text in _NO_GPU):
            return Finding("GPU", f"none, tensors on the CPU only ({reason})")
        cure = "update the driver; see that its kernel module is loaded and matches libcuda.so.1"
        return Finding("GPU", reason, Verdict.PROBLEM, cure)
    capabilities = [one["capability"] for one in devices]
    found = ", ".join(
        "{}: {} (sm_{}{})".format(at, one["name"], *one["capability"])
        for at, one in enumerate(devices)
    )
    old = [f"cuda:{at}" for at, one in enumerate(capabilities) if one < OLDEST_GPU]
    if old:
        cure = f"{', '.join(old)}: older than sm_80, use other GPUs or tensors on the CPU"
        verdict = Verdict.PROBLEM if len(old) == len(devices) else Verdict.WARNING
        return Finding("GPU", found, verdict, cure)
    return Finding("GPU", found)


def is_offline() -> bool:
    """Whether nothing will be compiled; a flag that is neither 0 nor 1 has its own finding."""
    return os.environ.get("FUSEDOPS_OFFLINE") == "1"


def check_environment() -> Iterator[Finding]:
    """One finding for each variable that is set, or one that says that none is."""
    names = sorted(name for name in os.environ if name.startswith("FUSEDOPS_"))
    names += [name for name in ("CXX", *FOLDERS, "XDG_CACHE_HOME") if os.environ.get(name)]
    if not names:
        yield Finding("environment", "no variable of ours is set")
    for name in names:
        value = os.environ[name]
        if name.startswith("FUSEDOPS_") and name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, 1)
            cure = f"unset it{f', or did you mean {near[0]}?' if near else ''}"
            yield Finding(name, f"{value!r}; nothing reads it", Verdict.WARNING, cure)
        elif value and value not in env.CHOICES.get(name, (value,)):
            cure = f"set it to {env.listed(name)}, or unset it"
            yield Finding(name, repr(value), Verdict.PROBLEM, cure)
        elif name in FOLDERS and not Path(value).is_dir():
            cure = "name the folder of a CUDA toolkit, or unset it"
            yield Finding(name, f"{value!r} is no folder", Verdict.WARNING, cure)
        elif name == "CXX" and ask_compiler()[1]:
            found = f"{value!r} cannot be used: see host compiler"
            yield Finding(name, found, Verdict.WARNING, MEND_CXX)
        else:
            yield Finding(name, repr(value))
