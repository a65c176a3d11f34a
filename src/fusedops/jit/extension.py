# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""C++ source that includes torch's headers to a shared library, through the host's compiler.

The library fits the installed torch and this Python alone: both are named in its flags, which are
part of its key.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch.version import git_version

from fusedops.jit import host

#: In the place of a GPU's or a CPU's architecture.
ARCH = "torch"


def flags(arch: str) -> tuple[str, ...]:
    """Compiler flags that determine the code; paths are added when compiling."""
    del arch
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    fits = f"-DFUSEDOPS_FITS={torch.__version__},{git_version},{sysconfig.get_config_var('SOABI')}"
    return ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", abi, fits)


def compile_files(source: str, arch: str) -> tuple[dict[str, bytes], str]:
    """As `host.compile_files`, at low priority.

    The library names torch's libraries, not where they lie: the process that loads it has them.
    """
    home = Path(torch.__file__).parent
    paths = (f"-isystem{home / 'include'}", f"-isystem{sysconfig.get_path('include')}")
    libraries = (f"-L{home / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10")
    options = (*flags(arch), *paths, *libraries)
    library, log = host.compile_library(source, options, politely=True)
    return {host.BINARY: library}, log
