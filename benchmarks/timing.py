# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How long a call takes: on the device's clock, and on the host's.

Every function takes one call per set of tensors and goes round them, so that no call finds its
data in a cache that the last one filled. Every result is the median of SAMPLES.
"""

import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

Call = Callable[[], object]

SAMPLES = 7
ROTATED_BYTES = 300e6  # Five times the L2 of an H200, the largest there is.
HOLD = 1.5  # Of the time that the host took once.
MOST_CLOCK = 2e9  # Cycles a second, a little above what an H200 does.
MOST_QUEUED = 8  # Rounds; a queue holds 1024 launches, and a round of a chain has up to 100.
LEAST_SAMPLE = 15e-3  # Seconds of a sample of which the least counts.
SAMPLE_SECONDS = 4e-3  # Far above the resolution of a CUDA event (0.5 us).
WARM_SECONDS = 20e-3  # After an idle moment an H200 takes so long to come up to its clocks.


def sets(bytes_per_call: int) -> int:
    """How many sets of tensors to rotate for calls that touch so many bytes."""
    return max(2, math.ceil(ROTATED_BYTES / bytes_per_call))


@functools.cache
def side_stream() -> torch.cuda.Stream:
    """Where calls are captured."""
    return torch.cuda.Stream()


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
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def elapsed(repeats: int) -> float:
        if hold:
            torch.cuda._sleep(int(hold * repeats * MOST_CLOCK))
        begin.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / repeats

    elapsed(1)
    once = elapsed(2)
    repeats = max(1, math.ceil(SAMPLE_SECONDS / once))
    if hold:
        repeats = min(repeats, MOST_QUEUED)
    if warm:
        elapsed(max(1, int(warm / once)))
    return statistics.median(elapsed(repeats) for _ in range(SAMPLES)) / calls


def host_seconds(calls: Sequence[Call], device: torch.device) -> list[float]:
    """Host seconds of each call, sampled in turn so that all meet the same machine.

    On a GPU, calls are only issued, in bursts that its queue holds.
    """
    return [statistics.median(samples) for samples in zip(*_bursts(calls, device), strict=True)]


def _bursts(calls: Sequence[Call], device: torch.device) -> Iterator[list[float]]:
    burst = 500
    for sample in range(-1, SAMPLES):
        row = []
        for call in calls:
            synchronize(device)
            begin = time.perf_counter()
            for _ in range(burst):
                call()
            row.append((time.perf_counter() - begin) / burst)
        if sample >= 0:  # The first round warms up.
            yield row


def least_seconds(calls: Sequence[Call], clock: Callable[[], float]) -> list[float]:
    """The least seconds of each call by a clock, of samples in turn; for a CPU that others use."""
    for call in calls:
        call()
    least = [math.inf] * len(calls)
    for _ in range(SAMPLES):
        for at, call in enumerate(calls):
            begin, count = clock(), 0
            while (seconds := clock() - begin) < LEAST_SAMPLE or count == 0:
                call()
                count += 1
            least[at] = min(least[at], seconds / count)
    return least


def once_seconds(call: Call, device: torch.device) -> float:
    """Seconds of one call, without repetition."""
    synchronize(device)
    begin = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - begin


def synchronize(device: torch.device) -> None:
    """Waits for a GPU; a CPU has nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
