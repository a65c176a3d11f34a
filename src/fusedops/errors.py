# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions that fusedops raises on its own account.

Bad arguments are plain ``ValueError`` and ``TypeError``; these are for what a caller may want to
catch by kind: no compiler, a compiler that refuses, a variant that is not there.

May import: nothing of fusedops.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "IN_COMPILED_CODE",
    "IN_SYMBOLIC_TRACE",
    "UNFUSED",
    "CompileError",
    "CompilerNotFound",
    "FusedOpsError",
    "MissingVariantError",
    "UnknownArchError",
    "UnsupportedError",
    "check_flag",
    "shortened",
]

#: The error where something is declared in code that Dynamo compiles: it cannot trace that. Dynamo
#: prints what is raised there, if that is a constant.
IN_COMPILED_CODE = (
    "it cannot be declared in compiled code (torch.compile with fullgraph=True, torch.export with "
    "strict=True); declare it outside, in a module's __init__, say"
)

#: The cure for a call with a proxy of torch.fx's.
IN_SYMBOLIC_TRACE = (
    "torch.fx.symbolic_trace knows neither shapes nor dtypes: trace with torch.export.export, or "
    "have torch.fx.wrap leave the function that calls the op as it is"
)

#: What to use where no kernel can run: an op has it, and so has a module; a model that was patched,
#: or asks for the fused attention by name, goes back to torch's code.
UNFUSED = (
    "op.unfused, which a module of fusedops.nn has too; a model goes back by "
    "fusedops.unpatch(model), or from attn_implementation='fusedops' by "
    "model.set_attn_implementation('eager')"
)

LOG = "log.txt"  # beside the source that was kept
LOG_LINES = 40  # in a message, where no log is kept
_SHOWN = 160  # characters of a value in a message


class FusedOpsError(Exception):
    """The base of every exception of this package."""


class UnsupportedError(FusedOpsError, NotImplementedError):
    """A valid request that this library does not support; the message says what is supported."""


class UnknownArchError(UnsupportedError):
    """The compiler at hand does not know the GPU; the message says which it knows."""


class CompilerNotFound(FusedOpsError, RuntimeError):  # noqa: N818 (reads better at the raise)
    """No suitable compiler was found; the message says where it was sought, and the cure."""


class MissingVariantError(FusedOpsError, LookupError):
    """A kernel is not in the cache, and compiling is forbidden (``FUSEDOPS_OFFLINE=1``)."""


class CompileError(FusedOpsError, RuntimeError):
    """A compiler refused a generated source.

    Attributes:
        command: The command line, or for NVRTC its options.
        log: The whole log.
        source: Where the source was kept, with the log beside it; None if it could not be.
        what: The declaration, and what it was to be compiled for.
        culprit: The functor or operand that the first error is in, where that can be known.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: str,
        source: Path | None = None,
        what: str = "a generated kernel",
        culprit: str | None = None,
    ) -> None:
        self.command = tuple(command)
        self.log = log
        self.source = source
        self.what = what
        self.culprit = culprit
        super().__init__(self.command, log, source, what, culprit)

    @property
    def first(self) -> str:
        """The first line of the log that reports an error."""
        lines = [line.strip() for line in self.log.splitlines() if line.strip()]
        wrong = (line for line in lines if re.search(r"\berror\b", line))
        return next(wrong, lines[-1] if lines else "(the log is empty)")

    def __str__(self) -> str:
        parts = [f"{self.what} does not compile: {self.first}"]
        if self.culprit is not None:
            parts.append(f"in: {self.culprit}")
        if cure := _cure(self.log):
            parts.append(f"cure: {cure}")
        kept = str(self.source)  # in place of the bare name, so that it can be run again
        command = [kept if self.source and one == self.source.name else one for one in self.command]
        parts.append(f"command: {shlex.join(command)}")
        if self.source is not None:
            log = self.source.with_name(LOG)
            return "\n".join([*parts, f"source: {self.source}", f"whole log: {log}"])
        lines = self.log.strip().splitlines()
        shown = lines[:LOG_LINES]
        if len(lines) > len(shown):
            shown.append(
                f"... ({counted(len(lines) - len(shown), 'more line')} in the log attribute)"
            )
        return "\n".join([*parts, "source: not kept", "log:", *(shown or ["(empty)"])])


def counted(number: int, what: str) -> str:
    """A number of things in a message: "1 row", "2 rows"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def shortened(value: Any) -> str:
    """A value in a message, on one line: no elements of tensors, and no more than a few words."""
    text = _shown(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def check_flag(owner: str, name: str, value: object) -> bool:
    """An argument that is True or False; raise TypeError for anything else, 0 and 1 included."""
    if not isinstance(value, bool):
        raise TypeError(f"{owner}: {name} must be True or False, got {shortened(value)}")
    return value


def _shown(value: Any) -> str:
    if type(value) is tuple:
        return f"({', '.join(map(_shown, value))}{',' * (len(value) == 1)})"
    if type(value) is list:
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, int) and value.bit_length() > 256:  # Python prints no more than some
        return f"an int of {value.bit_length()} bits"
    if hasattr(value, "__torch_function__"):
        return f"a tensor, {type(value).__name__}"
    return " ".join(repr(value).split())


def _cure(log: str) -> str | None:
    """The packages to install, where a compiler lacks headers that are not ours."""
    if re.search(r"(could not|cannot) open source file \"(cuda|nv/|vector_)", log):
        return "the CUDA headers are incomplete: pip install 'fusedops[cuda]', or set CUDA_HOME"
    if re.search(r"fatal error: '?(c?std|cmath|type_traits|algorithm)\w*(\.h)?'?[: ]", log):
        return "no headers of the C++ standard library (Debian, Ubuntu: apt-get install g++)"
    if re.search(r"[Kk]illed|virtual memory exhausted|Cannot allocate memory|signal 9\b", log):
        return "the compiler ran out of memory: free some, or build fewer variants at a time"
    if "No space left on device" in log:
        return "the disk of the temporary folder is full: free some, or set TMPDIR"
    return None
