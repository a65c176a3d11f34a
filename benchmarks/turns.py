# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Work in processes of its own that is made ready side by side, then timed one after another.

Compiling takes most of the time of a model, and many cores; what is timed has the machine alone.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol
from unittest import mock

__all__ = ["Job", "Turn", "in_turns"]


class Turn(Protocol):
    """What a process does."""

    def prepare(self) -> Any:
        """What may run beside others; what it found."""

    def run(self) -> Any:
        """What runs while the others wait; what it found."""


class Job(NamedTuple):
    """What makes a `Turn` in its process, with which arguments, and the room that this takes.

    All can be pickled.
    """

    make: Callable[..., Turn]
    arguments: Sequence[Any] = ()
    room: int = 1


def in_turns(
    jobs: Mapping[Any, Job], room: int, told: Callable[[str], object] = lambda said: None
) -> Iterator[tuple[Any, Any, Any]]:
    """Make jobs ready, as many at a time as have room together, then run each of these in turn.

    Args:
        jobs: The jobs by name.
        room: For all that are there at a time; 0 runs all in this process, one by one.
        told: Called with how many are ready.

    Yields:
        The name of a job, and what its two parts found; what failed is an exception's first line,
        then None.
    """
    if not room:
        for name, job in jobs.items():
            yield (name, *_here(job))
        return
    batch: dict[Any, Job] = {}
    for name, job in jobs.items():
        if batch and sum(one.room for one in batch.values()) + job.room > room:
            yield from _together(batch, told)
            batch = {}
        batch[name] = job
    yield from _together(batch, told)


def _together(
    jobs: Mapping[Any, Job], told: Callable[[str], object]
) -> Iterator[tuple[Any, Any, Any]]:
    context = multiprocessing.get_context("spawn")
    compilers = str(max(1, (os.cpu_count() or 1) // max(1, len(jobs))))
    started = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            mock.patch.dict(os.environ, {"TORCHINDUCTOR_COMPILE_THREADS": compilers})
        )
        for name, job in jobs.items():
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, job))
            process.start()
            stack.callback(_end, process)
            theirs.close()
            started[name] = ours
        ready = {}
        for name, ours in started.items():
            told(f"{len(ready)} of {len(started)} ready")
            ready[name] = _heard(ours)
        for name, (worked, prepared) in ready.items():
            if not worked:
                yield name, prepared, None
                continue
            started[name].send(None)
            worked, found = _heard(started[name])
            yield (name, prepared, found) if worked else (name, found, None)


def _here(job: Job) -> tuple[Any, Any]:
    try:
        turn = job.make(*job.arguments)
        return turn.prepare(), turn.run()
    except Exception as error:
        return _said(error), None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _heard(pipe: Connection) -> tuple[bool, Any]:
    try:
        answer: tuple[bool, Any] = pipe.recv()
    except EOFError:
        return False, "the process ended by itself"
    return answer


def _work(pipe: Connection, job: Job) -> None:
    try:
        turn = job.make(*job.arguments)
        pipe.send((True, turn.prepare()))
        pipe.recv()
        pipe.send((True, turn.run()))
    except Exception as error:  # The others are measured all the same.
        pipe.send((False, _said(error)))


def _end(process: Any) -> None:
    process.join(20)
    if process.is_alive():
        process.terminate()
        process.join()
