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
from fusedops.bind.tables import seen
from fusedops.generate.views import Part, kept_part, new_part, part_of, widened
from fusedops.run import placing
from fusedops.run.operand_gradients import gradient_like

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
    shared: Collection[str],
) -> Parts:
    """The tensors of a backward call: dy, and by keyword those that it is given.

    `shared` are the names of the operands of which all rows read the same columns.
    """
    inputs = _inputs(gradient, bound, dy, given, shared)
    results, outputs = _results(gradient, bound)
    shape = tuple(bound.x.shape)
    whole = new_part(shape, bound.compute, (0, 0))
    parts: dict[Any, Part] = {**inputs, **results, ("whole",): whole}
    occurrences = gradient.occurrences
    if occurrences and occurrences[-1].side == "op":
        rows = tuple([1 if d in bound.reduced else size for d, size in enumerate(shape)])
        parts["rows",] = new_part(rows, bound.compute, (0, 0))
    last = len(inputs) + len(results)
    summed = range(last - len(occurrences), last)
    drawn = placing.row_numbers(bound)
    return Parts(parts, outputs, placing.placed(bound, [*parts.values()], drawn, summed), drawn)


def read_otherwise(
    parts: Parts,
    gradient: WantedGradients,
    bound: Bound,
    dy: Tensor,
    given: Mapping[str, Any],
    shared: Collection[str],
) -> Parts:
    """The tensors of the same call in a reading in which others are shared: they lie as before."""
    inputs = _inputs(gradient, bound, dy, given, shared)
    return parts._replace(parts={**parts.parts, **inputs})


def _inputs(
    gradient: WantedGradients,
    bound: Bound,
    dy: Tensor,
    given: Mapping[str, Any],
    shared: Collection[str],
) -> dict[Any, Part]:
    inputs: dict[Any, Part] = {("upstream",): part_of(dy, (_runtime.POINTER, 0))}
    for name, value in given.items():
        patch = gradient.read.get(name)
        if patch is None or not isinstance(value, Tensor):
            continue
        if name == KEPT:
            shape, numbers = bound.x.shape, gradient.op.kept
            inputs[name] = kept_part(shape, bound.reduced, numbers, value.dtype, patch)
        elif name in gradient.of_statistics:
            inputs[name] = widened(part_of(value, patch), bound.reduced)
        else:
            if name in bound.tables:
                value = seen(value, gradient.op.tables[name], bound.x.dim()).first
            inputs[name] = part_of(value, patch, name in shared)
    return inputs


def _results(
    gradient: WantedGradients, bound: Bound
) -> tuple[dict[Any, Part], list[tuple[torch.dtype, Sequence[int]]]]:
    """The gradients as parts, in the shapes and dtypes of the tensors they belong to."""
    results: dict[Any, Part] = {}
    outputs: list[tuple[torch.dtype, Sequence[int]]] = []
    for name, key in zip(gradient.names, gradient.results, strict=True):
        tensor = bound.x if name == "x" else gradient_like(bound, key)
        dtype = bound.compute if name in gradient.twice else tensor.dtype
        patch = (_runtime.OUTPUT, len(outputs))
        shape = tuple(tensor.shape)
        results[key] = new_part(shape, dtype, patch)
        outputs.append((dtype, shape))
    return results, outputs
