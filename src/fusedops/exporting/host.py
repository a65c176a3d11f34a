# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A header exported for a CPU: functions over all rows on the calling thread, or a range of them.

Backward, what threads share are slices of the rows; sums that several slices have a part in are
finished when all have been visited.
"""

from __future__ import annotations

import textwrap

from fusedops.exporting import text
from fusedops.exporting.passes import Pass
from fusedops.generate.source import HOST_LINKAGE

HEAD = """\
#if defined(__CUDACC__)
#error "this header is for a CPU: compile what includes it with a host compiler"
#endif

#include <cstdint>

"""

#: Weak: a program holds a kernel once, and no compiler rewrites it for one of its callers, which
#: could change who is fused with whom into a multiply-add.
linkage = (HOST_LINKAGE, "__attribute__((weak))")

_RANGE = ["int64_t begin", "int64_t end"]


def functions(name: str, one: Pass) -> str:
    """The functions of a pass."""
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
