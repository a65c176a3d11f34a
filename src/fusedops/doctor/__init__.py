# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What fusedops needs of a machine, looked at piece by piece.

Nothing here raises for what it finds, needs torch, makes a CUDA context, or writes but into
temporary folders. Each check gives a `Finding`, so a new one is a function and a line in `examine`.

May import: version, errors, _runtime, jit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fusedops.doctor.compilers import check_compiler, check_nvrtc
from fusedops.doctor.finding import Finding, Verdict, one_line
from fusedops.doctor.folder import check_cache, check_entries
from fusedops.doctor.machine import (
    check_environment,
    check_gpus,
    check_headers,
    check_python,
    check_runtime,
    check_torch,
)

__all__ = ["Finding", "Verdict", "examine"]


def examine() -> Iterator[Finding]:
    """Every check, in the order in which one thing needs another."""
    checks: dict[str, Callable[[], Finding | Iterator[Finding]]] = {
        "Python": check_python,
        "runtime": check_runtime,
        "headers": check_headers,
        "torch": check_torch,
        "GPU": check_gpus,
        "NVRTC": check_nvrtc,
        "host compiler": check_compiler,
        "cache": check_cache,
        "entries": check_entries,
        "environment": check_environment,
    }
    for name, check in checks.items():
        try:
            given = check()
            yield from [given] if isinstance(given, Finding) else given
        except Exception as error:  # whatever a machine comes up with: the other checks go on
            said = f"{type(error).__name__}: {one_line(error)}"
            yield Finding(name, said, Verdict.PROBLEM, "please report this as a bug of the doctor")
