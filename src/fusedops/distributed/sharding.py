# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How the operators of torch are computed on distributed tensors (DTensor): on which shards.

Rows are independent of one another, so a shard of whole rows is computed where it lies. For each
dimension of the mesh a strategy says which dimension of x is sharded there; all else follows:

- an operand is sharded as x is, and replicated where it is broadcast over that dimension;
- results of x's shape are sharded as x is, statistics in the same dimension of the rows;
- the gradient of an operand that is broadcast over a sharded dimension is `Partial`: each shard has
  the sum over its own rows.

A dimension that is reduced is never sharded, and neither is one whose coordinates decide something,
unless the call says of which tensor its x is a part (``part_of``). What does not lie so is
redistributed first, as DTensor does for operators of its own; the candidates are the placements of
the tensors of the call and replication, and the one that moves least is taken.

Importing this module imports `torch.distributed.tensor`; `register` does the rest.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._collective_utils import redistribute_cost
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import (
    OpSchema,
    OpSpec,
    OpStrategy,
    RuntimeSchemaInfo,
    TupleStrategy,
)
from torch.distributed.tensor._ops.utils import generate_redistribute_costs

from fusedops.bind.bind import KEPT
from fusedops.declare.declaration import Declaration
from fusedops.declare.text import read
from fusedops.distributed.shards import dims_that_count, never_sharded
from fusedops.torch_ops.calls import BackwardCall, ForwardCall, Shapes

__all__ = ["chosen", "register", "sums_of_operands"]

#: For each dimension of the mesh the dimension of x that is sharded there; None: replicated.
Layout = tuple[int | None, ...]


@functools.cache
def register() -> None:
    """Register the strategies with DTensor, once."""
    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    for name, strategy, first in (
        ("forward", _forward_strategy, 2),
        ("forward_agreed", _forward_strategy, 2),
        ("backward", _backward_strategy, 1),
        ("draw", _draw_strategy, 1),
    ):
        overload = getattr(torch.ops.fusedops, name).default
        # All arguments from the first that is no tensor belong to the key of a decision.
        info = RuntimeSchemaInfo(static_argnum=first, needs_pytree=True)
        propagator.register_op_strategy(overload, strategy, info)


class _Operand:
    """A tensor of a call, by its shape beside x's: where it is sharded if x is.

    A table that is looked up lies whole everywhere.
    """

    def __init__(self, shape: Sequence[int], rank: int, *, table: bool = False) -> None:
        self.shape = shape
        self.table = table
        self.extra = rank - len(shape)

    def dim_of(self, dim: int) -> int | None:
        """Its own dimension for one of x's; None where it is broadcast over that."""
        at = dim - self.extra
        if at < 0 or self.table:
            return None
        size = self.shape[at]
        return None if type(size) is int and size == 1 else at

    def placed(self, layout: Layout) -> list[Placement]:
        """Its placements."""
        dims = [None if dim is None else self.dim_of(dim) for dim in layout]
        return [Replicate() if dim is None else Shard(dim) for dim in dims]

    def summed(self, layout: Layout) -> list[Placement]:
        """The placements of its gradient."""
        return [
            Replicate() if dim is None else Partial() if at is None else Shard(at)
            for dim, at in ((dim, None if dim is None else self.dim_of(dim)) for dim in layout)
        ]


def _of_rows(layout: Layout, reduced: Sequence[int]) -> list[Placement]:
    """The placements of a tensor that has x's dimensions without the reduced ones first."""
    return [
        Replicate() if dim is None else Shard(dim - sum(one < dim for one in reduced))
        for dim in layout
    ]


def _forward_strategy(schema: OpSchema) -> OpStrategy:
    call = ForwardCall.of(schema.args_schema)
    op = read(call.op)
    if not isinstance(op, Declaration):
        raise NotImplementedError(f"{op.name}: a product has no strategy for distributed tensors")
    specs = _specs((call.x, call.tensors))
    x, *_ = specs
    operands = [
        _Operand(one.shape, x.ndim, table=name in op.tables)
        for name, one in zip(("x", *call.names), specs, strict=True)
    ]
    named = dict(zip(("", *call.names), specs, strict=True))
    layouts = _layouts(op, named, call.dim, call.draw is not None, bool(call.part_of))
    names = (*op.outputs, KEPT) if call.keep else op.outputs
    of_rows = {*op.statistics, *op.of_blocks, KEPT}  # blocks come after the rows

    def placed(layout: Layout) -> tuple[list[Any], list[Any]]:
        inputs = [one.placed(layout) for one in operands]
        if call.draw is not None:
            inputs.append([Replicate()] * len(layout))
        like_x = operands[0].placed(layout)
        like_row = _of_rows(layout, call.dim)
        return inputs, [like_row if name in of_rows else like_x for name in names]

    return _strategy(schema, x.mesh, layouts, placed)


