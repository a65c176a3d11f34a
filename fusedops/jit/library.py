# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A built library into this process: from its file, else from memory."""

from __future__ import annotations

import os

from fusedops import _runtime
from fusedops.jit.builder import Artifact

__all__ = ["load_host"]


def load_host(built: Artifact, symbol: str) -> _runtime.Kernel:
    """Load the kernel of a shared library.

    Its file is what debuggers and profilers know, and what processes share. But it may have been
    cleared or never been kept, or lie where nothing may be executed: then its verified bytes serve.

    Raises:
        RuntimeError: It cannot be loaded either way.
    """
    try:
        return _runtime.load_host(os.fsencode(built.binary), symbol)
    except (RuntimeError, UnicodeDecodeError):  # the latter from a path in its message
        return _from_memory(built, symbol)


def _from_memory(built: Artifact, symbol: str) -> _runtime.Kernel:
    # The loader knows libraries by their path, which must not come again: so it stays open.
    descriptor = os.memfd_create(built.folder.name[:200])
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(built.read(built.binary.name))
        return _runtime.load_host(f"/proc/self/fd/{descriptor}", symbol)
    except BaseException:
        os.close(descriptor)
        raise
