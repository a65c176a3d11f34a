# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Build one variant, from the cache or with a compiler, and load a library into this process."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from fusedops import _runtime
from fusedops.errors import (
    LOG,
    CompileError,
    CompilerNotFound,
    FusedOpsError,
    MissingVariantError,
    UnsupportedError,
)
from fusedops.jit import env, extension, host, nvrtc, trust
from fusedops.jit.cache import Entry, Identity, Store
from fusedops.jit.key import SCHEMA, Request, build_digest, make_request
from fusedops.jit.levels import LEVELS
from fusedops.jit.store import (
    find,
    keep,
    newest,
    only_builder,
    shared_store,
    writable_store,
)

__all__ = ["Artifact", "Order", "build", "cached", "load_host", "load_library"]

_Loaded = TypeVar("_Loaded")


class Order(NamedTuple):
    """The arguments of `build`, for another process."""

    source: str
    name: str
    arch: str
    declaration: str = ""
    signature: tuple[str, ...] = ()


@dataclass(frozen=True)
class Artifact:
    """A built variant."""

    folder: Path  # the cache entry, with the source and ``meta.json``
    binary: Path  # the cubin, or the shared library
    arch: str  # what it was built for
    origin: Literal["compiled", "cache"]  # whether this call compiled it
    seconds: float  # how long this call took
    #: All files of the entry, as they were verified: they may be gone by now.
    files: Mapping[str, bytes] = field(repr=False)
    log: str = field(repr=False)  # what the compiler said

    @property
    def remarks(self) -> tuple[str, ...]:
        """Compiler remarks about the kernel, such as register spills."""
        lines = self.log.splitlines()
        return tuple(line.removeprefix(nvrtc.SAYS) for line in lines if line.startswith(nvrtc.SAYS))

    def read(self, file: str) -> bytes:
        """The bytes of one of the entry's files.

        Raises:
            MissingVariantError: The entry has no such file.
        """
        if file not in self.files:
            raise MissingVariantError(f"{self.folder} holds no {file}")
        return self.files[file]


@dataclass(frozen=True)
class _Backend:
    """Interface of a compiler, NVRTC or the host's."""

    source: str
    flags: Callable[[str], tuple[str, ...]]
    identity: Callable[[Request], dict[str, str]]
    compile: Callable[[str, str], tuple[dict[str, bytes], str]]


@dataclass(frozen=True)
class _Job:
    """One variant to build."""

    order: Order
    backend: _Backend
    request: Request


_CUDA = _Backend("kernel.cu", nvrtc.flags, nvrtc.identity, nvrtc.compile_files)
_HOST = _Backend("kernel.cpp", host.flags, host.identity, host.compile_files)
_EXTENSION = _Backend("kernel.cpp", extension.flags, host.identity, extension.compile_files)


def build(
    source: str, *, name: str, arch: str, declaration: str = "", signature: Sequence[str] = ()
) -> Artifact:
    """Give the binary of `source` for `arch`, compiled if the cache lacks it.

    Args:
        source: C++ whose includes are all of the form ``<...>``.
        name: A name for people, part of the entry's folder but not of its digests.
        arch: ``sm_90`` and the like for a cubin, a level of ``levels.LEVELS`` for a shared library,
            ``extension.ARCH`` for one against torch.
        declaration: What the variant was generated from, kept with the entry and named in errors.
        signature: The members of the kernel's argument, kept with the entry.

    Raises:
        UnsupportedError: No such `arch`.
        MissingVariantError: Compiling is forbidden and the cache lacks the variant.
        CompilerNotFound: There is no compiler, and the cache lacks the variant.
        CompileError: The source does not compile.
    """
    started = time.perf_counter()
    job = _job(Order(source, name, arch, declaration, tuple(signature)))
    if entry := _found(job):
        return _artifact(entry, arch, "cache", started)
    if env.offline():
        raise MissingVariantError(
            f"{declaration or name}: its variant for {arch} must be in the cache "
            f"({env.cache_dir()}) while FUSEDOPS_OFFLINE=1, found {_unusable(job)}: run the call "
            "once without FUSEDOPS_OFFLINE=1 and with the same FUSEDOPS_CACHE_DIR"
        )
    entry, origin = _compile(job)
    return _artifact(entry, arch, origin, started)


def cached(source: str, *, name: str, arch: str) -> Artifact | None:
    """The cache entry that `build` would use; None where it would compile. Never compiles.

    Offline, or where there is no compiler, that is the variant as the newest compiler made it.

    Raises:
        UnsupportedError: No such `arch`.
    """
    started = time.perf_counter()
    entry = _found(_job(Order(source, name, arch)))
    return _artifact(entry, arch, "cache", started) if entry else None


def _found(job: _Job) -> Entry | None:
    """The cache entry of the current compiler; of any compiler if none may run here."""
    with contextlib.suppress(CompilerNotFound):
        if not env.offline():
            return find(_identity(job)[0])
    return newest(job.request.digest)


def _artifact(
    entry: Entry, arch: str, origin: Literal["compiled", "cache"], started: float
) -> Artifact:
    seconds = time.perf_counter() - started
    files, log = dict(entry.contents), str(entry.meta.get("log", ""))
    return Artifact(entry.folder, entry.binary, arch, origin, seconds, files, log)


