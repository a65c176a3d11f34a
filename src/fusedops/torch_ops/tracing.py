# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A call where torch traces: the same call as an operator of torch.

Dynamo reads this module's Python, so it is plain: it looks at what a call is made of, never at
sizes. What depends on sizes is checked where the operator runs, on tensors real or fake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

import fusedops.torch_ops.operators  # noqa: F401 (registers them)
from fusedops.bind.arranged import arranged, order, restored
from fusedops.bind.bind import check_names, check_number
from fusedops.bind.reduced import find_reduced
from fusedops.bind.scalars import check_offset, check_pair
from fusedops.declare.text import lacking_text
from fusedops.errors import UNFUSED, UnsupportedError
from fusedops.torch_ops.distributed import (
    check_order,
    is_distributed,
    located,
    register,
    shared_draw,
)

if TYPE_CHECKING:
    from fusedops.run.runnable import Runnable

_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def call_operator(
    op: Runnable, x: Any, operands: Mapping[str, Any], options: Mapping[str, Any]
) -> Any:
    """Run a call by ``torch.ops.fusedops``: the same arguments and results.

    Raises:
        TypeError, ValueError: As in a plain call.
        UnsupportedError: ``out=``, a ``generator=``, or a functor without a derivative where one is
            wanted.
    """
    name = op.name
    # Under torch.compile this is the one place where they show; else the gate has looked.
    if _is_transformed() or forward_ad._current_level >= 0:
        raise UnsupportedError(
            f"{name}: torch.func transforms (vmap, grad, jvp) and forward-mode derivatives do not "
            f"see into a fused kernel; under them use {UNFUSED}"
        )
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: x must be a torch.Tensor, got {type(x).__name__}")
    check_names(op, name, operands)
    training = options.get("training", True)
    if not isinstance(training, bool):
        raise TypeError(f"{name}: training must be True or False, got {training!r}")
    dtype = (op.quantized or x.dtype) if options.get("dtype") is None else options["dtype"]
    if options.get("out") is not None:
        raise UnsupportedError(
            f"{name}: out= does not go with tracing (torch.compile, torch.export, dispatch modes, "
            "tensors of other classes); leave it away, or use op.unfused"
        )
    reduced = find_reduced(op, name, x.shape, options)
    names: list[str] = []
    tensors: list[Tensor] = []
    numbers: list[float] = []
    counts: list[int] = []
    lacking = op.lacking(operands)
    if lacking:
        op.check_partners(operands, lacking)
    text = lacking_text(op.text, lacking) if lacking else op.text
    if is_distributed(x):
        from fusedops.torch_ops import columns

        if not torch.compiler.is_compiling():
            check_order(name, {"x": x, **operands})
            _make_ready(op, x, operands, options, reduced)
        spread: Any = x
        over = columns.sharded_columns(text, spread, operands, reduced, dtype)
        if over is not None:
            outputs: Any = columns.merged_columns(op, text, spread, operands, dtype, over)
            return outputs[0] if len(op.outputs) == 1 else op.result_type(*outputs)
    for key in op.slots:
        if key in lacking:
            continue
        value = operands[key]
        if isinstance(value, Tensor) and key not in op.probabilities:
            names.append(key)
            tensors.append(value)
            continue
        if isinstance(value, bool) or not isinstance(value, _NUMBERS):
            value = check_number(op, key, value)
        if key in op.counted:
            counts.append(value)
        else:
            numbers.append(value)
    draw = draw_for(op, x, operands, options.get("generator")) if training else None
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *tensors))
    agreement = trains = sizes = None
    if is_distributed(x) and torch.compiler.is_compiling():
        from fusedops.torch_ops import exchange

        here: Any = x
        drawn = draw is not None and options.get("generator") is None
        if exchange.is_exchanged(op, here, operands, reduced, drawn):
            agreement, sizes = exchange.agreement(text, here, operands)
            given = zip(("x", *names), (x, *tensors), strict=True)
            trains = [name for name, one in given if keep and one.requires_grad] or None
    if keep:
        op.check_differentiable()
    dim = reduced
    if len(reduced) > 1:  # which go last, where the operator makes them one
        last = reduced[0] == x.dim() - len(reduced)
        if not last and any(one.shares or one.positions for one in (*op.load, *op.store)):
            raise UnsupportedError(
                f"{name}: a draw that is shared along dimensions of x, or a position along one, "
                "goes with tracing only where several reduced dimensions are x's last, got "
                f"dim={reduced} of {x.dim()}; "
                "movedim them to the end before the call, or use op.unfused"
            )
        tables = op.tables
        tensors = [
            tensor if key in tables else arranged(tensor, x.shape, reduced)
            for key, tensor in zip(names, tensors, strict=True)
        ]
        x = arranged(x, x.shape, reduced)
        dim = tuple(range(x.dim() - len(reduced), x.dim()))
    part_of = _flat(options.get("part_of"), order(x.dim(), reduced) if len(reduced) > 1 else None)
    if is_distributed(x):
        register()
        if op.maxima and any(one.is_shard() for one in x.placements):
            amax = op.maxima[0]
            raise UnsupportedError(
                f"{name}: {amax!r} of a sharded x would be that of each shard; give the op "
                f"x.to_local(), and join the results with torch.distributed.all_reduce({amax}, "
                "op=ReduceOp.MAX)"
            )
        if part_of:
            raise UnsupportedError(
                f"{name}: part_of= is for plain tensors; a DTensor says itself where its shards "
                "lie, so leave it away"
            )
        x, part_of = located(op, x, dim, draw is not None)
        if draw is not None and not is_distributed(draw):
            draw = shared_draw(draw, x, options.get("generator") is None)
    # AOTInductor runs no operator whose list of tensors is empty, and that of torch 2.14 makes None
    # of an empty list of SymInts, so counts may be None. DTensor would redistribute an x that is
    # given twice.
    if not tensors and not is_distributed(x):
        names, tensors = ["x"], [x]
    outputs = torch.ops.fusedops.forward(
        x,
        tensors,
        names,
        numbers,
        counts or None,
        draw,
        text,
        dim,
        dtype,
        keep,
        part_of or None,
        agreement,
        trains,
        sizes,
    )
    if keep:
        outputs = outputs[:-1]
    if len(reduced) > 1:
        outputs = [restored(y, reduced).contiguous() if y.dim() == x.dim() else y for y in outputs]
    return outputs[0] if len(op.outputs) == 1 else op.result_type(*outputs)


