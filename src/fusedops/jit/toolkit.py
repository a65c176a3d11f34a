# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Where NVRTC and the CUDA headers are: NVIDIA's Python packages, then an installed toolkit.

The packages lie in ``nvidia/cu13`` (CUDA 13) or in ``nvidia/cuda_nvrtc`` and
``nvidia/cuda_runtime`` (CUDA 12); a CUDA build of torch brings them along. A library is paired with
headers of its own major version.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fusedops.errors import CompilerNotFound
from fusedops.jit import env

__all__ = ["Toolkit", "find_toolkit"]

CURE = "install the NVRTC packages: pip install 'fusedops[cuda]', or set CUDA_HOME to a toolkit"
_HEADER = "cuda_fp16.h"  # where this is, the others are
_SAMPLE = 1 << 16

# Where distributions put theirs.
SYSTEM = (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib64"))


@dataclass(frozen=True)
class Toolkit:
    """One NVRTC with the headers that go with it."""

    nvrtc: Path
    include: tuple[Path, ...]

    @property
    def major(self) -> int:
        """The CUDA major version, from the library's file name."""
        return _major(self.nvrtc)

    @property
    def builtins(self) -> Path | None:
        """The second library, which NVRTC opens by name when it compiles."""
        return max(self.nvrtc.parent.glob("libnvrtc-builtins.so.*.*"), default=None)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest that tells any two releases apart, without loading 140 MB.

        The head of an ELF file holds its build ID and symbol hashes, its tail the section table.
        """
        digest = hashlib.sha256()
        for path in filter(None, (self.nvrtc, self.builtins)):
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(0)
                digest.update(b"%d:" % size + file.read(_SAMPLE))
                file.seek(max(0, size - _SAMPLE))
                digest.update(file.read(_SAMPLE))
        return digest.hexdigest()


@functools.cache
def find_toolkit() -> Toolkit:
    """The first NVRTC that the driver can follow, with its headers.

    Raises:
        CompilerNotFound: No library, or no headers; says where it looked.
    """
    library = _find_library()
    headers = [*_header_folders(library)]
    for folder in headers:
        if (folder / _HEADER).is_file():
            # Since CUDA 13 what the toolkit's headers include (nv/target) lies one level deeper.
            nested = folder / "cccl"
            return Toolkit(library, (folder, nested) if nested.is_dir() else (folder,))
    looked = ", ".join(map(str, headers))
    raise CompilerNotFound(f"{library} has no CUDA headers: no {_HEADER} in {looked}. {CURE}.")


def _find_library() -> Path:
    driver = _driver_major()
    looked, too_new = [], []
    for folder in _library_folders():
        looked.append(str(folder))
        for library in _libraries(folder):
            # A cubin of a newer major version than the driver's does not load.
            if driver is None or _major(library) <= driver:
                return library
            too_new.append(library)
    if too_new:
        return too_new[0]  # what it makes may serve another machine
    raise CompilerNotFound(f"NVRTC (libnvrtc.so) was not found in {', '.join(looked)}. {CURE}.")


def _library_folders() -> Iterator[Path]:
    for nvidia in _packages("nvidia"):
        yield from sorted(nvidia.glob("cu[0-9]*/lib"), reverse=True)
        yield nvidia / "cuda_nvrtc" / "lib"
    for torch in _packages("torch"):
        yield torch / "lib"
    yield Path(sys.prefix) / "lib"  # a conda environment's toolkit
    for home in env.cuda_homes():
        yield home / "lib64"
        yield home / "lib"
    yield from SYSTEM


def _header_folders(library: Path) -> Iterator[Path]:
    home = library.parent.parent
    yield home / "include"
    for machine in ("x86_64-linux", "sbsa-linux"):
        yield home / "targets" / machine / "include"
    major = _major(library)
    for nvidia in _packages("nvidia"):
        yield nvidia / f"cu{major}" / "include"
        if major == 12:
            yield nvidia / "cuda_runtime" / "include"
    for toolkit in env.cuda_homes():
        if any(_major(path) == major for path in _libraries(toolkit / "lib64")):
            yield toolkit / "include"
    if library.parent in SYSTEM:
        yield Path("/usr/include")


def _libraries(folder: Path) -> list[Path]:
    # Not the builtins, nor the "alt" builds that some wheels carry beside the library.
    name = re.compile(r"libnvrtc(-[0-9a-f]{8})?\.so\.\d+(\.\d+)*")
    found = [path for path in folder.glob("libnvrtc*.so.*") if name.fullmatch(path.name)]
    return sorted(found, key=_major, reverse=True)


def _major(library: Path) -> int:
    return int(library.name.partition(".so.")[2].partition(".")[0])


def _packages(name: str) -> list[Path]:
    spec = find_spec(name)  # finds, and does not import
    return [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]


def _driver_major() -> int | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int()
        status = driver.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version.value // 1000 if status == 0 else None
