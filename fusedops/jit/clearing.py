# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Taking entries out of a cache that others may be using.

An entry goes as it came: whole. It is renamed into a temporary folder, and that is deleted; a
program that has loaded its binary keeps it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fusedops.jit import lock
from fusedops.jit.cache import LOCKS, TEMPORARY, Store
from fusedops.jit.inventory import Item, Leftover
from fusedops.jit.scratch import reclaim

__all__ = ["remove", "remove_leftover"]


def remove(item: Item) -> str | None:
    """Delete an entry and its lock; or say why it stays, such as that somebody builds it now."""
    root = item.folder.parent
    file = root / LOCKS / f"{item.name}.lock"
    try:
        with _alone(file) as free:
            if not free:
                return "another process is building it"
            Store(root).clear([item.folder])
            file.unlink(missing_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return None


def remove_leftover(leftover: Leftover) -> str | None:
    """Delete what was left over; or say why it stays."""
    if leftover.in_use:
        return "another process is writing it"
    root = leftover.path.parent
    try:
        if leftover.path.name.startswith(TEMPORARY):
            reclaim(root, TEMPORARY)
        else:
            Store(root).clear([leftover.path])
    except OSError as error:
        return error.strerror or str(error)
    return None


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[bool]:
    """Holds an entry's lock, so that nobody builds it; or gives False, without waiting."""
    with contextlib.ExitStack() as held:
        try:
            free = lock.taken(held.enter_context(lock.opened(file, os.O_CREAT)), file)
        except OSError:
            free = True  # a cache on a filesystem without locks, or one that never locked
        yield free
