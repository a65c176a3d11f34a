# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Many processes that start cold on one cache, in rounds; some of them are killed on the way.

    python tests/jit/crew.py FOLDER ROUNDS WORKERS KILLED SEED

prints one line of JSON for each round; in every other round all are killed, if any. Workers are
forks of one process that has imported torch and run none of it, since sixteen imports take a
minute.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from samples import Compiler

import fusedops as fo
from fusedops.flagship import ADD_NORM, ATTENTION
from fusedops.jit import lock, scratch
from fusedops.jit.cache import TEMPORARY, Store
from fusedops.jit.entry import Entry

PATIENCE = 120.0  # seconds after which a worker hangs
PROMPT = 5.0  # seconds that a call may take afterwards, a build included


def operations() -> list[tuple[Any, torch.Tensor, dict[str, Any]]]:
    x = 2 * torch.sin(1.7 * torch.arange(512.0)).reshape(2, 4, 8, 8)
    v = torch.linspace(0.5, 1.5, 8)
    padding = torch.zeros(2, 1, 1, 8, dtype=torch.bool)
    norm = {"bias": v, "p": 0.1, "residual": x.flip(0), "gamma": v, "beta": v}
    drawn = {"generator": (7, 0)}
    return [
        (fo.Softmax(), x, {}),
        (fo.LayerNorm(store=[fo.Affine("gamma", "beta")]), x, {"gamma": v, "beta": v}),
        (ATTENTION, x, {"scale": 0.5, "pair_bias": x, "padding": padding, "p": 0.1, **drawn}),
        (ADD_NORM, x, {**norm, **drawn}),
    ]


def right(op: Any, x: torch.Tensor, operands: dict[str, Any]) -> bool:
    def values(result: Any) -> tuple[torch.Tensor, ...]:
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    got, wanted = values(op(x, **operands)), values(op.unfused(x, **operands))
    return all(torch.allclose(*pair, atol=1e-5) for pair in zip(got, wanted, strict=True))


def fork(work: Callable[[], bool]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        status = 0 if work() else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def work(seed: int) -> bool:
    calls = operations()
    random.Random(seed).shuffle(calls)  # all at one variant would be one race
    return all(right(*call) for call in calls)


def prompt(call: tuple[Any, torch.Tensor, dict[str, Any]]) -> bool:
    """Whether a call is right and waits for nobody; that the machine is busy is not its fault."""
    began = time.monotonic()
    is_right = right(*call)
    seconds, worked = time.monotonic() - began, sum(os.times()[:4])
    print(f"late: {seconds:.2f} s, of which {worked:.2f} s worked", file=sys.stderr, flush=True)
    return is_right and seconds < max(PROMPT, 10 * worked)


def wait_for_orphans() -> None:
    """The compilers of killed workers, which go on for a while."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def wait(children: list[int], kills: list[tuple[float, int]]) -> dict[str, int]:
    """Wait for the children, killing some of them when their time has come."""
    began, counts = time.monotonic(), dict.fromkeys(("right", "wrong", "killed", "hung"), 0)
    waiting = set(children)
    while waiting:
        elapsed = time.monotonic() - began
        for moment, child in kills:
            if child in waiting and elapsed >= moment:
                os.kill(child, signal.SIGKILL)
        if elapsed > PATIENCE:
            for child in waiting:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            return {**counts, "hung": len(waiting)}
        for child in list(waiting):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                waiting.discard(child)
                killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
                counts["killed" if killed else "wrong" if status else "right"] += 1
        time.sleep(0.002)
    return counts


def abandoned(store: Store) -> int:
    places = {store.root: TEMPORARY, Path(tempfile.gettempdir()): scratch.PREFIX}
    return sum(len([*scratch.abandoned(*place)]) for place in places.items())


def locked(store: Store) -> int:
    held = 0
    for path in (store.root / ".locks").glob("*.lock"):
        with lock.opened(path) as descriptor:
            held += not lock.taken(descriptor, path)
    return held


def a_round(folder: Path, workers: int, killed: int, seed: int) -> dict[str, Any]:
    folder.mkdir()
    store = Store(folder / "cache")
    counting = Compiler(folder)
    os.environ["FUSEDOPS_CACHE_DIR"] = str(store.root)
    os.environ["CXX"] = str(counting.path)
    choose = random.Random(seed)
    began = time.monotonic()
    children = [fork(lambda number=number: work(seed + number)) for number in range(workers)]
    if seed % 2 and killed:  # nobody is left to clear up after them
        killed = workers
    kills = [(choose.uniform(0, 1), child) for child in choose.sample(children, killed)]
    result: dict[str, Any] = wait(children, kills)
    result["compiles"] = counting.compilations
    result["left"], result["locked"] = abandoned(store), locked(store)
    wait_for_orphans()
    # A variant that may have been built, and one that was not: the latter writes, and so reclaims.
    x = torch.linspace(-1, 1, 24).reshape(3, 8)
    late = [(fo.Softmax(), x, {}), (fo.RMSNorm(), x, {})]
    for call in late:
        result["late"] = result.get("late", 0) + wait([fork(lambda c=call: prompt(c))], [])["right"]
    found = list(store.entries())
    result["entries"] = sum(isinstance(entry, Entry) for _, entry in found)
    result["damaged"] = len(found) - result["entries"] + len(store.set_aside())
    inside = {path.name for path in store.root.iterdir()} - {path.name for path, _ in found}
    inside |= {path.name for path in Path(tempfile.gettempdir()).iterdir()}
    result["strays"] = sorted(inside - {".locks"})
    return {**result, "seconds": round(time.monotonic() - began, 2)}


def main() -> None:
    folder = Path(sys.argv[1])
    rounds, workers, killed, seed = map(int, sys.argv[2:])
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans become this process's
    for number in range(rounds):
        result = a_round(folder / str(number), workers, killed, seed + 101 * number)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
