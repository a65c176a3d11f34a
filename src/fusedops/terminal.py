# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Terminal output of commands and long checks: a console for tables, a progress line.

May import: nothing of fusedops.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console


__all__ = ["Step", "make_console", "shown"]

WIDE = 160  # columns of a file or a pipe, which has no width: in 80 most cells would be broken


def make_console() -> Console:
    """A rich console, wide enough for tables if the output is no terminal."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    return console


class Step(Protocol):
    """Progress callback: the current task, and how many parts were done since the last call."""

    def __call__(self, text: str | None = None, done: int = 0) -> None:
        """Show it."""


@contextlib.contextmanager
def shown(text: str, total: int | None = None) -> Iterator[Step]:
    """Show a line while the block runs, if stderr is a terminal and rich is installed.

    Args:
        text: What is done.
        total: How many parts it has, if that is known.
    """
    if not (sys.stderr and sys.stderr.isatty() and importlib.util.find_spec("rich")):
        yield lambda text=None, done=0: None
        return
    from rich import progress
    from rich.console import Console

    columns = [progress.SpinnerColumn(), progress.TextColumn("{task.description}", markup=False)]
    if total is not None:
        columns += [progress.BarColumn(), progress.MofNCompleteColumn()]
    columns.append(progress.TimeElapsedColumn())
    with progress.Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,  # what the work prints stays where it is printed
        redirect_stderr=False,
    ) as line:
        task = line.add_task(text, total=total)
        yield lambda text=None, done=0: line.update(task, description=text, advance=done)
