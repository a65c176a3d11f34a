# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The cache on disk: one folder per build, published whole or not at all.

``<name>-<request>-<build>/`` holds the source, the binary and ``meta.json``, which has both digests
in full and the size and SHA-256 of each file. An entry is written into a temporary folder beside,
flushed and renamed, so that it is complete when it appears. The lock only saves work: nothing that
is published depends on it. An entry that is damaged is set aside under another name, for people to
look at; the last few of those are kept.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fusedops.jit import lock
from fusedops.jit.entry import META, Damaged, Entry, Identity, read_entry, read_record, record
from fusedops.jit.scratch import scratch

__all__ = [
    "DAMAGED",
    "FAILED",
    "TEMPORARY",
    "Entry",
    "Identity",
    "Item",
    "Store",
    "folder_size",
    "leftovers",
    "list_items",
    "make_folder",
]

LOCK_SECONDS = 60.0  # many times the slowest build: whoever holds it longer is stuck
DAMAGED_KEPT = 8
ATTEMPTS = 5  # at a name that others write to as well
TEMPORARY, DAMAGED, FAILED, LOCKS = ".tmp-", ".damaged-", ".failed", ".locks"


@dataclass(frozen=True)
class Store:
    """A cache folder that belongs to its owner alone."""

    root: Path

    def find(self, identity: Identity) -> Entry | None:
        """The entry with these digests, if it is there and whole."""
        with contextlib.suppress(Damaged):
            return read_entry(self.root / identity.folder, identity.request, identity.build)
        return None

    def newest(self, request: str) -> Entry | None:
        """The whole entry with this request digest whose compiler is newest, whichever that is."""
        found = (entry for _, entry in self.entries(request) if isinstance(entry, Entry))
        return max(found, key=_age, default=None)

    @contextlib.contextmanager
    def lock(self, identity: Identity) -> Iterator[None]:
        """Keep other threads and processes from building the same; wait for a bounded time.

        The operating system drops the lock of a process that dies.
        """
        limit = time.monotonic() + LOCK_SECONDS
        with lock.among_threads(str(self.root / identity.folder), LOCK_SECONDS):
            locks = self.root / LOCKS
            with contextlib.suppress(OSError):  # then there is no lock, and we build all the same
                make_folder(locks)
            left = max(0.0, limit - time.monotonic())
            with lock.among_processes(locks / f"{identity.folder}.lock", left):
                yield

    def publish(
        self, identity: Identity, meta: Mapping[str, Any], files: Mapping[str, bytes]
    ) -> Entry:
        """Make an entry of `meta` and `files`, of which the last is the binary.

        Where another process has published the same meanwhile, its entry is given and ours dropped;
        a damaged one is set aside.

        Raises:
            OSError: The folder cannot be written to.
        """
        make_folder(self.root)  # which may have gone since it was looked at
        meta = record(identity, meta, files)
        target = self.root / identity.folder
        with scratch(self.root, TEMPORARY) as folder:
            for name, content in files.items():
                _write(folder / name, content)
            _write(folder / META, json.dumps(meta, indent=1).encode())
            _flush(folder)
            for _ in range(ATTEMPTS):
                if _renamed(folder, target):
                    _flush(self.root)
                    return Entry(target, target / meta["binary"], meta, files)
                if there := self.find(identity):
                    return there
                folder.stat()  # raises where the whole cache has gone, and ours with it
                self._set_aside(target)
        raise OSError(errno.EBUSY, "others keep rewriting the entry", str(target))

    def keep_failure(self, identity: Identity, files: Mapping[str, bytes]) -> Path:
        """Keep the files of a failed compilation for inspection; returns the first one's path."""
        folder = self.root / FAILED / identity.folder
        make_folder(folder)
        for name, content in files.items():
            _write(folder / name, content)
        return folder / next(iter(files))

    def entries(self, request: str = "") -> Iterator[tuple[Path, Entry | Damaged]]:
        """Each entry's folder, with the verified entry or the reason that it is damaged.

        Of one request digest, if that is given.
        """
        named = request and f"-{request[:16]}-"
        for folder in sorted(self._all()):
            if folder.name.startswith(".") or named not in folder.name:
                continue
            try:
                yield folder, read_entry(folder, request or None)
            except Damaged as reason:
                yield folder, reason

    def set_aside(self) -> list[Path]:
        """The damaged entries that are kept, oldest first."""
        return sorted(path for path in self._all() if path.name.startswith(DAMAGED))

    def clear(self, folders: Iterable[Path]) -> int:
        """Remove `folders` of this store and their locks; gives how many were there.

        Each vanishes in one step: no reader sees half an entry, and a program that has loaded a
        binary keeps it. Who builds one meanwhile publishes it all the same.

        Raises:
            OSError: They cannot be removed.
        """
        removed = 0
        with scratch(self.root, TEMPORARY) as bin_folder:
            for number, folder in enumerate(folders):
                if folder.parent != self.root:
                    raise ValueError(f"folders must be those of {self.root}, got {folder}")
                removed += _renamed(folder, bin_folder / str(number))
                with contextlib.suppress(OSError):
                    (self.root / LOCKS / f"{folder.name}.lock").unlink()
        return removed

    def _all(self) -> list[Path]:
        try:
            return [*self.root.iterdir()]
        except OSError:
            return []

    def _set_aside(self, folder: Path) -> None:
        _renamed(folder, self.root / f"{DAMAGED}{time.time_ns()}-{folder.name}")
        for old in self.set_aside()[:-DAMAGED_KEPT]:
            with contextlib.suppress(OSError):
                old.unlink() if old.is_symlink() or old.is_file() else shutil.rmtree(old)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents with mode 0700, whatever the umask.

    Raises:
        OSError: It cannot be made.
    """
    for path in [*reversed(folder.parents), folder]:
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


def _age(entry: Entry) -> tuple[list[int], str]:
    compiler = entry.meta.get("compiler")
    version = str(compiler.get("version", "")) if isinstance(compiler, dict) else ""
    # A number of absurd length would be no int.
    return [int(number) for number in re.findall(r"\d{1,9}", version)], str(entry.meta.get("date"))


def _renamed(source: Path, target: Path) -> bool:
    """Rename folder `source`; False if `target` is in the way or `source` has just gone."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.ENOENT):
            return False
        raise
    return True


