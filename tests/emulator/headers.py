# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The package's CUDA headers as a host compiler takes them: two constructs are written anew.

Inline assembly becomes a call of a function of builtins.h that is named for its first instruction,
and a shared variable becomes a reference into the machine's shared memory. All else, so every
index, bound and barrier, is the text that NVRTC compiles.
"""

import re
from collections.abc import Iterator
from pathlib import Path

_ASM = re.compile(r"\basm(?:\s+volatile)?\s*\(")
_STRING = re.compile(r'\s*"((?:[^"\\]|\\.)*)"')
_DYNAMIC = re.compile(r"extern __shared__ __align__\(16\) char (\w+)\[\];")
_STATIC = re.compile(r"__shared__ (__align__\(\d+\) )?([\w:<>]+) (\w+)((?:\[[^\]]*\])*);")


def translated(text: str) -> str:
    """The text of a header or a kernel with both constructs written anew."""
    text = "".join(_without_asm(text))
    text = _DYNAMIC.sub(r"char* const \1 = machine_shared + kMachineStatic;", text)
    text = _STATIC.sub(_reference, text)
    assert not re.search(r"__shared__ [^m]", text), "a shared variable of a form not known here"
    return text


def write_headers(include: Path, to: Path) -> None:
    """Write the translated headers below a folder."""
    for file in include.rglob("*.cuh"):
        target = to / file.relative_to(include)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(translated(file.read_text(encoding="utf-8")), encoding="utf-8")


def _reference(match: re.Match[str]) -> str:
    aligned, kind, name, dims = match.groups()
    alignment = 16 if aligned else f"alignof({kind})"
    reserved = f"emulated::reserve_shared(sizeof(shared_{name}), {alignment})"
    return (
        f"using shared_{name} = {kind}{dims}; static shared_{name}& {name} = "
        f"*reinterpret_cast<shared_{name}*>({reserved});"
    )


def _without_asm(text: str) -> Iterator[str]:
    done = 0
    for match in _ASM.finditer(text):
        end = _closing(text, match.end())
        template, *sections = _split(text[match.end() : end], ":")
        code = "".join(_STRING.findall(template))
        if not code:
            continue  # an empty statement, which only constrains the compiler
        operands = [one for part in sections[:2] for one in _split(part, ",") if one.strip()]
        values = [re.sub(r'^\s*"[^"]*"', "", one).strip() for one in operands]
        yield text[done : match.start()]
        yield f"emulated::ptx_{_instruction(code)}({', '.join(values)})"
        done = end + 1
    yield text[done:]


def _instruction(code: str) -> str:
    lines = re.split(r"\\n|;", code)
    words = (line.split() for line in lines if not line.strip().startswith((".reg", "{", "}")))
    return re.sub(r"\W+", "_", next(line[0] for line in words if line))


def _closing(text: str, at: int) -> int:
    """Where the parenthesis that is open at `at` closes."""
    depth = 1
    while True:
        if string := _STRING.match(text, at):
            at = string.end()
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
        at += 1


def _split(text: str, separator: str) -> list[str]:
    """The parts between separators that stand outside of strings and parentheses."""
    parts, depth, at, begin = [], 0, 0, 0
    while at < len(text):
        if string := _STRING.match(text, at):
            at = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if text[at] == separator and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    return [*parts, text[begin:]]
