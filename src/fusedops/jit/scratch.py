# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Temporary folders that the next run reclaims if their owner was killed.

Beside each folder lies a lock file, which its owner holds: when nobody does, the folder is
abandoned. The lock file comes first and goes last, so there is never a folder without it. Where the
filesystem has no locks, a folder is abandoned when its lock file is a day old.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fusedops.jit import lock, trust

__all__ = ["abandoned", "anywhere", "reclaim", "scratch"]

PREFIX = "fusedops-tmp-"  # in folders that others use too
LEFTOVER_SECONDS = 86400.0
ATTEMPTS = 5  # at a name that a reclaimer has just taken for an abandoned one
_SUFFIX = ".lock"


@contextlib.contextmanager
def scratch(base: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `base` with mode 0700, gone at the end; abandoned ones are reclaimed first.

    Raises:
        OSError: It cannot be made.
    """
    reclaim(base, prefix)
    owner = os.getpid()
    with contextlib.ExitStack() as held:
        for _ in range(ATTEMPTS):
            folder = base / f"{prefix}{secrets.token_hex(8)}"
            file = _lock_file(folder)
            descriptor = held.enter_context(lock.opened(file, os.O_CREAT | os.O_EXCL))
            with contextlib.suppress(OSError):  # no locks here: its age will have to do
                if not lock.taken(descriptor, file):
                    continue
            break
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            if os.getpid() == owner:  # a fork has a copy of this, but not of the folder
                _remove(folder)


@contextlib.contextmanager
def anywhere() -> Iterator[Path]:
    """A scratch folder in the system's folder for temporary files.

    Raises:
        OSError: There is no folder for them that is safe to use; says why.
    """
    base = Path(tempfile.gettempdir())
    if reason := trust.distrust_above(base / PREFIX):
        said = f"no folder for temporary files ({base}: {reason}): set TMPDIR to one"
        raise PermissionError(errno.EPERM, said)
    with scratch(base, PREFIX) as folder:
        yield folder


def reclaim(base: Path, prefix: str) -> None:
    """Remove this user's folders in `base` whose owners are gone."""
    for folder in abandoned(base, prefix):
        _remove(folder)


def abandoned(base: Path, prefix: str) -> Iterator[Path]:
    """The folders in `base` that `reclaim` would remove, whether or not they were made yet.

    Each is locked while it is looked at.
    """
    with contextlib.suppress(OSError):
        for file in base.iterdir():
            if not (file.name.startswith(prefix) and file.name.endswith(_SUFFIX)):
                continue
            with contextlib.suppress(OSError), lock.opened(file) as descriptor:
                status = os.fstat(descriptor)
                if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
                    continue
                try:
                    free = lock.taken(descriptor, file)
                except OSError:
                    free = time.time() - status.st_mtime > LEFTOVER_SECONDS
                if free:
                    yield file.with_name(file.name.removesuffix(_SUFFIX))


def _remove(folder: Path) -> None:
    """Remove a folder, then its lock file, which stays where the folder could not be emptied.

    A compiler whose parent was killed may still add files to the folder, and delete them.
    """
    with contextlib.suppress(OSError):
        try:
            ours = folder.lstat().st_uid == os.geteuid()
        except FileNotFoundError:
            ours = False
        if ours:
            shutil.rmtree(folder)  # which follows no link
        _lock_file(folder).unlink()


def _lock_file(folder: Path) -> Path:
    return folder.with_name(folder.name + _SUFFIX)
