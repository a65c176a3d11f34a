# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Kernels for a single row length, built in the background where a length recurs.

The kernel of a bucket (schedule/tiling.py) serves many lengths, so the length of the chunks into
which it cuts a long row is a word of its argument. In a kernel for one length that is a constant,
and most bounds checks go, which is up to 4 percent of the ceiling in a forward pass. The tile is
the same, and so is every bit.

Rows that are not cut into chunks gain nothing (benchmarks/log, 23), and neither do gradients.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from fusedops.jit import env
from fusedops.plan.planned import Planned

__all__ = ["CALLS", "calls_until_next", "forget", "replaced", "settle"]

#: The calls that the kernel of the bucket serves before one for their length is built, and before
#: it is looked again whether that is there.
CALLS = 64

#: The most lengths that are kept in mind; those that come later keep the kernels of their buckets.
MOST = 4096

#: By the key of the bucket's variant and the columns: None for a length that has been met, the
#: result to come while its kernel is built, and True when that is loaded.
_states: dict[tuple[object, int], Future[Any] | bool | None] = {}

#: One thread, of the process that imported the package: a forked child builds nothing on its own.
_pool: ThreadPoolExecutor | None = None
_process = os.getpid()


def replaced(info: Planned, single: Callable[[], Planned]) -> Planned:
    """What a call runs: what `single` returns, if the kernel for its length is loaded, else `info`.

    `info` has the kernel of the call's bucket; `single` describes the call with the kernel for its
    length alone.
    """
    if not _states:  # on every plan's way
        return info
    return single() if _states.get(_key(info)) is True else info


def calls_until_next(info: Planned, single: Callable[[], Planned]) -> int:
    """Count a plan that is made; after how many of its calls to make it again, 0 for never.

    The second plan for a length has its kernel built, a later one has it loaded. The arguments are
    those of `replaced`.
    """
    tile = info.tile
    if tile is None or tile.storage != "cluster" or not tile.even or not _may_build():
        return 0
    key = _key(info)
    state = _states.get(key)
    if key not in _states:
        if len(_states) >= MOST:
            return 0
        _states[key] = None
        return CALLS
    if state is None:
        _states[key] = _executor().submit(single().variant.build)
        return CALLS
    if isinstance(state, Future) and (not state.done() or torch.cuda.is_current_stream_capturing()):
        return CALLS
    if isinstance(state, Future):
        if state.exception() is not None:  # the kernel of the bucket goes on serving
            return 0
        single().variant.kernel()
        _states[key] = True
    return 1


def settle(call: Callable[[], object]) -> None:
    """Repeat a call until the kernel for its length alone runs, if there is to be one."""
    for _ in range(3):
        if any(state is not True for state in _states.values()):
            for _ in range(CALLS + 1):
                call()
            _wait()


def forget() -> None:
    """Forget all lengths, for tests."""
    _wait()
    _states.clear()


def _wait() -> None:
    """Wait for what is being built."""
    if _pool is not None:
        _pool.submit(int).result()


def _key(info: Planned) -> tuple[object, int]:
    return info.variant.key, info.geometry.columns


def _may_build() -> bool:
    return env.background() and not env.offline() and os.getpid() == _process


def _executor() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(1, "fusedops-build")
    return _pool
