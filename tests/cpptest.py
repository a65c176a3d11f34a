# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of C++ share: their sources compiled and loaded, and their inputs."""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import filelock
import pytest
import torch

from fusedops.jit import env, host

FOLDER = Path(__file__).parent / "cpp"

#: Nothing has to be fast, and only then does GCC vectorize without fused multiply-adds.
FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
NVCC_FLAGS = ("-std=c++17", "-Werror", "all-warnings", "-Xcompiler", "-fPIC", "-shared")


def build(name, folder, *flags):
    """Compile a source of tests/cpp with the host's compiler into a folder, and load it."""
    library = folder / f"{name}.so"
    compile_host(FOLDER / f"{name}.cpp", library, *flags)
    return ctypes.CDLL(str(library))


def example(header):
    """The example in the comment at a header's head, from its include to its namespace's end."""
    text = (env.include_dir() / "fusedops" / header).read_text(encoding="utf-8")
    head = text.split("#pragma once")[0].splitlines()
    begin = next(i for i, line in enumerate(head) if line.startswith("//   #include"))
    end = head.index("//   }  // namespace example") + 1
    return "".join(line.removeprefix("//").removeprefix("   ") + "\n" for line in head[begin:end])


def compile_host(source, library, *flags):
    """Compile a source with the host's compiler into a shared library."""
    include = f"-I{env.include_dir()}"
    command = [*host.find_compiler(), *FLAGS, *flags, include, "-x", "c++", source]
    run([*command, "-o", library])


def log_of(command):
    """Run a compiler, and give what it says."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env=env.compiler_environment(),
    )
    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    return log


def run(command):
    """Run a compiler, which has nothing to say."""
    log = log_of(command)
    assert "warning" not in log, log


def compiler():
    """A host's compiler, or a skip."""
    found = shutil.which("g++") or shutil.which("c++")
    if found is None:
        pytest.skip("no host compiler")
    return found


def find_nvcc():
    """nvcc, or a skip."""
    found = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if found is None:
        pytest.skip("nvcc is not installed")
    return found


def place(name, device, *flags):
    """A source of tests/cpp for one device, compiled once for all workers."""
    source = FOLDER / f"{name}.cuh"
    headers = sorted((env.include_dir() / "fusedops").rglob("*.cuh"))
    near = sorted(FOLDER.glob("*.h"))
    content = repr(flags).encode() + b"".join(
        path.read_bytes() for path in (source, *near, *headers)
    )
    digest = hashlib.sha256(content).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "fusedops-cpp-tests"
    folder.mkdir(exist_ok=True)
    library = folder / f"{name}-{device}-{digest}.so"
    with filelock.FileLock(f"{library}.lock"):
        if not library.exists():
            built = library.with_suffix(".tmp")
            if device == "cpu":
                compile_host(source, built, "-pthread", *flags)
            else:
                arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
                command = [find_nvcc(), *NVCC_FLAGS, f"-arch={arch}", f"-I{env.include_dir()}"]
                run([*command, *flags, "-x", "cu", source, "-o", built])
            built.rename(library)
    return Library(ctypes.CDLL(str(library)), device)


class Library:
    """The functions of a library: tensors go by address, numbers as 64 bits, None as null."""

    def __init__(self, library, device):
        self._library = library
        self._device = device

    def __getattr__(self, name):
        function = getattr(self._library, name)

        def call(*arguments):
            stream = None
            if self._device == "cuda":
                stream = torch.cuda.current_stream().cuda_stream
            return function(ctypes.c_void_p(stream), *map(argument, arguments))

        return call


def argument(value):
    """As C takes it."""
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, float):
        return ctypes.c_double(value)
    if isinstance(value, int):
        return ctypes.c_int64(value)
    return value


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def same_bits(a, b):
    """Equal to the bit, NaN included."""
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    return torch.equal(a.view(kind), b.view(kind))
