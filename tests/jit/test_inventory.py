# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops cache`: what is listed, shown, found damaged and deleted, and what is left alone."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fusedops.cli import app
from fusedops.jit import entry as entry_module
from fusedops.jit import inventory
from fusedops.jit.cache import Identity, Store
from fusedops.jit.entry import META_LIMIT
from fusedops.jit.scratch import scratch

DAY = 86400
TWO = ("one", "two")


def make(cache: Path, name: str, arch: str = "x86-64-v3", days: float = 0) -> Path:
    """An entry."""
    cache.mkdir(mode=0o700, exist_ok=True)
    digest = hashlib.sha256(name.encode()).hexdigest()
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


class TestLooking:
    @pytest.mark.parametrize("command", ["list", "verify", "show"])
    def test_no_cache_yet_is_no_error(self, cache: Path, command: str) -> None:
        status, said = run(command, *(["x"] if command == "show" else []))
        assert (status, said) == (0, f"there is no cache yet at {cache}\n")

    def test_list_has_a_line_for_each(self, cache: Path) -> None:
        one, two = TWO
        names = [make(cache, one, days=3).name, make(cache, two, arch="sm_90").name]
        done = CliRunner().invoke(app, ["cache", "list"], env={"COLUMNS": "60"})
        assert done.exit_code == 0
        lines = [line.split("\t") for line in done.stdout.splitlines()]
        assert [line[0] for line in lines] == names
        assert [line[-1] for line in lines] == [f"Softmax(load=[Scale({n!r})])" for n in TWO]
        assert lines[1][1] == "sm_90"
        assert lines[1][4:6] == ["gcc 12.2.0", "whole"]
        assert int(lines[0][2]) > 0
        assert round((int(lines[1][3]) - int(lines[0][3])) / 86400) == 3
        assert "2 entries of" in done.stderr

    def test_list_has_json(self, cache: Path) -> None:
        name = make(cache, "one").name
        (make(cache, "two") / "meta.json").write_text("{")
        done = CliRunner().invoke(app, ["cache", "list", "--json"])
        one, two = json.loads(done.stdout)
        assert (one["name"], one["state"]) == (name, "whole")
        assert one["declaration"] == "Softmax(load=[Scale('one')])"
        assert two["state"] != "whole"

    def test_list_is_a_table_on_a_terminal(self, cache: Path) -> None:
        make(cache, "one", days=3)
        ours, theirs = pty.openpty()
        environment = {**os.environ, "COLUMNS": "200", "FUSEDOPS_CACHE_DIR": str(cache)}
        command = [sys.executable, "-m", "fusedops", "cache", "list"]
        done = subprocess.run(command, stdout=theirs, env=environment, check=False)
        os.close(theirs)
        said = os.read(ours, 1 << 16).decode()
        os.close(ours)
        assert done.returncode == 0
        for text in ("one-", "3 d", "gcc 12.2.0", "Softmax(load=[Scale('one')])", "1 entry of"):
            assert text in said

    def test_a_damaged_entry_is_listed_too(self, cache: Path) -> None:
        (make(cache, "one") / "meta.json").write_text("{")
        assert "1 entry" in run("list")[1]

    def test_show_takes_what_a_name_alone_begins_with(self, cache: Path) -> None:
        folder = make(cache, "one")
        make(cache, "two")
        status, said = run("show", "on")
        assert status == 0
        known = json.loads(said)
        assert known["folder"] == str(folder)
        assert known["state"] == "whole"
        assert known["declaration"] == "Softmax(load=[Scale('one')])"
        assert {*known["files"]} == {"kernel.cpp", "kernel.so"}

    def test_show_lists_the_candidates_of_an_ambiguous_name(self, cache: Path) -> None:
        names = [make(cache, "one").name, make(cache, "once").name]
        status, said = run("show", "on")
        assert status == 1
        assert "2 entries begin with 'on'" in said
        assert all(name in said for name in names)
        assert run("show", names[0])[0] == 0

    def test_show_lists_what_there_is_where_none_fits(self, cache: Path) -> None:
        name = make(cache, "one").name
        status, said = run("show", "nothing")
        assert status == 1
        assert "0 entries begin with 'nothing'" in said
        assert name in said

    def test_show_lists_a_few_of_many(self, cache: Path) -> None:
        names = [make(cache, f"one{number}").name for number in range(13)]
        said = run("show", "one")[1]
        assert sum(name in said for name in names) == 10
        assert "and 3 others, see `fusedops cache list`" in said

    @pytest.mark.parametrize("command", [["list"], ["verify"], ["show", "one"], ["clear", "--all"]])
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
        assert [item.folder.name[:4] for item in inventory.items(cache)] == ["one-"]


def cut(folder: Path) -> None:
    (folder / "kernel.so").write_bytes(b"bin")


def change(folder: Path) -> None:
    (folder / "kernel.so").write_bytes(b"yranib" * 100)


def lose(folder: Path) -> None:
    (folder / "kernel.so").unlink()


def lose_source(folder: Path) -> None:
    (folder / "kernel.cpp").unlink()


def lose_meta(folder: Path) -> None:
    (folder / "meta.json").unlink()


def no_json(folder: Path) -> None:
    (folder / "meta.json").write_text("[1]")


def of_another(folder: Path) -> None:
    text = (folder / "meta.json").read_text()
    meta = json.loads(text)
    (folder / "meta.json").write_text(json.dumps({**meta, "request": "0" * 64}))