def _backend(arch: str) -> _Backend:
    if re.fullmatch(r"sm_\d{2,3}[af]?", arch):
        return _CUDA
    if arch in LEVELS:
        return _HOST
    if arch == extension.ARCH:
        return _EXTENSION
    levels = ", ".join(LEVELS)
    raise UnsupportedError(f"arch must be sm_NN for a GPU or one of {levels}, got {arch!r}")


def _job(order: Order) -> _Job:
    """A variant with the headers as they are now."""
    backend, arch = _backend(order.arch), order.arch
    flags, include_dir = backend.flags(arch), env.include_dir()
    request = make_request(order.source, arch=arch, flags=flags, include_dir=include_dir)
    return _Job(order, backend, request)


def _identity(job: _Job) -> tuple[Identity, dict[str, str]]:
    """Which entry today's compiler makes, and that compiler."""
    compiler = job.backend.identity(job.request)
    build = build_digest(job.request, compiler)
    return Identity(job.order.name, job.request.digest, build), compiler


def _unusable(job: _Job) -> str:
    """Why no cache entry serves: the reason that a damaged one has, or "none"."""
    shared = shared_store()
    for folder, reason in shared.entries(job.request.digest) if shared else ():
        return f"only {folder.name}, which is not used: {reason}"
    return "none"


def _compile(job: _Job) -> tuple[Entry, Literal["compiled", "cache"]]:
    identity, compiler = _identity(job)
    order, shared = job.order, writable_store()
    with only_builder(shared, identity):
        if entry := find(identity):
            return entry, "cache"  # another built it while this thread waited
        began = time.perf_counter()
        try:
            built, log = job.backend.compile(order.source, order.arch)
        except CompileError as error:
            raise _kept(error, job, identity, shared) from None
        seconds = time.perf_counter() - began
        if _job(order).request != job.request:
            raise FusedOpsError(f"{order.name}: the headers changed while it compiled; call again")
        if env.verbose():
            said = f"{order.name}: {job.backend.source} {' '.join(job.request.flags)}"
            sys.stderr.write(f"fusedops: {said} ({seconds:.2f} s)\n{log}")
        meta = {
            "schema": SCHEMA,
            "name": order.name,
            "declaration": order.declaration,
            "signature": order.signature,
            "arch": order.arch,
            "compiler": compiler,
            "flags": job.request.flags,
            "seconds": round(seconds, 4),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "log": log,
        }
        files = {job.backend.source: order.source.encode(), **built}
        return keep(shared, identity, meta, files), "compiled"


def _kept(error: CompileError, job: _Job, identity: Identity, shared: Store | None) -> CompileError:
    """`error` with the place where its source was kept."""
    files = {job.backend.source: job.order.source.encode(), LOG: error.log.encode()}
    kept = None
    if shared:
        with contextlib.suppress(OSError):
            kept = shared.keep_failure(identity, files)
    what = f"{job.order.declaration or job.order.name}: its kernel for {job.order.arch}"
    return CompileError(error.command, error.log, kept, what)


DESCRIPTORS = "/proc/self/fd"
_count = itertools.count(1)


def load_host(built: Artifact, symbol: str) -> _runtime.Kernel:
    """Load a kernel's shared library, as `load_library` does.

    Raises:
        RuntimeError: It cannot be loaded.
    """
    return load_library(built, lambda path: _runtime.load_host(path, symbol))


def load_library(built: Artifact, load: Callable[[str | bytes], _Loaded]) -> _Loaded:
    """Load a shared library: its verified bytes, even if the file has changed since.

    Its file is what profilers know, and what processes share. But it may have been exchanged by
    whoever may rename a folder above the cache, or cleared, or never been kept, or lie where
    nothing may be executed: then its verified bytes serve.

    `load` loads the library at a path, and raises an OSError or a RuntimeError if it cannot.
    """
    if not Path(DESCRIPTORS).is_dir():  # then the loader can only be told a path
        return load(os.fsencode(built.binary))
    with contextlib.suppress(OSError, RuntimeError):
        return _load(_file(built), load)
    return _load(_memory(built), load)


def _load(descriptor: int, load: Callable[[str | bytes], _Loaded]) -> _Loaded:
    """Load the library behind a descriptor, and close the descriptor."""
    # The loader takes a path that it has heard for the library that it has: slashes and dots that
    # count make each one new, though numbers of descriptors come again.
    new = format(next(_count), "b").replace("0", "/").replace("1", "./")
    try:
        return load(f"{DESCRIPTORS}/{new}{descriptor}")
    finally:
        os.close(descriptor)


def _file(built: Artifact) -> int:
    """The library's file, opened.

    Raises:
        OSError: It is not there, or not what was verified.
    """
    content = built.read(built.binary.name)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(built.binary, flags)
    try:
        same = os.pread(descriptor, len(content) + 1, 0) == content
        # Another's file could be written to after it has been read.
        if not same or trust.distrust(os.fstat(descriptor)):
            raise OSError(errno.ESTALE, "it has been exchanged", str(built.binary))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _memory(built: Artifact) -> int:
    """A file in memory with the library's verified bytes, opened."""
    descriptor = os.memfd_create(built.folder.name[:200])
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(built.read(built.binary.name))
    return descriptor
