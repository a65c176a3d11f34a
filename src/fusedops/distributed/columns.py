# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Reductions of rows whose columns are sharded: each rank has its own columns, and keeps them.

A softmax of part of a row is that of the whole row but for a factor, exp(lse_here - lse), of which
a row needs the logarithms of the sums of all ranks, one number each. A norm needs mean and variance
of all parts, or the mean of their squares. What an operator needs it says (`Operator.row_parts`).
These numbers are gathered instead of the columns; the ops of `column_parts` do the rest. Dynamo
reads this module's Python.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from fusedops.declare.declaration import Declaration
from fusedops.declare.operator import own_operators
from fusedops.declare.text import read
from fusedops.distributed.exchange import Agreement, agreement, beside
from fusedops.distributed.shards import first_index
from fusedops.functors import Bias, Functor, Place, Role, Scale
from fusedops.torch_ops.calls import ForwardCall, OpCall

#: The operands with which the parts of a row are brought together. No others can have these names.
SHIFT, SCALE = "_shift_of_all_columns", "_scale_of_all_columns"


class ColumnParts(NamedTuple):
    """How an op is cut."""

    part: Any  # the op on a rank's own columns; None for one without a LOAD that reads x
    #: The op that makes the results of the whole row of what the first has given; None for an
    #: operator without y.
    whole: Any
    numbers: int  # how many numbers of a row each rank hands to the others
    returned: bool  # whether the first op returns them, as its last output
    streams: int  # how many saved streams the first returns after its y
    counted: tuple[str, ...]  # the operands of both that are integers
    lengths: tuple[str, ...]  # those that count columns from the row's first, not from the rank's
    placed: bool  # whether it must be known where a rank's part lies


def column_parts(text: str, place: tuple[int, int, int, int] | None = None) -> ColumnParts | None:
    """How the op of this text is cut, on the rank of this `Place`; None where columns are gathered.

    A dropout cannot be cut, which counts columns from the row's first, nor an op with operands of
    its own, such as a sink. Without a place a part that must have one is not to be called.
    """
    return _column_parts(text, place)


# Dynamo asks as it compiles: it cannot trace how an op is declared.
column_parts._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=1024)
def _column_parts(text: str, place: tuple[int, int, int, int] | None) -> ColumnParts | None:
    op: Declaration = read(text)
    rows = op.row_parts
    if rows is None or op.taps or op.quantized or op.maxima:
        return None
    if op.row_operands and op.has_result:
        return None
    if op.block is not None:
        return None
    if rows.own is None and op.masked:
        return None  # how many columns of a row are left would have to be counted, too
    if not all(one.elementwise for one in op.store):
        return None
    here = Place(0, 0, 1, 1) if place is None else Place(*place)
    load: list[Functor] = []
    for one in op.load:
        functor = one.on_columns(here)
        if functor is None:
            return None
        load.append(functor)
    make: Any = own_operators["Map"]
    part = make(load=load) if load else None
    if rows.own is not None:
        again: Any = type(op)
        part = again(load, **rows.own)
    counts = [one for functor in load for one in functor.operands() if one.role is Role.COUNT]
    joins = [Bias(SHIFT)] * rows.shift + [Scale(SCALE)] * rows.scale
    whole = make(load=[*joins, *op.store]) if op.has_result else None
    return ColumnParts(
        part,
        whole,
        rows.numbers,
        rows.own is not None,
        len(op.saves),
        tuple(op.counted),
        tuple(one.name for one in counts),
        not all(one.elementwise for one in op.load),
    )