def no_files(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "binary": None, "files": None}))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (cut, "kernel.so is not what was written"),
        (change, "kernel.so is not what was written"),
        (lose, "kernel.so cannot be opened: No such file"),
        (lose_source, "kernel.cpp cannot be opened: No such file"),
        (lose_meta, "meta.json cannot be opened: No such file"),
        (no_json, "its meta.json cannot be read"),
        (of_another, "its digests are not those of its name"),
        (no_files, "its meta.json cannot be read"),
    ],
)
def test_verify_finds_damage(cache: Path, spoil: Callable[[Path], None], reason: str) -> None:
    make(cache, "whole")
    folder = make(cache, "one")
    assert run("verify")[0] == 0
    spoil(folder)
    status, said = run("verify")
    assert status == 1
    assert f"{folder.name}: {reason}" in said
    assert "whole-" not in said
    assert "cache clear --damaged" in said
    status, said = run("clear", "--damaged", "--yes")
    assert status == 0
    assert not folder.exists()
    assert run("verify")[0] == 0


def give_away(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(folder, 12345, -1)


def open_to_all(folder: Path) -> None:
    (folder / "kernel.so").chmod(0o666)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (give_away, "its folder is not to be trusted: it belongs to user 12345"),
        (open_to_all, "kernel.so is not to be trusted: everybody may write to it"),
    ],
)
def test_what_is_not_to_be_trusted_is_not_called_damaged(
    cache: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    folder = make(cache, "one")
    spoil(folder)
    status, said = run("verify")
    assert status == 1
    assert f"{folder.name}: {reason}" in said
    assert "1 of 1 entry of" in said
    assert "not used" in said
    assert "damaged" not in said
    assert reason in run("show", "one")[1]
    assert "nothing to delete" in run("clear", "--damaged", "--yes")[1]
    assert folder.exists()
    (folder / "meta.json").write_text("{")
    assert run("clear", "--all", "--yes")[0] == 0
    assert not folder.exists()


def test_what_may_not_be_read_is_not_called_damaged(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(cache, "one")

    def refuse(path: Path | str, flags: int, **options: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(entry_module.os, "open", refuse)
    (item,) = inventory.items(cache)
    assert not item.damaged
    assert str(item.fault) == "its folder cannot be opened: Permission denied"


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
@pytest.mark.parametrize(
    "spoil",
    [
        swell,
        pytest.param(pipe, marks=pytest.mark.thorough),
        pytest.param(link_out, marks=pytest.mark.thorough),
    ],
)
def test_the_record_of_a_damaged_entry_is_read_with_care(
    cache: Path, spoil: Callable[[Path], None]
) -> None:
    folder = make(cache, "one")
    spoil(folder)
    code = (
        "import sys; from pathlib import Path; from fusedops.jit import inventory\n"
        "(item,) = inventory.items(Path(sys.argv[1]))\n"
        "assert item.damaged and not item.meta, item\n"
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
            (["--damaged"], set()),
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
        assert "freed" in said if gone else "nothing to delete" in said

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
        (cache / ".locks").mkdir()
        outside = cache.parent / "outside"
        outside.mkdir()
        (outside / "file").write_text("")
        (cache / "link-0123456789abcdef-01234567").symlink_to(outside)
        (cache / ".damaged-link").symlink_to(outside)
        for name in (".damaged-x", ".failed", ".tmp-killed"):
            (cache / name).mkdir()
        (cache / ".tmp-killed.lock").touch()
        with scratch(cache, ".tmp-") as at_work:
            (cache / ".tmp-killed").mkdir()  # whoever makes a folder reclaims the abandoned ones
            (cache / ".tmp-killed.lock").touch()
            status, said = run("clear", "--all", "--yes")
            assert status == 0
            stay = {"mine", "notes.txt", ".locks", ".damaged-link", at_work.name}
            stay |= {"link-0123456789abcdef-01234567", f"{at_work.name}.lock"}
            assert there(cache) == stay
        assert f"{at_work.name} stays: another process is writing it" in said
        assert (outside / "file").exists()

    def test_damaged_is_what_is_damaged_and_what_was_set_aside_as_such(self, cache: Path) -> None:
        whole, broken = make(cache, "whole"), make(cache, "broken")
        cut(broken)
        for name in (".damaged-x", ".failed", ".tmp-killed"):
            (cache / name).mkdir()
            (cache / name / "file").write_text("")
        status, said = run("clear", "--damaged", answer="y\n")
        assert status == 0
        assert "and leftovers: 1 (" in said
        # A CompileError names what is under .failed.
        assert there(cache) - {".locks"} == {whole.name, ".failed", ".tmp-killed"}

    def test_an_entry_that_is_being_built_stays(self, cache: Path) -> None:
        folder, other = make(cache, "one"), make(cache, "two")
        with locked(cache, folder.name):
            status, said = run("clear", "--all", "--yes")
        assert status == 0
        assert f"{folder.name} stays: another process is building it" in said
        assert folder.exists()
        assert not other.exists()
        assert run("clear", "--all", "--yes")[0] == 0
        assert there(cache) == {".locks"}
        assert there(cache / ".locks") == set()

    def test_freed_is_what_went(self, cache: Path) -> None:
        folder = make(cache, "one")
        (folder / "kernel.so").write_bytes(bytes(3 << 20))
        assert "deleted 1 of 1, freed 3.1 MB" in run("clear", "--all", "--yes")[1]


@contextmanager
def locked(cache: Path, name: str) -> Iterator[None]:
    """Another process holds an entry's lock."""
    code = (
        "import sys, fcntl\n"
        "with open(sys.argv[1], 'w') as file:\n"
        "    fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    (cache / ".locks").mkdir(exist_ok=True)
    command = [sys.executable, "-c", code, str(cache / ".locks" / f"{name}.lock")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as other:
        other.stdout.readline()
        yield
        other.communicate()


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
