# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a call on distributed tensors runs on this rank, and what is redistributed before it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from fusedops.bind.dimensions import find_reduced
from fusedops.declare.options import parted
from fusedops.distributed.classes import sharded_classes
from fusedops.distributed.columns import column_parts, compute_type, sharded_columns
from fusedops.distributed.exchange import beside
from fusedops.distributed.local_calls import Move, call_of_rows, calls_of_columns
from fusedops.distributed.shards import check_order
from fusedops.explain.forward import explain
from fusedops.explain.report import Explanation
from fusedops.run.runnable import Runnable
from fusedops.torch_ops.calls import OpCall


def explain_sharded(op: Runnable, x: DTensor, arguments: Mapping[str, Any]) -> Explanation:
    """Explain a call without running it, and without a word to other ranks.

    Raises:
        TypeError, ValueError: An argument does not fit.
        UnsupportedError: No kernel can be made for the tensors' device or layout.
    """
    operands, options = parted(arguments)
    op, operands = op.given(operands)
    check_order(op.name, {"x": x, **operands})
    reduced = find_reduced(op, op.name, x.shape, options)
    dtype = options.get("dtype") or op.quantized or x.dtype
    call = OpCall(op, op.text, x, operands, options, reduced, dtype)
    over = sharded_classes(call)
    if over:
        return _of_columns(call, over)
    one = sharded_columns(call)
    if one is not None:
        return _of_columns(call, (one,))
    of_rows = call_of_rows(call)
    return dataclasses.replace(explain(of_rows.bound), redistributed=_said(of_rows.moves))


def _of_columns(call: OpCall, over: Sequence[int]) -> Explanation:
    """The first of the kernels of a call on sharded columns, and what is gathered between."""
    x: DTensor = call.x
    parts, rows = column_parts(call.text), call.op.row_parts
    assert parts is not None
    assert rows is not None
    here = x.to_local()
    ranks = math.prod(x.device_mesh.size(at) for at in over)
    size = compute_type(x.dtype, call.dtype).itemsize
    of_rows = [many for at, many in enumerate(here.shape) if at not in call.reduced]
    count = math.prod(of_rows) * (ranks - 1) * size * parts.numbers
    then = "the loss of the whole row" if parts.whole is None else repr(parts.whole)
    said = (
        f"columns stay sharded over dimension {', '.join(map(str, over))} of the mesh: "
        f"{rows.said} alone is gathered, {count} bytes to each rank, and {then} follows"
    )
    moves = [
        Move(name, one, tuple(to))
        for name, one in call.operands.items()
        if isinstance(one, DTensor) and (to := beside(one, x)) != [*one.placements]
    ]
    (first, *_) = calls_of_columns(call)
    return dataclasses.replace(explain(first), redistributed=(said, *_said(moves)))


def _said(moves: Sequence[Move]) -> tuple[str, ...]:
    """What is redistributed, and the bytes of it that a rank receives."""
    said = []
    for name, one, after in moves:
        before = tuple(one.placements)
        count = received(one.shape, before, after, one.device_mesh.shape) * one.element_size()
        said.append(f"{name} from {_shown(before)} to {_shown(after)}: {count} bytes to each rank")
    return tuple(said)


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
