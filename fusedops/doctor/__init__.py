# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What fusedops needs of a machine, looked at piece by piece.

Nothing here raises for what it finds, needs torch, makes a CUDA context, or writes but into
temporary folders. Each check gives a `Finding`, so a new one is a function and a line in `examine`.

May import: version, errors, _runtime, jit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fusedops.doctor.compilers import (
    check_compiler,
    check_cuda_headers,
    check_nvcc,
    check_nvrtc,
    toolkit,
)
from fusedops.doctor.environment import check_environment
from fusedops.doctor.finding import Finding, Verdict, one_line
from fusedops.doctor.folder import check_cache, check_entries
from fusedops.doctor.framework import check_torch
from fusedops.doctor.graphics import ask_driver, check_driver, check_gpus
from fusedops.doctor.package import (
    check_headers,
    check_processor,
    check_python,
    check_runtime,
    cpu_level,
)
from fusedops.jit.toolkit import Toolkit

__all__ = ["Finding", "Verdict", "examine"]


def examine() -> Iterator[Finding]:
    """Every check, in the order in which one thing needs another."""
    driver = ask_driver()
    devices = driver.devices
    found = toolkit()
    major = found.major if isinstance(found, Toolkit) else None
    checks: list[tuple[str, Callable[[], Finding | Iterable[Finding]]]] = [
        ("Python", check_python),
        ("runtime", check_runtime),
        ("headers", check_headers),
        ("torch", lambda: check_torch(driver)),
        ("GPU", lambda: check_gpus(driver)),
        ("NVIDIA driver", lambda: check_driver(driver, major)),
        ("NVRTC", lambda: check_nvrtc(found, devices)),
        ("CUDA headers", lambda: check_cuda_headers(found, devices)),
        ("nvcc", check_nvcc),
        ("processor", check_processor),
        ("host compiler", lambda: check_compiler(cpu_level(), devices)),
        ("cache", check_cache),
        ("entries", check_entries),
        ("environment", check_environment),
    ]
    for name, check in checks:
        try:
            given = check()
            yield from [given] if isinstance(given, Finding) else given
        except Exception as error:  # whatever a machine comes up with: the other checks go on
            said = f"{type(error).__name__}: {one_line(error)}"
            yield Finding(name, said, Verdict.PROBLEM, "please report this as a bug of the doctor")
