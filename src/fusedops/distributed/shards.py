# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which part of x a rank has in a call, where it must know that, and draws that ranks share.

Dynamo reads this module's Python. How the operators are computed on shards, `sharding` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from fusedops.bind.dimensions import read_positions
from fusedops.declare.declaration import Declaration
from fusedops.errors import UnsupportedError


def check_order(name: str, tensors: Mapping[str, Any]) -> None:
    """Refuse tensors that the dimensions of their mesh have cut in another order than the mesh's.

    Recent releases of torch can say so. Where a shard lies would be taken to be another place.
    """
    for key, one in tensors.items():
        if not isinstance(one, DTensor):
            continue
        spec: Any = one._spec
        order = getattr(spec, "shard_order", None)
        if order is None or any(type(p).__name__ == "_StridedShard" for p in one.placements):
            continue
        usual = spec.compute_default_shard_order(spec.placements)
        if tuple(order) != tuple(usual):
            what = "x" if key == "x" else f"operand {key!r}"
            raise UnsupportedError(
                f"{name}: {what} must be sharded in the order of the dimensions of its mesh, got "
                f"the order {order}; redistribute it to Replicate() and to its placements again"
            )


def dims_that_count(op: Declaration, rank: int, reduced: Sequence[int], draws: bool) -> set[int]:
    """The dimensions of rows in which a shard must know where it lies.

    That are the queries of a causal mask, say, and for a dropout all along which draws differ.
    """
    rows = [dim for dim in range(rank) if dim not in reduced]
    counted = {rows[-1]} if rows and op.causal else set()
    for functor in (*op.load, *op.store) if draws else ():
        if functor.draws is not None:
            counted |= {*rows} - {dim % rank for dim in functor.shares}
    return counted


def never_sharded(op: Declaration, rank: int) -> set[int]:
    """The dimensions of x that stay whole, whatever a call says of its part.

    That are those whose coordinates a functor reads, and those along which a table has its numbers.
    """
    tables = {one.dim % rank for one in op.tables.values() if one.dim is not None}
    return {*read_positions(op, rank)} | tables


def located(
    op: Declaration, x: DTensor, reduced: Sequence[int], draws: bool
) -> tuple[DTensor, list[int]]:
    """X and what ``part_of`` is of its shard.

    That is nothing where no coordinate decides anything, or all shards have all that count. Else x
    is redistributed first if it has to be, for only now is it known where a shard will lie.
    """
    placements = located_placements(op, x, reduced, draws)
    if placements is None:
        return x, []
    if list(x.placements) != placements:
        x = x.redistribute(placements=placements)
    return x, [*x.shape, *first_index(x.shape, x.placements, x.device_mesh)]


def located_placements(
    op: Declaration, x: DTensor, reduced: Sequence[int], draws: bool
) -> list[Any] | None:
    """How x is placed where a shard must know where it lies; None where it need not."""
    counted = dims_that_count(op, x.dim(), reduced, draws)
    whole = {*reduced} | never_sharded(op, x.dim())
    placements = [
        one if type(one) is Shard and one.dim not in whole else Replicate() for one in x.placements
    ]
    return placements if any(type(p) is Shard and p.dim in counted for p in placements) else None


def first_index(shape: Sequence[int], placements: Sequence[Any], mesh: DeviceMesh) -> list[int]:
    """The index of the first element of this rank's shard."""
    return _shard(shape, placements, mesh)[0]


def local_shape(shape: Sequence[int], placements: Sequence[Any], mesh: DeviceMesh) -> list[int]:
    """The shape of this rank's shard."""
    return _shard(shape, placements, mesh)[1]


def _shard(
    shape: Sequence[int], placements: Sequence[Any], mesh: DeviceMesh
) -> tuple[list[int], list[int]]:
    """Where this rank's shard begins, and its sizes.

    Each dimension of the mesh cuts what the ones before it have left, as torch.chunk does.
    """
    first, sizes = [0] * len(shape), list(shape)
    place = mesh.get_coordinate()
    if place is None:
        return first, sizes  # no rank of this mesh; it has no shard
    for at, placement in enumerate(placements):
        if type(placement) is not Shard:
            continue
        dim = placement.dim
        chunk = -(-sizes[dim] // mesh.size(at))
        begin = min(place[at] * chunk, sizes[dim])
        sizes[dim] = min(chunk, sizes[dim] - begin)
        first[dim] += begin
    return first, sizes


def shared_draw(draw: Tensor, x: DTensor, drawn_here: bool) -> DTensor:
    """Seed and offset as a tensor that all ranks of x's mesh have.

    What each rank has drawn from a generator of its own is replaced by what the first has drawn, so
    that replicas cannot differ. Numbers that the caller gave are those of all ranks.
    """
    mesh = x.device_mesh
    if not drawn_here:
        return DTensor.from_local(draw, mesh, [Replicate()] * mesh.ndim, run_check=False)
    # A sum to which the first rank alone adds something is a broadcast that Dynamo can trace.
    mine = draw if not any(mesh.get_coordinate() or ()) else draw * 0
    shared = DTensor.from_local(mine, mesh, [Partial()] * mesh.ndim, run_check=False)
    for done in range(1, mesh.ndim + 1):
        left: list[Any] = [Partial()] * (mesh.ndim - done)
        shared = shared.redistribute(placements=[Replicate()] * done + left)
    return shared
