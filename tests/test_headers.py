# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Every header compiles without warnings with each compiler that is here; without a GPU.

Each compiles alone with a host's compiler and NVRTC; nvcc, which is slow, gets all of them at once.
"""

import re
import shutil
import subprocess

import pytest

from fusedops.jit import compile_cuda, env

HEADERS = sorted(
    path.relative_to(env.include_dir()).as_posix()
    for path in (env.include_dir() / "fusedops").rglob("*.cuh")
)

#: What a header may include beside others of fusedops: NVRTC compiles these in a tenth of a second.
FOREIGN = {"cuda_bf16.h", "cuda_fp16.h", "cstdint", "cmath"}

#: Names that headers of the C library, Windows and other projects define as macros. What standard
#: headers do with min() and max() themselves is not our concern, so those come first.
MACROS = """\
#include <cmath>
#include <cstdint>
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define small char
#define near
#define far
#define interface struct
#define major(x) (x)
#define minor(x) (x)
#define CHECK(x) (x)
#define ERROR 0
#define EPS 1e-6
#define PI 3.14
#define I (1.0iF)
#define E 2.72
"""


def run(*command):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env=env.compiler_environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr


def compiler(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_there_are_headers():
    assert "fusedops/functor/contract.cuh" in HEADERS


@pytest.mark.parametrize("macros", ["", MACROS], ids=["alone", "macros"])
@pytest.mark.parametrize("name", ["g++", "clang++"])
@pytest.mark.parametrize("header", HEADERS)
def test_on_a_host(tmp_path, header, name, macros):
    source = tmp_path / "alone.cpp"
    source.write_text(f"{macros}#include <{header}>\n")
    warnings = ("-Wall", "-Wextra", "-Werror")
    run(compiler(name), "-std=c++17", *warnings, "-fsyntax-only", f"-I{env.include_dir()}", source)


@pytest.mark.parametrize("header", HEADERS)
def test_with_nvrtc(header):
    _, log = compile_cuda(f"#include <{header}>\n", "sm_90")
    assert not log


def test_with_nvcc(tmp_path):
    source = tmp_path / "all.cu"
    source.write_text("".join(f"#include <{header}>\n" for header in HEADERS))
    flags = ("-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", f"-I{env.include_dir()}")
    # As far as the host's source, which both passes of nvcc's front end have then accepted.
    run(compiler("nvcc"), *flags, "-cuda", "-odir", tmp_path, source)


@pytest.mark.parametrize("header", HEADERS)
def test_what_is_included(header):
    text = (env.include_dir() / header).read_text(encoding="utf-8")
    includes = re.findall(r"^\s*#\s*include\s*(.*?)\s*$", text, re.MULTILINE)
    for included in includes:
        name = re.fullmatch(r"<([\w./]+)>", included)
        assert name, f"{header} includes {included}: only <...> is hashed"
        if name[1].startswith("fusedops/"):
            assert name[1] in HEADERS, f"{header} includes {included}, which is not there"
        else:
            assert name[1] in FOREIGN, f"{header} includes {included}"


@pytest.mark.parametrize("header", HEADERS)
def test_what_stands_at_the_head(header):
    text = (env.include_dir() / header).read_text(encoding="utf-8")
    assert text.startswith("// SPDX-FileCopyrightText:")
    assert text.count("#pragma once") == 1
    macros = set(re.findall(r"^\s*#\s*define\s+(\w+)", text, re.MULTILINE))
    assert all(macro.startswith("FUSEDOPS_") for macro in macros)
    assert not macros or header == "fusedops/core/config.cuh", (
        f"macros belong to config.cuh: {macros}"
    )
