# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The tensors of a backward call as parts, placed: what is the same in all readings of the call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops.bind.bind import KEPT, Bound
from fusedops.bind.geometry import Geometry
from fusedops.generate.views import Blank, Part, filled, widened
from fusedops.run import placing
from fusedops.run.operand_gradients import gradient_like
from fusedops.run.outline import Outline

if TYPE_CHECKING:
    from fusedops.run.wanted_gradients import WantedGradients

__all__ = ["Parts", "parts_of", "read_otherwise"]


class Parts(NamedTuple):
    """The tensors of a backward call.

    Attributes:
        parts: What the kernel reads by keyword, the gradient of y as ("upstream",); the gradients,
            that of x as ("to",) and those of operands by `Occurrence`; then, as ("whole",), a
            tensor of x's shape, and as ("rows",), one of a number a row, where one may be needed.
        outputs: Dtype and shape of each gradient.
        geometry: Where they lie, with no row dimension more than they need.
        drawn: The maps from rows to their numbers in the dropout contract.
    """

    parts: Mapping[Any, Part]
    outputs: Sequence[tuple[torch.dtype, Sequence[int]]]
    geometry: Geometry
    drawn: placing.DrawnRows


def parts_of(
    gradient: WantedGradients,
    bound: Bound,
    dy: Tensor,
    given: Mapping[str, Any],
    outline: Outline,
    vectors: bool,
) -> Parts:
    """The tensors of a backward call: dy, and by keyword those that it is given.

    `outline` is that of the forward call, and `vectors` that of the `Reading`.
    """
    parts = _filled(gradient, bound, dy, given, outline.shared[vectors])
    last = len(parts) - 1 - gradient.of_rows
    outputs = [(parts[key].dtype, tuple(parts[key].shape)) for key in gradient.results]
    summed = range(last - len(gradient.occurrences), last)
    drawn = placing.row_numbers(bound, outline)
    return Parts(parts, outputs, placing.placed(bound, [*parts.values()], drawn, summed), drawn)


def read_otherwise(
    parts: Parts,
    gradient: WantedGradients,
    bound: Bound,
    dy: Tensor,
    given: Mapping[str, Any],
    shared: frozenset[str],
) -> Parts:
    """The same tensors under another reading of their broadcasts; strides are unchanged."""
    return parts._replace(parts=_filled(gradient, bound, dy, given, shared))


def _filled(
    gradient: WantedGradients,
    bound: Bound,
    dy: Tensor,
    given: Mapping[str, Any],
    shared: frozenset[str],
) -> dict[Any, Part]:
    key = shared, bound.compute
    blanks = gradient.blanks.get(key)
    if blanks is None:
        blanks = gradient.blanks[key] = _blanks(gradient, bound, shared)
    values: dict[Any, Any] = {**given, "upstream": dy}
    for name, table in bound.tables.items():
        values[name] = table.first
    for one in gradient.occurrences if bound.tables else ():
        values[one] = gradient_like(bound, one)
    parts = filled(blanks, values, bound.x.shape, bound.reduced)
    for name in gradient.of_statistics:
        if name in parts:
            parts[name] = widened(parts[name], bound.reduced)
    return parts


def _blanks(gradient: WantedGradients, bound: Bound, shared: Collection[str]) -> list[Blank]:
    """What is known of the tensors of a backward call, whatever their sizes."""
    op, compute = gradient.op, bound.compute
    blanks = [Blank(("upstream",), "upstream", True, 0, None, (_runtime.POINTER, 0))]
    for name, patch in gradient.read.items():
        count = op.kept if name == KEPT else 0
        blanks.append(Blank(name, name, True, count, None, patch, name in shared))
    for index, (name, key) in enumerate(zip(gradient.names, gradient.results, strict=True)):
        like = key if name in op.tables else name
        dtype = compute if name in gradient.twice else None
        blanks.append(Blank(key, like, False, 0, dtype, (_runtime.OUTPUT, index)))
    blanks.append(Blank(("whole",), "x", False, 0, compute, (0, 0)))
    if gradient.of_rows:
        blanks.append(Blank(("rows",), "x", False, 1, compute, (0, 0)))
    return blanks
