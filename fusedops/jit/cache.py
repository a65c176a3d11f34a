# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The cache on disk: one folder per build, published whole or not at all.

``<name>-<request>-<build>/`` holds the source, the binary and ``meta.json``, which has both digests
in full and the binary's SHA-256. An entry is written into a temporary folder beside, flushed and
renamed, so that it is complete when it appears. The lock only saves work: nothing that is published
depends on it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Entry", "Identity", "Store"]

LOCK_SECONDS = 60.0  # many times the slowest build: whoever holds it longer is stuck
LEFTOVER_SECONDS = 86400.0  # a folder set aside, or one that its writer left, goes after a day
ATTEMPTS = 5  # at a name that others write to as well
META = "meta.json"


@dataclass(frozen=True)
class Identity:
    """Which entry: its two digests, and a name for people to read."""

    name: str
    request: str
    build: str

    @property
    def folder(self) -> str:
        """The folder's name."""
        readable = re.sub(r"[^A-Za-z0-9_]+", "_", self.name)[:64]
        return f"{readable}-{self.request[:16]}-{self.build[:8]}"


@dataclass(frozen=True)
class Entry:
    """A verified entry."""

    folder: Path
    binary: Path
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class Store:
    """A folder of entries that is its owner's alone."""

    root: Path

    def find(self, identity: Identity) -> Entry | None:
        """The entry with these digests, if it is there and whole."""
        return _verified(self.root / identity.folder, identity.request, identity.build)

    def newest(self, request: str) -> Entry | None:
        """The whole entry with this request digest whose compiler is newest, whichever that is."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.root) as folders:
            for folder in folders:
                if f"-{request[:16]}-" in folder.name and not folder.name.startswith("."):
                    found.append(_verified(Path(folder.path), request, None))
        return max(filter(None, found), key=_age, default=None)

    @contextlib.contextmanager
    def lock(self, identity: Identity) -> Iterator[None]:
        """Keep other processes from building the same; after a bounded wait go on without.

        The operating system drops the lock of a process that dies.
        """
        from filelock import FileLock, Timeout  # slow to import, and a hit does without

        locks = self.root / ".locks"
        held = None
        # A stuck owner, or a filesystem that has no locks: build all the same.
        with contextlib.suppress(Timeout, OSError, NotImplementedError):
            locks.mkdir(mode=0o700, exist_ok=True)
            held = FileLock(locks / f"{identity.folder}.lock")
            held.acquire(timeout=LOCK_SECONDS)
        try:
            yield
        finally:
            if held is not None:
                held.release()

    def publish(
        self, identity: Identity, meta: Mapping[str, Any], files: Mapping[str, bytes]
    ) -> Entry:
        """Make an entry of `meta` and `files`, of which the last is the binary.

        Where another process has published the same meanwhile, its entry is given and ours dropped;
        a damaged one is set aside.

        Raises:
            OSError: The folder cannot be written to.
        """
        self._sweep()
        binary, content = [*files.items()][-1]
        record = {
            **meta,
            "request": identity.request,
            "build": identity.build,
            "binary": {"file": binary, "size": len(content), "sha256": _sha256(content)},
        }
        target = self.root / identity.folder
        scratch = Path(tempfile.mkdtemp(prefix=".tmp-", dir=self.root))
        try:
            for file, data in files.items():
                _write(scratch / file, data)
            _write(scratch / META, json.dumps(record, indent=1).encode())
            _flush(scratch)
            for _ in range(ATTEMPTS):
                if _renamed(scratch, target):
                    _flush(self.root)
                    return Entry(target, target / binary, record)
                if there := self.find(identity):
                    return there
                aside = Path(tempfile.mkdtemp(prefix=".damaged-", dir=self.root))
                _renamed(target, aside / target.name)
            raise OSError(errno.EBUSY, "others keep rewriting the entry", str(target))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)  # gone already if all went well

    def keep_failure(self, identity: Identity, files: Mapping[str, bytes]) -> Path:
        """Keep what did not compile, for people to look at; gives the first file's path."""
        folder = self.root / ".failed" / identity.folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, data in files.items():
            (folder / file).write_bytes(data)
        return folder / next(iter(files))

    def _sweep(self) -> None:
        limit = time.time() - LEFTOVER_SECONDS
        for prefix in (".tmp-", ".damaged-"):
            for folder in self.root.glob(f"{prefix}*"):
                with contextlib.suppress(OSError):
                    if folder.stat().st_mtime < limit:
                        shutil.rmtree(folder, ignore_errors=True)


def _verified(folder: Path, request: str, build: str | None) -> Entry | None:
    """The entry in `folder` if it is ours, is what its name says, and its binary is intact."""
    try:
        if folder.stat().st_uid not in (os.geteuid(), 0):
            return None  # code that somebody else put here
        meta = json.loads((folder / META).read_bytes())
        binary = folder / Path(meta["binary"]["file"]).name
        content = binary.read_bytes()
        whole = (
            meta["request"] == request
            and (build is None or meta["build"] == build)
            and meta["binary"]["size"] == len(content)
            and meta["binary"]["sha256"] == _sha256(content)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Entry(folder, binary, meta) if whole else None


def _age(entry: Entry) -> tuple[list[int], str]:
    compiler = entry.meta.get("compiler") or {}
    numbers = re.findall(r"\d+", str(compiler.get("version", "")))
    return [int(number) for number in numbers], str(entry.meta.get("date", ""))


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
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
