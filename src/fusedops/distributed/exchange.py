# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Whether ranks exchange anything in a compiled call, so that they agree on its kernels first.

Dynamo reads this module's Python. It sees how tensors lie, not what moving them costs, so a tensor
that does not lie as the others do counts as one that moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

from fusedops.distributed.shards import never_sharded
from fusedops.torch_ops.calls import OpCall


class Agreement(NamedTuple):
    """What an operator's call is told of the ranks that agree on having its kernels.

    All of it is the same on all of them, so that a call is new to all or to none.
    """

    #: What is called and how tensors lie; then the names of the ranks' process groups, one for each
    #: dimension of the mesh.
    words: list[str]
    sizes: list[int]  # those of x and of its operands over all ranks


def agreement(text: str, x: DTensor, operands: Mapping[str, Any]) -> Agreement:
    """Build the cross-rank agreement key of a call of the op of this text with these operands."""
    mesh, said = x.device_mesh, text
    tensors = [one for one in operands.values() if isinstance(one, DTensor)]
    for one in (x, *tensors):
        said = f"{said},"
        for placement in one.placements:
            dim = _number(placement.dim) if isinstance(placement, Shard) else "whole"
            said = f"{said} {dim}"
    words: list[Any] = [said]
    words += [mesh.get_group(dim).group_name for dim in range(mesh.ndim)]
    return Agreement(words, [size for one in (x, *tensors) for size in one.shape])


def is_exchanged(call: OpCall, drawn_here: bool) -> bool:
    """Whether a tensor may move, a draw is shared, or the gradient of an operand is a sum."""
    if drawn_here:
        return True
    op, x = call.op, call.x
    whole = {*call.reduced} | never_sharded(op, x.dim())
    for one in x.placements:
        if type(one) is Shard:
            if one.dim in whole:
                return True
        elif type(one) is not Replicate:
            return True
    tables = op.tables
    for name, value in call.operands.items():
        if not isinstance(value, DTensor):
            continue
        there = [Replicate()] * len(x.placements) if name in tables else beside(value, x)
        trains = torch.is_grad_enabled() and value.requires_grad
        for mine, wanted, of_x in zip(value.placements, there, x.placements, strict=True):
            if mine != wanted or (trains and type(of_x) is Shard and type(wanted) is not Shard):
                return True
    return False


def beside(value: DTensor, x: DTensor) -> list[Any]:
    """How an operand lies where x's columns stay sharded: as x does where it has the dimension."""
    extra = x.dim() - value.dim()
    to: list[Any] = []
    for one in x.placements:
        at = one.dim - extra if isinstance(one, Shard) else -1
        has = at >= 0 and value.shape[at] != 1
        to.append(Shard(_number(at)) if has else Replicate())
    return to


def _number(dim: int) -> int:
    """A dimension as a plain number, also where Dynamo has made it a symbol."""
    for number in range(64):  # the most dimensions of a tensor
        if number == dim:
            return number
    raise AssertionError(dim)
