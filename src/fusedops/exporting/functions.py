# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The functions of an exported header: kernel launches on a stream, or loops over rows of a CPU."""

from __future__ import annotations

import textwrap

from fusedops.exporting import text
from fusedops.exporting.passes import Launch, Pass
from fusedops.generate.source import CUDA_LINKAGE, HOST_LINKAGE

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


def cuda_functions(name: str, one: Pass) -> str:
    """The function of a pass for GPUs: it launches kernels on a stream, and never waits."""
    body = text.checks(one, "cudaErrorInvalidValue", "cudaErrorMisalignedAddress", ALIGNMENT)
    body += text.pieces(one)
    *before, last = [
        _launched(name, one, number, launch) for number, launch in enumerate(one.launches)
    ]
    for launched in before:
        call = textwrap.indent(launched, "  ")
        body += f"{{\n{call}  if (status != cudaSuccess) return status;\n}}\n"
    body += f"{last}return status;\n"
    stream = ["cudaStream_t cuda_stream"]
    return text.function(f"cudaError_t {name}_{one.kind}", stream, one, body)


def _launched(name: str, one: Pass, number: int, launch: Launch) -> str:
    space = text.namespace(name, one, number)
    kernel = f"reinterpret_cast<const void*>({space}::fusedops_kernel<>)"
    sizes = f"{launch.grid}, {launch.block}, {launch.shared}, cuda_stream"
    cluster = f", {launch.cluster}" if launch.cluster > 1 else ""
    return (
        f"{text.filled(launch)}"
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


def host_functions(name: str, one: Pass) -> str:
    """The functions of a pass for CPUs: over all rows on the calling thread, or a range of them.

    Backward, what threads share are slices of the rows; sums that several slices have a part in are
    finished when all have been visited.
    """
    called = f"{name}_{one.kind}"
    space = f"fusedops::{text.namespace(name, one, 0)}"
    rows = "int64_t rows" if one.rows is None else ""
    stage, *sums = one.launches
    body = text.checks(one, "1", "2", 0) + text.pieces(one)
    for number, launch in enumerate(one.launches):
        kernel = f"{text.namespace(name, one, number)}::fusedops_rows"
        run = (
            f"if (begin < 0 || begin > end || end > {launch.total}) return 1;\n"
            f"{text.filled(launch)}"
            f"{kernel}(words, begin, end);\n"
        )
        body += f"if (stage == {number}) {{\n{textwrap.indent(run, '  ')}}}\n"
    inner = text.function("int run", ["int stage", *_RANGE], one, f"{body}return 0;\n", about=False)
    blocks = [f"namespace {space} {{\n\n{inner}\n}}  // namespace {space}\n"]
    count = stage.total
    if one.kind == "backward":
        what = f"{called}_slices({'rows' if rows else ''})"
        slices = count if one.slices is None else f"{one.slices}.per_span"
        blocks.append(
            "/// How many slices there are to share among threads.\n"
            f"inline int64_t {called}_slices({rows}) {{\n"
            f"  {text.ALIAS}\n  return {slices};\n}}\n"
        )
        count = what
    ranged = f"return {space}::run({text.arguments(one, '0', 'begin', 'end')});\n"
    doc = "Slices" if one.kind == "backward" else "Rows"
    blocks.append(
        f"/// {doc} begin to end of {count}, on the calling thread; others may do others.\n"
        + text.function(f"int {called}_range", _RANGE, one, ranged)
    )
    whole = f"return {space}::run({text.arguments(one, '0', '0', count)});\n"
    if sums:
        finish = f"return {space}::run({text.arguments(one, '1', '0', sums[0].total)});\n"
        blocks.append(
            "/// After all slices: completes the sums that they left in the workspace.\n"
            + text.function(f"int {called}_finish", [], one, finish, about=False)
        )
        whole = (
            f"const int status = {called}_range({text.arguments(one, '0', count)});\n"
            f"return status ? status : {called}_finish({text.arguments(one)});\n"
        )
    blocks.append(
        "/// All of it on the calling thread.\n"
        + text.function(f"int {called}", [], one, whole, about=False)
    )
    return "\n".join(blocks)
