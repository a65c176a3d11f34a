# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning files of this machine's devices: entries of the cache, which later processes use.

An entry is found by architecture and device name, and verified as those that hold code are. A file
that cannot be used is passed over with one warning: then a launch configuration is the package's.
"""

from __future__ import annotations

import datetime
import functools
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusedops.jit.cache import Identity
from fusedops.jit.entry import Entry
from fusedops.jit.key import digest
from fusedops.jit.store import shared_store, unwritable
from fusedops.schedule import lookup
from fusedops.schedule.tuning_file import FORMAT, TuningFile, TuningFileError, read, text_of

#: The name of the file in its entry.
FILE = "tuning.json"


@functools.cache
def find(arch: str, device: str) -> TuningFile | None:
    """The file that was tuned on a device, read once; None without one that can be used."""
    store = shared_store()
    if store is None:
        return None
    request = _request(arch, device)
    entry = store.newest(request)
    if entry is None:
        for folder, reason in store.entries(request):
            _warn(folder, str(reason))
        return None
    try:
        return _read(entry, arch, device)
    except TuningFileError as error:
        _warn(entry.folder, str(error))
        return None


def keep(content: Mapping[str, Any]) -> Path:
    """Keep a tuning file of a device, in place of the one that is there; returns its path.

    The content is as in tuning_file.py; its rows are asked before the package's.

    Raises:
        TuningFileError: It is no such file.
        OSError: It cannot be kept in the cache folder.
    """
    text = text_of(content)
    checked = read(text, FILE, total=False)
    store = shared_store()
    if store is None or (reason := unwritable()):
        raise OSError(reason if store is not None else "the cache folder cannot be used")
    identity = _identity(checked.arch, checked.device.name, text)
    meta = {
        "arch": checked.arch,
        "declaration": f"launch configurations tuned on {checked.device.name}",
        "compiler": {"name": "fusedops tune"},
        "date": datetime.datetime.now(tz=datetime.timezone.utc).isoformat(),
    }
    others = [folder for folder, _ in store.entries(identity.request)]
    entry = store.publish(identity, meta, {FILE: text.encode()})
    store.clear(folder for folder in others if folder != entry.folder)
    find.cache_clear()
    lookup.forget()
    return entry.folder / FILE


def _read(entry: Entry, arch: str, device: str) -> TuningFile:
    try:
        text = entry.read(FILE)
    except KeyError:
        raise TuningFileError(f"it has no {FILE}") from None
    found = read(text, str(entry.folder / FILE), total=False)
    if (found.arch, found.device.name) != (arch, device):
        raise TuningFileError(f"it is of {found.device.name} ({found.arch}), not of {device}")
    return found


def content_of(file: TuningFile) -> dict[str, Any]:
    """The content of a tuning file, as it was read."""
    rules = {kind: [dict(rule.content) for rule in rows] for kind, rows in file.rules.items()}
    return {"format": FORMAT, "arch": file.arch, "device": file.device._asdict(), **rules}


def _request(arch: str, device: str) -> str:
    return digest({"tuning": arch, "device": device})


def _identity(arch: str, device: str, text: str) -> Identity:
    return Identity(f"tuning-{arch}", _request(arch, device), digest({"text": json.loads(text)}))


def _warn(folder: Path, reason: str) -> None:
    warnings.warn(
        f"the tuning file in {folder} is not used: {reason}. Launch configurations are those "
        "of the package; `fusedops tune` writes another, or delete that folder.",
        RuntimeWarning,
        stacklevel=2,
    )
