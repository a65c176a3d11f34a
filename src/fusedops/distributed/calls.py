# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A call of an op on distributed tensors (DTensor): on sharded columns, or on shards of whole rows.

Dynamo reads this module's Python. In eager calls ranks agree here that all have the kernels; in
compiled code the operator ``fusedops::forward_agreed``, which this module defines, does that where
it runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from fusedops.distributed.classes import loss_of_classes, sharded_classes
from fusedops.distributed.columns import merged_columns, sharded_columns
from fusedops.distributed.exchange import agreement, is_exchanged
from fusedops.distributed.ready import make_operator_ready, make_ready
from fusedops.distributed.shards import check_order, located, shared_draw
from fusedops.errors import UnsupportedError
from fusedops.torch_ops.calls import ForwardCall, OpCall
from fusedops.torch_ops.lowering import enter
from fusedops.torch_ops.operators import arguments_of, define_forward, run_forward
from fusedops.torch_ops.tracing import forward_call, result_of


def _run(*arguments: Any) -> list[Tensor]:
    call = ForwardCall.of(arguments)
    # torch leaves out last arguments that have their default.
    words, trains, sizes, *_ = *arguments[len(call) :], None, None, None
    called = call.called
    make_operator_ready(called, call, *arguments_of(called, call), words, trains, sizes)
    return run_forward(*call)


define_forward(
    "forward_agreed",
    _run,
    more=", str[]? agreement=None, str[]? trains=None, SymInt[]? sizes=None",
)
# Ranks have to agree in any case, so there is no way around torch's dispatcher.
enter("forward_agreed", torch.ops.fusedops.forward_agreed.default)


def call_on_ranks(written: OpCall) -> Any:
    """Run a call whose x is a DTensor; what it takes and raises is what `call_operator` does."""
    op, x = written.op, written.x
    name = op.name
    compiling = torch.compiler.is_compiling()
    if not compiling:
        check_order(name, {"x": x, **written.operands})
        _make_ready(written)
    over_classes = sharded_classes(written)
    if over_classes:
        numbers: Any = loss_of_classes(written, over_classes)
        return numbers[0] if len(op.outputs) == 1 else op.result_type(*numbers)
    over = sharded_columns(written)
    if over is not None:
        outputs: Any = merged_columns(written, over)
        return outputs[0] if len(op.outputs) == 1 else op.result_type(*outputs)
    call = forward_call(written)
    draw: Any = call.draw
    drawn_here = draw is not None and written.options.get("generator") is None
    agreed = None
    if compiling and is_exchanged(written, drawn_here):
        agreed = agreement(written.text, x, written.operands)
    if op.maxima and any(one.is_shard() for one in x.placements):
        amax = op.maxima[0]
        raise UnsupportedError(
            f"{name}: {amax!r} of a sharded x would be that of each shard; give the op "
            f"x.to_local(), and join the results with torch.distributed.all_reduce({amax}, "
            "op=ReduceOp.MAX)"
        )
    lies = op.store[-1].block_layout if op.of_blocks else "rows"
    if lies != "rows" and any(one.is_shard() for one in x.placements):
        raise UnsupportedError(
            f"{name}: {op.of_blocks[0]!r} of a sharded x has the layout 'rows', got {lies!r}; "
            "leave it out, or give the op x.to_local()"
        )
    if call.part_of:
        raise UnsupportedError(
            f"{name}: part_of= is for plain tensors; a DTensor says itself where its shards "
            "lie, so leave it away"
        )
    arranged: Any = call.x
    placed, part_of = located(op, arranged, call.dim, draw is not None)
    if draw is not None and not isinstance(draw, DTensor):
        draw = shared_draw(draw, placed, drawn_here)
    call = call.placed(placed, draw, part_of or None)
    if agreed is None:
        found = torch.ops.fusedops.forward(*call)
    else:
        trains = None
        if call.keep:
            given = zip(("x", *call.names), (x, *call.tensors), strict=True)
            trains = [key for key, one in given if one.requires_grad] or None
        found = torch.ops.fusedops.forward_agreed(*call, agreed.words, trains, agreed.sizes)
    return result_of(op, call, written.reduced, found)


def _make_ready(written: OpCall) -> None:
    """Build the kernels of an eager call on all ranks, before any waits."""
    called, given = written.op.given({k: v for k, v in written.operands.items() if v is not None})
    values = [one for one in given.values() if isinstance(one, Tensor)]
    if all(isinstance(one, DTensor) for one in values):  # else the call is refused
        make_ready(written._replace(op=called, text=called.text, operands=given))
