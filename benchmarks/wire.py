# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a call moves, as NCCL tells torch.profiler: bytes that a rank receives; kernels' time."""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

#: Bytes of an element by the names that the profiler has for dtypes.
SIZES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "Float"), 4),
    **dict.fromkeys(("Long", "Double"), 8),
}


class Wire(NamedTuple):
    """What a call moved and how long the GPU was busy.

    Attributes:
        calls: How often each collective ran.
        bytes: What a rank received in them.
        moving: Seconds of NCCL's kernels, which wait for other ranks, too.
        computing: Seconds of all other kernels.
    """

    calls: Mapping[str, int]
    bytes: Mapping[str, int]
    moving: float
    computing: float

    @property
    def received(self) -> int:
        """All bytes that a rank received."""
        return sum(self.bytes.values())

    def __str__(self) -> str:
        each = ", ".join(f"{name} x{n} {self.bytes[name]}" for name, n in self.calls.items())
        told = f"{self.received} bytes ({each})" if each else "no collective of NCCL"
        busy = f"kernels busy {self.computing * 1e3:.3f} ms, NCCL's {self.moving * 1e3:.3f} ms"
        return f"profiler: {told}; {busy}"


def traced(call: Callable[[], object]) -> Wire:
    """What a call moves, on this rank; other ranks make it at the same time."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as profiler:
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return of_events(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def of_events(events: Sequence[Mapping[str, Any]]) -> Wire:
    """What the events of a trace say.

    NCCL's figures are with the operator that starts a collective; its kernel has them once more.
    """
    told = [one for one in events if "In msg nelems" in one.get("args", {})]
    started = [one for one in told if one.get("cat") != "kernel"]
    calls: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for one in started or told:
        name, size = received(one["args"])
        if name:
            calls[name] += 1
            count[name] += size
    kernels = [one for one in events if one.get("cat") == "kernel"]
    moving = sum(one["dur"] for one in kernels if one["name"].startswith("nccl"))
    whole = sum(one["dur"] for one in kernels)
    return Wire(calls, count, moving * 1e-6, (whole - moving) * 1e-6)


def received(told: Mapping[str, Any]) -> tuple[str, int]:
    """The collective's name and the bytes that each rank receives in a ring; no name for a wait."""
    collective = str(told.get("Collective name", "")).replace("_", "").lower()
    into, out = int(told["In msg nelems"]), int(told["Out msg nelems"])
    ranks, size = int(told["Group size"]), SIZES.get(str(told.get("dtype")), 0)
    others = (ranks - 1) / ranks
    for name, elements in (
        ("allgather", abs(out - into)),
        ("reducescatter", abs(out - into)),
        ("allreduce", 2 * others * into),
        ("alltoall", others * into),
        ("broadcast", into),
    ):
        if name in collective:
            return name, round(elements * size)
    return "", 0
