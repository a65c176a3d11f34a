# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""C++ source to a shared library for the CPU, through the host's compiler."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from fusedops.errors import CompileError, CompilerNotFound
from fusedops.jit import env
from fusedops.jit.key import Request
from fusedops.jit.levels import LEVELS
from fusedops.jit.lock import guard
from fusedops.jit.scratch import anywhere

__all__ = [
    "BINARY",
    "GCC",
    "compile_files",
    "compile_host",
    "compile_library",
    "find_compiler",
    "flags",
    "identity",
]

BINARY = "kernel.so"

# Without this GCC turns loops that copy a pack into calls of memcpy, whose 16-byte stores the
# 32-byte loads behind them have to wait for: a residual LayerNorm of 1024 columns takes 1.7 times
# as long.
GCC = ("-fno-tree-loop-distribute-patterns",)
# Loops over a pack that are marked become vectors, however short they are; FUSEDOPS_OPENMP_SIMD
# tells the headers that the marks are read. No OpenMP runtime takes part.
SIMD = ("-fopenmp-simd", "-DFUSEDOPS_OPENMP_SIMD")
_COMMANDS = ("c++", "g++", "clang++")
_VERSION = re.compile(r"\b(?:version|Compiler) v?(\d+(?:\.\d+)*)")
# The lines of `c++ -v` that are about the compiler, not about where it lies.
_ABOUT = re.compile(r"Target: |Thread model: |\S.*\bversion \S|.*\bCompiler \d")
_CONFIGURED = "Configured with: "
_LIBRARY = re.compile(r"Selected GCC installation: .*/(.*)")  # whose headers clang takes
_OPTIONS = re.compile(r"Configuration file: (.*)")  # of clang
# Arguments that name files or folders, or hand on what may: no key could tell that those changed.
_NAMES_FILES = re.compile(
    r"@|-([IBLTXl]|i[a-z]|specs|wrapper|W[apl],|fplugin|fprofile|fauto-profile|fmodule|resource-dir"
    r"|-(sysroot|specs|include|imacros|prefix|library|config|gcc-))"
)


def flags(arch: str) -> tuple[str, ...]:
    """Compiler flags that determine the code; the include path is added when compiling."""
    # Never -ffast-math: linking with it sets flush-to-zero in the process that loads the library.
    optimise = (f"-O{env.opt_level()}", "-fno-math-errno", "-fno-trapping-math", *SIMD)
    return ("-std=c++17", *optimise, *LEVELS[arch], "-fPIC", "-shared", "-fvisibility=hidden")


def find_compiler() -> tuple[str, ...]:
    """The command of the host's C++ compiler: ``CXX``, else the first of c++, g++ and clang++.

    Raises:
        CompilerNotFound: Says what was looked for and how to get a compiler, or which argument
            in ``CXX`` is none that can be given.
    """
    named = env.cxx()
    if named is not None:
        command = shlex.split(named)
        program = shutil.which(command[0]) if command else None
        if program is None:
            raise CompilerNotFound(
                f"CXX must name a C++ compiler on the PATH, got {named!r}: mend or unset CXX"
            )
        for word in command[1:]:
            if _NAMES_FILES.match(word) or ("/" in word and not shutil.which(word)):
                raise CompilerNotFound(
                    f"CXX must not name files beside the compiler, got {word!r} in {named!r}: the "
                    "cache could not tell when they change; leave it away, or unset CXX"
                )
        return (program, *command[1:])
    for name in _COMMANDS:
        if program := shutil.which(name):
            return (program,)
    raise CompilerNotFound(
        f"no C++ compiler: looked for CXX (not set) and for {', '.join(_COMMANDS)} on the PATH. "
        "Install one (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; "
        "conda: conda install gxx) or set CXX."
    )


def identity(request: Request) -> dict[str, str]:
    """The compiler's identity for the cache key: name, full version and arguments in ``CXX``.

    The compiler is asked, once in a process: behind a wrapper nothing else would tell that it has
    changed, and the question costs 2 to 4 ms.

    Raises:
        CompilerNotFound: There is no compiler, or it does not answer.
    """
    del request  # the standard headers belong to the compiler
    command = find_compiler()
    banner = _banner(command)
    return {
        "name": "clang" if "clang" in banner else "gcc",
        "version": _VERSION.findall(banner)[0],  # there is one, or there were no banner
        "banner": banner,
        "arguments": shlex.join(_arguments(command)),
        "flags": shlex.join(_own_flags(command)),
    }


def compile_files(source: str, arch: str) -> tuple[dict[str, bytes], str]:
    """As `compile_host`, by the name of the entry's file."""
    library, log = compile_host(source, arch)
    return {BINARY: library}, log


