# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The command line, put together from the modules of `commands`.

May import: jit, commands.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fusedops.commands import build, cache, demo, doctor, export, record, tune
from fusedops.jit import env

app = typer.Typer(
    help="Fused row ops for torch: softmax and norms with their neighbours in one kernel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def _prints(name: str, folder: Callable[[], Path], about: str) -> Any:
    """An option that prints a folder and nothing else, for `$(...)` in a build's script."""

    def say(asked: bool) -> None:
        if asked:
            typer.echo(folder())
            raise typer.Exit

    return typer.Option(name, callback=say, is_eager=True, help=f"Print the folder of the {about}.")


@app.callback()
def root(
    include: Annotated[
        bool, _prints("--include", env.include_dir, "C++ headers, for a compiler's -I")
    ] = False,
    cmakedir: Annotated[
        bool, _prints("--cmakedir", env.cmake_dir, "CMake package, for fusedops_DIR")
    ] = False,
) -> None:
    """What stands before a command."""


# As --help lists them.
app.command()(demo.demo)
app.command()(doctor.doctor)
app.command(epilog=build.EXAMPLES)(build.build)
app.command(
    epilog=record.EXAMPLE,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)(record.record)
app.command(epilog=tune.EXAMPLE)(tune.tune)
app.add_typer(cache.app, name="cache")
app.command(epilog=export.EXAMPLE)(export.export)


def main() -> None:
    """Run a command; what cannot be imported for it is said without a traceback."""
    try:
        app()
    except ImportError as error:  # torch, most likely
        typer.echo(f"fusedops: {error}\n`fusedops doctor` says what is missing.", err=True)
        raise SystemExit(1) from None
