# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The C++ of an exported header, except what kind of function a kernel is called from."""

from __future__ import annotations

import hashlib
import struct
import textwrap
from collections.abc import Sequence

from fusedops.exporting.passes import Launch, Pass

#: At the head of a function that uses the helpers of host/call.cuh.
ALIAS = "namespace exported = fusedops::exported;"


def parts(passes: Sequence[Pass]) -> str:
    """What the kernels are made of: the headers, and functors that these do not hold."""
    texts = [launch.variant.text for one in passes for launch in one.launches]
    headers = dict.fromkeys(header for text in texts for header in text.headers)
    includes = [f"#include <fusedops/{name}>" for name in (*headers, "host/call.cuh")]
    definitions = dict.fromkeys(one for text in texts for one in text.definitions)
    return "\n".join([*includes, *map(_guarded, definitions)])


def kernels(name: str, one: Pass, old: str, new: str) -> str:
    """The kernels of a pass, each in a namespace of its own, inside fusedops to see its names.

    `old` is the linkage that the generated text has, `new` that of a header.
    """
    blocks = []
    for number, launch in enumerate(one.launches):
        kernel = launch.variant.text.kernel.replace(old, new)
        space = f"fusedops::{namespace(name, one, number)}"
        blocks.append(f"namespace {space} {{\n\n{kernel}\n}}  // namespace {space}\n")
    return "\n".join(blocks)


def namespace(name: str, one: Pass, number: int) -> str:
    """Where a kernel of a pass is, seen from namespace fusedops or under the alias."""
    return f"exported::{name}_{one.kind}{'_sums' if number else ''}"


def function(head: str, first: Sequence[str], one: Pass, body: str, *, about: bool = True) -> str:
    """A function over the parameters of a pass, after those in `first`."""
    lines = [(text, "") for text in first]
    if one.rows is None:
        lines.append(("int64_t rows", ""))
    lines += [(f"{p.kind} {p.name}", p.about) for p in one.parameters]
    if one.kind == "backward":
        lines.append(("void* workspace", ""))
    rows = []
    for number, (text, comment) in enumerate(lines, 1):
        comma = "," if number < len(lines) else ""
        rows.append(f"    {text}{comma}" + (f"  // {comment}" if comment and about else ""))
    signature = "\n".join(rows)
    return f"inline {head}(\n{signature}\n) {{\n{textwrap.indent(body, '  ')}}}\n"


def arguments(one: Pass, *first: str) -> str:
    """What a function hands on to another over the same parameters."""
    own = ["rows"] * (one.rows is None) + [parameter.name for parameter in one.parameters]
    return ", ".join([*first, *own, *(["workspace"] if one.kind == "backward" else [])])


def checks(one: Pass, invalid: str, misaligned: str, alignment: int) -> str:
    """Refuses what a kernel cannot take. Where there are no rows, pointers may be null."""
    tensors = [p.name for p in one.parameters if p.role == "tensor"]
    if one.pieces:
        tensors.append("static_cast<const double*>(workspace)")
    null = f"exported::any_null({', '.join(tensors)})"
    aligned = f"exported::aligned({', '.join([str(alignment), *tensors])})"
    open_rows = one.rows is None
    lines = [
        ALIAS,
        *["(void)workspace;"] * (one.kind == "backward" and not one.pieces),
        *[f"if (rows < 0) return {invalid};"] * open_rows,
        *[
            f"if (!exported::is_probability({parameter.name})) return {invalid};"
            for parameter in one.parameters
            if parameter.role == "probability"
        ],
        f"if ({'rows > 0 && ' * open_rows}{null}) return {invalid};",
        f"if (!{aligned}) return {misaligned};",
    ]
    return "".join(f"{line}\n" for line in lines)


def pieces(one: Pass) -> str:
    """The slices, and the workspace cut up."""
    lines = []
    if one.slices is not None:
        lines.append(f"const fusedops::Slices slices = {one.slices};")
    at = "static_cast<char*>(workspace)"
    for number in range(len(one.pieces)):
        lines.append(f"char* const piece{number} = {at};")
        at = f"piece{number} + {one.pieces[number]}"
    return "".join(f"{line}\n" for line in lines)


def filled(launch: Launch) -> str:
    """The kernel's argument, `words`."""
    words = struct.unpack(f"<{len(launch.words) // 8}Q", launch.words)
    content = textwrap.fill(", ".join(map(_word, words)), 92, break_on_hyphens=False)
    lines = [
        f"alignas(16) uint64_t words[] = {{\n{textwrap.indent(content, '    ')}}};",
        *(f"exported::put(words + {word}, {value});" for word, value in launch.writes),
    ]
    return "".join(f"{line}\n" for line in lines)


def _word(word: int) -> str:
    return str(word) if word < 1 << 31 else hex(word)


def _guarded(definition: str) -> str:
    """A functor that several exports may bring along."""
    macro = f"FUSEDOPS_DEFINED_{hashlib.sha256(definition.encode()).hexdigest()[:16]}"
    return f"\n#if !defined({macro})\n#define {macro}\n{definition}\n#endif"
