# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which folder is the cache: the user's if it can be trusted and used, else one of this process.

What is wrong with the user's folder is said once, as a warning; then the work goes on.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import stat
import tempfile
import threading
import warnings
from pathlib import Path

from fusedops.jit import env
from fusedops.jit.cache import Store

__all__ = ["private_store", "say_once", "shared_store", "stores", "writable_store"]

_private: dict[int, Path] = {}  # by process, for a fork inherits it
_making = threading.Lock()


def shared_store() -> Store | None:
    """The store in the user's cache folder, made if need be; None, said once, if it cannot be used.

    The folder holds code that will be loaded: it must be the user's own (or root's), and not open
    to everybody.
    """
    root = env.cache_dir()
    if root is None:
        say_once("there is no home folder to keep the cache in")
        return None
    try:
        try:
            status = root.stat()
        except FileNotFoundError:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = root.stat()
    except OSError as error:
        say_once(f"the cache folder {root} cannot be made: {error.strerror or error}")
        return None
    if reason := _distrust(status):
        say_once(f"the cache folder {root} is not used: {reason}")
        return None
    return Store(root)


def writable_store() -> Store | None:
    """The user's store, or None, said once, if it only serves to read."""
    shared = shared_store()
    if shared is not None and not os.access(shared.root, os.W_OK | os.X_OK):
        say_once(f"the cache folder {shared.root} cannot be written")
        return None
    return shared


def stores() -> list[Store]:
    """Where an entry may be: the user's folder, then what this process had to keep for itself."""
    shared = shared_store()
    private = [Store(root)] if (root := _private.get(os.getpid())) else []
    return [shared, *private] if shared else private


def private_store() -> Store:
    """A store of this process alone, made on first use and gone when the process ends."""
    owner = os.getpid()  # a fork makes its own, and leaves its parent's alone
    with _making:
        if owner not in _private:
            _private[owner] = root = Path(tempfile.mkdtemp(prefix="fusedops-"))

            def remove() -> None:
                if os.getpid() == owner:
                    shutil.rmtree(root, ignore_errors=True)

            atexit.register(remove)
        return Store(_private[owner])


@functools.cache
def say_once(reason: str) -> None:
    """Warn that the cache is worked around, once for each reason."""
    warnings.warn(
        f"{reason}. What is missing from it is compiled anew in each process; "
        "set FUSEDOPS_CACHE_DIR to a folder of your own.",
        RuntimeWarning,
        stacklevel=2,
    )


def _distrust(status: os.stat_result) -> str | None:
    if not stat.S_ISDIR(status.st_mode):
        return "it is no folder"
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}, not to you ({os.geteuid()})"
    if status.st_mode & stat.S_IWOTH:
        mode = stat.S_IMODE(status.st_mode)
        return f"everybody may write to it (mode {mode:o}; chmod o-w mends that)"
    return None
