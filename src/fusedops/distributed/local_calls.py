# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The plain calls that a call on distributed tensors makes on this rank, found without running it.

`explain` words them, and their kernels are built before anything moves. No other rank is asked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from fusedops.bind.bind import Bound, bind
from fusedops.distributed.columns import compute_type, parts_here
from fusedops.distributed.sharding import chosen, sums_of_operands
from fusedops.distributed.shards import first_index, local_shape, located_placements
from fusedops.torch_ops.calls import OpCall


class Move(NamedTuple):
    """A tensor that is redistributed before a call: its name, the tensor, its new placements."""

    name: str
    tensor: DTensor
    to: tuple[Any, ...]


class RowCall(NamedTuple):
    """A call of whole rows."""

    bound: Bound  # the call on this rank; what is redistributed is a tensor of that shape
    moves: tuple[Move, ...]  # the tensors that are redistributed first
    summed: bool  # whether the gradient of some operand is a sum over ranks


def call_of_rows(call: OpCall) -> RowCall:
    """The call that computes whole rows.

    Raises:
        TypeError, ValueError: An argument does not fit.
    """
    op, _, x, operands, _, reduced, _ = call
    draws = call.draws
    given = {"x": x, **{k: v for k, v in operands.items() if isinstance(v, DTensor)}}
    specs = {name: one._spec for name, one in given.items()}
    placements = located_placements(op, x, reduced, draws)
    options = {**call.options, "dim": tuple(reduced), "normalized_shape": None}
    if placements is not None:
        specs["x"] = DTensorSpec(
            x.device_mesh, tuple(placements), tensor_meta=specs["x"].tensor_meta
        )
        options["part_of"] = tuple(x.shape), first_index(x.shape, placements, x.device_mesh)
    taken = chosen(op, specs, reduced, draws, placements is not None)
    local: dict[str, Any] = {}
    moves = []
    for (name, one), spec in zip(given.items(), taken, strict=True):
        if tuple(one.placements) == tuple(spec.placements):
            local[name] = one.to_local()
            continue
        moves.append(Move(name, one, tuple(spec.placements)))
        shape = local_shape(one.shape, spec.placements, one.device_mesh)
        local[name] = torch.empty(shape, dtype=one.dtype, device=one.to_local().device)
        local[name].requires_grad_(one.requires_grad)
    summed = torch.is_grad_enabled() and any(
        given[name].requires_grad for name in sums_of_operands(op, given, taken[0])
    )
    bound = bind(op, local.pop("x"), {**operands, **local}, options)
    return RowCall(bound, tuple(moves), summed)


def calls_of_columns(call: OpCall) -> list[Bound]:
    """The calls of an op whose columns stay sharded, one or two, in order; of a loss, one."""
    x: DTensor = call.x
    parts, _ = parts_here(call.text, x)
    here = x.to_local()
    compute = compute_type(x.dtype, call.dtype)
    local = {name: _stand_in(value, x) for name, value in call.operands.items()}
    calls = []
    if parts.whole is None:
        given = {name: local[name] for name in parts.part.slots}
        return [bind(parts.part, here, given, {"dtype": call.dtype, "dim": call.reduced})]
    if parts.part is not None:
        of_part = {name: local[name] for name in parts.part.slots}
        calls.append(bind(parts.part, here, of_part, {"dtype": compute}))
    grad = torch.is_grad_enabled()
    tensors = [one for one in (here, *local.values()) if isinstance(one, Tensor)]
    needs = grad and any(one.requires_grad for one in tensors)
    made = torch.empty(here.shape, dtype=compute, device=here.device).requires_grad_(needs)
    row = torch.empty((*here.shape[:-1], 1), dtype=compute, device=here.device)
    row.requires_grad_(needs)
    of_whole = {name: local.get(name, row) for name in parts.whole.slots}
    calls.append(bind(parts.whole, made, of_whole, {"dtype": call.dtype}))
    return calls


def _stand_in(value: Any, x: DTensor) -> Any:
    """An operand's part on this rank, or a tensor of its shape where it would have to move."""
    if not isinstance(value, DTensor):
        return value
    extra = x.dim() - value.dim()
    shape = [
        size if size == 1 else there
        for size, there in zip(value.shape, x.to_local().shape[extra:], strict=True)
    ]
    made = torch.empty(shape, dtype=value.dtype, device=x.to_local().device)
    return made.requires_grad_(value.requires_grad)
