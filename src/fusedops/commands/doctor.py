# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops doctor`."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from fusedops.terminal import make_console

__all__ = ["doctor"]

#: By the worst verdict: how the verdict is printed, and what is said of the whole.
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
SAID = {
    "ok": "All is well.",
    "warning": "fusedops works; see the warnings.",
    "problem": "fusedops does not work here, or not all of it: see the problems.",
}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Prints JSON for programs.")] = False,
) -> None:
    """Report what fusedops needs of this machine and what it finds; exit with 1 if it lacks any."""
    from rich.table import Table
    from rich.text import Text

    from fusedops.doctor import examine

    checks = [dataclasses.asdict(one) for one in examine()]
    worst = max((one["verdict"] for one in checks), key=[*SAID].index)
    if as_json:
        typer.echo(json.dumps({"verdict": worst, "checks": checks}, indent=1))
    else:
        table = Table("", "found", "verdict", "cure")
        for one in checks:
            verdict = Text(one["verdict"], STYLES[one["verdict"]])
            found = Text(one["found"], overflow="fold")
            table.add_row(one["name"], found, verdict, Text(one["cure"]))
        make_console().print(table, SAID[worst])
    raise typer.Exit(int(worst == "problem"))
