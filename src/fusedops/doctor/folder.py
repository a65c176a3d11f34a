# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The cache folder: whether it would be used, what it holds, and whether its filesystem serves."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from fusedops.doctor.finding import Finding, Verdict
from fusedops.doctor.machine import is_offline
from fusedops.jit import env, inventory, lock, trust
from fusedops.jit.cache import TEMPORARY
from fusedops.jit.scratch import scratch

__all__ = ["check_cache", "check_entries"]

ROOM = 256 << 20  # bytes; a variant takes some ten thousand, a compiler's temporary files more
CURE = "set FUSEDOPS_CACHE_DIR to a folder of your own"


def check_cache() -> Finding:
    """Whether builds would be kept in the user's folder."""
    bad = Verdict.PROBLEM if is_offline() else Verdict.WARNING
    root = env.cache_dir()
    if root is None:
        return Finding("cache", env.no_cache_dir(), bad, CURE)
    try:
        if not root.exists():
            return _missing(root, bad)
        reason = trust.distrust_cache(root) if root.is_dir() else "it is no folder"
        if not reason and not os.access(root, os.R_OK | os.X_OK):
            reason = "it cannot be read"
    except OSError as error:
        reason = error.strerror
    if reason:
        return Finding("cache", f"{root} is not used: {reason}", bad, f"mend that, or {CURE}")
    free = shutil.disk_usage(root).free
    if os.statvfs(root).f_flag & os.ST_NOEXEC:
        reason = "mounted noexec, so kernels for CPUs are loaded from memory"
    elif not os.access(root, os.W_OK):
        reason = "only readable, so what is missing is built anew in each process"
    elif free < ROOM:
        reason = "too little room"
    else:
        reason = _probe(root)
    found = f"{root}, {free / 2**30:.1f} GiB free"
    if reason:
        return Finding("cache", f"{found}; {reason}", Verdict.WARNING, f"mend that, or {CURE}")
    return Finding("cache", f"{found}, locks work")


def check_entries() -> Finding:
    """What is in the cache, each entry read as a build would."""
    root = env.cache_dir()
    try:
        if root is None or not root.is_dir():
            return Finding("entries", "none yet")
        items, left = [*inventory.items(root)], [*inventory.leftovers(root)]
    except OSError as error:
        return Finding("entries", f"cannot be read: {error.strerror}", Verdict.WARNING, CURE)
    damaged = [item for item in items if item.damaged]
    refused = [item for item in items if item.fault and not item.damaged]
    found = f"{len(items)}, {sum(item.size for item in items) / 2**20:.1f} MiB"
    if left:
        found += f"; leftovers: {len(left)}"
    if refused:
        found += f"; {len(refused)} not used, such as {refused[0].folder.name}: {refused[0].fault}"
    if damaged:
        found += f"; {len(damaged)} damaged, such as {damaged[0].folder.name}"
        return Finding("entries", found, Verdict.WARNING, "fusedops cache clear --damaged")
    if refused:
        return Finding("entries", found, Verdict.WARNING, f"mend that, or {CURE}")
    return Finding("entries", found)


def _missing(root: Path, bad: Verdict) -> Finding:
    """The first build makes it, if it can."""
    above = next(folder for folder in root.parents if folder.exists())
    reason = trust.distrust_above(above / root.name)
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        reason = f"it cannot be made in {above}"
    elif not reason:  # permissions do not say it all, of /proc for example
        try:
            Path(tempfile.mkdtemp(prefix=".fusedops-", dir=above)).rmdir()
        except OSError as error:
            reason = f"it cannot be made in {above}: {error.strerror}"
    if reason:
        return Finding("cache", f"{root} is not there: {reason}", bad, f"mend that, or {CURE}")
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
