# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""An entry is code: nobody else may be able to put one where it is loaded from."""

from __future__ import annotations

import dataclasses
import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest
from samples import HOST, LEVEL, Compiler

from fusedops.errors import CompileError
from fusedops.jit import Artifact, build, load_host, trust

MARKING = """
#include <cstdio>
__attribute__((constructor)) static void mark() {{ std::fclose(std::fopen("{}", "w")); }}
"""


def make() -> Artifact:
    return build(HOST, name="h", arch=LEVEL)


def test_what_is_made_is_the_users_alone_under_any_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "not" / "yet" / "there"
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(root))
    before = os.umask(0)
    try:
        make()
        with pytest.raises(CompileError):
            build("nonsense", name="bad", arch=LEVEL)
    finally:
        os.umask(before)
    made = [tmp_path / "not", *(tmp_path / "not").rglob("*")]
    assert len(made) > 8
    assert {path.name for path in made if path.lstat().st_mode & 0o077} == set()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_folder_that_everybody_may_write_to_is_refused(cache: Path, mode: int) -> None:
    cache.mkdir()
    cache.chmod(mode)
    with pytest.warns(RuntimeWarning, match=rf"everybody may write to it .*{mode:o}; chmod go-w"):
        assert cache not in make().folder.parents


def test_a_folder_that_a_group_may_write_to_is_refused(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o775)
    with pytest.warns(RuntimeWarning, match=r"group \d+ may write to it \(mode 775; chmod g-w"):
        assert cache not in make().folder.parents


@dataclasses.dataclass
class User:
    pw_name: str = "ada"
    pw_uid: int = 1000
    pw_gid: int = 1000


@dataclasses.dataclass
class Group:
    gr_name: str = "ada"
    gr_mem: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("user", "group", "private"),
    [
        (User(), Group(), True),
        (User(), Group(gr_mem=("ada",)), True),
        (User(), Group(gr_mem=("ada", "eve")), False),
        (User(), Group(gr_name="users"), False),
        (User(pw_gid=100), Group(), False),
        (User(pw_name="root", pw_uid=0), Group(gr_name="root"), False),
    ],
)
def test_the_group_that_umask_002_comes_with_is_the_user(
    cache: Path, monkeypatch: pytest.MonkeyPatch, user: User, group: Group, private: bool
) -> None:
    trust._private_group.cache_clear()
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: group)
    status = os.stat_result((0o40775, 0, 0, 2, os.geteuid(), 1000, 0, 0, 0, 0))
    assert (trust.distrust(status) is None) is private
    trust._private_group.cache_clear()


def test_a_group_without_a_name_is_no_private_one() -> None:
    trust._private_group.cache_clear()
    status = os.stat_result((0o40770, 0, 0, 2, os.geteuid(), 987654, 0, 0, 0, 0))
    assert trust.distrust(status) is not None


def test_roots_are_accepted_and_other_users_are_not() -> None:
    def owned(uid: int) -> os.stat_result:
        return os.stat_result((0o40755, 0, 0, 2, uid, 0, 0, 0, 0, 0))

    assert trust.distrust(owned(0)) is None
    assert trust.distrust(owned(os.geteuid())) is None
    assert "belongs to user 12345" in str(trust.distrust(owned(12345)))


@pytest.mark.parametrize(("mode", "used"), [(0o777, False), (0o1777, True), (0o775, True)])
def test_a_parent_where_everybody_may_rename_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, used: bool
) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(parent / "deep" / "cache"))
    parent.chmod(mode)
    if used:
        assert parent in make().folder.parents
    else:
        with pytest.warns(RuntimeWarning, match=r"everybody may rename what is in .*parent .*777"):
            assert parent not in make().folder.parents


def test_the_parents_of_where_a_link_leads_count_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, link = tmp_path / "parent", tmp_path / "link"
    (parent / "cache").mkdir(parents=True)
    parent.chmod(0o777)
    link.symlink_to(parent / "cache")
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(link))
    with pytest.warns(RuntimeWarning, match="everybody may rename"):
        make()


def test_the_cache_may_be_a_link_to_a_folder_of_the_users_own(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "own")
    assert [make().origin, make().origin] == ["compiled", "cache"]
    assert list((tmp_path / "own").glob("h-*"))


def mapped() -> str:
    return Path("/proc/self/maps").read_text()


def test_a_library_is_loaded_from_its_file() -> None:
    made = make()
    kernel = load_host(made, "answer")
    assert str(made.binary) in mapped()
    del kernel


@pytest.mark.parametrize("owner", [None, 12345])
def test_what_is_loaded_is_what_was_verified(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int | None
) -> None:
    """Though a group that may write above the cache exchanges it before the library is loaded."""
    if owner and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    tmp_path.chmod(0o770)
    made, mark = make(), tmp_path / "mark"
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "other"))
    other = build(HOST + MARKING.format(mark), name="h", arch=LEVEL)
    cache.rename(tmp_path / "old")
    made.folder.mkdir(parents=True)
    made.binary.write_bytes(other.binary.read_bytes())
    if owner:
        os.chown(made.binary, owner, -1)
    kernels = [load_host(made, "answer")]
    assert not mark.exists()
    assert f"/memfd:{made.folder.name}" in mapped()
    kernels.append(load_host(other, "answer"))
    assert mark.exists()


def link_folder(entry: Path) -> None:
    entry.rename(entry.parent.parent / "elsewhere")
    entry.symlink_to(entry.parent.parent / "elsewhere")


def link_file(name: str) -> Callable[[Path], None]:
    def link(entry: Path) -> None:
        elsewhere = entry.parent.parent / "elsewhere"
        (entry / name).rename(elsewhere)
        (entry / name).symlink_to(elsewhere)

    return link


def pipe(entry: Path) -> None:
    (entry / "meta.json").unlink()
    os.mkfifo(entry / "meta.json")


def open_file(name: str) -> Callable[[Path], None]:
    return lambda entry: (entry / name).chmod(0o666)


def open_folder(entry: Path) -> None:
    entry.chmod(0o777)


def give_file_away(entry: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(entry / "kernel.so", 12345, -1)


@pytest.mark.parametrize(
    "spoil",
    [
        link_folder,
        *(link_file(name) for name in ("kernel.so", "kernel.cpp", "meta.json")),
        *(open_file(name) for name in ("kernel.so", "kernel.cpp", "meta.json")),
        open_folder,
        give_file_away,
        pipe,
    ],
)
def test_an_entry_that_somebody_else_could_change_is_not_loaded(
    compiler: Compiler, spoil: Callable[[Path], None]
) -> None:
    spoil(make().folder)
    again = make()
    assert again.origin == "compiled"
    assert not again.folder.is_symlink()
    assert make().origin == "cache"
