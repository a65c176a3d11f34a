# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The package itself: Python, its version, the compiled runtime, the headers."""

from __future__ import annotations

import platform
import re
import sys

from fusedops.doctor.finding import Finding, Verdict, one_line
from fusedops.jit import env
from fusedops.jit.key import closure, digest
from fusedops.version import __version__

__all__ = ["check_headers", "check_processor", "check_python", "check_runtime", "cpu_level"]

REINSTALL = "pip install --force-reinstall --no-deps fusedops (in a checkout: pip install -e .)"
# Generated sources include these, or what these include.
ROOTS = (
    *("functors", "softmax", "layer_norm", "rms_norm", "row/kernel", "row/gradient"),
    *("op/column_sums", "core/dependency", "host/call", "host/rows", "host/gradient"),
)


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


def cpu_level() -> str | None:
    """The level that kernels for this CPU are built for; None without the runtime."""
    from fusedops.jit import levels

    try:
        from fusedops import _runtime
    except ImportError:
        return None
    return levels.cpu_level(_runtime.cpu_features())


def check_processor() -> Finding:
    """The instruction-set level that kernels for this CPU are built for."""
    machine = platform.machine()
    if machine.lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        cure = "use an x86-64 or aarch64 machine"
        return Finding("processor", machine, Verdict.PROBLEM, cure)
    level = cpu_level()
    if level is None:
        return Finding("processor", f"{machine}, level unknown", Verdict.WARNING, "see runtime")
    return Finding("processor", f"{machine}, level {level}")


def check_headers() -> Finding:
    """Whether all C++ headers are there, of the package's version."""
    folder = env.include_dir()
    roots = [f"fusedops/{name}.cuh" for name in ROOTS]
    try:
        reached = closure(roots, [folder])
        config = (folder / "fusedops" / "core" / "config.cuh").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        return Finding("headers", one_line(error), Verdict.PROBLEM, REINSTALL)
    own = {name: content for name, content in reached.items() if name.startswith("fusedops/")}
    if missing := sorted(name for name, content in own.items() if content is None):
        found = f"{folder} lacks {', '.join(missing)}"
        return Finding("headers", found, Verdict.PROBLEM, REINSTALL)
    number = re.search(r"^#define FUSEDOPS_VERSION (\d+)", config, re.MULTILINE)
    version = _version(int(number[1])) if number else "unknown"
    found = f"{folder}, {len(own)} files, digest {digest(own)[:16]}"
    if version != __version__:
        found += f", of version {version}, not {__version__}"
        return Finding("headers", found, Verdict.PROBLEM, REINSTALL)
    return Finding("headers", found)


def _version(number: int) -> str:
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
