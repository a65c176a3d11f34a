# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The command line. Each command only reads its arguments; what it does lives in a module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fusedops.commands import build, record
from fusedops.demo import pick_device, run
from fusedops.errors import UnsupportedError
from fusedops.exporting import export as export_op
from fusedops.exporting import signature
from fusedops.jit import env

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


@app.command(
    epilog="fusedops export fusedops.flagship:ATTENTION --arch sm_90 --operand "
    "x=float16:8,16,1024,1024 --operand scale=0.125 --operand pair_bias=float16:16,1024,1024 "
    "--operand padding=bool:8,1,1,1024 --operand p=0.1 --output attention.cuh"
)
def export(
    op: Annotated[
        str, typer.Argument(help="The declaration, as MODULE:ATTRIBUTE; modules here are found.")
    ],
    arch: Annotated[
        str, typer.Option(help="sm_90, x86-64-v3 and the like, or cpu for this machine's.")
    ],
    operand: Annotated[
        list[str],
        typer.Option(
            help="x or an operand: NAME=DTYPE:SIZES, NAME=DTYPE:SIZES@STRIDES, or NAME=NUMBER, of "
            "which only the kind counts (for a dropout: whether it is 0)."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="By default the header is printed.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="What the functions' names begin with; by default the attribute."),
    ] = None,
    backward: Annotated[
        str, typer.Option(help="The gradients to export: all, none, or names with commas between.")
    ] = "all",
    dim: Annotated[str | None, typer.Option(help="As in a call; with commas between.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the result, as in a call.")] = None,
    training: Annotated[bool, typer.Option(help="Whether dropouts drop, as in a call.")] = True,
    multiprocessors: Annotated[
        int | None, typer.Option(help="Of the GPU whose order of sums over rows is taken.")
    ] = None,
) -> None:
    """Writes an op and its gradients as one header for programs without Python and torch."""
    wanted: bool | list[str] = backward == "all"
    if backward not in ("all", "none"):
        wanted = backward.split(",")
    try:
        found = signature.declaration(op)
        given = signature.signature(operand)
        if "x" not in given:
            raise ValueError("--operand must give x, as in x=float16:8,1024")
        result = export_op(
            found,
            given.pop("x"),
            name=name or op.replace(":", ".").rpartition(".")[2].lower(),
            path=output,
            arch=arch,
            backward=wanted,
            multiprocessors=multiprocessors,
            dim=None if dim is None else signature.ints(dim),
            dtype=None if dtype is None else signature.read_dtype(dtype),
            training=training,
            **given,
        )
    except (TypeError, ValueError, UnsupportedError) as error:
        raise typer.BadParameter(str(error)) from None
    if output is None:
        typer.echo(result.text, nl=False)


build.add(app)
record.add(app)


def main() -> None:
    """The entry point of the command `fusedops`."""
    app()
