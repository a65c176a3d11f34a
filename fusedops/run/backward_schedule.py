# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The schedules of a backward call: what the choice depends on, found in the call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.bind.geometry import Geometry
from fusedops.generate.target import Target
from fusedops.run import forward
from fusedops.run.operand_gradients import Occurrence, occurrences
from fusedops.schedule import Schedule, override
from fusedops.schedule.backward import choose_gradient
from fusedops.schedule.backward_tile import values_of
from fusedops.schedule.forward import choose_host
from fusedops.schedule.forward_tile import Row
from fusedops.schedule.independent import choose_map_gradient
from fusedops.schedule.launch import LaunchConfig
from fusedops.schedule.tiling import Tile
from fusedops.schedule.traffic import traffic_of


def backward_schedule(
    bound: Bound, geometry: Geometry, target: Target, used: Sequence[Occurrence]
) -> tuple[Schedule | None, str]:
    """Choose the schedule of a backward call: that of a GPU or None, and the storage of a row.

    Args:
        bound: The forward call.
        geometry: The rows and columns of the backward call.
        target: The target that kernels are built for.
        used: The uses of operands whose gradients are wanted.

    Raises:
        UnsupportedError: A row has more columns than a GPU kernel counts.
        ValueError: A storage that a test forces cannot hold the row.
    """
    columns = max(geometry.columns, 1)
    forced = override.current()
    if target.gpu is None:
        return None, choose_host(columns, forced.storage)
    forward.check_columns(bound.op.name, columns)
    traffic = traffic_of(bound)
    row = Row(
        columns=columns,
        element_bytes=bound.x.element_size(),
        compute_bytes=bound.compute.itemsize,
        dropout=traffic.draws > 0,
    )
    if not bound.op.reduces:
        sums = sum(1 for _ in _sums(bound))
        across = any(_is_across(bound, one) for one in used)
        chosen = choose_map_gradient(row, target.gpu, sums, across, forced.storage, forced.backward)
        return chosen, chosen.storage
    chosen = choose_gradient(
        row,
        target.arch,
        target.gpu,
        values_of(bound.op.gradient_schedule == "norm", traffic.beside),
        tuple(_sums(bound)),
        forced.storage,
        forced.backward,
    )
    return chosen, chosen.storage


def _is_across(bound: Bound, one: Occurrence) -> bool:
    """Whether the gradient of an operand is a sum over all columns of a row."""
    tensor = bound.operands[one.name]
    lead = bound.x.dim() - tensor.dim()
    return all(dim < lead or tensor.shape[dim - lead] == 1 for dim in bound.reduced)


def _sums(bound: Bound) -> Iterator[int]:
    """For each operand whose gradient can be a sum over rows, the number of such sums."""
    x, reduced = bound.x, bound.reduced
    for one in occurrences(bound.op, bound.op.slots):
        tensor = bound.operands[one.name]
        if not isinstance(tensor, Tensor) or one.side == "op":
            continue
        lead = x.dim() - tensor.dim()
        own = {dim + lead: size for dim, size in enumerate(tensor.shape)}
        rows = [dim for dim in range(x.dim()) if dim not in reduced]
        shared = any(own.get(dim, -1) < x.shape[dim] for dim in rows)
        if shared and all(own.get(dim, 1) == x.shape[dim] for dim in reduced):
            yield math.prod(own.get(dim, 1) for dim in rows)


def without_prefetch_across_rows(schedule: Schedule) -> Schedule:
    """The schedule where slices have several rows, so that no later block takes a later row."""
    if schedule.launch.prefetch != "across_rows":
        return schedule
    return dataclasses.replace(schedule, launch=schedule.launch._replace(prefetch="never"))


def sums_schedule(threads: int, columns: int) -> Schedule:
    """The schedule of the kernel that adds up partial sums: threads and columns of a block."""
    tile = Tile(threads, 1, columns, 1, threads * columns)
    return Schedule("register", tile, LaunchConfig(), exact=False, compute_bytes=4)
