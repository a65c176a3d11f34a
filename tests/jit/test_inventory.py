# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops cache`: what is listed and deleted, and what is left alone."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fusedops.cli import app
from fusedops.jit import cache as cache_module
from fusedops.jit.cache import Identity, Store
from fusedops.jit.entry import META_LIMIT
from fusedops.jit.scratch import scratch

DAY = 86400


def make(cache: Path, name: str, arch: str = "x86-64-v3", days: float = 0) -> Path:
    """An entry."""
    cache.mkdir(mode=0o700, exist_ok=True)
    digest = hashlib.sha256(f"{name} {arch}".encode()).hexdigest()
    built = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() - days * DAY))
    meta = {
        "name": name,
        "declaration": f"Softmax(load=[Scale({name!r})])",
        "arch": arch,
        "compiler": {"name": "gcc", "version": "12.2.0"},
        "date": built,
    }
    content = {"kernel.cpp": b"source", "kernel.so": b"binary" * 100}
    entry = Store(cache).publish(Identity(name, digest, digest[::-1]), meta, content)
    return entry.folder


def run(*arguments: str, answer: str | None = None) -> tuple[int, str]:
    """The exit status, and all that is printed."""
    done = CliRunner().invoke(app, ["cache", *arguments], input=answer, env={"COLUMNS": "250"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def there(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()}


class TestList:
    def test_no_cache_yet_is_no_error(self, cache: Path) -> None:
        assert run("list") == (0, f"there is no cache yet at {cache}\n")

    def test_each_op_has_a_line(self, cache: Path) -> None:
        folders = [make(cache, "one", days=3), make(cache, "one", arch="sm_90"), make(cache, "two")]
        status, said = run("list")
        assert status == 0
        first, second = (line for line in said.splitlines() if "Softmax(" in line)
        kilobytes = sum(map(cache_module.folder_size, folders[:2])) / 1000
        for text in ("Softmax(load=[Scale('one')])", " 2 ", "sm_90, x86-64-v3", f"{kilobytes:.1f}"):
            assert text in first
        assert time.strftime("%Y-%m-%d") in first
        assert "Softmax(load=[Scale('two')])" in second
        assert (
            f"3 kernels of {sum(map(cache_module.folder_size, folders)) / 1000:.1f} kB in {cache}"
            in said
        )

    def test_json_has_each_record(self, cache: Path) -> None:
        one, two = make(cache, "one"), make(cache, "two")
        (two / "meta.json").write_text("{")
        done = CliRunner().invoke(app, ["cache", "list", "--json"])
        told, damaged = json.loads(done.stdout)
        assert told["folder"] == str(one)
        assert told["declaration"] == "Softmax(load=[Scale('one')])"
        assert {*told["files"]} == {"kernel.cpp", "kernel.so"}
        assert damaged == {"folder": str(two), "bytes": cache_module.folder_size(two)}

    @pytest.mark.parametrize("command", [["list"], ["clear", "--all"]])
    def test_that_the_folder_is_not_used_is_said(self, cache: Path, command: list[str]) -> None:
        make(cache, "one")
        text = f"the cache folder {cache} is not used: everybody may write to it"
        assert text not in run(*command, answer="n")[1]
        cache.chmod(0o777)
        assert run(*command, answer="n")[1].count(text) == 1

    def test_what_is_no_entry_is_not_listed(self, cache: Path) -> None:
        make(cache, "one")
        (cache / "mine").mkdir()
        (cache / "notes-0123456789abcdef-01234567").write_text("a file")
        (cache / "link-0123456789abcdef-01234567").symlink_to(cache)
        assert [item.folder.name[:4] for item in cache_module.list_items(cache)] == ["one-"]


def pipe(folder: Path) -> None:
    (folder / "meta.json").unlink()
    os.mkfifo(folder / "meta.json")


def link_out(folder: Path) -> None:
    (folder / "meta.json").replace(folder.parent.parent / "outside.json")
    (folder / "meta.json").symlink_to("../../outside.json")


def swell(folder: Path) -> None:
    with (folder / "meta.json").open("a") as file:
        file.write(" " * META_LIMIT)


@pytest.mark.thorough
@pytest.mark.parametrize("spoil", [swell, pipe, link_out])
def test_the_record_of_a_damaged_entry_is_read_with_care(
    cache: Path, spoil: Callable[[Path], None]
) -> None:
    folder = make(cache, "one")
    spoil(folder)
    code = (
        "import sys; from pathlib import Path; from fusedops.jit import cache as cache_module\n"
        "(item,) = cache_module.list_items(Path(sys.argv[1]))\n"
        "assert not item.meta, item\n"
    )
    # A process of its own, which can be ended where it waits for a pipe's writer.
    command = [sys.executable, "-c", code, str(cache)]
    subprocess.run(command, cwd=cache, check=True, timeout=20)


class TestClear:
    def test_without_an_option_it_deletes_nothing(self, cache: Path) -> None:
        folder = make(cache, "one")
        status, said = run("clear", "--yes")
        assert status == 1
        assert "--all" in said
        assert folder.exists()

    @pytest.mark.parametrize("answer", ["n\n", ""])
    def test_it_asks(self, cache: Path, answer: str) -> None:
        folder = make(cache, "one")
        status, said = run("clear", "--all", answer=answer)
        assert status == 1
        assert f"from {cache}?" in said
        assert folder.exists()
        assert run("clear", "--all", answer="y\n")[0] == 0
        assert not folder.exists()

    @pytest.mark.parametrize(
        ("options", "gone"),
        [
            (["--all"], {"young", "old", "gpu"}),
            (["--older-than", "30d"], {"old", "gpu"}),
            (["--older-than", "5w"], {"gpu"}),
            (["--arch", "sm_90"], {"gpu"}),
            (["--arch", "sm_90", "--older-than", "100d"], set()),
        ],
    )
    def test_what_the_options_name_goes(
        self, cache: Path, options: list[str], gone: set[str]
    ) -> None:
        make(cache, "young", days=1)
        make(cache, "old", days=31)
        make(cache, "gpu", arch="sm_90", days=50)
        status, said = run("clear", *options, "--yes")
        assert status == 0
        assert {"young", "old", "gpu"} - {name.split("-")[0] for name in there(cache)} == gone
        deleted = f"deleted {len(gone)} of 3 kernels, "
        assert deleted in said if gone else "nothing to delete" in said

    @pytest.mark.parametrize("age", ["30", "d", "-1d", "1y"])
    def test_an_age_has_a_unit(self, cache: Path, age: str) -> None:
        make(cache, "one")
        status, said = run("clear", f"--older-than={age}", "--yes")
        assert status == 2
        assert "30d" in said

    def test_what_is_not_ours_stays(self, cache: Path) -> None:
        make(cache, "one")
        (cache / "mine").mkdir()
        (cache / "notes.txt").write_text("")
        outside = cache.parent / "outside"
        outside.mkdir()
        (outside / "file").write_text("")
        (cache / "link-0123456789abcdef-01234567").symlink_to(outside)
        (cache / ".damaged-link").symlink_to(outside)
        for name in (".damaged-x", ".failed", ".tmp-killed"):
            (cache / name).mkdir()
        with scratch(cache, ".tmp-") as at_work:
            (cache / ".tmp-killed.lock").touch()  # whoever makes a folder reclaims abandoned ones
            assert run("clear", "--all", "--yes")[0] == 0
            stay = {"mine", "notes.txt", ".damaged-link", at_work.name, f"{at_work.name}.lock"}
            assert there(cache) == stay | {"link-0123456789abcdef-01234567"}
        assert (outside / "file").exists()

    def test_a_lock_goes_with_its_entry(self, cache: Path) -> None:
        identity = Identity("one", "a" * 64, "b" * 64)
        store = Store(cache)
        with store.lock(identity):
            store.publish(identity, {}, {"kernel.so": b""})
            assert run("clear", "--all", "--yes")[0] == 0
            store.publish(identity, {}, {"kernel.so": b""})  # whoever builds it goes on
        assert there(cache / ".locks") == set()
        assert store.find(identity) is not None

    def test_a_folder_that_cannot_be_written_is_said(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: Store, folders: object) -> int:
            raise OSError(30, "Read-only file system")

        make(cache, "one")
        monkeypatch.setattr(Store, "clear", refuse)
        status, said = run("clear", "--all", "--yes")
        assert status == 1
        assert "cannot be written: Read-only file system" in said


def test_no_home_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusedops.jit.env.cache_dir", lambda: None)
    status, said = run("list")
    assert status == 1
    assert "set FUSEDOPS_CACHE_DIR" in said


def test_a_cache_that_cannot_be_read_is_said(cache: Path) -> None:
    cache.write_text("a file")
    status, said = run("list")
    assert status == 1
    assert "cannot be read: Not a directory" in said
