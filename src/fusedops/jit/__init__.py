# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""From generated source to a loadable binary: the compilers, the key, and the cache on disk.

Importing this package runs no compiler and loads no CUDA library; what it names is imported when it
is used first, since a program that finds its kernels loaded needs none of it.

May import: errors, _runtime.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fusedops.jit.lock import guard

if TYPE_CHECKING:
    from fusedops.jit.builder import Artifact, Order, build, cached, load_host, load_library
    from fusedops.jit.nvrtc import compile_cuda

__all__ = [
    "Artifact",
    "Order",
    "build",
    "cached",
    "compile_cuda",
    "load_host",
    "load_library",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "nvrtc" if name == "compile_cuda" else "builder"
    with guard:
        return getattr(importlib.import_module(f"{__name__}.{home}"), name)