def _backward_strategy(schema: OpSchema) -> OpStrategy:
    call = BackwardCall(*schema.args_schema)  # type: ignore[arg-type]
    op: Declaration = read(call.op)
    kept, *rest = _specs((call.kept, call.upstream, call.tensors))
    upstream, tensors = rest[: len(call.outputs)], rest[len(call.outputs) :]
    shapes = {name: shape for name, (_, shape) in Shapes.whole_of(call).items()}
    shapes.update((name, one.shape) for name, one in zip(call.names, tensors, strict=True))
    rank = len(shapes["x"])
    rows = [dim for dim in range(rank) if dim not in call.dim]
    # The forward pass has left the statistics where its x was.
    found = map(_dim_of, kept.placements)
    layouts: list[Layout] = [tuple(None if dim is None else rows[dim] for dim in found)]

    def placed(layout: Layout) -> tuple[list[Any], list[Any]]:
        like_row = _of_rows(layout, call.dim)
        like_x = _Operand(shapes["x"], rank).placed(layout)
        inputs = [like_row if name in op.statistics else like_x for name in call.outputs]
        inputs.append(like_row)
        inputs += [
            _Operand(shapes.get(name, one.shape), rank, table=name in op.tables).placed(layout)
            for name, one in zip(call.names, tensors, strict=True)
        ]
        if call.draw is not None:
            inputs.append([Replicate()] * len(layout))
        wanted = [_Operand(shapes[name], rank, table=name in op.tables) for name in call.wanted]
        return inputs, [one.summed(layout) for one in wanted]

    assert len(upstream) == len(call.outputs)
    return _strategy(schema, kept.mesh, layouts, placed)


def _draw_strategy(schema: OpSchema) -> OpStrategy:
    (room,) = _specs((schema.args_schema[0],))
    return _strategy(schema, room.mesh, [()], lambda _: ([room.placements], room.placements))


def _strategy(
    schema: OpSchema,
    mesh: DeviceMesh,
    layouts: Sequence[Layout],
    placed: Callable[[Layout], tuple[list[Any], Any]],
) -> OpStrategy:
    """The strategies of these layouts; `placed` gives the placements of inputs and of outputs."""
    given = schema.args_strategy
    found = []
    for layout in layouts:
        into, out = placed(layout)
        inputs = [
            DTensorSpec(mesh, tuple(to), tensor_meta=one.strategies[0].output_spec.tensor_meta)
            for one, to in zip(given, into, strict=True)
        ]
        if out and isinstance(out[0], Placement):
            outputs: Any = DTensorSpec(mesh, tuple(out))
        else:
            outputs = tuple(DTensorSpec(mesh, tuple(one)) for one in out)
        costs = [generate_redistribute_costs(*pair) for pair in zip(given, inputs, strict=True)]
        found.append(OpSpec(outputs, inputs, costs))
    return OpStrategy(found)


def _layouts(
    op: Declaration,
    named: Mapping[str, DTensorSpec],
    dim: Sequence[int],
    draws: bool,
    located: bool,
) -> list[Layout]:
    """The layouts among which a forward call chooses, by the specs of x, the first, and operands.

    x's own comes first, so that it is taken where it costs nothing more.
    """
    x, *_ = specs = [one for name, one in named.items() if name not in op.tables]
    if located:  # the call says where the shard lies, so x stays where it is
        return [tuple(map(_dim_of, x.placements))]
    fixed = {*dim} | dims_that_count(op, x.ndim, dim, draws) | never_sharded(op, x.ndim)
    choices = []
    for at in range(x.mesh.ndim):
        dims: list[int | None] = []
        for spec in specs:
            own = _dim_of(spec.placements[at])
            if own is not None and own + x.ndim - spec.ndim not in fixed:
                dims.append(own + x.ndim - spec.ndim)
        choices.append(dict.fromkeys([*dims, None]))
    return [*itertools.product(*choices)]


def chosen(
    op: Declaration,
    named: Mapping[str, DTensorSpec],
    dim: Sequence[int],
    draws: bool,
    located: bool,
) -> list[DTensorSpec]:
    """How a forward call takes x, the first, and its operands, by the choice that DTensor makes."""
    specs = [*named.values()]

    def as_taken(layout: Layout) -> list[DTensorSpec]:
        rank = specs[0].ndim
        return [
            DTensorSpec(
                one.mesh,
                tuple(_Operand(one.shape, rank, table=name in op.tables).placed(layout)),
                tensor_meta=one.tensor_meta,
            )
            for name, one in named.items()
        ]

    def cost(taken: Sequence[DTensorSpec]) -> float:
        return sum(redistribute_cost(*pair) for pair in zip(specs, taken, strict=True))

    return min(map(as_taken, _layouts(op, named, dim, draws, located)), key=cost)


def sums_of_operands(op: Declaration, named: Mapping[str, DTensor], x: DTensorSpec) -> list[str]:
    """The tensors whose gradients are sums over ranks where x is taken as this spec says."""
    layout = tuple(map(_dim_of, x.placements))
    return [
        name
        for name, one in named.items()
        if any(
            isinstance(to, Partial)
            for to in _Operand(one.shape, x.ndim, table=name in op.tables).summed(layout)
        )
    ]


def _dim_of(placement: Placement) -> int | None:
    """The dimension that is sharded in torch's plain way; None for all others."""
    return placement.dim if type(placement) is Shard else None


def _specs(arguments: Sequence[Any]) -> list[DTensorSpec]:
    """The specs of the tensors among the arguments, lists taken apart."""
    found: list[DTensorSpec] = []
    for one in arguments:
        if isinstance(one, TupleStrategy):
            found += _specs(one.children)
        elif isinstance(one, OpStrategy):
            found.append(one.strategies[0].output_spec)
    return found
