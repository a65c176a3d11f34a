# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the operators give where only dtypes and shapes are known; torch calls these fake kernels.

They guard no size that is dynamic: `bind` checks stand-ins, and the real call the sizes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fusedops.bind.bind import bind
from fusedops.bind.operands import check_device
from fusedops.bind.scalars import check_draw
from fusedops.functors import TableOf
from fusedops.torch_ops.calls import (
    BackwardCall,
    ForwardCall,
    Shapes,
    like,
    operands_of,
    rows_of,
)
from fusedops.torch_ops.lowering import lower


def stand_in(tensor: Tensor, x: Tensor) -> Tensor:
    """A tensor to check a call by: sizes not known yet are taken to fit, and guard nothing.

    A batch may then be of any size, one included, in code that is compiled once.
    """
    shape = [
        _known(size, x.shape[at] if at >= 0 else size)
        for at, size in enumerate(tensor.shape, x.dim() - tensor.dim())
    ]
    return torch.empty(shape, dtype=tensor.dtype, device="meta")


def table_stand_in(table: Tensor, one: TableOf, x: Tensor) -> Tensor:
    """The same of a table, whose sizes are not those of x."""
    shape = [size if type(size) is int else 2 for size in table.shape]
    if one.dim is not None and len(shape) == 2:
        shape[1] = _known(table.shape[1], x.shape[one.dim])
    return torch.empty(shape, dtype=table.dtype, device="meta")


def _known(size: Any, of_x: Any) -> int:
    """The size of an operand beside that of x; one that is not known yet fits, without a guard."""
    if type(size) is int and (type(of_x) is int or size == 1):
        return size
    return of_x if type(of_x) is int else 2


def fake_forward(*arguments: Any) -> list[Tensor]:
    """The outputs of a forward call, and its statistics."""
    lower()  # Inductor has been imported by now, if it is to compile this
    called, call = rows_of(ForwardCall.of(arguments))
    x = call.x
    if call.draw is not None:
        check_draw(called.name, call.draw, x)
    for name, tensor in zip(call.names, call.tensors, strict=True):
        check_device(called.name, name, tensor, x)
    tables = called.tables
    operands = operands_of(
        called,
        [
            table_stand_in(tensor, tables[name], x) if name in tables else stand_in(tensor, x)
            for name, tensor in zip(call.names, call.tensors, strict=True)
        ],
        call.names,
        [one if isinstance(one, (int, float)) else 0.5 for one in call.numbers],
        [one if isinstance(one, int) else 1 for one in call.counts or ()],
    )
    options = {"dim": tuple(call.dim), "dtype": call.dtype}
    bound = bind(called, stand_in(x, x), operands, options)
    columns = math.prod([x.shape[dim] for dim in bound.reduced])
    bound = bound._replace(x=x, columns=columns, keep=call.keep)
    return [
        x.new_empty(bound.output_shape(name), dtype=bound.output_dtype(name))
        for name in bound.outputs
    ]


def fake_backward(*arguments: Any) -> list[Tensor]:
    """The gradients of a backward call."""
    lower()
    call = BackwardCall(*arguments)
    known = dict(zip(call.names, call.tensors, strict=True))
    found = like(call.wanted, known, Shapes.of(call).local)
    return [call.kept.new_empty(list(shape), dtype=one) for one, shape in found]


def fake_draw(room: Tensor, count: int) -> Tensor:
    """A seed and an offset."""
    return room.new_empty(2, dtype=torch.int64)
