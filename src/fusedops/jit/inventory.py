# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What lies in a cache folder, for people: its entries, whole or not, and what is left over.

What goes, goes as it came: whole, also while others use the cache. A program that has loaded a
binary keeps it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fusedops.jit import lock
from fusedops.jit.cache import DAMAGED, FAILED, LOCKS, TEMPORARY, Store
from fusedops.jit.entry import Damaged, Refused, read_damaged
from fusedops.jit.scratch import reclaim

_ENTRY = re.compile(r"[A-Za-z0-9_]+-[0-9a-f]{16}-[0-9a-f]{8}")


@dataclass(frozen=True)
class Item:
    """A folder that has an entry's name, whatever is in it.

    Attributes:
        folder: Where.
        size: Bytes.
        fault: Why it is not used; `Refused` where it may be whole, but is not this user's alone.
        meta: Its record, empty if that cannot be read.
    """

    folder: Path
    size: int
    fault: Damaged | None
    meta: Mapping[str, Any]

    @property
    def damaged(self) -> bool:
        """Whether it is not whole."""
        return self.fault is not None and not isinstance(self.fault, Refused)

    @property
    def arch(self) -> str:
        """What it was built for."""
        return str(self.meta.get("arch", "?"))

    @property
    def compiler(self) -> str:
        """The compiler's name and version."""
        found = self.meta.get("compiler")
        known = found if isinstance(found, dict) else {}
        return f"{known.get('name', '?')} {known.get('version', '')}".strip()

    @property
    def built(self) -> float:
        """When it was built, in seconds since 1970."""
        try:
            return datetime.fromisoformat(self.meta["date"]).timestamp()
        except (KeyError, TypeError, ValueError):
            return self.folder.stat().st_mtime


def items(root: Path) -> Iterator[Item]:
    """The folders that have an entry's name, in the order of names; every file is read.

    Raises:
        OSError: The folder cannot be read.
    """
    next(root.iterdir(), None)
    for folder, found in Store(root).entries():
        if not _ENTRY.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
            continue
        with contextlib.suppress(FileNotFoundError):  # gone meanwhile
            if isinstance(found, Damaged):
                yield Item(folder, size(folder), found, read_damaged(folder))
            else:
                yield Item(folder, size(folder), None, found.meta)


def leftovers(root: Path) -> list[Path]:
    """What builds that were broken off left, what was set aside, and what did not compile.

    Raises:
        OSError: The folder cannot be read.
    """
    return [
        path
        for path in sorted(root.iterdir())
        if path.name.startswith((TEMPORARY, DAMAGED)) or path.name == FAILED
        if path.is_dir() and not path.is_symlink()
    ]


def remove(folder: Path) -> str | None:
    """Delete an entry and its lock, or a leftover; or say why it stays: somebody is at work on it.

    It is renamed into a temporary folder, and that is deleted.
    """
    store = Store(folder.parent)
    file = store.root / LOCKS / f"{folder.name}.lock"
    try:
        if folder.name.startswith(TEMPORARY):
            if folder not in store.abandoned():
                return "another process is writing it"
            reclaim(store.root, TEMPORARY)
            return None
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):  # a cache without locks, or one that never locked
                if not lock.taken(held.enter_context(lock.opened(file, os.O_CREAT)), file):
                    return "another process is building it"
            store.clear([folder])
            file.unlink(missing_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return None


def size(folder: Path) -> int:
    """The bytes of the files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_size if path.is_file() and not path.is_symlink() else 0
    return total
