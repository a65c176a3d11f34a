# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""For tests: check a declaration; force a schedule, see which one ran, count launches.

May import: errors, terminal, _runtime, bind, reference, schedule, run, row_op, product.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fusedops import _runtime, row_op
from fusedops.product.linear_cross_entropy import LinearCrossEntropy
from fusedops.product.mlp import MLP
from fusedops.product.single import SingleProduct
from fusedops.row_op import RowOp
from fusedops.schedule import override
from fusedops.schedule.launch import LaunchConfig, ProductConfig
from fusedops.schedule.override import Override
from fusedops.schedule.row_schedule import STORAGES
from fusedops.testing.comparison import compare
from fusedops.testing.pairs import compare_layers
from fusedops.testing.report import Compared, Report

__all__ = [
    "Compared",
    "Report",
    "check",
    "count_launches",
    "force_launch",
    "force_schedule",
    "last_schedule",
]

_NAMES = (*STORAGES, "host")
_salts = {Override(): 0}


def check(
    op: RowOp | SingleProduct | MLP, x: Tensor, /, *further: Tensor, **arguments: Any
) -> Report:
    """Compare a fused op with its unfused chain: outputs, gradients, dropout and edge shapes.

    Whatever the declaration holds, functors of your own included. The truth is the unfused chain in
    double on the same inputs; the bound for each element is 0.51 ulp of its type and four times the
    error of the unfused chain in the compute type (docs/explanation/arithmetic.md). Compared are
    the call as given with random upstream gradients for every output that has one, another dropout
    mask, an x with gaps between its columns, upstream gradients that rows share, an odd number of
    columns, one row, one column, no rows; the gradient of x alone, and those of the operands alone;
    and that a second run gives the same bits. Much of that has to be built first: a check takes
    seconds on a CPU, and says on a terminal how far it is.

    Of an op with a matrix product the truth is that product, and the chain after it, in double; the
    bound is docs/explanation/products.md's.

    Args:
        op: The declaration.
        x: The input; a few rows will do.
        further: The other factors of an op with a product.
        arguments: Operands and options, as in a call; a generator is not used, and there is no
            ``out``.

    Returns:
        What was compared: print it for a line, its ``table()`` for the worst element of each
        comparison.

    Raises:
        AssertionError: Something is out of its bound; the report is the message, a table of what
            is out, and ``args[0]``.

    >>> import torch, fusedops as fo
    >>> from fusedops.testing import check
    >>> report = check(fo.Softmax(load=[fo.Scale("s")]), torch.randn(3, 8), s=torch.tensor(0.5))
    >>> report.passed
    True
    >>> print(report)  # doctest: +ELLIPSIS
    check of Softmax: ... comparisons within bounds, worst ... of its bound (...)
    """
    if not isinstance(op, RowOp | SingleProduct | MLP):
        loss = isinstance(op, LinearCrossEntropy)
        cure = "; check a CrossEntropy of the same arguments, with the logits" if loss else ""
        raise TypeError(f"check: op must be a fused op, such as Softmax(), got {op!r}{cure}")
    if arguments.pop("out", None) is not None:
        raise TypeError("check: out= has no place here; leave it away")
    arguments.pop("generator", None)
    if isinstance(op, MLP):
        compared = compare_layers(op, (x, *further), arguments)
    else:
        compared = compare(op, (x, *further), arguments)
    report = Report(op.declaration, tuple(compared))
    if not report.passed:
        raise AssertionError(report)
    return report


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
    with _overridden(override.current()._replace(storage=name)):
        yield


@contextlib.contextmanager
def force_launch(
    *,
    forward: LaunchConfig | None = None,
    backward: LaunchConfig | None = None,
    product: ProductConfig | None = None,
) -> Iterator[None]:
    """Run every call in the block on a GPU with these launch configurations.

    A launch configuration changes speed alone: outputs and the gradient of x keep their bits. It is
    used as it is, whatever the limits of the device.

    Args:
        forward: That of forward passes (`fusedops.schedule.launch.LaunchConfig`), or None for the
            one that is chosen.
        backward: That of backward passes likewise.
        product: By what a product is run with the functors after it, or with the gradient of those
            before it, where one kernel could do it (`fusedops.schedule.launch.ProductConfig`), or
            None for what is chosen. Results of one kernel and of two are within one bound
            (docs/explanation/products.md), and need not have the same bits.

    Raises:
        TypeError: An argument is of another type.
    """
    every: tuple[tuple[str, Any, type], ...] = (
        ("forward", forward, LaunchConfig),
        ("backward", backward, LaunchConfig),
        ("product", product, ProductConfig),
    )
    for name, config, kind in every:
        if config is not None and not isinstance(config, kind):
            raise TypeError(f"force_launch: {name} must be a {kind.__name__}, got {config!r}")
    wanted = override.current()._replace(forward=forward, backward=backward, product=product)
    with _overridden(wanted):
        yield


def last_schedule() -> str | None:
    """The schedule of the call that launched last, or None if there was none."""
    last = _runtime.last_plan()
    return None if last is None else last.info


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
    known = list(row_op.declared.values())  # which stay alive, so that none of them loses its id
    before = {id(op): _launches(op) for op in known}
    counter: collections.Counter[RowOp] = collections.Counter()
    yield counter
    for op in list(row_op.declared.values()):
        launched = _launches(op) - before.get(id(op), 0)
        if launched:
            counter[op] += launched


def _launches(op: RowOp) -> int:
    of_op = [op, op.trained, *op.gradients.values()]
    if "direct" in vars(op):
        of_op.append(op.direct)
    return sum(dispatcher.launches for dispatcher in of_op)


@contextlib.contextmanager
def _overridden(wanted: Override) -> Iterator[None]:
    before = override.replace(wanted)
    _runtime.set_salt(_salt(wanted))
    try:
        yield
    finally:
        override.replace(before)
        _runtime.set_salt(_salt(before))


def _salt(wanted: Override) -> int:
    """A number in the key of cached plans, so that an override never finds another's plan."""
    return _salts.setdefault(wanted, len(_salts))
