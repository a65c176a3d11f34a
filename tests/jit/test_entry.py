# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""An entry's record: what it says is checked, and no record does harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusedops.jit import entry as entry_module
from fusedops.jit.cache import DAMAGED_KEPT, Store
from fusedops.jit.entry import Damaged, Entry, Identity, read_entry

IDENTITY = Identity("name", "a" * 64, "b" * 64)
META = {"compiler": {"version": "1.0"}, "date": "2026-01-01"}
FILES = {"kernel.cu": b"source", "kernel.ptx": b"ptx", "kernel.cubin": b"binary"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def entry(store: Store) -> Entry:
    store.publish(IDENTITY, META, FILES)
    return read_entry(store.root / IDENTITY.folder)


def test_every_file_is_recorded_and_the_last_is_the_binary(entry: Entry) -> None:
    assert entry.binary == entry.folder / "kernel.cubin"
    assert entry.meta["binary"] == "kernel.cubin"
    assert entry.meta["files"].keys() == FILES.keys()
    assert {name: entry.read(name) for name in FILES} == FILES
    with pytest.raises(KeyError):
        entry.read("meta.json")


def test_nothing_is_read_after_it_was_verified(entry: Entry) -> None:
    entry.binary.write_bytes(b"exchanged")
    assert entry.read("kernel.cubin") == b"binary"


def test_what_publishing_gives_is_what_reading_gives(store: Store) -> None:
    assert store.publish(IDENTITY, META, FILES) == store.find(IDENTITY)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [None, b"", b"changed"])
def test_each_file_is_verified(
    store: Store, entry: Entry, name: str, content: bytes | None
) -> None:
    path = entry.folder / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Damaged, match=name):
        read_entry(entry.folder)
    assert store.find(IDENTITY) is None


def changed(**changes: Any) -> Callable[[dict[str, Any]], bytes]:
    return lambda meta: json.dumps({**meta, **changes}).encode()


def without(field: str) -> Callable[[dict[str, Any]], bytes]:
    return lambda meta: json.dumps({k: v for k, v in meta.items() if k != field}).encode()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda meta: b"",
        lambda meta: b"null",
        lambda meta: b"[]",
        lambda meta: b'"text"',
        lambda meta: b"\xff\xfe",
        lambda meta: b"[" * 1_000_000,
        lambda meta: b'{"a":' * 1_000_000,
        lambda meta: b"9" * 1_000_000,
        lambda meta: json.dumps(meta).encode() + b" " * entry_module.META_LIMIT,
        *(without(field) for field in ("request", "build", "files", "binary")),
        *(changed(files=files) for files in (None, [], 3, {"../up": {}}, {"/etc/passwd": {}})),
        *(changed(files=files) for files in ({".": {}}, {"a/b": {}}, {"kernel.cu": None})),
        *(changed(binary=binary) for binary in (None, [], {}, "other", "../kernel.cubin")),
        changed(request=1),
        changed(build=["b"]),
        changed(request="c" * 64),
        changed(build="c" * 64),
    ],
)
def test_a_record_of_any_form_does_no_harm(
    store: Store, entry: Entry, spoil: Callable[[dict[str, Any]], bytes]
) -> None:
    (entry.folder / "meta.json").write_bytes(spoil(dict(entry.meta)))
    assert store.find(IDENTITY) is None
    assert store.newest(IDENTITY.request) is None
    ((folder, reason),) = store.entries()
    assert folder == entry.folder
    assert isinstance(reason, Damaged)
    store.publish(IDENTITY, META, FILES)
    assert store.find(IDENTITY) is not None


@pytest.mark.parametrize("compiler", [None, [], "text", {"version": None}, {"version": "9" * 9999}])
def test_a_compiler_of_any_form_can_be_compared(store: Store, compiler: Any) -> None:
    store.publish(IDENTITY, {"compiler": compiler}, FILES)
    other = Identity("name", IDENTITY.request, "c" * 64)
    store.publish(other, {"compiler": {"version": "1.0"}, "date": 3}, FILES)
    assert store.newest(IDENTITY.request) is not None


def test_a_file_of_absurd_size_is_not_read(entry: Entry) -> None:
    with entry.binary.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(Damaged, match="larger than any is"):
        read_entry(entry.folder)


def test_entries_come_with_what_is_wrong_with_them(store: Store, entry: Entry) -> None:
    other = Identity("other", "c" * 64, "d" * 64)
    store.publish(other, META, FILES).binary.write_bytes(b"")
    store.keep_failure(IDENTITY, {"kernel.cu": b""})
    found = dict(store.entries())
    assert found.keys() == {entry.folder, store.root / other.folder}
    assert found[entry.folder] == entry
    assert str(found[store.root / other.folder]) == "kernel.cubin is not what was written"


def test_the_last_few_that_are_set_aside_are_kept(store: Store) -> None:
    for number in range(DAMAGED_KEPT + 3):
        made = store.publish(IDENTITY, META, FILES)
        made.binary.write_bytes(b"%d" % number)
    kept = [int((path / "kernel.cubin").read_bytes()) for path in store.set_aside()]
    assert kept == list(range(DAMAGED_KEPT + 2))[-DAMAGED_KEPT:]


def test_clearing_removes_what_is_there(store: Store, entry: Entry) -> None:
    other = store.publish(Identity("other", "c" * 64, "d" * 64), META, FILES)
    assert store.clear([other.folder]) == 1
    assert [folder for folder, _ in store.entries()] == [entry.folder]
    assert store.clear([other.folder, entry.folder]) == 1
    assert not [*store.root.iterdir()]


def test_clearing_stays_in_the_store(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be those of"):
        store.clear([tmp_path.parent])


def test_what_a_killed_writer_left_goes_with_the_next_entry(store: Store) -> None:
    (store.root / ".tmp-x").mkdir()
    (store.root / ".tmp-x.lock").touch()
    store.publish(IDENTITY, META, FILES)
    assert [path.name for path in store.root.iterdir()] == [IDENTITY.folder]
