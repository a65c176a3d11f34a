# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The library with the autograd node in C++: when it is built and loaded, and for which ops.

It is compiled against the installed torch, so it cannot be a part of the package's own runtime,
which one wheel has for every torch. A compile takes ten to twenty seconds of one core, and a
gigabyte. So a process starts one only after enough calls to be a training run. Before, and wherever
it fails, the node is the one in Python, whose results are the same.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusedops.jit import env
from fusedops.jit.lock import guard

if TYPE_CHECKING:
    from fusedops.jit import Artifact
    from fusedops.run.runnable import Runnable

#: The number of the differentiable call at which a process looks for the library in the cache, and
#: of that at which it builds one. A step of a model has tens of such calls.
LOOK, BUILD = 64, 8192

_SOURCE = Path(__file__).with_name("cpp_node.cpp")

_mode: str | None = None  # FUSEDOPS_AUTOGRAD at the first call; "python" once it cannot be had
_calls = 0
_make: Callable[..., Any] | None = None  # makes what runs the calls of an op
_thread: threading.Thread | None = None
_process = os.getpid()  # a forked child builds nothing on its own


def offer(op: Runnable) -> bool:
    """Have differentiable calls of an op run in C++; False where, or as long as, they do not.

    Each call that runs in Python asks, until `op.offered` is True, and is counted.

    Raises:
        CompilerNotFound, CompileError, MissingVariantError: FUSEDOPS_AUTOGRAD=cpp, and the library
            cannot be built.
    """
    global _mode, _calls
    if not op.has_result:  # the node takes the first gradient that comes in for that of y
        return False
    if _mode is None:
        _mode = env.autograd()
    if _mode == "cpp" and _make is None:
        _load(build=True)
    if _make is not None and _mode != "python":
        with guard:
            from fusedops.run.cpp_node import make_program  # so that few imports wait for it

        op.grad = _make(op.grad, functools.partial(make_program, op))
        op.offered = True
        return True
    op.offered = _mode == "python"
    _calls += 1
    if _calls in (LOOK, BUILD):
        _start(build=_calls == BUILD)
    return False


def forget() -> None:
    """Read FUSEDOPS_AUTOGRAD again, and count from zero, for tests."""
    global _mode, _calls
    settle()
    _mode, _calls = None, 0


def settle() -> None:
    """Wait for what is being done in the background."""
    if _thread is not None:
        _thread.join()


def _start(build: bool) -> None:
    global _thread, _mode
    if not env.background() or os.getpid() != _process:
        _mode = "python"
        return
    # No program waits for a daemon thread at its end; the compiler is ended with the program.
    _thread = threading.Thread(target=_try, args=(build,), name="fusedops-autograd", daemon=True)
    _thread.start()


def _try(build: bool) -> None:
    global _mode
    try:
        _load(build=build and not env.offline())
    except Exception:  # whatever it is: nodes in Python serve as well
        _mode = "python"
    if build and _make is None:
        _mode = "python"


def _load(build: bool) -> None:
    """Load the library from the cache, or else `build` it; it may be that there is none then."""
    global _make
    with guard:
        from fusedops import jit
        from fusedops.jit.extension import ARCH
    order = {"source": _SOURCE.read_text(encoding="utf-8"), "name": "autograd_node", "arch": ARCH}
    built: Artifact | None = jit.cached(**order)
    if built is None and build:
        built = jit.build(**order, declaration="the autograd node")
    if built is not None:
        # Its calls keep the lock of the interpreter, and raise what is raised in them.
        library = jit.load_library(built, lambda path: ctypes.PyDLL(os.fsdecode(path)))
        make = library.fusedops_differentiator
        make.argtypes, make.restype = [ctypes.py_object] * 2, ctypes.py_object
        _make = make
