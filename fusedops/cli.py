# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The command line, put together: one more command is one more module in `COMMANDS`.

May import: jit, commands.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fusedops.commands import build, cache, demo, doctor, export, record, tune
from fusedops.jit import env

COMMANDS = (demo, doctor, build, record, tune, cache, export)  # as --help lists them

app = typer.Typer(
    help="Fused row ops for torch: softmax and norms with their neighbours in one kernel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def _prints(folder: Callable[[], Path]) -> Callable[[bool], None]:
    """An option that prints a folder and nothing else, for `$(...)` in a build's script."""

    def say(asked: bool) -> None:
        if asked:
            typer.echo(folder())
            raise typer.Exit

    return say


@app.callback()
def root(
    include: Annotated[
        bool,
        typer.Option(
            "--include",
            callback=_prints(env.include_dir),
            is_eager=True,
            help="Print the folder of the C++ headers, for a compiler's -I.",
        ),
    ] = False,
    cmakedir: Annotated[
        bool,
        typer.Option(
            "--cmakedir",
            callback=_prints(env.cmake_dir),
            is_eager=True,
            help="Print the folder of the CMake package, for fusedops_DIR.",
        ),
    ] = False,
) -> None:
    """What stands before a command."""


for _command in COMMANDS:
    _command.add(app)


def main() -> None:
    """Run a command; what cannot be imported for it is said without a traceback."""
    try:
        app()
    except ImportError as error:  # torch, most likely
        typer.echo(f"fusedops: {error}\n`fusedops doctor` says what is missing.", err=True)
        raise SystemExit(1) from None
