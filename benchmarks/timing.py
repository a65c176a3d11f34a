# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How long a call takes on the host's clock; on the device's clock, `fusedops.tuning.clock` says.

Every function takes one call per set of tensors and goes round them, so that no call finds its
data in a cache that the last one filled. Every result is the median of SAMPLES.
"""

import statistics
import time
from collections.abc import Iterator, Sequence

import torch

from fusedops.tuning.clock import SAMPLES, Call, graph_seconds, queue_seconds, sets, side_stream

__all__ = [
    "Call",
    "graph_seconds",
    "host_seconds",
    "once_seconds",
    "queue_seconds",
    "sets",
    "side_stream",
    "synchronize",
    "wall_seconds",
]


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


def wall_seconds(calls: Sequence[Call], device: torch.device) -> list[float]:
    """Seconds until each call's result is there, sampled in turn; at least 0.2 s a sample."""
    for call in calls:
        call()
    samples = []
    for _ in range(SAMPLES):
        row = []
        for call in calls:
            synchronize(device)
            begin, count = time.perf_counter(), 0
            while (seconds := time.perf_counter() - begin) < 0.2 or count == 0:
                call()
                synchronize(device)
                count += 1
            row.append(seconds / count)
        samples.append(row)
    return [statistics.median(column) for column in zip(*samples, strict=True)]


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
