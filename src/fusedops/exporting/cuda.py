# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The functions of an exported `.cuh`: each launches its kernels on a stream, and never waits."""

from __future__ import annotations

import textwrap

from fusedops.exporting import text
from fusedops.exporting.passes import Launch, Pass
from fusedops.generate.source import CUDA_LINKAGE

#: Of every pointer: kernels were chosen for it.
ALIGNMENT = 16

HEAD = """\
#if !defined(__CUDACC__)
#error "this header holds CUDA kernels: compile what includes it with nvcc"
#endif

#include <cuda_runtime.h>

"""

#: A template, so that a program holds a kernel once however many files include it.
linkage = (CUDA_LINKAGE, "template <class = void>")


def functions(name: str, one: Pass) -> str:
    """The function of a pass, and what the caller must know for it."""
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
