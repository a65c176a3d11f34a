# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Environment variables, read in this module alone, and the folders that follow from them.

Everything is read when it is asked for, so that a change takes effect at the next build.

======================= ====================================================================
``FUSEDOPS_CACHE_DIR``  the cache (default ``$XDG_CACHE_HOME/fusedops`` or ``~/.cache/fusedops``)
``FUSEDOPS_AUTOGRAD``   python: ops are autograd nodes in Python; cpp: nodes in C++, built at once
``FUSEDOPS_BACKGROUND`` 0: nothing is built in the background
``FUSEDOPS_OPT_LEVEL``  the ``-O`` level of kernels for CPUs, 0 to 3 (default 3): 1 builds faster
``FUSEDOPS_OFFLINE``    1: a variant that the cache lacks is an error, never a compile
``FUSEDOPS_VERBOSE``    1: each compiler command and its log go to stderr
``FUSEDOPS_RECORD``     a file that each new kind of call is written to (``fusedops record``)
``CXX``                 the host compiler, with arguments if need be (``ccache g++``)
``CUDA_HOME``           a CUDA toolkit to take NVRTC and its headers from, after the wheels
======================= ====================================================================
"""

from __future__ import annotations

import os
from pathlib import Path

#: The variables of which each value is one of a few.
CHOICES = {
    "FUSEDOPS_AUTOGRAD": ("auto", "cpp", "python"),
    "FUSEDOPS_BACKGROUND": ("0", "1"),
    "FUSEDOPS_OFFLINE": ("0", "1"),
    "FUSEDOPS_OPT_LEVEL": ("0", "1", "2", "3"),
    "FUSEDOPS_VERBOSE": ("0", "1"),
}
# What would change what GCC, clang and ld make, or where they write, unseen by the key.
_INFLUENCES = {
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH"),
    *("OBJCPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH"),
    *("LD_RUN_PATH", "GNUTARGET", "LDEMULATION", "DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES"),
    *("GCC_COMPARE_DEBUG", "SOURCE_DATE_EPOCH", "CCC_OVERRIDE_OPTIONS", "CCC_ADD_ARGS"),
    *("CL", "_CL_", "CLANG_NO_DEFAULT_CONFIG"),
}


def cache_dir() -> Path | None:
    """The folder of the cache, or None where it has no place; `no_cache_dir` says why."""
    try:
        if folder := os.environ.get("FUSEDOPS_CACHE_DIR"):
            path = Path(folder)
            if path.parts[:1] == ("~",):
                return _home().joinpath(*path.parts[1:])
            return path.expanduser().absolute()
        folder = os.environ.get("XDG_CACHE_HOME", "")
        if Path(folder).is_absolute():  # the XDG specification says to ignore others
            return Path(folder) / "fusedops"
        return _home() / ".cache" / "fusedops"
    except (RuntimeError, FileNotFoundError):  # no home; no working directory
        return None


def no_cache_dir() -> str:
    """Why `cache_dir` gives None."""
    folder = os.environ.get("FUSEDOPS_CACHE_DIR")
    what = f"FUSEDOPS_CACHE_DIR={folder!r} leads to no folder" if folder else ""
    return (what or "there is no home folder to keep the cache in") + _bad_home()


def offline() -> bool:
    """Whether compiling is forbidden."""
    return _flag("FUSEDOPS_OFFLINE")


def opt_level() -> str:
    """The host compiler's ``-O`` level of kernels for CPUs."""
    return _choice("FUSEDOPS_OPT_LEVEL", default="3")


def autograd() -> str:
    """Which autograd nodes differentiable calls make: ``cpp``, ``python``, or ``auto``."""
    return _choice("FUSEDOPS_AUTOGRAD", default="auto")


def background() -> bool:
    """Whether anything may be built in the background."""
    return _flag("FUSEDOPS_BACKGROUND", default=True)


def verbose() -> bool:
    """Whether to show each compiler command and its log."""
    return _flag("FUSEDOPS_VERBOSE")


def record_file() -> Path | None:
    """Where calls are recorded, if anywhere."""
    file = os.environ.get("FUSEDOPS_RECORD")
    return Path(file).absolute() if file else None


def cxx() -> str | None:
    """The host compiler that the user names, if any."""
    return os.environ.get("CXX") or None


def cuda_homes() -> list[Path]:
    """CUDA toolkits that are installed outside Python, most explicit first."""
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    return [Path(home) for home in [*named, "/usr/local/cuda"] if home]


def compiler_environment(scratch: Path | None = None) -> dict[str, str]:
    """The environment for a compiler's process, without variables that silently change its output.

    Its messages are in one language, and its temporary files go to `scratch`.
    """
    ours = {name: value for name, value in os.environ.items() if name not in _INFLUENCES}
    return {**ours, "LC_ALL": "C", **({"TMPDIR": str(scratch)} if scratch else {})}


def include_dir() -> Path:
    """The folder that holds ``fusedops/*.cuh``: in the package, or beside a checkout's ``src/``."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "include"
    return installed if installed.is_dir() else package.parents[1] / "include"


def cmake_dir() -> Path:
    """The folder of ``fusedops-config.cmake``, for CMake's ``fusedops_DIR``."""
    return include_dir().parent / "share" / "cmake" / "fusedops"


def _home() -> Path:
    """The user's home folder.

    Raises:
        RuntimeError: There is none.
    """
    if reason := _bad_home():
        raise RuntimeError(reason)
    return Path.home()


def _bad_home() -> str:
    """Why HOME cannot hold the cache: a relative path means a cache per working directory."""
    home = os.environ.get("HOME")
    if home is None or Path(home).is_absolute():
        return ""
    return f": HOME must be a full path, got {home!r}"


def _flag(name: str, default: bool = False) -> bool:
    return _choice(name, default="1" if default else "0") == "1"


def listed(name: str) -> str:
    """The values that a variable of `CHOICES` may have, as words."""
    *first, last = CHOICES[name]
    return f"{', '.join(first)} or {last}"


def _choice(name: str, default: str) -> str:
    """The value of an environment variable, or its default if it is empty or unset.

    Raises:
        ValueError: It says something else.
    """
    value = os.environ.get(name) or default
    if value not in CHOICES[name]:
        raise ValueError(f"{name} must be {listed(name)}, got {value!r}")
    return value
