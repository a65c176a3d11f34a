# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Levels of CPU features (x86-64-v2 to v4, aarch64) that libraries for CPUs are built for.

It is apart from `host`, so that `import fusedops` stays quick.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

# The instruction set of each level: explicit, so that a cache can be shared between machines.
LEVELS = {
    "x86-64-v2": ("-march=x86-64-v2",),
    "x86-64-v3": ("-march=x86-64-v3", "-mtune=haswell"),
    # Vectors of 512 bits, as torch's own kernels have where a CPU knows them: GCC prefers 256.
    "x86-64-v4": ("-march=x86-64-v4", "-mtune=skylake-avx512", "-mprefer-vector-width=512"),
    "aarch64": ("-march=armv8-a",),
}
# What the compiler may use at a level, beyond the level below.
_V3 = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe"})
_V4 = frozenset({"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"})


def cpu_level(features: Iterable[str], machine: str | None = None) -> str:
    """The best level for a CPU with `features` (lower-case names, as the runtime reports them)."""
    if (machine or os.uname().machine).lower() in ("aarch64", "arm64"):
        return "aarch64"
    have = {"lzcnt" if name == "abm" else name for name in features}  # abm: Linux's name for it
    if not have >= _V3:
        return "x86-64-v2"
    return "x86-64-v4" if have >= _V4 else "x86-64-v3"
