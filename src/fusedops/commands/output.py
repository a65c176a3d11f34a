# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Where commands print their tables."""

from __future__ import annotations

from rich.console import Console

__all__ = ["make_console"]

WIDE = 160  # columns of a file or a pipe, which has no width: in 80 most cells would be broken


def make_console() -> Console:
    """The terminal, or what stands in its place."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    return console
