# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""From generated source to a loadable binary: the compilers, the key, and the cache on disk.

Importing this package runs no compiler and loads no CUDA library.
"""

from fusedops.jit.build import Artifact, build, cached
from fusedops.jit.host import cpu_level
from fusedops.jit.library import load_host
from fusedops.jit.nvrtc import compile_cuda

__all__ = ["Artifact", "build", "cached", "compile_cuda", "cpu_level", "load_host"]
