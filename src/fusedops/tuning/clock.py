# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Device time of a call, by CUDA events, with tensors rotated out of the L2 cache.

Every function takes one call per set of tensors and goes round them, so that no call finds its data
in a cache that the last one filled. Every result is the median of SAMPLES.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "SAMPLES",
    "Call",
    "Captured",
    "bandwidth",
    "copies",
    "graph_seconds",
    "of_bytes",
    "queue_seconds",
    "seconds",
    "sets",
    "side_stream",
]

PACKS = (1, 2, 4, 8)  # Independent 16-byte packs a thread.
THREADS = (256, 512)
#: Functions of torch, by how many tensors they read and write.
_ELEMENTWISE = {(1, 1): ("neg", "relu"), (2, 1): ("add", "mul")}

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
    """Seconds of the fastest copy kernel that reads and writes this many tensors."""
    return of_bytes(elements * dtype.itemsize, reads, writes)


def of_bytes(size: int, reads: int = 1, writes: int = 1) -> float:
    """Seconds of the fastest copy kernel for tensors of `size` bytes, rounded up to 16."""
    return _of_packs(-(-size // 16), reads, writes)


@functools.cache
def _of_packs(packs: int, reads: int, writes: int) -> float:
    candidates = copies(packs * 16, reads, writes)
    best = min(graph_seconds(calls, warm=0.0) for calls in candidates)  # each warms the next
    del candidates
    torch.cuda.empty_cache()
    return best


def copies(size: int, reads: int = 1, writes: int = 1) -> list[list[Call]]:
    """Calls of each kernel of which `of_bytes` takes the fastest, with tensors of their own."""
    packs, streams = -(-size // 16), reads + writes
    elements = packs * 8
    tensors = torch.empty(
        (sets(packs * 16 * streams), streams, elements), dtype=torch.float16, device="cuda"
    ).normal_()
    candidates = [
        [_copy(list(each[:reads]), list(each[reads:]), threads, per_thread) for each in tensors]
        for threads in THREADS
        for per_thread in PACKS
    ]
    for name in _ELEMENTWISE.get((reads, writes), ()):
        candidates.append([_torch(name, each[:reads], each[reads]) for each in tensors])
    return candidates


def bandwidth(elements: int, dtype: torch.dtype, reads: int = 1, writes: int = 1) -> float:
    """Memory throughput of the fastest copy kernel, in bytes a second."""
    moved = elements * dtype.itemsize * (reads + writes)
    return moved / seconds(elements, dtype, reads, writes)


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


Call = Callable[[], object]

SAMPLES = 7
ROTATED_BYTES = 300e6  # Twice the largest L2 cache there is, and more.
HOLD = 1.5  # Of the time that the host took once.
MOST_CLOCK = 2e9  # Cycles a second, a little above what an H200 does.
MOST_QUEUED = 8  # Rounds; a queue holds 1024 launches, and a round of a chain has up to 100.
SAMPLE_SECONDS = 4e-3  # Far above the resolution of a CUDA event (0.5 us).
WARM_SECONDS = 20e-3  # After an idle moment an H200 takes so long to come up to its clocks.


def sets(bytes_per_call: int) -> int:
    """How many sets of tensors to rotate, so that no call finds its data in the L2 cache."""
    return max(2, math.ceil(ROTATED_BYTES / bytes_per_call))


@functools.cache
def side_stream() -> torch.cuda.Stream:
    """The CUDA stream on which calls are captured."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


class Captured:
    """Calls in a CUDA graph, with what they read and return: each writes memory of its own."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls  # A replay reads the tensors that they hold.
        stream = side_stream()
        with torch.cuda.stream(stream):  # What is built or tuned at a first call is no part of it.
            for call in calls:
                call()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        before = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(self._graph, stream=stream):
                self._results = [call() for call in calls]
        finally:
            torch.cuda.set_stream(before)  # A capture that breaks off leaves its own behind.

    def seconds(self, warm: float = WARM_SECONDS, samples: int = SAMPLES) -> float:
        """Device seconds of one call: host time does not count.

        `warm`: seconds that it runs before; `samples`: of how many this is the median.
        """
        return _event_seconds(self._graph.replay, len(self._results), warm=warm, samples=samples)


def graph_seconds(calls: Sequence[Call], warm: float = WARM_SECONDS) -> float:
    """Device seconds of one call, captured in a CUDA graph (`Captured`)."""
    return Captured(calls).seconds(warm)


def queue_seconds(calls: Sequence[Call]) -> float:
    """Device seconds of one call, queued without a graph.

    For what cannot be captured. The device waits until the host has issued all, so host time does
    not count.
    """
    results: list[object] = [None] * len(calls)

    def once() -> None:
        for i, call in enumerate(calls):
            results[i] = call()

    once()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    once()
    issued = time.perf_counter() - begin
    torch.cuda.synchronize()
    return _event_seconds(once, len(calls), HOLD * issued)


def _event_seconds(
    run: Call, calls: int, hold: float = 0.0, warm: float = 0.0, samples: int = SAMPLES
) -> float:
    """`hold`: seconds that the device waits for each repeat before the first one begins."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def elapsed(repeats: int) -> float:
        if hold:
            torch.cuda._sleep(int(hold * repeats * MOST_CLOCK))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / repeats

    elapsed(1)
    once = elapsed(2)
    repeats = max(1, math.ceil(SAMPLE_SECONDS / once))
    if hold:
        repeats = min(repeats, MOST_QUEUED)
    if warm:
        elapsed(max(1, int(warm / once)))
    return statistics.median(elapsed(repeats) for _ in range(samples)) / calls
