# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How long a call takes on the host's clock; on the device's clock, `fusedops.tuning.clock` says.

Every function takes one call per set of tensors and goes round them, so that no call finds its
data in a cache that the last one filled. Every result is the median of SAMPLES.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from fusedops.tuning.clock import (
    SAMPLES,
    Call,
    Captured,
    copies,
    graph_seconds,
    queue_seconds,
    sets,
    side_stream,
)

__all__ = [
    "Call",
    "Captured",
    "copies",
    "graph_seconds",
    "host_seconds",
    "least_seconds",
    "once_seconds",
    "queue_seconds",
    "sets",
    "side_stream",
    "synchronize",
]

LEAST_SAMPLE = 15e-3  # Seconds of a sample of which the least counts.


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