def compile_host(source: str, arch: str) -> tuple[bytes, str]:
    """Compile `source` for `arch` (a level of ``LEVELS``) and give the shared library and the log.

    Raises:
        CompilerNotFound: There is no compiler.
        CompileError: The source does not compile.
        OSError: There is no room for temporary files.
    """
    return compile_library(source, (*flags(arch), f"-I{env.include_dir()}"))


def compile_library(
    source: str, options: Sequence[str], *, politely: bool = False
) -> tuple[bytes, str]:
    """Compile `source` with these options, and give the shared library and the log.

    `politely`: at low priority, and it ends with this process, whose thread may not wait for it.

    Raises:
        CompilerNotFound, CompileError, OSError: As `compile_host`.
    """
    compiler = find_compiler()
    nice = shutil.which("nice") if politely else None
    with anywhere() as scratch:
        Path(scratch, "kernel.cpp").write_text(source, encoding="utf-8")
        command = [*compiler, *_own_flags(compiler), "kernel.cpp", "-o", BINARY, *options]
        status, log = _run([*([nice, "-n", "19"] if nice else ()), *command], scratch, politely)
        if status < 0:
            log += f"\nthe compiler was ended by signal {-status}"
        if status != 0:
            raise CompileError(command, log or f"exit status {status}")
        return Path(scratch, BINARY).read_bytes(), log


_ending_at_exit: set[subprocess.Popen[bytes]] = set()  # each leads a session of its own


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a compiler, and in a session of its own all that it has started as well."""
    if process in _ending_at_exit and process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


@atexit.register
def _end() -> None:
    """End the compilers that may not outlive this process.

    The lock is kept: a thread that is about to start another compiler waits there for the end.
    """
    guard.acquire()
    for process in list(_ending_at_exit):
        _kill(process)


def _run(
    command: Sequence[str], scratch: Path | None = None, ends_at_exit: bool = False
) -> tuple[int, str]:
    """The exit status of a compiler, and all that it says; it is killed if this is interrupted."""
    # A child forked between the making of the pipe and its closing here would keep it open, and
    # wait for the lock of whoever waits for its end.
    with guard:
        process = subprocess.Popen(
            command,
            cwd=scratch,
            env=env.compiler_environment(scratch),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=ends_at_exit,
        )
        if ends_at_exit:
            _ending_at_exit.add(process)
    with process:
        try:
            said, _ = process.communicate()
        except BaseException:
            _kill(process)
            raise
        finally:
            _ending_at_exit.discard(process)
    return process.returncode, said.decode(errors="replace")


def _arguments(command: tuple[str, ...]) -> Iterator[str]:
    """Arguments in ``CXX`` that take part in the compiler's identity: all but names of programs.

    Behind a wrapper it is the first word that names a program; an option ends the search, since
    its value may look like one.
    """
    words = command[1:]
    options = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    for at, word in enumerate(words):
        if not shutil.which(word):
            yield word
        elif at > options:
            yield Path(word).name


def _own_flags(command: tuple[str, ...]) -> tuple[str, ...]:
    """Options that only this kind of compiler knows."""
    return () if "clang" in _banner(command) else GCC


@functools.cache
def _banner(command: tuple[str, ...]) -> str:
    """The compiler's ``-v`` output without paths: version, target, defaults, clang's files."""
    try:
        status, said = _run([*command, "-v"])
    except OSError as error:
        raise CompilerNotFound(f"{shlex.join(command)} does not run: {error}") from error
    if status != 0:
        raise CompilerNotFound(f"{shlex.join(command)} does not run: exit status {status}")
    about = []
    for line in said.splitlines():
        if line.startswith(_CONFIGURED):
            defaults = " ".join(word for word in line.split() if "/" not in word)
            about.append(f"{_CONFIGURED}{_sha256(defaults.encode())}")
        elif found := _LIBRARY.match(line):
            about.append(f"GCC installation: {found[1]}")
        elif found := _OPTIONS.match(line):
            about.append(f"Configuration file: {_file_digest(found[1])}")
        elif _ABOUT.match(line):
            about.append(line.strip())
    banner = "; ".join(about)
    if not _VERSION.search(banner):
        raise CompilerNotFound(
            f"{shlex.join(command)} does not say its version: {command[0]} -v must print it, as "
            "GCC and clang do; set CXX to one of them"
        )
    return banner


def _file_digest(path: str) -> str:
    try:
        return _sha256(Path(path).read_bytes())
    except OSError:
        return "unreadable"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
