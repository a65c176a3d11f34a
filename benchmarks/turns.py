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
from multiprocessing.synchronize import Semaphore
from typing import Any, Protocol
from unittest import mock

__all__ = ["Turn", "in_turns"]


class Turn(Protocol):
    """What a process does."""

    def prepare(self) -> Any:
        """What may run beside others; what it found."""

    def run(self) -> Any:
        """What runs while the others wait; what it found."""


def in_turns(
    jobs: Mapping[str, tuple[Callable[..., Turn], Sequence[Any]]], together: int
) -> Iterator[tuple[str, Any, Any]]:
    """Make each job ready, so many at a time, then run each in turn.

    Args:
        jobs: By name, what makes a `Turn` in its process, and the arguments; all can be pickled.
        together: The most that are made ready at a time; 0 runs all in this process, one by one.

    Yields:
        The name of a job, and what its two parts found; what failed is an exception's first line,
        then None.
    """
    if not together:
        for name, job in jobs.items():
            yield (name, *_here(*job))
        return
    context = multiprocessing.get_context("spawn")
    room = context.Semaphore(together)
    compilers = str(max(1, (os.cpu_count() or 1) // max(1, min(together, len(jobs)))))
    started = {}
    with (
        contextlib.ExitStack() as stack,
        mock.patch.dict(os.environ, {"TORCHINDUCTOR_COMPILE_THREADS": compilers}),
    ):
        for name, (make, arguments) in jobs.items():
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, room, make, arguments))
            process.start()
            stack.callback(_end, process)
            theirs.close()
            started[name] = ours
        ready = {name: _heard(ours) for name, ours in started.items()}
        for name, (worked, prepared) in ready.items():
            if not worked:
                yield name, prepared, None
                continue
            started[name].send(None)
            worked, found = _heard(started[name])
            yield (name, prepared, found) if worked else (name, found, None)


def _here(make: Callable[..., Turn], arguments: Sequence[Any]) -> tuple[Any, Any]:
    try:
        turn = make(*arguments)
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


def _work(
    pipe: Connection, room: Semaphore, make: Callable[..., Turn], arguments: Sequence[Any]
) -> None:
    try:
        with room:
            turn = make(*arguments)
            prepared = turn.prepare()
        pipe.send((True, prepared))
        pipe.recv()
        pipe.send((True, turn.run()))
    except Exception as error:  # The others are measured all the same.
        pipe.send((False, _said(error)))


def _end(process: Any) -> None:
    process.join(20)
    if process.is_alive():
        process.terminate()
        process.join()
