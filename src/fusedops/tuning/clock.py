# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How long a call takes on the device's clock.

Every function takes one call per set of tensors and goes round them, so that no call finds its data
in a cache that the last one filled. Every result is the median of SAMPLES.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch

__all__ = ["SAMPLES", "Call", "graph_seconds", "queue_seconds", "sets", "side_stream"]

Call = Callable[[], object]

SAMPLES = 7
ROTATED_BYTES = 300e6  # Twice the largest L2 cache there is, and more.
HOLD = 1.5  # Of the time that the host took once.
MOST_CLOCK = 2e9  # Cycles a second, a little above what an H200 does.
MOST_QUEUED = 8  # Rounds; a queue holds 1024 launches, and a round of a chain has up to 100.
SAMPLE_SECONDS = 4e-3  # Far above the resolution of a CUDA event (0.5 us).
WARM_SECONDS = 20e-3  # After an idle moment an H200 takes so long to come up to its clocks.


def sets(bytes_per_call: int) -> int:
    """How many sets of tensors to rotate for calls that touch so many bytes."""
    return max(2, math.ceil(ROTATED_BYTES / bytes_per_call))


@functools.cache
def side_stream() -> torch.cuda.Stream:
    """Where calls are captured."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def graph_seconds(calls: Sequence[Call], warm: float = WARM_SECONDS) -> float:
    """Device seconds of one call, captured in a CUDA graph: host time does not count.

    `warm`: seconds that it runs before.
    """
    stream = side_stream()
    with torch.cuda.stream(stream):  # What is built or tuned at a first call is no part of it.
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    before = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, stream=stream):
            results = [call() for call in calls]  # Kept: each call writes memory of its own.
    finally:
        torch.cuda.set_stream(before)  # A capture that breaks off leaves its own behind.
    seconds = _event_seconds(graph.replay, len(calls), warm=warm)
    del results
    return seconds


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


def _event_seconds(run: Call, calls: int, hold: float = 0.0, warm: float = 0.0) -> float:
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
    return statistics.median(elapsed(repeats) for _ in range(SAMPLES)) / calls
