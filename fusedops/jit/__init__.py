# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""From generated source to a loadable binary: the compilers, the key, and the cache on disk.

Importing this package runs no compiler and loads no CUDA library.
"""

from fusedops.jit.build import Artifact, Order, build, cached
from fusedops.jit.host import cpu_level
from fusedops.jit.nvrtc import compile_cuda
from fusedops.jit.store import say_once

__all__ = ["Artifact", "Order", "build", "cached", "compile_cuda", "cpu_level", "say_once"]
