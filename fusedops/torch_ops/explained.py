# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a call on distributed tensors runs on this rank, and what is redistributed before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from fusedops.bind.bind import bind, find_reduced
from fusedops.declare.chains import OPTIONS
from fusedops.explain.forward import explain
from fusedops.explain.report import Explanation
from fusedops.torch_ops.columns import column_parts, local_part, sharded_columns
from fusedops.torch_ops.distributed import first_index, local_shape, located_placements
from fusedops.torch_ops.sharding import chosen

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration

__all__ = ["explain_sharded"]


def explain_sharded(op: Declaration, x: DTensor, arguments: Mapping[str, Any]) -> Explanation:
    """Explain a call without running it, and without a word to other ranks.

    Raises:
        TypeError, ValueError: An argument does not fit.
        UnsupportedError: No kernel can be made for the tensors' device or layout.
    """
    operands = {key: value for key, value in arguments.items() if key not in OPTIONS}
    options = {key: value for key, value in arguments.items() if key in OPTIONS}
    op, operands = op.given(operands)
    reduced = find_reduced(op, op.name, x.shape, options)
    training = options.get("training", True)
    draws = training and any(operands.get(p, 0) > 0 for p in op.probabilities)
    given = {"x": x, **{k: v for k, v in operands.items() if isinstance(v, DTensor)}}
    specs = {name: one._spec for name, one in given.items()}
    placements = located_placements(op, x, reduced, draws)
    if placements is not None:
        specs["x"] = DTensorSpec(
            x.device_mesh, tuple(placements), tensor_meta=specs["x"].tensor_meta
        )
    over = sharded_columns(op, x, operands, reduced)
    if over is not None:
        return _of_columns(op, x, operands, options, over)
    taken = chosen(op, specs, reduced, draws, placements is not None)
    local: dict[str, Any] = {}
    said = []
    for (name, one), spec in zip(given.items(), taken, strict=True):
        if tuple(one.placements) == tuple(spec.placements):
            local[name] = one.to_local()
            continue
        before, after = tuple(one.placements), tuple(spec.placements)
        count = received(one.shape, before, after, one.device_mesh.shape) * one.element_size()
        said.append(f"{name} from {_shown(before)} to {_shown(after)}: {count} bytes to each rank")
        shape = local_shape(one.shape, after, one.device_mesh)
        local[name] = torch.empty(shape, dtype=one.dtype, device=one.to_local().device)
        local[name].requires_grad_(one.requires_grad)
    if placements is not None:
        options["part_of"] = tuple(x.shape), first_index(x.shape, placements, x.device_mesh)
    bound = bind(
        op,
        local.pop("x"),
        {**operands, **local},
        {**options, "dim": reduced, "normalized_shape": None},
    )
    return dataclasses.replace(explain(bound), redistributed=tuple(said))


def _of_columns(
    op: Declaration,
    x: DTensor,
    operands: Mapping[str, Any],
    options: Mapping[str, Any],
    over: int,
) -> Explanation:
    """The first of the two kernels of a call on sharded columns, and what is gathered between."""
    part, whole = column_parts(op)
    local = {name: local_part(value, x) for name, value in operands.items() if name in part.slots}
    here = x.to_local()
    ranks = x.device_mesh.size(over)
    size = 8 if here.dtype is torch.float64 else 4
    count = here.shape[:-1].numel() * (ranks - 1) * size
    said = (
        f"columns stay sharded over dimension {over} of the mesh: the logarithm of each row's sum "
        f"alone is gathered, {count} bytes to each rank, and {whole!r} follows"
    )
    compute = torch.float64 if here.dtype is torch.float64 else torch.float32
    known = {key: value for key, value in options.items() if key in ("training",)}
    bound = bind(part, here, local, {**known, "dtype": compute})
    return dataclasses.replace(explain(bound), redistributed=(said,))


def received(
    shape: Sequence[int], before: Sequence[Any], after: Sequence[Any], mesh: Sequence[int]
) -> int:
    """The elements that a rank receives, where every shard is as large as the largest.

    That is what a ring, or an exchange of each pair, needs: of n ranks all-gather and all-to-all
    pass (n - 1) / n of the tensor, an all-reduce twice that.
    """
    count = 0
    whole = torch.Size(shape).numel()
    for at, (one, to) in enumerate(zip(before, after, strict=True)):
        if one == to or isinstance(one, Replicate):
            continue
        # What the other dimensions of the mesh have cut off stays away.
        others = [*after[:at], *before[at + 1 :]]
        sizes = [*mesh[:at], *mesh[at + 1 :]]
        here = whole
        for other, size in zip(others, sizes, strict=True):
            if isinstance(other, Shard):
                here = -(-here // size)
        n = mesh[at]
        if isinstance(one, Partial):
            count += here * (n - 1) // n * (1 if isinstance(to, Shard) else 2)
        elif isinstance(to, Shard):  # to another dimension
            count += here // n * (n - 1) // n
        else:
            count += here * (n - 1) // n
    return count


def _shown(placements: Sequence[Any]) -> str:
    names = [
        f"Shard({one.dim})" if isinstance(one, Shard) else type(one).__name__ for one in placements
    ]
    return f"({', '.join(names)})"
