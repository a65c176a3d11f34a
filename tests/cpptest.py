# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of the C++ contract share: their sources compiled and loaded, and their inputs."""

import ctypes
import subprocess
from pathlib import Path

import torch

from fusedops.jit import env, host

FOLDER = Path(__file__).parent / "cpp"

#: Nothing has to be fast, and only then does GCC vectorize without fused multiply-adds.
FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")


def build(name, folder):
    """Compile a source of tests/cpp with the host's compiler into a folder, and load it."""
    library = folder / f"{name}.so"
    include = f"-I{env.include_dir()}"
    command = [*host.find_compiler(), *FLAGS, include, f"{FOLDER / name}.cpp", "-o", library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def same_bits(a, b):
    """Equal to the bit, NaN included."""
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    return torch.equal(a.view(kind), b.view(kind))
