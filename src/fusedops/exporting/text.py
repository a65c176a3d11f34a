# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""C++ text of an exported header: kernels, and functions that launch them or loop over rows."""

from __future__ import annotations

import hashlib
import struct
import textwrap
from collections.abc import Sequence

from fusedops.exporting.passes import ExportedLaunch, ExportedPass
from fusedops.generate.source import CUDA_LINKAGE, HOST_LINKAGE
from fusedops.version import __version__

#: At the head of a function that uses the helpers of host/call.cuh.
ALIAS = "namespace exported = fusedops::exported;"


def parts(passes: Sequence[ExportedPass]) -> str:
    """Include lines, and definitions of functors that no header has."""
    texts = [each.launch.variant.text for one in passes for each in one.launches]
    headers = dict.fromkeys(header for text in texts for header in text.headers)
    includes = [f"#include <fusedops/{name}>" for name in (*headers, "host/call.cuh")]
    definitions = dict.fromkeys(one for text in texts for one in text.definitions)
    return "\n".join([_BEGINS, *includes, _same_headers(), *map(_guarded, definitions)])


#: What GCC would say of templates in what stands between these (core/config.cuh) is not said.
_BEGINS = "#include <fusedops/core/config.cuh>\n\nFUSEDOPS_HEADER_BEGINS\n"
ENDS = "\nFUSEDOPS_HEADER_ENDS\n"


def _same_headers() -> str:
    """A check that the headers beside an exported one are of the release that has exported it."""
    major, minor, _ = __version__.split(".")
    release = f"fusedops {major}.{minor}"
    return (
        f"#if FUSEDOPS_VERSION / 100 != {major} * 100 + {minor}\n"
        f'#error "exported by {release}, the headers are of another release: export it again"\n'
        "#endif"
    )


def kernels(name: str, one: ExportedPass, old: str, new: str) -> str:
    """The kernels of a pass, each in a namespace of its own, inside fusedops to see its names.

    `old` is the linkage that the generated text has, `new` that of a header.
    """
    blocks = []
    for number, each in enumerate(one.launches):
        kernel = each.launch.variant.text.kernel.replace(old, new)
        blocks.append(_inside(namespace(name, one, number), kernel))
    return "\n".join(blocks)


def _inside(space: str, text: str) -> str:
    """Text in a namespace beside the helpers of host/call.cuh."""
    return (
        f"namespace fusedops {{\ninline namespace FUSEDOPS_ABI {{\nnamespace {space} {{\n\n{text}\n"
        f"}}  // namespace {space}\n}}  // namespace FUSEDOPS_ABI\n}}  // namespace fusedops\n"
    )


def namespace(name: str, one: ExportedPass, number: int) -> str:
    """Where a kernel of a pass is, seen from namespace fusedops or under the alias."""
    return f"exported::{name}_{one.kind}{'_sums' if number else ''}"


def function(
    head: str, first: Sequence[str], one: ExportedPass, body: str, *, about: bool = True
) -> str:
    """C++ of a function that takes `first` and then a pass's parameters."""
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


def arguments(one: ExportedPass, *first: str) -> str:
    """Arguments that forward a pass's parameters to another function."""
    own = ["rows"] * (one.rows is None) + [parameter.name for parameter in one.parameters]
    return ", ".join([*first, *own, *(["workspace"] if one.kind == "backward" else [])])


def checks(one: ExportedPass, invalid: str, misaligned: str, alignment: int) -> str:
    """Statements that return an error for invalid arguments. Without rows, pointers may be null."""
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


def pieces(one: ExportedPass) -> str:
    """The slices, and the workspace cut up."""
    lines = []
    if one.slices is not None:
        lines.append(f"const fusedops::Slices slices = {one.slices};")
    at = "static_cast<char*>(workspace)"
    for number in range(len(one.pieces)):
        lines.append(f"char* const piece{number} = {at};")
        at = f"piece{number} + {one.pieces[number]}"
    return "".join(f"{line}\n" for line in lines)


def filled(each: ExportedLaunch) -> str:
    """The kernel's argument, `words`."""
    words = struct.unpack(f"<{len(each.launch.words) // 8}Q", each.launch.words)
    content = textwrap.fill(", ".join(map(_word, words)), 92, break_on_hyphens=False)
    lines = [
        f"alignas(16) uint64_t words[] = {{\n{textwrap.indent(content, '    ')}}};",
        *(f"exported::put(words + {word}, {value});" for word, value in each.writes),
    ]
    return "".join(f"{line}\n" for line in lines)


def _word(word: int) -> str:
    return str(word) if word < 1 << 31 else hex(word)


def _guarded(definition: str) -> str:
    """A functor that several exports may bring along."""
    macro = f"FUSEDOPS_DEFINED_{hashlib.sha256(definition.encode()).hexdigest()[:16]}"
    return f"\n#if !defined({macro})\n#define {macro}\n{definition}\n#endif"


