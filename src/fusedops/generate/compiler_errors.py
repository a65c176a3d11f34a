# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Attribute a compiler error to a functor or an operand of the declaration.

It is imported where a build has failed, so that `import fusedops` stays quick.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from fusedops.functors import Functor
from fusedops.generate.source import Members

# "kernel.cu(12): error", "kernel.cpp:12:34: error" and, of a chain, "at line 12 of kernel.cu".
_PLACE = re.compile(
    r"(?P<file>[^\s:()\"]+\.(?:cuh?|cpp))(?:\((?P<nvrtc>\d+)\)|:(?P<host>\d+))"
    r"|at line (?P<at>\d+) of (?P<of>\S+)"
)
_ERROR = re.compile(r"\berror\b")


def culprit(
    log: str,
    source: str,
    members: Members,
    sides: Mapping[str, Sequence[Functor]],
    operator: tuple[str, str] = ("", ""),
) -> str | None:
    """The functor, operator or operand that the first compiler error is about, as text.

    None if it is unknown, or code of fusedops.

    The members are each a line of the source. `sides` has the functors in order by where they
    stand, "load" and "store"; `operator` is a name, and its C++ text if no header holds it.
    """
    lines = source.splitlines()
    for file, number in _places(log):
        if re.fullmatch(r"(.*/)?kernel\.(cu|cpp)", file):
            line = lines[number - 1] if 0 < number <= len(lines) else ""
            found = _of_member(line, members, sides) or _of_definition(source, number, sides)
            if found is None and _holds(source, number, operator[1]):
                found = f"the operator {operator[0]}"
        else:
            found = _of_header(file, sides)
        if found is not None:
            return found
    return None


def _places(log: str) -> Iterator[tuple[str, int]]:
    """Source locations of the first compiler error, then of its includes and instantiations."""
    lines = log.splitlines()
    errors = [number for number, line in enumerate(lines) if _ERROR.search(line)]
    if not errors:
        return
    first, end = errors[0], errors[1] if len(errors) > 1 else len(lines)
    before = first  # GCC prints the chain of includes and instantiations first
    while before > 0 and re.search(
        r"In (instantiation|file included)|required from", lines[before - 1]
    ):
        before -= 1
    for line in [*lines[first:end], *lines[before:first]]:
        for found in _PLACE.finditer(line):
            number = found["nvrtc"] or found["host"] or found["at"]
            yield found["file"] or found["of"], int(number)


def _of_definition(source: str, line: int, sides: Mapping[str, Sequence[Functor]]) -> str | None:
    for side, chain in sides.items():
        for place, functor in enumerate(chain):
            if _holds(source, line, functor.definition):
                return _named(side, place, functor)
    return None


def _holds(source: str, line: int, text: str) -> bool:
    """Whether a line of the source, counted from 1, is one of this text in it."""
    begin = source.find(text) if text else -1
    first = source.count("\n", 0, max(begin, 0)) + 1
    return begin >= 0 and first <= line <= first + text.count("\n")


def _of_member(line: str, members: Members, sides: Mapping[str, Sequence[Functor]]) -> str | None:
    for member in members:
        if member.field != line:
            continue
        chain = sides.get(member.side, ())
        if 0 <= member.place < len(chain):
            return _named(member.side, member.place, chain[member.place])
        return f"operand {member.name!r}" if member.name in ("x", "y") else None
    return None


def _of_header(file: str, sides: Mapping[str, Sequence[Functor]]) -> str | None:
    for side, chain in sides.items():
        for place, functor in enumerate(chain):
            own = [name for name in functor.headers if name.startswith("functor/")]
            if any(file.endswith(f"fusedops/{name}") for name in own):
                return _named(side, place, functor)
    return None


def _named(side: str, place: int, functor: Functor) -> str:
    function = getattr(type(functor), "__wrapped__", None)
    code = getattr(function, "__code__", None)
    where = f", of {code.co_filename}:{code.co_firstlineno}" if code else ""
    return f"{functor!r}, {side}[{place}]{where}"
