# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The keywords of a call that are options, not operands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OPTIONS = ("dim", "normalized_shape", "dtype", "out", "training", "generator", "part_of")


def parted(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The operands and the options among the keywords of a call."""
    options = {key: value for key, value in arguments.items() if key in OPTIONS}
    return {key: value for key, value in arguments.items() if key not in OPTIONS}, options
