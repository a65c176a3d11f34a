# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The environment variables that fusedops reads: which are set, and whether they may be so."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from fusedops.doctor.finding import Finding, Verdict
from fusedops.jit import env

__all__ = ["FLAGS", "FOLDERS", "KNOWN", "check_environment", "is_offline"]

FLAGS = ("FUSEDOPS_OFFLINE", "FUSEDOPS_VERBOSE")
FOLDERS = ("CUDA_HOME", "CUDA_PATH")
KNOWN = ("FUSEDOPS_CACHE_DIR", *FLAGS, "FUSEDOPS_RECORD")


def check_environment() -> Iterator[Finding]:
    """One finding for each variable that is set, or one that says that none is."""
    names = sorted(name for name in os.environ if name.startswith("FUSEDOPS_"))
    names += [name for name in ("CXX", *FOLDERS, "XDG_CACHE_HOME") if os.environ.get(name)]
    if not names:
        yield Finding("environment", "no variable of ours is set")
    for name in names:
        yield check_variable(name, os.environ[name])


def is_offline() -> bool:
    """Whether nothing will be compiled; a flag that is neither 0 nor 1 has its own finding."""
    try:
        return env.offline()
    except ValueError:
        return False


def check_variable(name: str, value: str) -> Finding:
    """Whether this variable can have this value."""
    if name.startswith("FUSEDOPS_") and name not in KNOWN:
        near = difflib.get_close_matches(name, KNOWN, 1)
        cure = f"unset it{f', or did you mean {near[0]}?' if near else ''}"
        return Finding(name, f"{value!r}; nothing reads it", Verdict.WARNING, cure)
    if name in FLAGS and value not in ("", "0", "1"):
        return Finding(name, repr(value), Verdict.PROBLEM, "set it to 0 or 1, or unset it")
    if name in FOLDERS and not Path(value).is_dir():
        cure = "name the folder of a CUDA toolkit, or unset it"
        return Finding(name, f"{value!r} is no folder", Verdict.WARNING, cure)
    if name == "FUSEDOPS_OFFLINE" and value == "1":
        return Finding(name, "'1': nothing is compiled, all comes from the cache")
    return Finding(name, repr(value))
