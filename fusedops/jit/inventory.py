# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What lies in a cache folder, for people: its entries, damaged or whole, and what is left over.

The cache itself (`cache.py`) asks for one entry and takes it or not. Here everything is looked at,
and why an entry would not be taken is put into words. Nothing is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

__all__ = ["Item", "Leftover", "damage", "items", "leftovers", "lock_of", "matching", "size"]

META = "meta.json"
LEFTOVER_SECONDS = 86400.0  # what is younger, a build may be writing

_ENTRY = re.compile(r"[A-Za-z0-9_]+-([0-9a-f]{16})-([0-9a-f]{8})")
_LOCK = ".lock"


@dataclass(frozen=True)
class Item:
    """A folder that has an entry's name, whatever is in it."""

    folder: Path
    size: int
    modified: float
    meta: Mapping[str, Any] = field(default_factory=dict)  # empty if it cannot be read

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
        return next((self.folder / Path(name).name for name in _files(self.meta)), None)

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
    """The folders that have an entry's name, in the order of names.

    Raises:
        OSError: The folder cannot be read.
    """
    for folder in sorted(root.iterdir()):
        if _ENTRY.fullmatch(folder.name) and not folder.is_symlink() and folder.is_dir():
            try:
                yield Item(folder, size(folder), folder.stat().st_mtime, _read_meta(folder))
            except FileNotFoundError:
                continue  # gone meanwhile


def matching(root: Path, prefix: str) -> list[Item]:
    """The entries whose folder's name begins so, or the one that has just that name."""
    found = [item for item in items(root) if item.name.startswith(prefix)]
    exact = [item for item in found if item.name == prefix]
    return exact or found


def damage(item: Item, *, content: bool = True) -> str | None:
    """Why the cache would not take an entry, or None if it is whole.

    Args:
        item: The entry.
        content: Whether to read its files; else only their sizes are compared.
    """
    try:
        owner = item.folder.stat().st_uid
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if owner not in (os.geteuid(), 0):
        return f"it belongs to user {owner}"
    if not item.meta:
        return f"{META} is missing, or no JSON"
    heads = _ENTRY.fullmatch(item.name)
    for digest, head in zip(("request", "build"), heads.groups() if heads else (), strict=True):
        if not str(item.meta.get(digest, "")).startswith(head):
            return f"{META} is of another {digest}"
    recorded = _files(item.meta)
    if not recorded:
        return f"{META} names no files"
    if item.source is None:
        return "the source is missing"
    return next(filter(None, (_compare(item, name, content) for name in recorded)), None)


def leftovers(root: Path) -> Iterator[Leftover]:
    """What builds that were broken off left, what was set aside, and what did not compile.

    Raises:
        OSError: The folder cannot be read.
    """
    limit = time.time() - LEFTOVER_SECONDS
    for path in sorted(root.iterdir()):
        if path.is_symlink() or not path.is_dir():
            continue
        if path.name.startswith(".tmp-"):
            with contextlib.suppress(FileNotFoundError):  # published or swept meanwhile
                yield Leftover(path, size(path), in_use=path.stat().st_mtime > limit)
        elif path.name.startswith(".damaged-") or path.name == ".failed":
            yield Leftover(path, size(path), in_use=False)


def lock_of(item: Item) -> Path:
    """The file that whoever builds this entry holds a lock on."""
    return item.folder.parent / ".locks" / f"{item.name}{_LOCK}"


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


def _read_meta(folder: Path) -> Mapping[str, Any]:
    try:
        meta = json.loads((folder / META).read_bytes())
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}


def _files(meta: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What `meta` says of the entry's files, the binary first."""
    binary, recorded = meta.get("binary"), meta.get("files")
    if isinstance(binary, Mapping):  # entries written before all files were recorded
        return {str(binary.get("file", "")): binary}
    if not isinstance(recorded, Mapping) or binary not in recorded:
        return {}
    return {str(binary): recorded[binary], **recorded}


def _compare(item: Item, name: str, content: bool) -> str | None:
    """What is wrong with one file, or None."""
    said, path = _files(item.meta)[name], item.folder / Path(name).name
    try:
        found = path.stat().st_size
        if found != said.get("size"):
            return f"{name} has {found} bytes, not {said.get('size')}"
        if content and hashlib.sha256(path.read_bytes()).hexdigest() != said.get("sha256"):
            return f"{name} has other content than was written"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    except AttributeError:
        return f"{META} says nothing of {name}"
    return None
