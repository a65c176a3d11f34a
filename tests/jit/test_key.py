# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The digests change with everything that decides the binary, and with nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fusedops.jit import key
from fusedops.jit.key import Request, build_digest, make_request

SOURCE = "#include <fusedops/a.cuh>\nint x;\n"
COMPILER = {"name": "gcc", "version": "12.2.0", "banner": "(Test) 12.2.0", "arguments": ""}


def request_of(headers: Path, **changes: Any) -> Request:
    given = {"source": SOURCE, "arch": "sm_90", "flags": ("-O3",), "include_dir": headers}
    given.update(changes)
    source = given.pop("source")
    return make_request(source, **given)


def test_the_same_request_has_the_same_digest(headers: Path) -> None:
    assert request_of(headers) == request_of(headers)


@pytest.mark.parametrize(
    "changes",
    [{"source": SOURCE + " "}, {"arch": "sm_100"}, {"flags": ("-O2",)}, {"flags": ("-O3", "-g")}],
    ids=lambda changes: next(iter(changes)),
)
def test_each_field_of_a_request_is_keyed(headers: Path, changes: dict[str, Any]) -> None:
    assert request_of(headers, **changes).digest != request_of(headers).digest


def test_the_schema_is_keyed(headers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = request_of(headers).digest
    monkeypatch.setattr(key, "SCHEMA", key.SCHEMA + 1)
    assert request_of(headers).digest != before


@pytest.mark.parametrize("header", ["a.cuh", "b.cuh"])
def test_an_edit_of_a_header_that_is_reached_makes_a_new_key(headers: Path, header: str) -> None:
    before = request_of(headers).digest
    path = headers / "fusedops" / header
    path.write_text(path.read_text() + "// edited\n")
    assert request_of(headers).digest != before


def test_an_edit_of_the_same_length_makes_a_new_key(headers: Path) -> None:
    before = request_of(headers).digest
    path = headers / "fusedops" / "b.cuh"
    path.write_text(path.read_text().replace("#if 0", "#if 1"))
    assert request_of(headers).digest != before


def test_an_edit_of_another_header_does_not(headers: Path) -> None:
    before = request_of(headers).digest
    (headers / "fusedops" / "c.cuh").write_text("// edited\n")
    assert request_of(headers).digest == before


def test_where_and_when_the_headers_were_written_is_not_keyed(
    headers: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "elsewhere"
    shutil.copytree(headers, copied, copy_function=shutil.copyfile)
    assert request_of(copied).digest == request_of(headers).digest


def test_headers_from_outside_are_reported_through_the_chain(headers: Path) -> None:
    assert request_of(headers).foreign == ("cuda_fp16.h",)


@pytest.mark.parametrize("field", COMPILER)
def test_each_field_of_the_compiler_is_keyed(headers: Path, field: str) -> None:
    request = request_of(headers)
    assert build_digest(request, {**COMPILER, field: "other"}) != build_digest(request, COMPILER)


def test_the_request_is_keyed_in_the_build(headers: Path) -> None:
    one, other = request_of(headers), request_of(headers, arch="sm_80")
    assert build_digest(one, COMPILER) != build_digest(other, COMPILER)


@pytest.mark.parametrize("line", ['#include "fusedops/a.cuh"', "#include HEADER", "# include"])
def test_an_include_that_cannot_be_followed_is_refused(headers: Path, line: str) -> None:
    with pytest.raises(ValueError, match="an include must name its file in <>"):
        request_of(headers, source=line)
    (headers / "fusedops" / "b.cuh").write_text(line)
    with pytest.raises(ValueError, match=r"b\.cuh: an include must name"):
        request_of(headers)


@pytest.mark.parametrize("line", ["// #include <fusedops/no.cuh>", "#included <fusedops/no.cuh>"])
def test_what_is_no_directive_is_not_followed(headers: Path, line: str) -> None:
    request_of(headers, source=line)


@pytest.mark.parametrize("line", ["#  include <fusedops/b.cuh>", "\t#include\t<fusedops/b.cuh> //"])
def test_spaces_do_not_hide_an_include(headers: Path, line: str) -> None:
    before = request_of(headers, source=line).digest
    (headers / "fusedops" / "b.cuh").write_text("// edited\n")
    assert request_of(headers, source=line).digest != before


def test_a_missing_project_header_is_named(headers: Path) -> None:
    with pytest.raises(ValueError, match=r"must hold fusedops/none\.cuh"):
        request_of(headers, source="#include <fusedops/none.cuh>")


def test_headers_that_include_one_another_end(headers: Path) -> None:
    (headers / "fusedops" / "b.cuh").write_text("#include <fusedops/a.cuh>\n")
    request_of(headers)
