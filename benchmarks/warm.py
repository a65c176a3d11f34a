# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Builds what the sweeps will call in many processes at once; all builders keep caches on disk.

Not where kernels are chosen by trial: trials beside others would choose badly.
"""

import concurrent.futures
import concurrent.futures.process
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from unittest import mock

import torch
import traffic
from peers import FUSEDOPS, PEER_COLUMNS, PEERS, Rival
from points import Point, Selection
from sweep import FEW_ROWS_PEERS, PEER_DTYPE, Buffers, calls, installed

ROOM = 0.65  # Of the device's memory for all processes together.
TENSORS = 6  # Of a point's shape that one process may have at a time, beside its context.
CONTEXT = 1e9
ALONE = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # Each process would else start a pool of its own.

Job = tuple[Point, Rival]


def build(chosen: Selection, parts: Sequence[str], processes: int) -> str:
    """Calls everything once; says what came of it."""
    begin = time.perf_counter()
    jobs = sorted(_jobs(chosen, parts), key=lambda job: job[0].bytes)
    if not jobs:
        return "Nothing to build."
    failed = []
    with mock.patch.dict(os.environ, ALONE):
        # Small points first, by all; then ever fewer at a time.
        while jobs:
            most = min(processes, _together(jobs[0]))
            batch = [job for job in jobs if min(processes, _together(job)) == most]
            jobs = jobs[len(batch) :]
            # What costs the most to build is not to be the last.
            batch.sort(key=lambda job: job[1] is FUSEDOPS)
            context = multiprocessing.get_context("spawn")
            try:
                with concurrent.futures.ProcessPoolExecutor(
                    min(most, len(batch)), mp_context=context
                ) as pool:
                    failed += [reason for reason in pool.map(_build, batch) if reason]
            except concurrent.futures.process.BrokenProcessPool as error:
                failed.append(str(error))  # The rest is built when it is measured.
    seconds = time.perf_counter() - begin
    return f"Built in {seconds:.0f} s; {len(failed)} failed{': ' + failed[0] if failed else ''}."


def _jobs(chosen: Selection, parts: Sequence[str]) -> Iterator[Job]:
    for part, shapes in (("sweep", chosen.sweep), ("few_rows", chosen.few_rows)):
        if part not in parts:
            continue
        few = part == "few_rows"
        names = [name for name in chosen.peers if not few or name in FEW_ROWS_PEERS]
        rivals, _ = installed(names, part)
        rivals = [each for each in rivals if each is not PEERS["eager"]]
        for points in shapes():
            held = points[0].dtype == PEER_DTYPE and points[0].columns in PEER_COLUMNS
            for point in points:
                yield point, FUSEDOPS
                for rival in rivals if few or held else ():
                    if not rival.tried:
                        yield point, rival
    if "traffic" in parts:
        yield from traffic.jobs(chosen)


def _together(job: Job) -> int:
    """How many processes may have such a point at a time, in powers of two: few are the pools."""
    room = ROOM * torch.cuda.get_device_properties(0).total_memory
    count = max(1, int(room / (TENSORS * job[0].bytes + CONTEXT)))
    return 1 << (count.bit_length() - 1)


def _build(job: Job) -> str:
    point, rival = job
    try:
        with torch.no_grad():
            calls(rival, point, Buffers(point, 1))[0]()
        torch.cuda.synchronize()
    except Exception as error:  # The sweep will meet it again, and write it down.
        return f"{rival.by}, {point.case}: {error!r}"[:200]
    finally:
        torch.cuda.empty_cache()
    return ""
