# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of rows whose classes are sharded: no rank has all logits of a row.

Each rank runs the loss of its own classes alone, with targets counted from the first of them. Of
each row it hands a few numbers to the others, of which every rank computes the row's loss: so the
backward pass moves nothing for the logits. Dynamo reads this module's Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from fusedops.distributed.columns import (
    column_parts,
    local_part,
    numbers_of_ranks,
    of_local,
    parts_here,
    run_here,
    shortened,
)
from fusedops.distributed.exchange import agreement
from fusedops.distributed.shards import first_index
from fusedops.errors import UnsupportedError
from fusedops.torch_ops.calls import OpCall


def sharded_classes(call: OpCall) -> tuple[int, ...]:
    """The dimensions of the mesh over which the classes of a loss are sharded.

    Raises:
        UnsupportedError: They are sharded, but the loss cannot be computed so.
    """
    op: Any = call.op
    x: DTensor = call.x
    if op.has_result or op.row_parts is None:
        return ()
    (dim,) = call.reduced
    over = [at for at, one in enumerate(x.placements) if getattr(one, "dim", None) == dim]
    if not over:
        return ()
    where = f"x's classes, its dimension {dim}, are sharded"
    if not all(type(one) in (Shard, Replicate, Partial) for one in x.placements):
        raise UnsupportedError(
            f"{op.name}: {where}, and x must be placed by Shard, Replicate or Partial then, got "
            f"{x.placements}; redistribute it first"
        )
    check_distributed(op.name, call.operands)
    cannot = op.whole_only
    if not cannot and column_parts(call.text) is None:
        cannot = f"a functor of {list(op.load)!r}"
    elif not cannot and column_parts(call.text).placed and (dim != x.dim() - 1 or dim == 0):  # type: ignore[union-attr]
        cannot = f"a functor that counts positions along a dimension that is not x's last, {dim},"
    if cannot:
        raise UnsupportedError(
            f"{op.name}: {where}, and {cannot} needs all classes of a row on one rank; leave it "
            f"out, or gather them first: x.redistribute(placements=...) without Shard({dim})"
        )
    return tuple(over)


def check_distributed(name: str, tensors: Mapping[str, Any]) -> None:
    """Refuse a plain tensor where others are distributed."""
    for key, value in tensors.items():
        if isinstance(value, Tensor) and not isinstance(value, DTensor):
            raise UnsupportedError(
                f"{name}: {key!r} is a plain tensor, and another a DTensor; make it a DTensor of "
                "that mesh, as torch.distributed.tensor.distribute_tensor does"
            )


def loss_of_classes(call: OpCall, over: Sequence[int]) -> list[DTensor]:
    """The results of such a call, in the order of the op's outputs, of the rows that x has."""
    op: Any = call.op
    (dim,) = call.reduced
    x = _summed(call.x)
    operands = {name: one for name, one in call.operands.items() if one is not None}
    parts, first = parts_here(call.text, x)
    compiling = torch.compiler.is_compiling()
    agreed = agreement(f"classes of {call.text}", x, operands) if compiling else None
    local = {name: local_part(one, x) for name, one in operands.items()}
    local.update((name, shortened(local[name], first)) for name in parts.lengths if name in local)
    here, target = x.to_local(), local["target"]
    begin = first_index(x.shape, x.placements, x.device_mesh)[dim]
    local["target"], held = op.target_of_part(target, begin, here.shape, dim)
    given = {name: local[name] for name in parts.part.slots}
    made = run_here(parts.part, here, given, call.dtype, agreed, parts.counted, dim)
    found = dict(zip(parts.part.outputs, made, strict=True))
    numbers = op.part_of_row(found, held, here.shape[dim] / max(x.shape[dim], 1))
    labels = target if op.soft else target.squeeze(dim)
    return results_of_numbers(op, numbers, labels, x, x.placements, dim, over)


def results_of_numbers(
    op: Any,
    numbers: Tensor,
    target: Tensor,
    logits: Any,
    placements: Sequence[Any],
    dim: int,
    over: Sequence[int],
) -> list[DTensor]:
    """The loss of each row and what else the op returns, of the numbers of this rank's classes.

    The numbers are what `part_of_row` of the op gives, which has one number a row; targets are
    those of this rank's rows. Of logits shape and mesh are read: they lie as `placements` says, and
    their dimension of classes, `dim`, is sharded over the dimensions `over` of the mesh.
    """
    mesh, classes = logits.device_mesh, logits.shape[dim]
    rows = [size for at, size in enumerate(logits.shape) if at != dim]
    lie = [_of_rows(one, dim, len(rows)) for one in placements]
    gathered = numbers_of_ranks(numbers, mesh, lie, rows, over)
    # Every rank has the whole row's loss, and so the gradients of all numbers.
    together = list(gathered.placements)
    each = (-1, numbers.shape[-1])
    of_ranks = torch.unflatten(gathered.to_local(grad_placements=together), -1, each)
    results = op.of_row_parts(of_ranks, target, classes)
    return [of_local(results[name], mesh, together, rows) for name in op.outputs]


def _summed(x: DTensor) -> DTensor:
    """X without partial sums."""
    to = [Replicate() if isinstance(one, Partial) else one for one in x.placements]
    return x if to == list(x.placements) else x.redistribute(placements=to)


def _of_rows(placement: Any, dim: int, last: int) -> Any:
    """How numbers of rows lie, in a last dimension, where x without this dimension lies so."""
    if not isinstance(placement, Shard):
        return placement
    if placement.dim == dim:
        return Shard(last)
    return Shard(placement.dim - (placement.dim > dim))
