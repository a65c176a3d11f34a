# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["export"]

EXAMPLE = """Example:

\b
fusedops export fusedops.flagship:ATTENTION \\
  --arch sm_90 --output attention.cuh \\
  --operand x=float16:8,16,1024,1024 \\
  --operand scale=0.125 --operand p=0.1 \\
  --operand pair_bias=float16:16,1024,1024 \\
  --operand padding=bool:8,1,1,1024"""


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
    """Writes an op and its gradients as one header for programs without Python and torch.

    A product cannot be exported, but what follows it: the attribute epilogue of a Linear or a
    Matmul, or a Map of its functors.
    """
    from fusedops.commands import words
    from fusedops.errors import UnsupportedError
    from fusedops.exporting import NO_PRODUCT
    from fusedops.exporting import export as export_op

    wanted: bool | list[str] = backward == "all"
    if backward not in ("all", "none"):
        wanted = backward.split(",")
    try:
        found = words.declaration(op, cure=NO_PRODUCT)
        given = words.signature(operand)
        words.check_given(found, given)
        result = export_op(
            found,
            given.pop("x"),
            name=name or op.replace(":", ".").rpartition(".")[2].lower(),
            path=output,
            arch=arch,
            backward=wanted,
            multiprocessors=multiprocessors,
            dim=None if dim is None else words.ints(dim),
            dtype=None if dtype is None else words.read_dtype(dtype),
            training=training,
            **given,
        )
    except (TypeError, ValueError, UnsupportedError) as error:
        raise typer.BadParameter(str(error)) from None
    except OSError as error:
        raise typer.BadParameter(
            f"{error.filename} cannot be written: {error.strerror}; name a file in a folder "
            "that is there and is yours",
            param_hint="--output",
        ) from None
    if output is None:
        typer.echo(result.text, nl=False)
