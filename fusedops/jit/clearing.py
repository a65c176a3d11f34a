# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Taking entries out of a cache that others may be using.

An entry goes as it came: whole. It is renamed into a temporary folder, and that is deleted; a
program that has loaded its binary keeps it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fusedops.jit.inventory import Item, Leftover, lock_of

__all__ = ["remove", "remove_leftover"]


def remove(item: Item) -> str | None:
    """Delete an entry and its lock; or say why it stays, such as that somebody builds it now."""
    try:
        with _alone(item) as free:
            if not free:
                return "another process is building it"
            scratch = Path(tempfile.mkdtemp(prefix=".tmp-", dir=item.folder.parent))
            try:
                item.folder.rename(scratch / item.name)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            lock_of(item).unlink(missing_ok=True)
    except FileNotFoundError:
        return None  # another process was faster
    except OSError as error:
        return error.strerror or str(error)
    return None


def remove_leftover(leftover: Leftover) -> str | None:
    """Delete what was left over; or say why it stays."""
    if leftover.in_use:
        return "it is less than a day old, so a build may be writing it"
    try:
        shutil.rmtree(leftover.path)
    except OSError as error:
        return error.strerror or str(error)
    return None


@contextlib.contextmanager
def _alone(item: Item) -> Iterator[bool]:
    """Holds the entry's lock, so that nobody builds it; or gives False, without waiting."""
    from filelock import FileLock, Timeout

    path = lock_of(item)
    if not path.parent.is_dir():
        yield True  # a cache on a filesystem without locks
        return
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    except (OSError, NotImplementedError):
        yield True
        return
    try:
        yield True
    finally:
        lock.release()
