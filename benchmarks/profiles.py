# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Where the time of a step goes, by torch's profiler: kernels, gaps between them, the host."""

import time
from collections.abc import Callable, Iterable

import torch
from timing import synchronize
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

__all__ = ["busy", "profile_of"]

STEPS = 5
LINES = 30


def profile_of(step: Callable[[], object], device: torch.device) -> str:
    """A page of text about some steps, not waited for in between."""
    kinds = [ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    step()
    synchronize(device)
    with profile(activities=kinds) as found:
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        issued = time.perf_counter() - begin
        synchronize(device)
        whole = time.perf_counter() - begin
    kernels = [
        (event.time_range.start, event.time_range.end)
        for event in found.events()
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    ]
    total, covered, longest = busy(kernels)
    lines = [
        f"{STEPS} steps under the profiler, which slows the host; milliseconds of one step:",
        f"  wall                {1e3 * whole / STEPS:.3f}",
        f"  issued by the host  {1e3 * issued / STEPS:.3f}",
        f"  sum of kernels      {total / 1e3 / STEPS:.3f}, {len(kernels) / STEPS:.0f} of them",
        f"  device busy         {covered / 1e3 / STEPS:.3f}",
        f"  longest gap         {longest / 1e3:.3f}",
    ]
    averages = found.key_averages()
    for by in (["self_device_time_total"] if kernels else []) + ["self_cpu_time_total"]:
        lines += ["", by, averages.table(sort_by=by, row_limit=LINES, max_name_column_width=90)]
    return "\n".join(lines) + "\n"


def busy(spans: Iterable[tuple[float, float]]) -> tuple[float, float, float]:
    """The sum of spans of time, the time that they cover together, and the longest gap."""
    total = covered = longest = 0.0
    last: float | None = None
    for begin, end in sorted(spans):
        total += end - begin
        if last is not None:
            longest = max(longest, begin - last)
        covered += max(0.0, end - (begin if last is None else max(begin, last)))
        last = end if last is None else max(last, end)
    return total, covered, longest
