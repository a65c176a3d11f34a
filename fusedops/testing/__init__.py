# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""For tests: check a declaration; force a row schedule, see which one ran, count launches.

May import: _runtime, bind, reference, schedule, run, row_op.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator

from fusedops import _runtime, row_op
from fusedops.row_op import RowOp
from fusedops.run import forward
from fusedops.schedule.forward import STORAGES
from fusedops.testing.comparison import Compared, Report, check

__all__ = [
    "Compared",
    "Report",
    "check",
    "count_launches",
    "force_schedule",
    "last_schedule",
]

_NAMES = (*STORAGES, "host")


@contextlib.contextmanager
def force_schedule(name: str) -> Iterator[None]:
    """Run every call in the block on one row schedule.

    Args:
        name: "register", "cluster", "shared" or "streaming" on a GPU; on a CPU "host" (the row in a
            buffer) or "streaming". A gradient has its row in registers, those of a cluster, or
            streams it: "shared" puts its sums over rows into shared memory, and is "register" if
            it has none.

    Raises:
        ValueError: The name is unknown, or at a call: the schedule cannot hold the row.

    >>> import torch, fusedops as fo
    >>> with force_schedule("streaming"):
    ...     y = fo.Softmax()(torch.zeros(2, 4))
    >>> last_schedule()
    'streaming'
    """
    if name not in _NAMES:
        raise ValueError(f"schedule must be one of {', '.join(_NAMES)}, got {name!r}")
    before = forward.forced
    _set(name)
    try:
        yield
    finally:
        _set(before)


def last_schedule() -> str | None:
    """The schedule of the call that launched last, or None if there was none."""
    last = _runtime.last_plan()
    return None if last is None else str(last.info.schedule)


@contextlib.contextmanager
def count_launches() -> Iterator[collections.Counter[RowOp]]:
    """Count calls that launched in the block, by op: forward passes, and backward passes as well.

    The counter is filled when the block ends.

    >>> import torch, fusedops as fo
    >>> op = fo.Softmax()
    >>> with count_launches() as launches:
    ...     y = op(torch.zeros(2, 4))
    >>> launches[op]
    1
    """
    before = {key: _launches(op) for key, op in row_op.declared.items()}
    counter: collections.Counter[RowOp] = collections.Counter()
    yield counter
    for key, op in list(row_op.declared.items()):
        launched = _launches(op) - before.get(key, 0)
        if launched:
            counter[op] += launched


def _launches(op: RowOp) -> int:
    of_op = [op, op.trained, *op.gradients.values()]
    if "direct" in vars(op):
        of_op.append(op.direct)
    return sum(dispatcher.launches for dispatcher in of_op)


def _set(name: str | None) -> None:
    # The salt parts plans that were made under a forced schedule from all others.
    forward.forced = name
    _runtime.set_salt(0 if name is None else 1 + _NAMES.index(name))
