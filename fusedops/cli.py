# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The command line. Each command only reads its arguments; what it does lives in a module."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from fusedops.demo import pick_device, run

app = typer.Typer(
    help="Fused row ops for torch: softmax and norms with their neighbours in one kernel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


@app.callback()
def root() -> None:
    """Makes `demo` a subcommand although it is the only one."""


@app.command()
def demo(
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:N; by default the GPU if there is one.")
    ] = None,
) -> None:
    """Builds, runs and times both flagship ops beside the unfused torch chains."""
    try:
        place = pick_device(device)
    except RuntimeError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from None
    run(place, Console())


def main() -> None:
    """The entry point of the command `fusedops`."""
    app()
