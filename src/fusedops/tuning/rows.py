# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of tuning files from what a search found."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from fusedops.schedule.architectures import Gpu
from fusedops.schedule.features import Features, ProductFeatures
from fusedops.schedule.launch import LaunchConfig, ProductConfig
from fusedops.schedule.tuning_file import FORMAT, KINDS, read, text_of

__all__ = ["empty", "put", "row"]

#: A sum over rows of so many groups or more is made otherwise than one of fewer (`groups`).
MANY_GROUPS = 1024


def empty(arch: str, gpu: Gpu) -> dict[str, Any]:
    """The content of a tuning file of a GPU, without rows."""
    device = {"name": gpu.name, "threads_per_sm": gpu.threads_per_sm, "l2_bytes": gpu.l2_bytes}
    return {"format": FORMAT, "arch": arch, "device": device, **{kind: [] for kind in KINDS}}


def row(
    features: Features | ProductFeatures,
    config: LaunchConfig | ProductConfig,
    percent: Mapping[str, float],
    measured: Mapping[str, str],
    why: str = "",
) -> dict[str, Any]:
    """The row for kernels that have just these features.

    Args:
        features: The features of the kernel.
        config: The launch configuration.
        percent: What was measured in percent of the ceiling, by case; may be empty.
        measured: On what: device, driver, versions.
        why: What else there is to say.
    """
    when: dict[str, Any] = features._asdict()
    if "groups" in when:
        many = when["groups"] >= MANY_GROUPS
        when["groups"] = {"min": MANY_GROUPS} if many else {"max": MANY_GROUPS - 1}
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
    return {
        "when": when,
        "set": config._asdict(),
        **({"percent": {k: round(value, 1) for k, value in percent.items()}} if percent else {}),
        **({"why": why} if why else {}),
        "measured": {**measured, "date": today},
    }


def put(content: Mapping[str, Any], kind: str, new: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a tuning file with a row before all others, in place of one for the same.

    Args:
        content: The content of the file.
        kind: One of `KINDS`.
        new: The row.

    Raises:
        TuningFileError: A row below would never be used then.
    """
    others = [one for one in content.get(kind, ()) if one["when"] != new["when"]]
    found = {**content, kind: [dict(new), *others]}
    read(text_of(found), "the new file", total=False)
    return found
