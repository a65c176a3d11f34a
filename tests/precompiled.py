# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A precompiled header of all of `include/` for kernels that tests build without optimisation.

Reading the headers is two fifths of such a build. A `c++` that stands first on the PATH hands the
header to GCC where a command is that of a kernel, word by word, and else does what the compiler
does. A kernel that forgets an `#include` would be built all the same: the leg of `.ci/run` that has
the shipped flags builds without it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from fusedops.errors import CompilerNotFound
from fusedops.generate.target import Target
from fusedops.jit import env, host

HEADER = "all.hpp"
FOLDERS = ("functor", "op", "row", "host")


def use(cache: Path) -> None:
    """Put such a compiler first on the PATH of this process and of those that it starts."""
    try:
        compiler = host.find_compiler()
    except CompilerNotFound:
        return
    if Path(compiler[0]).with_name(HEADER).exists():
        return  # a run of tests that a test has started
    if len(compiler) > 1 or host.identity(None)["name"] != "gcc":
        return
    include = env.include_dir()
    headers = [path for path in sorted(include.rglob("*")) if path.is_file()]
    options = [*host.flags(Target.named("cpu").arch), f"-I{include}"]
    content = hashlib.sha256(repr((compiler, options)).encode())
    for path in headers:
        content.update(path.read_bytes())
    folder = cache / content.hexdigest()[:16]
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=cache) as name:
            _make(Path(name, "made"), folder, include, compiler[0], options)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"


def _make(made: Path, folder: Path, include: Path, compiler: str, options: list[str]) -> None:
    made.mkdir()
    names = [path for part in FOLDERS for path in sorted((include / "fusedops" / part).iterdir())]
    lines = [f"#include <{path.relative_to(include)}>\n" for path in names]
    (made / HEADER).write_text("".join(lines))
    kernel = shlex.join([*host.GCC, "kernel.cpp", "-o", host.BINARY, *options])
    header = shlex.quote(str(folder / HEADER))
    (made / "c++").write_text(
        f"""#!/bin/sh
[ "$*" = {shlex.quote(kernel)} ] && set -- -include {header} "$@"
exec {shlex.quote(compiler)} "$@"
"""
    )
    (made / "c++").chmod(0o755)
    compiled = f"{HEADER}.gch"
    command = [compiler, *host.GCC, *options, "-x", "c++-header", HEADER, "-o", compiled]
    subprocess.run(command, cwd=made, check=True, stderr=subprocess.DEVNULL)
    made.rename(folder)
