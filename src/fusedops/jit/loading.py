# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A built library into this process: from its file, else from memory."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from pathlib import Path

from fusedops import _runtime
from fusedops.jit import trust
from fusedops.jit.builder import Artifact

__all__ = ["load_host"]

DESCRIPTORS = "/proc/self/fd"
_count = itertools.count(1)


def load_host(built: Artifact, symbol: str) -> _runtime.Kernel:
    """Load the kernel of a shared library: what was verified, whatever is at its path by now.

    Its file is what profilers know, and what processes share. But it may have been exchanged by
    whoever may rename a folder above the cache, or cleared, or never been kept, or lie where
    nothing may be executed: then its verified bytes serve.

    Raises:
        RuntimeError: It cannot be loaded either way.
    """
    if not Path(DESCRIPTORS).is_dir():  # then the loader can only be told a path
        return _runtime.load_host(os.fsencode(built.binary), symbol)
    with contextlib.suppress(OSError, RuntimeError):
        return _load(_file(built), symbol)
    return _load(_memory(built), symbol)


def _load(descriptor: int, symbol: str) -> _runtime.Kernel:
    """Load what is open there, and close it."""
    # The loader takes a path that it has heard for the library that it has: slashes and dots that
    # count make each one new, though numbers of descriptors come again.
    new = format(next(_count), "b").replace("0", "/").replace("1", "./")
    try:
        return _runtime.load_host(f"{DESCRIPTORS}/{new}{descriptor}", symbol)
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
