# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Cache keys of a variant: digests of source, headers, flags and compiler.

The *request* is what is asked for: schema, source, every ``<fusedops/...>`` header that it can
reach, flags and arch. The *build* adds who answers: the compiler's full version and, for CUDA, the
toolkit's headers. No path, time or user-chosen name takes part.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 3  # raise it when what a digest means, or the format of an entry, changes

# Under #if too: which branch is taken is the compiler's business, so the key covers all of them.
_INCLUDE = re.compile(rb"#[ \t]*include\b[ \t]*(.*)")
_NAMED = re.compile(rb'[<"]([^>"]+)[>"]')
_PROJECT = "fusedops/"


@dataclass(frozen=True)
class Request:
    """What is to be compiled; ``foreign`` lists headers included from outside the project."""

    digest: str
    source: str
    arch: str
    flags: tuple[str, ...]
    foreign: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    stamp: tuple[int, int]
    digest: str
    includes: tuple[str, ...]


_files: dict[Path, _File] = {}  # of this process; checked against the file's stamp at each use


def make_request(source: str, *, arch: str, flags: Sequence[str], include_dir: Path) -> Request:
    """The request for `source` with the headers as they are on disk now.

    Raises:
        ValueError: An include has a form that cannot be digested, or a project header is missing.
    """
    own = _includes(source.encode(), "the generated source", strict=True)
    headers = closure([name for name in own if name.startswith(_PROJECT)], [include_dir])
    project = {name: file for name, file in headers.items() if name.startswith(_PROJECT)}
    if missing := [name for name, file in project.items() if file is None]:
        raise ValueError(f"{include_dir} must hold {', '.join(missing)}: reinstall fusedops")
    content = {
        "schema": SCHEMA,
        "source": source,
        "headers": project,
        "flags": list(flags),
        "arch": arch,
    }
    foreign = {name for name in [*own, *headers] if not name.startswith(_PROJECT)}
    return Request(digest(content), source, arch, tuple(flags), tuple(sorted(foreign)))


def build_digest(request: Request, compiler: Mapping[str, str]) -> str:
    """The digest of `request` answered by `compiler`."""
    return digest({"request": request.digest, "compiler": dict(compiler)})


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of `content` as canonical JSON."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def closure(
    roots: Sequence[str], folders: Sequence[Path], without: frozenset[str] = frozenset()
) -> dict[str, str | None]:
    """Digest `roots` and all that they include, by the name in the include line.

    None stands for what `folders` do not hold: the compiler's own headers. `without` names headers
    not to follow.
    """
    found: dict[str, str | None] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in found or name in without:
            continue
        strict = name.startswith(_PROJECT)  # our own headers keep to the one form that is followed
        file = next((file for folder in folders if (file := _read(folder / name, strict))), None)
        found[name] = file.digest if file else None
        waiting.extend(file.includes if file else ())
    return found


def _read(path: Path, strict: bool) -> _File | None:
    try:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size)
        known = _files.get(path)
        if known is not None and known.stamp == stamp:
            return known
        content = path.read_bytes()
    except OSError:
        return None
    includes = _includes(content, str(path), strict)
    file = _files[path] = _File(stamp, hashlib.sha256(content).hexdigest(), includes)
    return file


def _includes(content: bytes, where: str, strict: bool) -> tuple[str, ...]:
    names = []
    for found in _INCLUDE.finditer(content):
        line = content.rfind(b"\n", 0, found.start()) + 1
        if content[line : found.start()].strip(b" \t"):
            continue  # in a comment or a string, not a directive
        target = found[1]
        named = _NAMED.match(target)
        if strict and not (named and target.startswith(b"<")):
            text = target.decode(errors="replace")
            raise ValueError(f"{where}: an include must name its file in <>, got {text!r}")
        if named:
            names.append(named[1].decode(errors="replace"))
    return tuple(names)
