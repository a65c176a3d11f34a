# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tune a call on this machine's GPU, and put what was found into a tuning file."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from fusedops import _runtime
from fusedops.errors import UnsupportedError
from fusedops.generate import tuned
from fusedops.generate.target import Target
from fusedops.jit.entry import Identity
from fusedops.jit.store import only_builder, shared_store
from fusedops.schedule.architectures import Gpu
from fusedops.schedule.features import Features, ProductFeatures
from fusedops.schedule.launch import ProductConfig
from fusedops.schedule.tuning_file import FORMAT, KINDS, read, text_of
from fusedops.tuning.problem import Problem
from fusedops.tuning.search import Config, Outcome, Tried, search
from fusedops.version import __version__

#: A sum over rows of so many groups or more is made otherwise than one of fewer (`groups`).
MANY_GROUPS = 1024


class Tuned(NamedTuple):
    """What tuning a pass found."""

    case: str  # the call, for people
    kind: str  # the pass, "forward" or "backward", or "product"
    features: Features | ProductFeatures  # the features of its kernel
    outcome: Outcome  # the configurations before and after
    #: The speed in percent of the ceiling with each; None of a product, whose ceiling is arithmetic
    #: and not memory.
    percent_before: float | None = None
    percent_after: float | None = None


def tune(
    problem: Problem, done: Callable[[Tried], None] = lambda tried: None, case: str = ""
) -> Tuned:
    """Find the fastest launch configuration of a pass, or the fastest implementation of a product.

    `done` is called after each trial; the case is by default its op, dtype and sizes.

    Raises:
        AssertionError: The results are wrong before anything is changed.
        FusedOpsError: It cannot be built, or no other implementation runs the product.
        torch.OutOfMemoryError: Even a few rows do not fit on the device.
    """
    outcome = search(problem.kernel, problem, done)
    others = outcome.tried[1:]
    if problem.kernel.kind == "product" and all(one.seconds is None for one in others):
        reasons = [
            f"{one.config.implementation}: {one.reason}"
            for one in others
            if isinstance(one.config, ProductConfig)
        ]
        raise UnsupportedError(f"{problem.name}: there is nothing to tune: {'; '.join(reasons)}")
    return Tuned(
        case or problem.case,
        problem.kernel.kind,
        problem.kernel.features,
        outcome,
        problem.percent(outcome.seconds_before),
        problem.percent(outcome.seconds_after),
    )


def measured_on(device: torch.device) -> dict[str, str]:
    """The device, driver and version of fusedops that a measured figure belongs to."""
    target = Target.of(device)
    version = _runtime.driver_version()
    return {
        "device": "" if target.gpu is None else target.gpu.name,
        "driver": f"CUDA {version // 1000}.{version % 1000 // 10}",
        "fusedops": __version__,
    }


def put(content: Mapping[str, Any], found: Tuned, measured: Mapping[str, str]) -> dict[str, Any]:
    """The content of a tuning file with a row for what was found; as before if nothing is faster.

    Raises:
        TuningFileError: The content is no tuning file's.
    """
    if found.outcome.after == found.outcome.before:
        return dict(content)
    percent = {} if found.percent_after is None else {found.case: found.percent_after}
    before = (
        f"{found.outcome.seconds_before * 1e6:.1f} us before, "
        f"{found.outcome.seconds_after * 1e6:.1f} after"
        if found.percent_before is None
        else f"{found.percent_before:.1f} before"
    )
    why = f"{before}; {difference(found.outcome)}."
    row = row_of(found.features, found.outcome.after, percent, measured, why)
    return with_row(content, found.kind, row)


def difference(outcome: Outcome) -> str:
    """The fields that a search has changed, with their values before and after, as text."""
    before, after = outcome.before._asdict(), outcome.after._asdict()
    changed = [name for name in before if before[name] != after[name]]
    return ", ".join(f"{n} {before[n]} -> {after[n]}" for n in changed) or "nothing changed"


def keep(every: Sequence[Tuned], device: torch.device) -> str | None:
    """Keep what is faster in the device's tuning file in the cache; returns its path.

    None if nothing is faster.

    Raises:
        OSError: The cache folder cannot be written.
        TuningFileError: The file there has a row that would never be used then.
    """
    target = Target.of(device)
    assert target.gpu is not None
    identity = Identity(f"tuning-{target.arch}-{target.gpu.name}", "", "")
    with only_builder(shared_store(), identity):  # a row that another keeps meanwhile would be lost
        tuned.find.cache_clear()  # another process may have kept a row since it was read
        file = tuned.find(target.arch, target.gpu.name)
        before = empty(target.arch, target.gpu) if file is None else tuned.content_of(file)
        content = before
        for found in every:
            content = put(content, found, measured_on(device))
        return None if content == before else str(tuned.keep(content))


def empty(arch: str, gpu: Gpu) -> dict[str, Any]:
    """The content of a tuning file of a GPU, without rows."""
    device = {"name": gpu.name, "threads_per_sm": gpu.threads_per_sm, "l2_bytes": gpu.l2_bytes}
    return {"format": FORMAT, "arch": arch, "device": device, **{kind: [] for kind in KINDS}}


def row_of(
    features: Features | ProductFeatures,
    config: Config,
    percent: Mapping[str, float],
    measured: Mapping[str, str],
    why: str = "",
) -> dict[str, Any]:
    """The row for kernels that have just these features.

    `percent` is what was measured in percent of the ceiling, by case, maybe of none; `measured`
    says on what: device, driver, versions.
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


def with_row(content: Mapping[str, Any], kind: str, new: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a tuning file with a row before all others, in place of one for the same.

    `kind` is one of `KINDS`.

    Raises:
        TuningFileError: A row below would never be used then.
    """
    others = [one for one in content.get(kind, ()) if one["when"] != new["when"]]
    found = {**content, kind: [dict(new), *others]}
    read(text_of(found), "the new file", total=False)
    return found
