# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Two small sources, and a host compiler that counts what it compiles."""

from __future__ import annotations

import platform
from pathlib import Path

from fusedops.jit.host import find_compiler

REAL = find_compiler()[0]
LEVEL = "x86-64-v2" if platform.machine() == "x86_64" else "aarch64"
HOST = """
#include <cstdint>
extern "C" __attribute__((visibility("default"))) std::int64_t answer(std::int64_t x) {
  return x + 42;
}
"""
CUDA = """
#include <cuda_fp16.h>
extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }
"""


class Compiler:
    """The real compiler behind a script that notes each compilation, and can claim a version."""

    def __init__(self, folder: Path, version: str | None = None, seconds: float = 0.0) -> None:
        self.log = folder / "compilations"
        self.path = folder / "counting-c++"
        answer = f"echo 'gcc version {version} (Test)'; exit" if version else f'exec {REAL} "$@"'
        self.path.write_text(
            "#!/bin/sh\n"
            f'if [ "$1" = -v ]; then {answer}; fi\n'
            f"echo $$ >> '{self.log}'; sleep {seconds}\n"
            f'exec {REAL} "$@"\n'
        )
        self.path.chmod(0o755)

    @property
    def compilations(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0
