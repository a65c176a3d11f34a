# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Generate the source of a kernel that is one function of a header, without functors."""

from __future__ import annotations

import dataclasses

from fusedops.generate.source import CUDA_LINKAGE, Members, Text, generated


@dataclasses.dataclass(frozen=True)
class PlainKernel:
    """The form of a kernel that calls one function."""

    cpp: str  # the function with its template arguments, from which its threads can be told
    header: str  # where it is, below fusedops/
    threads_per_block: int

    @property
    def source_options(self) -> tuple[object, ...]:
        """Compile-time options besides the function: none."""
        return ()


def plain_source(members: Members, words: int, kernel: PlainKernel) -> Text:
    """The source of a kernel `fusedops_kernel` that passes on the members of its argument."""
    arguments = ", ".join(f"a.{one.name}" for one in members)
    return generated(
        members,
        words,
        [kernel.header, "core/dependency.cuh"],
        (),
        f"""\
{CUDA_LINKAGE} __global__ void __launch_bounds__({kernel.threads_per_block})
fusedops_kernel(const __grid_constant__ Arguments a) {{
  begin_after_previous();
  {kernel.cpp}({arguments});
}}
""",
    )
