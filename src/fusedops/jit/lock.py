# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Locks that threads and processes wait for, which no killed process leaves behind.

A file is locked by ``flock``: the kernel drops the lock with its owner. filelock is not used, since
it falls back to a file whose mere existence is the lock, takes 0.1 s to import, and an import that
another thread is in the middle of hangs in a forked child.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

#: Held across a fork: what is done under it a child finds done or not begun, and can do itself.
#: Imports within functions are done under it, too: a child forked in the middle of one would wait
#: for a thread that it does not have. (Modules that do so import this one at their top: the lock
#: is no help as long as it is still to be imported.)
guard = threading.RLock()

_ours: dict[int, os.stat_result] = {}  # descriptors of lock files, and which file each is of
_threads: dict[str, threading.Lock] = {}


def _in_child() -> None:
    # A lock lasts until all copies of its descriptor are closed; a child must not prolong it.
    try:
        for descriptor in [*_ours]:
            with contextlib.suppress(OSError):
                _close(descriptor)
        _threads.clear()  # their owners are threads of the parent
    finally:
        guard.release()


os.register_at_fork(before=guard.acquire, after_in_parent=guard.release, after_in_child=_in_child)


@contextlib.contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[int]:
    """Open a lock file for as long as it is of use; a forked child has it closed.

    Raises:
        OSError: It cannot be opened, or is a link.
    """
    flags |= os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with guard:
        descriptor = os.open(path, flags, 0o600)
        _ours[descriptor] = os.fstat(descriptor)
    try:
        yield descriptor
    finally:
        with guard:
            # A fork may not have come to close its copy.
            _close(descriptor, unlock=True)


def _close(descriptor: int, unlock: bool = False) -> None:
    """Close a lock file, unless that is done, by us or by others; then its number may be theirs."""
    known = _ours.pop(descriptor, None)
    try:
        if known is None or not os.path.samestat(os.fstat(descriptor), known):
            return
    except OSError:
        return
    if unlock:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def taken(descriptor: int, path: Path) -> bool:
    """Lock an open file until it is closed; False if it is locked, or no longer at `path`.

    Raises:
        OSError: The filesystem has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def among_threads(name: str, seconds: float) -> Iterator[None]:
    """Be the only thread of this process that does `name`; after `seconds`, go on all the same."""
    lock = _threads.setdefault(name, threading.Lock())
    held = lock.acquire(timeout=seconds)
    try:
        yield
    finally:
        if held:
            lock.release()


@contextlib.contextmanager
def among_processes(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock file at `path`, made if need be.

    Where there are no locks, or it is not to be had within `seconds`, go on all the same.
    """
    limit, pause = time.monotonic() + seconds, 0.001
    with contextlib.ExitStack() as held:
        while True:
            attempt = contextlib.ExitStack()
            try:
                if taken(attempt.enter_context(opened(path, os.O_CREAT)), path):
                    held.enter_context(attempt)
                    break
            except OSError:
                attempt.close()
                break
            attempt.close()
            if time.monotonic() > limit:
                break
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        yield