def _write(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_ENTRY = re.compile(r"[A-Za-z0-9_]+-[0-9a-f]{16}-[0-9a-f]{8}")


@dataclass(frozen=True)
class Item:
    """One folder of the cache listing, whole or damaged."""

    folder: Path  # where
    size: int  # bytes
    meta: Mapping[str, Any]  # its record, empty if that cannot be read
    built: float  # when it was built, in seconds since 1970


def list_items(root: Path) -> Iterator[Item]:
    """The folders that have an entry's name, in the order of names.

    Raises:
        OSError: The folder cannot be read.
    """
    for folder in sorted(root.iterdir()):
        if not _ENTRY.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
            continue
        meta = read_record(folder)
        with contextlib.suppress(FileNotFoundError):  # gone meanwhile
            try:
                built = datetime.fromisoformat(meta["date"]).timestamp()
            except (KeyError, TypeError, ValueError):
                built = folder.stat().st_mtime
            yield Item(folder, folder_size(folder), meta, built)


def leftovers(root: Path) -> list[Path]:
    """Folders of damaged entries, and of sources that did not compile.

    Raises:
        OSError: The folder cannot be read.
    """
    folders = [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    return [path for path in folders if path.name.startswith(DAMAGED) or path.name == FAILED]


def folder_size(folder: Path) -> int:
    """The bytes of the files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_size if path.is_file() and not path.is_symlink() else 0
    return total
