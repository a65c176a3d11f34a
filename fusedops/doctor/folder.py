# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The cache folder: whether it would be used, what it holds, and whether its filesystem serves."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from fusedops.doctor.environment import is_offline
from fusedops.doctor.finding import Finding, Verdict
from fusedops.jit import env, inventory, lock
from fusedops.jit.cache import TEMPORARY
from fusedops.jit.scratch import scratch

__all__ = ["check_cache", "check_entries"]

ROOM = 256 << 20  # bytes; a variant takes some ten thousand, a compiler's temporary files more
CURE = "set FUSEDOPS_CACHE_DIR to a folder of your own"


def cache_dir() -> Path | None:
    """The cache folder, or None where there is none to be had."""
    try:
        return env.cache_dir()
    except (RuntimeError, OSError):  # FUSEDOPS_CACHE_DIR=~nobody
        return None


def check_cache() -> Finding:
    """Whether builds would be kept in the user's folder."""
    bad = Verdict.PROBLEM if is_offline() else Verdict.WARNING
    root = cache_dir()
    if root is None:
        return Finding("cache", "no home folder to keep it in", bad, CURE)
    try:
        status = root.stat()
    except FileNotFoundError:
        return _missing(root, bad)
    except OSError as error:
        return Finding("cache", f"{root}: {error.strerror}", bad, CURE)
    mode = stat.S_IMODE(status.st_mode)
    found = f"{root}, of user {status.st_uid}, mode {mode:o}"
    if not stat.S_ISDIR(status.st_mode):
        return Finding("cache", f"{root} is no folder", bad, CURE)
    if status.st_uid not in (os.geteuid(), 0):
        said = f"{found}; it is not used, for it is not yours ({os.geteuid()})"
        return Finding("cache", said, bad, CURE)
    if mode & stat.S_IWOTH:
        said = f"{found}; it is not used, for everybody may write to it"
        return Finding("cache", said, bad, f"chmod o-w '{root}'")
    if not os.access(root, os.R_OK | os.X_OK):
        return Finding("cache", f"{found}; it cannot be read", bad, CURE)
    if os.statvfs(root).f_flag & os.ST_NOEXEC:
        said = (
            f"{found}; its filesystem is mounted noexec, so kernels for CPUs are loaded from "
            "memory: processes do not share them, and profilers do not find their files"
        )
        return Finding("cache", said, Verdict.WARNING, CURE)
    if not os.access(root, os.W_OK):
        said = f"{found}; only readable, so what is missing is built anew in each process"
        return Finding("cache", said, Verdict.WARNING, CURE)
    free = shutil.disk_usage(root).free
    found += f", {free / 2**30:.1f} GiB free"
    if free < ROOM:
        return Finding("cache", found, Verdict.WARNING, "make room, or " + CURE)
    if reason := _probe(root):
        return Finding("cache", f"{found}; {reason}", Verdict.WARNING, CURE)
    return Finding("cache", f"{found}, locks work")


def check_entries() -> Finding:
    """What is in the cache, each entry read as a build would."""
    root = cache_dir()
    try:
        if root is None or not root.is_dir():
            return Finding("entries", "none yet")
        items = [*inventory.items(root)]
        damaged = [item for item in items if item.damage]
        left = [*inventory.leftovers(root)]
    except OSError as error:
        return Finding("entries", f"cannot be read: {error.strerror}", Verdict.WARNING, CURE)
    found = f"{len(items)}, {sum(item.size for item in items) / 2**20:.1f} MiB"
    if left:
        found += f"; leftovers: {len(left)}, {sum(one.size for one in left) / 2**20:.1f} MiB"
    if damaged:
        found += f"; {len(damaged)} damaged, such as {damaged[0].name}"
        return Finding("entries", found, Verdict.WARNING, "fusedops cache clear --damaged")
    return Finding("entries", found)


def _missing(root: Path, bad: Verdict) -> Finding:
    """The first build makes it, if it can."""
    above = next(folder for folder in root.parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        said = f"{root} is not there and cannot be made in {above}"
        return Finding("cache", said, bad, CURE)
    if bad is Verdict.PROBLEM:
        cure = "FUSEDOPS_OFFLINE=1 needs a filled cache: unset it, or name the folder"
        return Finding("cache", f"{root} is not there", bad, cure)
    return Finding("cache", f"{root}, made by the first build")


def _probe(root: Path) -> str:
    """Writes and locks a file in a folder that is removed again; what went wrong, or nothing."""
    try:
        with scratch(root, TEMPORARY) as folder:
            file = folder / "file"
            with lock.opened(file, os.O_CREAT) as descriptor:
                os.write(descriptor, b"fusedops")
                try:
                    held = lock.taken(descriptor, file)
                except OSError as error:
                    return f"no locks ({error.strerror}): several processes may build one kernel"
                return "" if held else "its locks do not hold"
    except OSError as error:
        return f"cannot be written: {error.strerror}"
