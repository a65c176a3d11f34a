# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops record`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["record"]

EXAMPLE = "fusedops record --output calls.jsonl python train.py --steps 2"


def record(
    command: Annotated[
        list[str],
        typer.Argument(help="What to run, with its arguments: any program, in any processes."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file; calls are added to what it has.")
    ] = Path("calls.jsonl"),
) -> None:
    """Runs a program and writes down the calls of fused ops, for `fusedops build` and `tune`."""
    import os
    import shutil
    import subprocess
    import sys

    from fusedops.errors import counted
    from fusedops.prebuild.recording import Signature

    program = [sys.executable, *command] if command[0].endswith(".py") else command
    if shutil.which(program[0]) is None:
        raise typer.BadParameter(f"there is no program {program[0]!r}")
    file = output.absolute()
    try:
        file.touch(0o600)
        before = {str(Signature.parse(one)) for one in file.read_text("utf-8").splitlines()}
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file} cannot be added to: {error}") from None
    try:
        environment = {**os.environ, "FUSEDOPS_RECORD": str(file)}
        done = subprocess.run(program, env=environment, check=False)
    except OSError as error:  # such as a script that does not say what runs it
        raise typer.BadParameter(f"{program[0]} cannot be run: {error.strerror}") from None
    # The file is only ever added to: others may be at it. Lines of two processes may be equal.
    calls = set(file.read_text("utf-8").splitlines())
    new = len(calls - before)
    typer.echo(f"fusedops: {counted(new, 'new call')}, {len(calls)} in {file}", err=True)
    if calls:
        typer.echo(f"build for them: fusedops build --calls {output} --arch ...", err=True)
    raise typer.Exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
