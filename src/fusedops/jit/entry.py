# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""One cache entry: its metadata, and reading its files with their digests verified.

Digests tell damage, not malice: whoever may write an entry may write its record. So its folder and
files have to belong to the user or root, with nobody else writing, and no link is followed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusedops.jit import trust

__all__ = [
    "META",
    "Damaged",
    "Entry",
    "Identity",
    "read_entry",
    "read_record",
    "record",
]

META = "meta.json"
META_LIMIT = 16 << 20  # bytes; a record is a few kilobytes and a compiler's log
FILE_LIMIT = 256 << 20


class Damaged(Exception):  # noqa: N818 (what is caught is the state of an entry)
    """An entry that is not used; says why."""


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
        return readable + _ending(self.request, self.build)


@dataclass(frozen=True)
class Entry:
    """A verified entry."""

    folder: Path  # where it is, or was: another process may set it aside or clear it
    binary: Path  # the binary's path in it
    meta: Mapping[str, Any]  # the record
    contents: Mapping[str, bytes] = dataclasses.field(repr=False)  # every file, as it was verified

    def read(self, name: str) -> bytes:
        """The verified content of the file `name`.

        Raises:
            KeyError: The entry has no such file.
        """
        return self.contents[name]


def record(
    identity: Identity, meta: Mapping[str, Any], files: Mapping[str, bytes]
) -> dict[str, Any]:
    """Metadata of an entry with the size and digest of each file; the last file is the binary."""
    return {
        **meta,
        "request": identity.request,
        "build": identity.build,
        "files": {name: _fingerprint(content) for name, content in files.items()},
        "binary": [*files][-1],
    }


def read_entry(folder: Path, request: str | None = None, build: str | None = None) -> Entry:
    """The entry in `folder`, each of its files read once.

    Its digests have to be these, as far as they are known, and the folder's name what follows from
    the record.

    Raises:
        Damaged: It is not there, not whole, another one, or not to be trusted.
    """
    descriptor = _open(folder, os.O_DIRECTORY, None)
    try:
        _check_trust(os.fstat(descriptor), "its folder")
        meta = _meta(_read(descriptor, META, META_LIMIT))
        for what, wanted in (("request", request), ("build", build)):
            if wanted is not None and meta[what] != wanted:
                raise Damaged(f"its {what} digest is another")
        if not folder.name.endswith(_ending(meta["request"], meta["build"])):
            raise Damaged("its digests are not those of its name")
        contents = {name: _verified(descriptor, name, meta) for name in meta["files"]}
    finally:
        os.close(descriptor)
    return Entry(folder, folder / meta["binary"], meta, contents)


def read_record(folder: Path) -> Mapping[str, Any]:
    """An entry's record, for people: not verified, of any form, and empty if it cannot be read."""
    try:
        descriptor = _open(folder, os.O_DIRECTORY, None)
        try:
            meta = json.loads(_read(descriptor, META, META_LIMIT))
        finally:
            os.close(descriptor)
    except (Damaged, ValueError, RecursionError, MemoryError):
        return {}
    return meta if isinstance(meta, dict) else {}


def _meta(content: bytes) -> dict[str, Any]:
    """The record, of the right form as far as this module relies on it."""
    try:
        meta = json.loads(content)
        files = meta["files"]
        digests = isinstance(meta["request"], str) and isinstance(meta["build"], str)
        plain = all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.]*", name) for name in files)
        whole = digests and plain and isinstance(files, dict) and meta["binary"] in files
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise Damaged(f"its {META} cannot be read: {type(error).__name__}") from None
    if not whole:
        raise Damaged(f"its {META} is no record of an entry")
    return dict(meta)


def _verified(folder: int, name: str, meta: Mapping[str, Any]) -> bytes:
    content = _read(folder, name, FILE_LIMIT)
    if _fingerprint(content) != meta["files"][name]:
        raise Damaged(f"{name} is not what was written")
    return content


def _read(folder: int, name: str, limit: int) -> bytes:
    with os.fdopen(_open(name, os.O_NONBLOCK, folder), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Damaged(f"{name} is no plain file")
        _check_trust(status, name)
        if status.st_size > limit:
            raise Damaged(f"{name} is larger than any is ({status.st_size} bytes)")
        try:
            return file.read(limit)
        except OSError as error:
            raise Damaged(f"{name} cannot be read: {error.strerror}") from None


def _open(path: Path | str, flags: int, folder: int | None) -> int:
    flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, dir_fd=folder)
    except OSError as error:
        what = path if folder is not None else "its folder"
        raise Damaged(f"{what} cannot be opened: {error.strerror}") from None


def _check_trust(status: os.stat_result, what: str) -> None:
    if reason := trust.distrust(status):
        raise Damaged(f"{what} is not to be trusted: {reason}")


def _ending(request: str, build: str) -> str:
    return f"-{request[:16]}-{build[:8]}"


def _fingerprint(content: bytes) -> dict[str, Any]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
