# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA source to machine code, through NVRTC in this process: no nvcc, no host compiler, no GPU.

NVRTC and the CUDA headers come from NVIDIA's Python packages, else from an installed toolkit. The
packages lie in ``nvidia/cu13`` (CUDA 13) or in ``nvidia/cuda_nvrtc`` and ``nvidia/cuda_runtime``
(CUDA 12); a CUDA build of torch brings them along. A library is paired with headers of its own
major version.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fusedops.errors import CompileError, CompilerNotFound, UnknownArchError
from fusedops.jit import env
from fusedops.jit.key import Request, closure, digest

__all__ = [
    "BINARY",
    "PTX",
    "Toolkit",
    "compile_cuda",
    "compile_files",
    "find_toolkit",
    "flags",
    "identity",
]

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


BINARY, PTX = "kernel.cubin", "kernel.ptx"

SUCCESS = 0
INVALID_OPTION = 5

# Makes the assembler report registers, stack and spills.
RESOURCES = "--ptxas-options=-v"
#: A stack frame alone is no sign of it: the arrays of sin and cos lie there, in whatever room.
_SPILLS = re.compile(r"[1-9]\d* bytes spill")
#: Begins a line of a log that is not the compiler's.
SAYS = "fusedops: "
#: What a source chooses, by the macro that chooses it instead, and what the number counts.
_ROOMS = {
    "FUSEDOPS_BLOCKS": (re.compile(r"int kBlocks = (\d+)"), "blocks a multiprocessor"),
    "FUSEDOPS_PACKS": (re.compile(r"int kPacks = (\d+)"), "packs at a time"),
}
_THREADS = re.compile(r"__launch_bounds__\((\d+)")
#: Registers of each of the four parts of a multiprocessor that have warps of their own.
_OF_PART, _PARTS = 16384, 4
_RESOURCE_LINE = re.compile(r"ptxas info|(ptxas)?[\s.]*\d+ bytes stack frame|\s*$")

# From release 12.9 on NVRTC asks the driver's cache of compiled code, and what comes from there has
# no report: a kernel that spills would pass for one that does not (see pull request 4694 of
# NVIDIA/Fuser).
_CACHES, _NO_CACHE = (12, 9), "--no-cache"

# NVRTC has these built in and skips them in the toolkit's headers.
_SUPPLIED = frozenset({"builtin_types.h", "cuda_runtime_api.h", "vector_functions.h"})


def flags(arch: str) -> tuple[str, ...]:
    """Compiler flags that determine the code; the include paths are added when compiling."""
    # The last keeps the working directory off the include path.
    target = f"--gpu-architecture={arch}"
    return ("-std=c++17", target, "-default-device", "--no-source-include")


def identity(request: Request) -> dict[str, str]:
    """The compiler's identity for the cache key: NVRTC's release and the toolkit's headers.

    Does not load NVRTC.

    Raises:
        CompilerNotFound: There is no NVRTC, or no CUDA headers.
    """
    toolkit = find_toolkit()
    release = toolkit.builtins.name.partition(".so.")[2] if toolkit.builtins else f"{toolkit.major}"
    return {
        "name": "nvrtc",
        "version": release,
        "library": toolkit.fingerprint,
        "headers": _headers(request.foreign),
    }


def compile_files(source: str, arch: str) -> tuple[dict[str, bytes], str]:
    """Compile `source` for `arch` ("sm_90") and give the files of an entry, and the log.

    Beside the cubin that is PTX, which the driver of a GPU newer than `arch` translates.

    Raises:
        CompilerNotFound: There is no NVRTC, or no CUDA headers.
        UnknownArchError: This NVRTC does not know `arch`.
        CompileError: The source does not compile.
    """
    cubin, ptx, log = _without_spills(source, arch, ())
    # The PTX of such an architecture is of no other GPU's, so that no driver translates it.
    return {**({} if arch[-1] in "af" else {PTX: ptx}), BINARY: cubin}, log


def compile_cuda(source: str, arch: str, extra: Sequence[str] = ()) -> tuple[bytes, str]:
    """Give the cubin of `source` and the log, as `compile_files` does.

    `extra` are further options, such as ``--ptxas-options=-v``, which puts registers and spills in
    the log.
    """
    cubin, _, log = _without_spills(source, arch, extra)
    return cubin, log


