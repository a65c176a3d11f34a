# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The ceiling: the fastest plain kernel that moves as many streams of the same size.

The best of a 16-byte copy of our own, in a few shapes, and of torch's elementwise kernels.
`Tensor.copy_` is not among them: for large tensors it takes a slower path of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fusedops.tuning.clock import Call, graph_seconds, sets

__all__ = ["bandwidth", "of_bytes", "seconds"]

PACKS = (1, 2, 4, 8)  # Independent 16-byte packs a thread.
THREADS = (256, 512)

# Each output is the exclusive or of all inputs: no arithmetic worth the name, nothing to skip.
SOURCE = """
extern "C" __global__ void __launch_bounds__({threads}) move({parameters}, int packs) {{
  const int first = blockIdx.x * {threads} * {per_thread} + threadIdx.x;
  uint4 v[{per_thread}];
  #pragma unroll
  for (int k = 0; k < {per_thread}; ++k) {{
    const int i = first + k * {threads};
    if (i < packs) {{
      v[k] = in0[i];
      {reads}
    }}
  }}
  #pragma unroll
  for (int k = 0; k < {per_thread}; ++k) {{
    const int i = first + k * {threads};
    if (i < packs) {{ {writes} }}
  }}
}}
"""


def seconds(elements: int, dtype: torch.dtype, reads: int = 1, writes: int = 1) -> float:
    """Seconds of the fastest kernel that reads and writes so many tensors of that size."""
    return of_bytes(elements * dtype.itemsize, reads, writes)


def of_bytes(size: int, reads: int = 1, writes: int = 1) -> float:
    """The same for tensors of so many bytes, each a few more where 16 do not divide them."""
    return _of_packs(-(-size // 16), reads, writes)


@functools.cache
def _of_packs(packs: int, reads: int, writes: int) -> float:
    streams, elements = reads + writes, packs * 8
    tensors = torch.empty(
        (sets(packs * 16 * streams), streams, elements), dtype=torch.float16, device="cuda"
    ).normal_()
    candidates = [
        [_copy(list(each[:reads]), list(each[reads:]), threads, per_thread) for each in tensors]
        for threads in THREADS
        for per_thread in PACKS
    ]
    for name in _elementwise(reads, writes):
        candidates.append([_torch(name, each[:reads], each[reads]) for each in tensors])
    best = min(graph_seconds(calls, warm=0.0) for calls in candidates)  # each warms the next
    del tensors, candidates
    torch.cuda.empty_cache()
    return best


def bandwidth(elements: int, dtype: torch.dtype, reads: int = 1, writes: int = 1) -> float:
    """Bytes a second of the same kernel."""
    moved = elements * dtype.itemsize * (reads + writes)
    return moved / seconds(elements, dtype, reads, writes)


def _elementwise(reads: int, writes: int) -> Iterator[str]:
    if writes == 1 and reads == 1:
        yield from ("neg", "relu")
    elif writes == 1 and reads == 2:
        yield from ("add", "mul")


def _torch(name: str, inputs: Tensor, output: Tensor) -> Call:
    if name == "relu":  # Has no out=.
        return lambda: torch.clamp_min(inputs[0], 0, out=output)
    return lambda: getattr(torch, name)(*inputs, out=output)


def _copy(inputs: list[Tensor], outputs: list[Tensor], threads: int, per_thread: int) -> Call:
    packs = inputs[0].nbytes // 16
    if packs * 16 != inputs[0].nbytes:
        raise ValueError(f"a copy by 16 bytes cannot move {inputs[0].nbytes} bytes")
    kernel = _kernel(len(inputs), len(outputs), threads, per_thread)
    grid = (-(-packs // (threads * per_thread)), 1, 1)
    arguments = [*inputs, *outputs, packs]
    return lambda: kernel(grid, (threads, 1, 1), arguments)


@functools.cache
def _kernel(reads: int, writes: int, threads: int, per_thread: int) -> Any:
    parameters = [f"const uint4* __restrict__ in{i}" for i in range(reads)]
    parameters += [f"uint4* __restrict__ out{i}" for i in range(writes)]
    source = SOURCE.format(
        threads=threads,
        per_thread=per_thread,
        parameters=", ".join(parameters),
        reads=" ".join(
            f"v[k].{lane} ^= in{i}[i].{lane};" for i in range(1, reads) for lane in "xyzw"
        ),
        writes=" ".join(f"out{i}[i] = v[k];" for i in range(writes)),
    )
    return torch.cuda._compile_kernel(source, "move")
