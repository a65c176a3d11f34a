# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A product and its loss where the classes are sharded: each rank multiplies by its rows of w.

Where w is sharded, x is replicated: each rank has the gradient of its part of w, and a term of that
of x, which is `Partial`. Where rows of x are sharded, w is replicated, the other way round. Dynamo
reads this module's Python.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from fusedops.bind.bind import Bound, bind
from fusedops.distributed.classes import check_distributed, results_of_numbers
from fusedops.distributed.columns import compute_type, local_part
from fusedops.distributed.ready import kinds_of, make_all_ready
from fusedops.distributed.shards import check_order, first_index
from fusedops.errors import UnsupportedError

__all__ = ["explained", "linear_loss"]


class _Logits(NamedTuple):
    """What is known of logits that no rank has."""

    shape: tuple[int, ...]
    placements: tuple[Any, ...]
    device_mesh: DeviceMesh

    def dim(self) -> int:
        return len(self.shape)


class LocalCall(NamedTuple):
    """The call that a rank makes on its classes."""

    logits: _Logits  # how the logits would lie
    over: tuple[int, ...]  # the dimensions of the mesh over which their classes are sharded
    #: This rank's parts.
    x: Tensor
    w: Tensor
    #: This rank's parts of the operands, targets counted from its first class.
    operands: dict[str, Any]
    target: Tensor  # the target of each of this rank's rows, as the caller counts
    inside: Tensor  # which rows have their target among this rank's classes


def linear_loss(op: Any, x: Any, w: Any, arguments: Mapping[str, Any]) -> list[DTensor]:
    """The results of a `LinearCrossEntropy` of each row, in the order of its outputs.

    Raises:
        UnsupportedError: The factors do not lie as the module says.
    """
    here = local_call(op, x, w, arguments)
    if not torch.compiler.is_compiling():
        _make_ready(op, here, x, w, arguments)
    found = op.of_part(here.x, here.w, **here.operands)._asdict()
    rows = op.whole.rows
    numbers = rows.part_of_row(found, here.inside, here.w.shape[0] / max(w.shape[0], 1))
    logits = here.logits
    return results_of_numbers(
        rows, numbers, here.target, logits, logits.placements, logits.dim() - 1, here.over
    )


def local_call(op: Any, x: Any, w: Any, arguments: Mapping[str, Any]) -> LocalCall:
    """The call that this rank makes."""
    check_distributed(op.name, {"x": x, "w": w, **arguments})
    check_order(op.name, {"x": x, "w": w, **arguments})
    mesh, last = x.device_mesh, x.dim() - 1
    if w.device_mesh != mesh:
        raise UnsupportedError(
            f"{op.name}: x and w must be on one mesh, got {mesh} and {w.device_mesh}"
        )
    lie, of_x, of_w = [], [], []
    for at, (one, other) in enumerate(zip(x.placements, w.placements, strict=True)):
        classes = type(other) is Shard and other.dim == 0 and type(one) is Replicate
        rows = type(one) is Shard and one.dim < last and type(other) is Replicate
        if not classes and not rows and not (type(one) is type(other) is Replicate):
            raise UnsupportedError(
                f"{op.name}: over each dimension of the mesh either w is Shard(0) and x "
                f"Replicate(), or x's rows are sharded and w is Replicate(); over dimension {at} "
                f"x is {one} and w {other}. Redistribute one of them"
            )
        lie.append(Shard(last) if classes else one)
        of_x.append(Partial() if classes else one)
        of_w.append(Partial() if rows else other)
    logits = _Logits((*x.shape[:-1], w.shape[0]), tuple(lie), mesh)
    like: Any = logits
    local = {
        name: local_part(one, like)
        for name, one in arguments.items()
        if one is not None and name != "target"
    }
    target = local_part(arguments["target"].unsqueeze(-1), like).squeeze(-1)
    here = w.to_local(grad_placements=of_w)
    begin = first_index(w.shape, w.placements, mesh)[0]
    wide = target.unsqueeze(-1)
    shape = (*target.shape, here.shape[0])
    mine, inside = op.whole.rows.target_of_part(wide, begin, shape, target.dim())
    local["target"] = mine.squeeze(-1)
    over = [at for at, one in enumerate(lie) if isinstance(one, Shard) and one.dim == last]
    return LocalCall(
        logits, tuple(over), x.to_local(grad_placements=of_x), here, local, target, inside
    )


def explained(op: Any, x: Any, w: Any, arguments: Mapping[str, Any]) -> Any:
    """What this rank runs, and what ranks hand one another."""
    here = local_call(op, x, w, arguments)
    told = op.of_part.explain(here.x, here.w, **here.operands)
    rows = op.whole.rows.row_parts
    ranks = math.prod(x.device_mesh.size(at) for at in here.over)
    size = compute_type(here.x.dtype, here.x.dtype).itemsize
    count = here.x.shape[:-1].numel() * (ranks - 1) * size * rows.numbers
    said = (
        f"this rank has {here.w.shape[0]} of {w.shape[0]} classes: {rows.said} alone is gathered, "
        f"{count} bytes to each rank"
    )
    return dataclasses.replace(told, notes=(*told.notes, said))


def _make_ready(op: Any, here: LocalCall, x: DTensor, w: DTensor, given: Mapping[str, Any]) -> None:
    """Build the kernels of the losses of blocks on all ranks, before any waits."""

    def calls() -> Iterator[Bound]:
        for loss, z, operands in op.of_part.losses(here.x, here.w, here.operands):
            yield bind(loss, z, operands, {})

    kind = (op.text, torch.is_grad_enabled(), *kinds_of({"x": x, "w": w, **given}))
    make_all_ready(op.name, x.device_mesh, kind, here.x.device, calls)
