# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Finding NVRTC and its headers in every layout that NVIDIA's packages and toolkits have."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusedops.errors import CompilerNotFound
from fusedops.jit import nvrtc

CU13 = ("nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cu13/include")
CU12 = ("nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "nvidia/cuda_runtime/include")
TOOLKIT = ("toolkit/lib64/libnvrtc.so.12", "toolkit/include")
MULTIARCH = ("toolkit/lib64/libnvrtc.so.13", "toolkit/targets/x86_64-linux/include")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on it: no packages, no toolkit, no driver."""

    def packages(name: str) -> list[Path]:
        return [tmp_path / name]

    monkeypatch.setattr(nvrtc, "_packages", packages)
    monkeypatch.setattr(nvrtc.env, "cuda_homes", lambda: [tmp_path / "toolkit"])
    monkeypatch.setattr(nvrtc.sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(nvrtc, "SYSTEM", ())
    monkeypatch.setattr(nvrtc, "_driver_major", lambda: None)
    nvrtc.find_toolkit.cache_clear()
    yield tmp_path
    nvrtc.find_toolkit.cache_clear()


def install(machine: Path, layout: tuple[str, str]) -> tuple[Path, Path]:
    library, include = (machine / part for part in layout)
    library.parent.mkdir(parents=True, exist_ok=True)
    library.write_bytes(b"")
    major = library.name.rpartition(".")[2]
    library.with_name(f"libnvrtc-builtins.so.{major}.9").write_bytes(b"")
    library.with_name(f"libnvrtc-builtins.alt.so.{major}.9").write_bytes(b"")
    library.with_name(f"libnvrtc.alt.so.{major}").write_bytes(b"")
    include.mkdir(parents=True, exist_ok=True)
    (include / "cuda_fp16.h").write_text("")
    return library, include


@pytest.mark.parametrize("layout", [CU13, CU12, TOOLKIT, MULTIARCH])
def test_each_layout_is_found(machine: Path, layout: tuple[str, str]) -> None:
    library, include = install(machine, layout)
    found = nvrtc.find_toolkit()
    assert (found.nvrtc, found.include) == (library, (include,))
    assert found.major == int(library.name[-2:])
    assert found.builtins == library.with_name(f"libnvrtc-builtins.so.{found.major}.9")


def test_the_packages_come_before_a_toolkit_and_the_newer_first(machine: Path) -> None:
    install(machine, TOOLKIT)
    install(machine, CU12)
    library, _ = install(machine, CU13)
    assert nvrtc.find_toolkit().nvrtc == library


def test_nvrtc_is_not_newer_than_the_driver(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(machine, CU13)
    library, include = install(machine, CU12)
    monkeypatch.setattr(nvrtc, "_driver_major", lambda: 12)
    assert nvrtc.find_toolkit() == nvrtc.Toolkit(library, (include,))


def test_one_that_is_newer_serves_where_there_is_no_other(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, _ = install(machine, CU13)
    monkeypatch.setattr(nvrtc, "_driver_major", lambda: 12)
    assert nvrtc.find_toolkit().nvrtc == library


def test_the_headers_are_of_the_same_major_version(machine: Path) -> None:
    library, include = install(machine, CU12)
    (include / "cuda_fp16.h").unlink()
    install(machine, MULTIARCH)[0].unlink()
    (machine / "nvidia/cu13/include").mkdir(parents=True)
    (machine / "nvidia/cu13/include/cuda_fp16.h").write_text("")
    with pytest.raises(CompilerNotFound, match=r"libnvrtc\.so\.12 has no CUDA headers"):
        nvrtc.find_toolkit()
    beside = library.parent.parent / "include"
    beside.mkdir()
    (beside / "cuda_fp16.h").write_text("")
    assert nvrtc.find_toolkit().include == (beside,)


def test_nested_headers_are_on_the_path_too(machine: Path) -> None:
    _, include = install(machine, CU13)
    (include / "cccl").mkdir()
    assert nvrtc.find_toolkit().include == (include, include / "cccl")


def test_nothing_found_says_where_it_looked_and_the_cure(machine: Path) -> None:
    with pytest.raises(CompilerNotFound, match=r"nvidia/cuda_nvrtc/lib.*pip install") as caught:
        nvrtc.find_toolkit()
    assert str(machine / "toolkit" / "lib64") in str(caught.value)


def test_the_fingerprint_is_of_content_alone(machine: Path) -> None:
    one, _ = install(machine, CU13)
    other, _ = install(machine, TOOLKIT)
    for library in (one, other):
        library.write_bytes(b"ELF" + bytes(1 << 18))
        nvrtc.Toolkit(library, ()).builtins.write_bytes(b"builtins")

    def fingerprint(library: Path) -> str:
        return nvrtc.Toolkit(library, ()).fingerprint

    assert fingerprint(one) == fingerprint(other)
    other.write_bytes(b"ELF" + bytes(1 << 18) + b"\0")
    assert fingerprint(one) != fingerprint(other)
    other.write_bytes(b"ELG" + bytes(1 << 18))
    assert fingerprint(one) != fingerprint(other)
