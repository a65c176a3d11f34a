# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Directives of the manual that print what the package says of itself.

``command-help`` prints what ``fusedops COMMAND --help`` prints, and ``shown-at-head`` the comment
at the head of a C++ header, without its licence.
"""

from pathlib import Path

import click
import typer
from docutils import nodes
from docutils.parsers.rst import Directive

from fusedops.cli import app

INCLUDE = Path(__file__).parents[2] / "include" / "fusedops"


def help_of(words):
    """The help of a command, such as ``["cache", "clear"]``, 100 columns wide."""
    command = typer.main.get_command(app)
    context = click.Context(command, info_name="fusedops", max_content_width=100, terminal_width=98)
    for word in words:  # A command within another one inherits the widths.
        command = command.commands[word]
        context = click.Context(command, info_name=word, parent=context)
    return command.get_help(context)


class CommandHelp(Directive):
    """The help of the command that the argument names, as it is printed."""

    optional_arguments = 2

    def run(self):
        text = help_of(self.arguments)
        block = nodes.literal_block(text, text)
        block["language"] = "text"
        return [block]


class ShownAtHead(Directive):
    """The comment with which a header begins, below its licence."""

    required_arguments = 1

    def run(self):
        path = INCLUDE / self.arguments[0]
        self.state.document.settings.record_dependencies.add(str(path))
        lines = path.read_text(encoding="utf-8").splitlines()
        lines = lines[: lines.index("#pragma once")]
        lines = [line for line in lines if not line.startswith("// SPDX")]
        text = "\n".join(line.removeprefix("//").removeprefix(" ") for line in lines).strip()
        block = nodes.literal_block(text, text)
        block["language"] = "text"
        return [block]


def setup(app):
    app.add_directive("command-help", CommandHelp)
    app.add_directive("shown-at-head", ShownAtHead)
    return {"parallel_read_safe": True}
