# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the runtime runs of a forward call of which it has no plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fusedops.bind.bind import Bound
from fusedops.plan.forward import Forward, describe
from fusedops.plan.placing import columns_apart
from fusedops.plan.planned import Planned, runtime_plan
from fusedops.plan.planner import plan_loaded
from fusedops.plan.reading import Hints
from fusedops.reference.unfused import run
from fusedops.run import single_length
from fusedops.run.contiguous import run_on_copies
from fusedops.run.fallback_arch import serve

if TYPE_CHECKING:
    from fusedops.generate.target import Target
    from fusedops.run.observer import Observer
    from fusedops.run.runnable import Runnable


def make_plan(op: Runnable, bound: Bound, shape: Sequence[int] | None = None) -> Any:
    """Return the plan of a call that the C++ path has not seen, or, if none fits, the result.

    `shape` is that of the plan's outputs of x's size, if not x's: of as many elements.
    """
    one = Forward(bound, shape=shape)
    if bound.x.numel() == 0:
        of_rows = {*op.statistics, *op.of_blocks}
        if bound.columns == 0 and not of_rows.isdisjoint(op.outputs):
            return op.wrap(run(bound))  # rows without columns have statistics
        return runtime_plan(one, (), one.results(None), None)
    if len(bound.reduced) > 1 and columns_apart(bound):
        assert not bound.keep, "who trains makes the copies, since a backward pass reads them"
        return run_on_copies(op, bound)
    observer = op.observer
    planned, calls = serve(
        bound.x.device,
        functools.partial(_built, one, op.hints, observer),
        functools.partial(observer.of_call, bound),
    )
    return planned.build(calls)


def _built(one: Forward, hints: Hints, observer: Observer, target: Target) -> tuple[Planned, int]:
    """Notify the observer of a call, build its kernel, and return what the call runs.

    The second element says after how many calls to make the plan again (`single_length`).
    """
    bound = one.bound
    observer.notify(
        functools.partial(observer.of_call, bound),
        lambda other: describe(bound, other).variants,
        target,
    )
    planned = resolve(bound, target, hints, one.shape)
    planned.variant.kernel()
    return planned, single_length.calls_until_next(planned, _single(planned))


def resolve(
    bound: Bound,
    target: Target,
    hints: Hints | None = None,
    shape: Sequence[int] | None = None,
) -> Planned:
    """Return what a call runs: its own variant, or that of another reading that is loaded."""
    planned = plan_loaded(Forward(bound, shape=shape), target, hints)
    assert planned is not None, "`columns_apart` comes before"
    return single_length.replaced(planned, _single(planned))


def _single(planned: Planned) -> Callable[[], Planned]:
    """Plans the call with a kernel for its row length alone."""
    one, _, reading, *_ = call = planned.call
    shape = one.shape if isinstance(one, Forward) else None
    return functools.partial(describe, one.bound, call.target, reading, single=True, shape=shape)
