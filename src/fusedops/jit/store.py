# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Where built variants are kept: in the user's cache folder if it can be used, else in memory.

What is wrong with the user's folder is said once, as a warning; then the work goes on.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fusedops.jit import env, lock, trust
from fusedops.jit.cache import LOCK_SECONDS, Store, make_folder
from fusedops.jit.entry import Entry, Identity, record

_unkept: dict[str, Entry] = {}  # what this process keeps for itself, by the name of its folder
_said: dict[str, str] = {}  # the latest reason to work around the cache


def usable() -> Store | str:
    """The store in the user's cache folder, made if need be; or why it cannot be used."""
    root = env.cache_dir()
    if root is None:
        return env.no_cache_dir()
    try:
        if not root.exists():
            make_folder(root)
        if not root.is_dir():
            return f"the cache folder {root} is not used: it is no folder"
        reason = trust.distrust_cache(root)
    except OSError as error:
        return f"the cache folder {root} cannot be made: {error.strerror or error}"
    return f"the cache folder {root} is not used: {reason}" if reason else Store(root)


def shared_store() -> Store | None:
    """The store in the user's cache folder, made if need be; None, said once, if it cannot be used.

    The folder holds code that will be loaded: it must be the user's own (or root's), and nobody
    else may write to it, nor put another in its place.
    """
    found = usable()
    if isinstance(found, str):
        say_once(found)
        return None
    return found


def writable_store() -> Store | None:
    """The user's store, or None, said once, if it only serves to read."""
    if reason := unwritable():
        say_once(reason)
        return None
    return shared_store()


def unwritable() -> str | None:
    """Why nothing can be kept in the user's cache folder, made if need be; None if it can."""
    found = usable()
    if isinstance(found, str):
        return found
    if not os.access(found.root, os.W_OK | os.X_OK):
        return f"the cache folder {found.root} cannot be written"
    return None


def find(identity: Identity) -> Entry | None:
    """The entry with these digests, wherever this process may have it from."""
    shared = shared_store()
    found = shared.find(identity) if shared else None
    return found or _unkept.get(identity.folder)


def newest(request: str) -> Entry | None:
    """The entry with this request digest whose compiler is newest, whichever that is."""
    shared = shared_store()
    if shared and (found := shared.newest(request)):
        return found
    return next((entry for entry in _unkept.values() if entry.meta["request"] == request), None)


def keep(
    shared: Store | None, identity: Identity, meta: Mapping[str, Any], files: Mapping[str, bytes]
) -> Entry:
    """Publish an entry, or keep it in this process's memory where that is not possible."""
    if shared:
        try:
            return shared.publish(identity, meta, files)
        except OSError as error:
            say_once(f"the cache folder {shared.root} cannot be written: {error.strerror or error}")
    folder = Path(os.devnull, identity.folder)  # where no file can be
    whole = record(identity, meta, files)
    made = Entry(folder, folder / whole["binary"], whole, files)
    return _unkept.setdefault(identity.folder, made)


def why_not_kept(entry: Path) -> str | None:
    """Why the entry in this folder is gone when the process ends; None if it is in the cache."""
    shared = shared_store()
    if shared is not None and entry.parent == shared.root:
        return None
    return _said.get("latest", "it is not in the cache folder")


def only_builder(shared: Store | None, identity: Identity) -> AbstractContextManager[None]:
    """Keep others who would look into `shared`, threads included, from building the same."""
    if shared is None:
        return lock.among_threads(identity.folder, LOCK_SECONDS)
    return shared.lock(identity)


def say_once(reason: str) -> None:
    """Warn that the cache is worked around, once for each reason."""
    with lock.guard:  # or several threads would find that nothing had been said
        _said["latest"] = reason
        _say(reason)


@functools.cache
def _say(reason: str) -> None:
    offline = "an error while FUSEDOPS_OFFLINE=1"
    missing = offline if env.offline() else "compiled anew in each process"
    level, frame = 1, sys._getframe()
    while frame.f_back and f"{frame.f_globals.get('__name__')}.".startswith("fusedops."):
        level, frame = level + 1, frame.f_back  # to whoever called this package
    warnings.warn(
        f"{reason}. What is missing from it is {missing}; "
        "set FUSEDOPS_CACHE_DIR to a folder of your own.",
        RuntimeWarning,
        stacklevel=level,
    )