def sharded_columns(call: OpCall) -> int | None:
    """The dimension of the mesh over which columns stay sharded; None where they are gathered."""
    x: DTensor = call.x
    last = x.dim() - 1
    over = [at for at, one in enumerate(x.placements) if isinstance(one, Shard) and one.dim == last]
    if tuple(call.reduced) != (last,) or len(over) != 1:
        return None
    # Dynamo of torch 2.13 knows `is` of these classes, not `in`.
    if not all(type(one) is Shard or type(one) is Replicate for one in x.placements):
        return None
    for one in call.operands.values():
        if isinstance(one, Tensor) and not isinstance(one, DTensor):
            return None
    parts = column_parts(call.text)
    if parts is None or parts.whole is None or (parts.placed and last == 0):
        return None
    ranks, columns = x.device_mesh.size(over[0]), x.shape[last]
    # What a rank receives of a row: all other columns, or some numbers of each other rank.
    gathered = columns * x.element_size() * (ranks - 1) / ranks
    number = compute_type(x.dtype, call.dtype).itemsize
    if columns < ranks or gathered <= number * (ranks - 1) * parts.numbers:
        return None
    return over[0]


def compute_type(x: torch.dtype, result: torch.dtype) -> torch.dtype:
    """In which ranks exchange their numbers of a row, and compute between."""
    double = x == torch.float64 or result == torch.float64
    return torch.float64 if double else torch.float32


def parts_here(text: str, x: DTensor) -> tuple[ColumnParts, int]:
    """How the op is cut on this rank, and the number of the rank's first column."""
    parts = column_parts(text)
    assert parts is not None
    if not parts.placed:
        return parts, 0
    first, shape = first_index(x.shape, x.placements, x.device_mesh), x.shape
    # The length of a range is a number also where Dynamo has made it a symbol.
    query, column, queries, columns = (
        len(range(one)) for one in (first[-2], first[-1], shape[-2], shape[-1])
    )
    placed = column_parts(text, (query, column, queries, columns))
    assert placed is not None
    return placed, column


def merged_columns(call: OpCall, over: int) -> list[DTensor]:
    """The results of such a call, in the order of the op's outputs, sharded as x is."""
    op, text, x, operands, _, _, dtype = call
    parts, first = parts_here(text, x)
    compute = compute_type(x.dtype, dtype)
    compiling = torch.compiler.is_compiling()
    agreed = agreement(f"part of {text}", x, operands) if compiling else None
    local = {k: local_part(one, x) for k, one in operands.items() if one is not None}
    local.update((name, shortened(local[name], first)) for name in parts.lengths if name in local)
    here = x.to_local()
    made: list[Tensor] = []
    if parts.part is not None:
        given = {k: local[k] for k in parts.part.slots}
        found = run_here(parts.part, here, given, compute, agreed, parts.counted)
        made = [found] if isinstance(found, Tensor) else [*found]
        y = made[0]
    else:
        y = here.to(compute)
    if parts.returned:
        numbers = made[-1].unsqueeze(-1)
    elif y.shape[-1] == 0:  # made of it, since all ranks must have the same graph
        numbers = y.sum(-1, keepdim=True).expand(*y.shape[:-1], parts.numbers)
    else:
        numbers = op.part_numbers(y)
    mesh, rows = x.device_mesh, list(x.placements)
    gathered = numbers_of_ranks(numbers, mesh, rows, x.shape[:-1], (over,))
    together = list(gathered.placements)
    # Each rank has the gradient of its own columns; that of all is their sum.
    back: list[Any] = [Partial() if at == over else one for at, one in enumerate(rows)]
    columns = _columns_of_ranks(x.shape[-1], mesh.size(over))
    each = (mesh.size(over), parts.numbers)
    of_ranks = torch.unflatten(gathered.to_local(grad_placements=back), -1, each)
    row = op.of_parts(numbers, of_ranks, columns)
    local[SHIFT], local[SCALE] = row.shift, row.scale
    known = {name: one.detach() for name, one in (row.statistics or {}).items()}
    if any(name in op.joining for name in known):
        # The gradient of a statistic is that of the row, which every rank has whole.
        of_ranks = torch.unflatten(gathered.to_local(grad_placements=together), -1, each)
        again = op.of_parts(numbers, of_ranks, columns).statistics or {}
        known.update((name, again[name]) for name in known if name in op.joining)
    agreed = agreement(f"whole of {text}", x, operands) if compiling else None
    given = {k: local[k] for k in parts.whole.slots}
    y = run_here(parts.whole, y, given, dtype, agreed, parts.counted)
    results = [of_local(one, mesh, rows, x.shape) for one in (y, *made[1 : 1 + parts.streams])]
    statistics = op.outputs[1 + parts.streams :]
    return results + [of_local(known[k], mesh, together, x.shape[:-1]) for k in statistics]


