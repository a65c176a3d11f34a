# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops doctor`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fusedops.commands.output import make_console

__all__ = ["add"]

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Prints JSON for programs.")] = False,
) -> None:
    """Says what fusedops needs of this machine, what it finds, and how to mend it; 1 if it must."""
    from rich.table import Table
    from rich.text import Text

    from fusedops.doctor import Verdict, examine

    console = make_console()
    if as_json:
        findings = [*examine()]
    else:
        with console.status("looking"):
            findings = [*examine()]
    verdicts = [one.verdict for one in findings]
    worst = next((v for v in (Verdict.PROBLEM, Verdict.WARNING) if v in verdicts), Verdict.OK)
    if as_json:
        checks = [
            {"name": one.name, "found": one.found, "verdict": one.verdict.value, "cure": one.cure}
            for one in findings
        ]
        typer.echo(json.dumps({"verdict": worst.value, "checks": checks}, indent=1))
    else:
        table = Table("", "found", "verdict", "cure")
        for one in findings:
            verdict = Text(one.verdict.value, STYLES[one.verdict.value])
            table.add_row(one.name, Text(one.found, overflow="fold"), verdict, Text(one.cure))
        console.print(table)
        console.print(
            {
                Verdict.OK: "All is well.",
                Verdict.WARNING: "fusedops works; see the warnings.",
                Verdict.PROBLEM: "fusedops does not work here, or not all of it: see the problems.",
            }[worst]
        )
    raise typer.Exit(int(worst is Verdict.PROBLEM))


def add(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(doctor)
