# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What lies in a cache folder, for people: its entries by their records, and what is left over."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fusedops.jit.cache import DAMAGED, FAILED
from fusedops.jit.entry import read_record

_ENTRY = re.compile(r"[A-Za-z0-9_]+-[0-9a-f]{16}-[0-9a-f]{8}")


@dataclass(frozen=True)
class Item:
    """A folder that has an entry's name, whole or not.

    Attributes:
        folder: Where.
        size: Bytes.
        meta: Its record, empty if that cannot be read.
        built: When it was built, in seconds since 1970.
    """

    folder: Path
    size: int
    meta: Mapping[str, Any]
    built: float


def items(root: Path) -> Iterator[Item]:
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
            yield Item(folder, size(folder), meta, built)


def leftovers(root: Path) -> list[Path]:
    """Damaged entries that were set aside, and what did not compile.

    Raises:
        OSError: The folder cannot be read.
    """
    folders = [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    return [path for path in folders if path.name.startswith(DAMAGED) or path.name == FAILED]


def size(folder: Path) -> int:
    """The bytes of the files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.lstat().st_size if path.is_file() and not path.is_symlink() else 0
    return total