def _make_ready(
    op: Runnable, x: Any, operands: Mapping[str, Any], options: Mapping[str, Any], reduced: Any
) -> None:
    """Build the kernels of an eager call on distributed tensors on all ranks, before any waits."""
    from fusedops.torch_ops.ready import make_ready

    training = options.get("training", True)
    draws = training and any(operands[p] > 0 for p in op.probabilities)
    called, given = op.given({k: v for k, v in operands.items() if v is not None})
    values = [one for one in given.values() if isinstance(one, Tensor)]
    if all(map(is_distributed, values)):  # else the call is refused
        make_ready(called, x, given, options, reduced, draws)


def _flat(part_of: Any, dims: list[int] | None) -> list[int]:
    """The option as the operator takes it, for an x whose dimensions are in the order of `dims`."""
    if part_of is None:
        return []
    sizes, first = part_of
    if dims is not None:
        sizes, first = [sizes[dim] for dim in dims], [first[dim] for dim in dims]
    return [*sizes, *first]


def _is_transformed() -> bool:
    """Whether this is inside vmap, grad or jvp."""
    return torch._C._functorch.get_dynamic_layer_stack_depth() > 0


# Dynamo asks as it compiles, and guards the transforms by itself. This is what
# `torch.compiler.assume_constant_result` does; that would import all of Dynamo here.
_is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def draw_for(op: Runnable, x: Tensor, operands: Mapping[str, Any], generator: Any) -> Tensor | None:
    """What the dropouts start from; None if none acts."""
    for p in op.probabilities:
        if operands[p] > 0:
            break
    else:
        return None
    if isinstance(generator, Tensor):
        return generator
    if isinstance(generator, tuple):
        seed, offset = check_pair(op.name, generator)
        check_offset(op.name, offset, op.dropouts)
        signed = seed - (1 << 64) if seed >= 1 << 63 else seed
        return torch.tensor([signed, offset], device=x.device)
    if generator is not None:
        raise UnsupportedError(
            f"{op.name}: generator= does not go with tracing (torch.compile, torch.export, "
            "dispatch modes); leave it away and use torch.manual_seed, or give seed and offset, "
            "as two ints or as a tensor of two int64"
        )
    room = torch.empty(0, device=x.device)
    drawn: Tensor = torch.ops.fusedops.draw(room, op.dropouts)
    return drawn