def numbers_of_ranks(
    numbers: Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Any],
    rows: Sequence[int],
    over: Sequence[int],
) -> DTensor:
    """Each rank's numbers of rows, one after the other in the last dimension of what all then have.

    `rows` are the sizes of all rows. The last dimension is sharded over the dimensions `over` of
    the mesh, as `placements` says.
    """
    ranks = 1
    for at in over:
        ranks *= mesh.size(at)
    shape = (*rows, ranks * numbers.shape[-1])
    apart = of_local(numbers.contiguous(), mesh, placements, shape)
    together = [Replicate() if at in over else one for at, one in enumerate(placements)]
    return apart.redistribute(placements=together)


def run_here(
    op: Any,
    x: Tensor,
    operands: dict[str, Any],
    dtype: torch.dtype,
    agreed: Agreement | None,
    counted: Sequence[str],
    dim: int | None = None,
) -> Any:
    """The op called on plain tensors; where Dynamo traces, ranks agree as it runs.

    `counted` names the operands that are integers; `dim` is x's last dimension by default.
    """
    if agreed is None:
        return op(x, **operands, dtype=dtype, **({} if dim is None else {"dim": dim}))
    # Dynamo cannot guard an op that it was given as a constant, so this asks it for its text alone.
    names = [name for name, one in operands.items() if isinstance(one, Tensor)]
    given = [(name, one) for name, one in operands.items() if not isinstance(one, Tensor)]
    numbers = [float(one) for name, one in given if name not in counted]
    counts = [one for name, one in given if name in counted]
    tensors = [operands[name] for name in names]
    keep = torch.is_grad_enabled() and any(one.requires_grad for one in (x, *tensors))
    named = {"x": x, **dict(zip(names, tensors, strict=True))}
    trains = [name for name, one in named.items() if keep and one.requires_grad]
    if not tensors:  # as in every other call
        names, tensors = ["x"], [x]
    last = (x.dim() - 1 if dim is None else dim,)
    call = ForwardCall(
        x, tensors, names, numbers, counts or None, None, op.text, last, dtype, keep, None
    )
    outputs = torch.ops.fusedops.forward_agreed(*call, agreed.words, trains or None, agreed.sizes)
    if keep:
        outputs = outputs[:-1]
    return outputs[0] if len(outputs) == 1 else outputs


def shortened(lengths: Any, first: int) -> Any:
    """Lengths of rows as they are from the column of this number on."""
    if isinstance(lengths, Tensor):
        return (lengths - first).clamp_min(0)
    return max(lengths - first, 0)


def _columns_of_ranks(columns: int, ranks: int) -> list[int]:
    """How many columns each rank has, as torch.chunk cuts them."""
    chunk = -(-columns // ranks)
    return [max(0, min(chunk, columns - at * chunk)) for at in range(ranks)]


def local_part(value: Any, x: DTensor) -> Any:
    """This rank's part of an operand beside x; its gradient is summed where it is broadcast."""
    if not isinstance(value, DTensor):
        return value
    to = beside(value, x)
    pairs = zip(to, x.placements, strict=True)
    back = [
        Partial() if isinstance(of_x, Shard) and not isinstance(one, Shard) else one
        for one, of_x in pairs
    ]
    return value.redistribute(placements=to).to_local(grad_placements=back)


def of_local(
    local: Tensor, mesh: DeviceMesh, placements: Sequence[Any], shape: Sequence[int]
) -> DTensor:
    """The contiguous distributed tensor of this shape of which each rank has its part."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return DTensor.from_local(
        local,
        mesh,
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(reversed(strides)),
    )