def _without_spills(source: str, arch: str, extra: Sequence[str]) -> tuple[bytes, bytes, str]:
    """Compile; where registers spill, compile again with fewer blocks per SM or packs at a time.

    It is compiled again with less of what takes registers, and so on down to 1. A row kernel has
    ``FUSEDOPS_BLOCKS``, the blocks that a multiprocessor shall have room for (0 leaves it to the
    compiler, which then may save where it need not), each time as many as leave a thread more
    registers; a product has ``FUSEDOPS_PACKS``, those that an epilogue warp works on at a time,
    half as many. The source chooses if nobody else does. The log says what came of it.
    """
    options = [*extra, *{RESOURCES}.difference(extra)]
    cubin, ptx, log = _compile(source, arch, options)
    found = [(macro, one.search(source), what) for macro, (one, what) in _ROOMS.items()]
    macro, wanted, what = next((one for one in found if one[1]), ("", None, ""))
    room = most = int(wanted[1]) if wanted else 1
    while _SPILLS.search(log) and room != 1:
        room = room // 2 if macro == "FUSEDOPS_PACKS" else _fewer_blocks(source, room)
        cubin, ptx, log = _compile(source, arch, [*options, f"-D{macro}={room}"])
    if _SPILLS.search(log):
        log += f"\n{SAYS}registers spill, in whatever room\n"
    elif room != most:
        without = f"with room for {most}" if most else "as the compiler chooses"
        log += f"\n{SAYS}room for {room} {what}: registers spill {without}\n"
    if RESOURCES not in extra:
        log = "\n".join(line for line in log.splitlines() if not _RESOURCE_LINE.match(line))
    return cubin, ptx, log


def _fewer_blocks(source: str, blocks: int) -> int:
    """The most blocks a multiprocessor, fewer than these, that leave a thread more registers."""
    threads = _THREADS.search(source)
    warps = -(-int(threads[1]) // 32) if threads else 1

    def registers(count: int) -> int:
        """Those of a thread, which come by eights; a part has its share of the warps."""
        return _OF_PART // 32 // -(-count * warps // _PARTS) // 8

    fewer = range(blocks - 1, 1, -1)
    return next((count for count in fewer if registers(count) > registers(blocks)), 1)


def _compile(source: str, arch: str, extra: Sequence[str]) -> tuple[bytes, bytes, str]:
    """The cubin, the PTX without its end, and the log."""
    library = _library()
    include = [f"-I{folder}" for folder in find_toolkit().include]
    fresh = [_NO_CACHE] if version() >= _CACHES else []
    options = [*flags(arch), *fresh, f"-I{env.include_dir()}", *include, *extra]
    program = ctypes.c_void_p()
    text = (source.encode(), b"kernel.cu", 0, None, None)
    _check(library.nvrtcCreateProgram(ctypes.byref(program), *text), "nvrtcCreateProgram")
    try:
        array = (ctypes.c_char_p * len(options))(*map(os.fsencode, options))
        status = library.nvrtcCompileProgram(program, len(options), array)
        log = _output(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if status != SUCCESS:
            if status == INVALID_OPTION:
                _check_arch(arch)
            raise CompileError(("nvrtc", *options, "kernel.cu"), log or _message(status))
        return _output(program, "CUBIN"), _output(program, "PTX").rstrip(b"\0"), log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def version() -> tuple[int, int]:
    """NVRTC's own version (loads it)."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
    return major.value, minor.value


def supported_archs() -> list[int]:
    """The architectures that NVRTC knows, as numbers: 90 for sm_90."""
    count = ctypes.c_int()
    _check(_library().nvrtcGetNumSupportedArchs(ctypes.byref(count)), "nvrtcGetNumSupportedArchs")
    archs = (ctypes.c_int * count.value)()
    _check(_library().nvrtcGetSupportedArchs(archs), "nvrtcGetSupportedArchs")
    return list(archs)


def _check_arch(arch: str) -> None:
    found = re.fullmatch(r"sm_(\d+)[af]?", arch)
    known = supported_archs()
    if found is None or int(found[1]) not in known:
        raise UnknownArchError(
            f"arch must be one that NVRTC {'.'.join(map(str, version()))} knows, got {arch!r}: "
            f"it knows sm_{', sm_'.join(map(str, known))}; a newer nvidia-cuda-nvrtc may know more"
        )


@functools.cache
def _library() -> ctypes.CDLL:
    toolkit = find_toolkit()
    if toolkit.builtins:
        # NVRTC opens it by bare name; opened here, it is found wherever it lies.
        ctypes.CDLL(str(toolkit.builtins))
    library = ctypes.CDLL(str(toolkit.nvrtc))
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


@functools.cache
def _headers(names: tuple[str, ...]) -> str:
    return digest(closure(names, find_toolkit().include, without=_SUPPLIED))


def _output(program: ctypes.c_void_p, what: str) -> bytes:
    library, size = _library(), ctypes.c_size_t()
    get_size = getattr(library, f"nvrtcGet{what}Size")
    _check(get_size(program, ctypes.byref(size)), f"nvrtcGet{what}Size")
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, buffer), f"nvrtcGet{what}")
    return buffer.raw


def _check(status: int, call: str) -> None:
    if status != SUCCESS:
        raise CompileError((call,), _message(status))


def _message(status: int) -> str:
    text = _library().nvrtcGetErrorString(status)
    return text.decode() if isinstance(text, bytes) else f"NVRTC error {status}"
