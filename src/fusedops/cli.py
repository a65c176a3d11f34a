# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The command line, put together from the modules of `commands`.

May import: version, jit, commands.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fusedops.commands import build, cache, demo, doctor, export, record, tune
from fusedops.jit import env
from fusedops.version import __version__

app = typer.Typer(
    help="Fused row ops for torch: softmax and norms with their neighbours in one kernel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    # Rich puts help in tables, whose narrow columns cut the syntax of options off.
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)


def _prints(name: str, text: Callable[[], Path | str], about: str) -> Any:
    """An option that prints one thing and nothing else, for `$(...)` in a build's script."""

    def say(asked: bool) -> None:
        if asked:
            typer.echo(text())
            raise typer.Exit

    return typer.Option(name, callback=say, is_eager=True, help=f"Print the {about}.")


@app.callback()
def root(
    version: Annotated[
        bool, _prints("--version", lambda: f"fusedops {__version__}", "name and the version")
    ] = False,
    include: Annotated[
        bool,
        _prints("--include", env.include_dir, "folder of the C++ headers, for a compiler's -I"),
    ] = False,
    cmakedir: Annotated[
        bool, _prints("--cmakedir", env.cmake_dir, "folder of the CMake package, for fusedops_DIR")
    ] = False,
) -> None:
    """Options before a command."""


def _add(command: Callable[..., None], **options: Any) -> None:
    """Add a command; the list of commands shows all of its first sentence."""
    first = str(command.__doc__).partition("\n\n")[0]
    app.command(short_help=" ".join(first.split()), **options)(command)


# As --help lists them.
_add(demo.demo)
_add(doctor.doctor)
_add(build.build, epilog=build.EXAMPLES)
_add(
    record.record,
    epilog=record.EXAMPLE,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
_add(tune.tune, epilog=tune.EXAMPLES)
app.add_typer(cache.app, name="cache")
_add(export.export, epilog=export.EXAMPLE)


def main() -> None:
    """Run a command; a missing dependency is reported without a traceback."""
    try:
        app()
    except ImportError as error:  # torch, most likely
        typer.echo(f"fusedops: {error}\n`fusedops doctor` says what is missing.", err=True)
        raise SystemExit(1) from None
