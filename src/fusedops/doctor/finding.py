# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a check of the doctor gives."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    """How it stands; only a problem keeps fusedops from working."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: What was looked at.
        found: What is there.
        verdict: How that stands.
        cure: What to do about it; empty where nothing is to be done.
    """

    name: str
    found: str
    verdict: Verdict = Verdict.OK
    cure: str = ""


def one_line(error: object) -> str:
    """An error's text without its line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
