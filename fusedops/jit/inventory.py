# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What lies in a cache folder, for people: its entries, damaged or whole, and what is left over."""

from __future__ import annotations

import contextlib
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fusedops.jit.cache import DAMAGED, FAILED, TEMPORARY, Store
from fusedops.jit.entry import Entry, Refused, read_damaged

__all__ = ["Item", "Leftover", "items", "leftovers", "matching", "size"]

_ENTRY = re.compile(r"[A-Za-z0-9_]+-([0-9a-f]{16})-([0-9a-f]{8})")


@dataclass(frozen=True)
class Item:
    """A folder that has an entry's name, whatever is in it.

    Attributes:
        folder: Where.
        size: Bytes.
        modified: When it was last written to, in seconds since 1970.
        damage: What is wrong with it, or None if it is whole as far as this user can tell.
        refusal: Why it is not this user's to use, whole or not; None if it is.
        meta: Its record, empty if that cannot be read.
    """

    folder: Path
    size: int
    modified: float
    damage: str | None = None
    refusal: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The folder's name: the entry's own, and the heads of its digests."""
        return self.folder.name

    @property
    def arch(self) -> str:
        """What it was built for."""
        return str(self.meta.get("arch", ""))

    @property
    def declaration(self) -> str:
        """What it was generated from."""
        return str(self.meta.get("declaration", ""))

    @property
    def compiler(self) -> str:
        """The compiler's name and version."""
        found = self.meta.get("compiler")
        if not isinstance(found, Mapping):
            return ""
        return f"{found.get('name', '')} {found.get('version', '')}".strip()

    @property
    def built(self) -> float:
        """When it was built, in seconds since 1970."""
        try:
            return datetime.fromisoformat(self.meta["date"]).timestamp()
        except (KeyError, TypeError, ValueError):
            return self.modified

    @property
    def binary(self) -> Path | None:
        """The cubin or the shared library."""
        name = self.meta.get("binary")
        return self.folder / Path(name).name if isinstance(name, str) else None

    @property
    def source(self) -> Path | None:
        """The generated source."""
        return next(iter(sorted(self.folder.glob("kernel.c*[pu]"))), None)


@dataclass(frozen=True)
class Leftover:
    """What is no entry, but was left by the cache: it can go, unless somebody is at work on it."""

    path: Path
    size: int
    in_use: bool


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
            known = folder, size(folder), folder.stat().st_mtime
            if isinstance(found, Entry):
                yield Item(*known, meta=found.meta)
            elif isinstance(found, Refused):
                yield Item(*known, refusal=str(found), meta=read_damaged(folder))
            else:
                yield Item(*known, damage=str(found), meta=read_damaged(folder))


def matching(root: Path, prefix: str) -> list[Item]:
    """The entries whose folder's name begins so, or the one that has just that name."""
    found = [item for item in items(root) if item.name.startswith(prefix)]
    exact = [item for item in found if item.name == prefix]
    return exact or found


def leftovers(root: Path) -> Iterator[Leftover]:
    """What builds that were broken off left, what was set aside, and what did not compile.

    Raises:
        OSError: The folder cannot be read.
    """
    abandoned = Store(root).abandoned()
    for path in sorted(root.iterdir()):
        if path.is_symlink() or not path.is_dir():
            continue
        if path.name.startswith(TEMPORARY):
            yield Leftover(path, size(path), in_use=path not in abandoned)
        elif path.name.startswith(DAMAGED) or path.name == FAILED:
            yield Leftover(path, size(path), in_use=False)


def size(folder: Path) -> int:
    """The bytes of the files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
