# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions that fusedops raises on its own account.

Bad arguments are plain ``ValueError`` and ``TypeError``; these are for what a caller may want to
catch by kind: no compiler, a compiler that refuses, a variant that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "CompileError",
    "CompilerNotFound",
    "FusedOpsError",
    "MissingVariantError",
    "UnsupportedError",
]

LOG_LINES = 40  # of a compiler's log in a message; the whole log is an attribute


class FusedOpsError(Exception):
    """The base of every exception of this package."""


class UnsupportedError(FusedOpsError, NotImplementedError):
    """What was asked for is well formed, but not supported here; the message says what is."""


class CompilerNotFound(FusedOpsError, RuntimeError):  # noqa: N818 (reads better at the raise)
    """No compiler for what is wanted; the message says what was looked for and the cure."""


class MissingVariantError(FusedOpsError, LookupError):
    """The cache holds no such variant, and compiling is forbidden (``FUSEDOPS_OFFLINE=1``)."""


class CompileError(FusedOpsError, RuntimeError):
    """A compiler refused a generated source.

    Attributes:
        command: The command line, or for NVRTC its options.
        log: The whole log.
        source: Where the source was kept, or None if it could not be.
    """

    def __init__(self, command: Sequence[str], log: str, source: Path | None = None) -> None:
        self.command = tuple(command)
        self.log = log
        self.source = source
        super().__init__(self.command, log, source)

    def __str__(self) -> str:
        lines = self.log.strip().splitlines()
        shown = lines[:LOG_LINES]
        if len(lines) > len(shown):
            shown.append(f"... ({len(lines) - len(shown)} more lines in the log attribute)")
        kept = self.source if self.source is not None else "not kept"
        command = " ".join(self.command)
        head = ["the compiler refused a generated kernel", f"command: {command}", f"source: {kept}"]
        return "\n".join([*head, "log:", *(shown or ["(empty)"])])
