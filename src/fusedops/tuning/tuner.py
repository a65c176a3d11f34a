# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tune the passes of one call on this machine's GPU, and put what was found into a tuning file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops.bind.bind import Bound
from fusedops.generate import tuned
from fusedops.generate.target import Target
from fusedops.jit.entry import Identity
from fusedops.jit.store import only_builder, shared_store
from fusedops.product.epilogue import Epilogue
from fusedops.product.single import SingleProduct
from fusedops.row_op import RowOp
from fusedops.schedule.features import Features, ProductFeatures
from fusedops.tuning import rows
from fusedops.tuning.implementations import ImplementationProblem
from fusedops.tuning.problem import Problem
from fusedops.tuning.product import ProductProblem
from fusedops.tuning.product_backward import GradientProblem
from fusedops.tuning.search import Outcome, Tried, search
from fusedops.version import __version__

__all__ = [
    "Part",
    "Tuned",
    "keep",
    "measured_on",
    "put",
    "tune",
    "tune_gradient",
    "tune_product",
]


class Tuned(NamedTuple):
    """What tuning a pass found.

    Attributes:
        case: The call, for people.
        kind: The pass, "forward" or "backward", or "product".
        features: The features of its kernel.
        outcome: The configurations before and after.
        percent_before, percent_after: The speed in percent of the ceiling with each; None of a
            product, whose ceiling is arithmetic and not memory.
    """

    case: str
    kind: str
    features: Features | ProductFeatures
    outcome: Outcome
    percent_before: float | None = None
    percent_after: float | None = None


class Part(NamedTuple):
    """What is tuned by itself of a call: a pass, or what runs a product.

    Attributes:
        name: What to call it.
        tune: Tunes it; called with `device`, the GPU, and `done`, as those of `tune`.
        any_rows: Whether what is found does not depend on the number of rows.
    """

    name: str
    tune: Callable[..., Tuned]
    any_rows: bool = False


def tune(
    op: RowOp,
    bound: Bound,
    kind: str,
    device: torch.device,
    options: Mapping[str, Any],
    done: Callable[[Tried], None] = lambda tried: None,
    case: str = "",
) -> Tuned:
    """Find the fastest launch configuration for a pass of a call.

    Args:
        op: The declaration.
        bound: The checked call; its tensors may have no memory.
        kind: The pass, "forward" or "backward", which computes all gradients.
        device: The GPU.
        options: The options of the call.
        done: Called after each trial.
        case: What to call it; by default its operator, dtype and columns.

    Raises:
        AssertionError: The results are wrong before anything is changed.
        FusedOpsError: There is no such kernel, or it cannot be built.
        torch.OutOfMemoryError: Even a few rows do not fit on the device.
    """
    problem = Problem(op, bound, kind, device, options)
    outcome = search(problem.kernel, problem, done)
    dtype = str(bound.x.dtype).removeprefix("torch.")
    return Tuned(
        case or f"{op.name} {dtype} {bound.columns}",
        kind,
        problem.kernel.features,
        outcome,
        problem.percent(outcome.seconds_before),
        problem.percent(outcome.seconds_after),
    )


def tune_product(
    op: SingleProduct,
    bound: Bound,
    factors: Mapping[str, Tensor],
    device: torch.device,
    options: Mapping[str, Any],
    done: Callable[[Tried], None] = lambda tried: None,
    *,
    keeps: bool = False,
) -> Tuned:
    """Find out whether one kernel or two run a product faster at the sizes of a call.

    Args:
        op: The declaration.
        bound: The checked call of its STORE on the product; its tensors may have no memory.
        factors: x and w, of shape (..., N, K), which may have none.
        device: The GPU.
        options: The options of the call.
        done: Called after each trial.
        keeps: Whether the product is kept for a gradient that reads it.

    Raises:
        AssertionError: The results of what runs now are wrong.
        FusedOpsError: One kernel cannot run such a call, or cannot be built.
        torch.OutOfMemoryError: The tensors do not fit on the device.
    """
    return _faster(ProductProblem(op, bound, factors, device, options, keeps=keeps), done)


def tune_gradient(
    epilogue: Epilogue,
    bound: Bound,
    factors: Mapping[str, Tensor],
    wanted: Collection[str],
    device: torch.device,
    options: Mapping[str, Any],
    done: Callable[[Tried], None] = lambda tried: None,
) -> Tuned:
    """Find out whether one kernel or two run the gradient between two products faster.

    Args:
        epilogue: What stands between the products of an `MLP`, the first of its `epilogues`.
        bound: Its checked call on the first product; its tensors may have no memory.
        factors: The gradient of y as "x", of shape (..., N), and w2 as "w", of shape (N, H).
        wanted: The operands whose gradients are wanted.
        device: The GPU.
        options: The options of the call.
        done: Called after each trial.

    Raises:
        AssertionError, FusedOpsError, torch.OutOfMemoryError: As in `tune_product`.
    """
    return _faster(GradientProblem(epilogue, bound, factors, wanted, device, options), done)


def _faster(problem: ImplementationProblem, done: Callable[[Tried], None]) -> Tuned:
    outcome = problem.search(done)
    rows_, columns, depth, batches, *_ = problem.features
    many = f"{batches} x " if batches > 1 else ""
    case = f"{problem.name} {problem.features.dtype} {many}{rows_} x {columns} x {depth}"
    return Tuned(case, "product", problem.features, outcome)


def measured_on(device: torch.device) -> dict[str, str]:
    """What figures of a device depend on: its name, and the versions of driver and fusedops."""
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
    row = rows.row(found.features, found.outcome.after, percent, measured, why)
    return rows.put(content, found.kind, row)


def difference(outcome: Outcome) -> str:
    """What a search has changed: field by field, the values before and after."""
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
        before = rows.empty(target.arch, target.gpu) if file is None else tuned.content_of(file)
        content = before
        for found in every:
            content = put(content, found, measured_on(device))
        return None if content == before else str(tuned.keep(content))