#: Of every pointer: kernels were chosen for it.
ALIGNMENT = 16

CUDA_HEAD = """\
#if !defined(__CUDACC__)
#error "this header holds CUDA kernels: compile what includes it with nvcc"
#endif

#include <cuda_runtime.h>

"""

#: A template, so that a program holds a kernel once however many files include it.
CUDA_KERNEL = (CUDA_LINKAGE, "template <class = void>")


def cuda_functions(name: str, one: ExportedPass) -> str:
    """The function of a pass for GPUs: it launches kernels on a stream, and never waits."""
    body = checks(one, "cudaErrorInvalidValue", "cudaErrorMisalignedAddress", ALIGNMENT)
    body += pieces(one)
    *before, last = [_launched(name, one, number, each) for number, each in enumerate(one.launches)]
    for launched in before:
        call = textwrap.indent(launched, "  ")
        body += f"{{\n{call}  if (status != cudaSuccess) return status;\n}}\n"
    body += f"{last}return status;\n"
    stream = ["cudaStream_t cuda_stream"]
    return function(f"cudaError_t {name}_{one.kind}", stream, one, body)


def _launched(name: str, one: ExportedPass, number: int, each: ExportedLaunch) -> str:
    space = namespace(name, one, number)
    kernel = f"reinterpret_cast<const void*>({space}::fusedops_kernel<>)"
    sizes = f"{each.grid}, {each.launch.block}, {each.launch.shared}, cuda_stream"
    cluster = f", {each.cluster}" if each.cluster > 1 else ""
    return (
        f"{filled(each)}"
        f"const cudaError_t status = exported::launch(\n"
        f"    {kernel},\n    {sizes}, words{cluster});\n"
    )


HOST_HEAD = """\
#if defined(__CUDACC__)
#error "this header is for a CPU: compile what includes it with a host compiler"
#endif

#include <cstdint>

"""

#: Weak: a program holds a kernel once, and no compiler rewrites it for one of its callers, which
#: could change who is fused with whom into a multiply-add.
HOST_KERNEL = (HOST_LINKAGE, "__attribute__((weak))")

_RANGE = ["int64_t begin", "int64_t end"]


def host_run(name: str, one: ExportedPass) -> str:
    """What the functions of a pass for CPUs call: a kernel of the pass, over a range."""
    body = checks(one, "1", "2", 0) + pieces(one)
    for number, each in enumerate(one.launches):
        kernel = f"{namespace(name, one, number)}::fusedops_rows"
        run = (
            f"if (begin < 0 || begin > end || end > {each.total}) return 1;\n"
            f"{filled(each)}"
            f"{kernel}(words, begin, end);\n"
        )
        body += f"if (stage == {number}) {{\n{textwrap.indent(run, '  ')}}}\n"
    inner = function("int run", ["int stage", *_RANGE], one, f"{body}return 0;\n", about=False)
    return _inside(namespace(name, one, 0), inner)


def host_functions(name: str, one: ExportedPass) -> str:
    """The functions of a pass for CPUs: over all rows on the calling thread, or a range of them.

    Backward, what threads share are slices of the rows; sums that several slices have a part in are
    finished when all have been visited.
    """
    called = f"{name}_{one.kind}"
    space = f"fusedops::{namespace(name, one, 0)}"
    rows = "int64_t rows" if one.rows is None else ""
    stage, *sums = one.launches
    blocks = []
    count = stage.total
    if one.kind == "backward":
        what = f"{called}_slices({'rows' if rows else ''})"
        slices = count if one.slices is None else f"{one.slices}.per_span"
        blocks.append(
            "/// How many slices there are to share among threads.\n"
            f"inline int64_t {called}_slices({rows}) {{\n"
            f"  {ALIAS}\n  return {slices};\n}}\n"
        )
        count = what
    ranged = f"return {space}::run({arguments(one, '0', 'begin', 'end')});\n"
    doc = "Slices" if one.kind == "backward" else "Rows"
    blocks.append(
        f"/// {doc} begin to end of {count}, on the calling thread; others may do others.\n"
        + function(f"int {called}_range", _RANGE, one, ranged)
    )
    whole = f"return {space}::run({arguments(one, '0', '0', count)});\n"
    if sums:
        finish = f"return {space}::run({arguments(one, '1', '0', sums[0].total)});\n"
        blocks.append(
            "/// After all slices: completes the sums that they left in the workspace.\n"
            + function(f"int {called}_finish", [], one, finish, about=False)
        )
        whole = (
            f"const int status = {called}_range({arguments(one, '0', count)});\n"
            f"return status ? status : {called}_finish({arguments(one)});\n"
        )
    blocks.append(
        "/// All of it on the calling thread.\n"
        + function(f"int {called}", [], one, whole, about=False)
    )
    return "\n".join(blocks)
