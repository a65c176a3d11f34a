# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Softmax and log-softmax of rows whose columns are sharded: each rank computes on its own columns.

A softmax of part of a row is that of the whole row but for a factor, exp(lse_here - lse), of which
a row needs the logarithms of the sums of all ranks, one number each. They are gathered instead of
the columns; two kernels, the op without its STORE and a Map with it, do the rest. What knows the
number of a column (causal masks, lengths, dropout) cannot be cut so, nor a sink, nor an op that
returns more than y: their rows are gathered, and so they are under torch.compile, where no op can
be declared.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from fusedops.declare.operator import own_operators
from fusedops.functors import Affine, Bias, Gate, Mask, Scale, Segments, Softcap

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration
    from fusedops.functors import Functor

__all__ = ["column_parts", "local_part", "merged_columns", "sharded_columns"]

#: Functors that do to an element what its operands say, wherever it is.
_ELEMENTWISE = (Affine, Bias, Gate, Mask, Scale, Segments, Softcap)

#: The operand with which the parts of a row are brought together. No other can have its name.
_SHIFT = "_of_all_columns"


def sharded_columns(
    op: Declaration, x: DTensor, operands: Mapping[str, Any], reduced: Sequence[int]
) -> int | None:
    """The dimension of the mesh over which columns stay sharded; None where they are gathered."""
    last = x.dim() - 1
    over = [at for at, one in enumerate(x.placements) if isinstance(one, Shard) and one.dim == last]
    if op.name not in ("Softmax", "LogSoftmax") or tuple(reduced) != (last,) or len(over) != 1:
        return None
    if op.outputs != ("y",) or op.row_operands:
        return None
    if not all(type(one) in _ELEMENTWISE for one in (*op.load, *op.store)):
        return None
    if op.logarithmic and any(one.masks for one in op.load):
        return None  # an empty part would be -inf - -inf
    if not all(isinstance(one, DTensor) for one in operands.values() if torch.is_tensor(one)):
        return None
    if not all(type(one) in (Shard, Replicate) for one in x.placements):
        return None
    ranks, columns = x.device_mesh.size(over[0]), x.shape[last]
    # What a rank receives: all other columns of a row, or a float32 number of each other rank.
    gathered = columns * x.element_size() * (ranks - 1) / ranks
    if columns < ranks or gathered <= 4 * (ranks - 1):
        return None
    return over[0]


def merged_columns(
    op: Declaration, x: DTensor, operands: Mapping[str, Any], dtype: torch.dtype, over: int
) -> DTensor:
    """The result of such a call, sharded as x is."""
    part, whole = column_parts(op)
    compute = torch.float64 if torch.float64 in (x.dtype, dtype) else torch.float32
    local = {name: local_part(value, x) for name, value in operands.items()}
    y, lse = part(x.to_local(), **{k: local[k] for k in part.slots}, dtype=compute)
    mesh, rows = x.device_mesh, list(x.placements)
    shape = torch.Size((*x.shape[:-1], mesh.size(over)))
    apart = DTensor.from_local(
        lse.unsqueeze(-1), mesh, rows, run_check=False, shape=shape, stride=_strides(shape)
    )
    together = [Replicate() if at == over else one for at, one in enumerate(rows)]
    # Each rank has the gradient of its own columns; that of all is their sum.
    back: list[Any] = [Partial() if at == over else one for at, one in enumerate(rows)]
    all_lse = apart.redistribute(placements=together).to_local(grad_placements=back)
    total = torch.logsumexp(all_lse, -1)
    empty = total == -torch.inf
    if op.logarithmic:
        shift = lse - total
    else:
        shift = torch.where(empty, 0.0, lse - torch.where(empty, 0.0, total)).exp()
        if op.constants["empty_row"] == "nan":
            shift = torch.where(empty, torch.nan, shift)
    local[_SHIFT] = shift.unsqueeze(-1)
    result = whole(y, **{name: local[name] for name in whole.slots}, dtype=dtype)
    return DTensor.from_local(
        result, mesh, rows, run_check=False, shape=x.shape, stride=_strides(x.shape)
    )


@functools.lru_cache(maxsize=1024)
def column_parts(op: Declaration) -> tuple[Any, Any]:
    """The op on part of a row, and what makes its result that of the whole row."""
    kind: Any = type(op)
    part = kind(op.load, **{**op.constants, "lse": True, "empty_row": "zero"})
    join: Functor = Bias(_SHIFT) if op.logarithmic else Scale(_SHIFT)
    make: Any = own_operators["Map"]
    return part, make(load=[join, *op.store])


def local_part(value: Any, x: DTensor) -> Any:
    """This rank's part of an operand beside x; its gradient is summed where it is broadcast."""
    if not isinstance(value, DTensor):
        return value
    extra = x.dim() - value.dim()
    to: list[Any] = []
    back: list[Any] = []
    for one in x.placements:
        at = one.dim - extra if isinstance(one, Shard) else -1
        has = at >= 0 and value.shape[at] != 1
        to.append(Shard(at) if has else Replicate())
        back.append(Shard(at) if has else Partial() if isinstance(one, Shard) else Replicate())
    return value.redistribute(placements=to).to_local(grad_placements=back)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))
