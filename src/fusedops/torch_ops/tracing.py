# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A call where torch traces: the same call as an operator of torch.

Dynamo reads this module's Python, so it is plain: it looks at what a call is made of, never at
sizes. What depends on sizes is checked where the operator runs, on tensors real or fake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

import fusedops.torch_ops.operators  # noqa: F401 (registers them)
from fusedops.bind.dimensions import arranged, find_reduced, order, restored
from fusedops.bind.operands import check_names
from fusedops.bind.scalars import check_number, check_offset, check_pair
from fusedops.declare.text import lacking_text
from fusedops.errors import UNFUSED, UnsupportedError, check_flag
from fusedops.torch_ops.calls import ForwardCall, OpCall

if TYPE_CHECKING:
    from fusedops.run.runnable import Runnable


__all__ = [
    "NUMBERS",
    "call_operator",
    "check_transforms",
    "draw_for",
    "forward_call",
    "is_distributed",
    "is_exporting",
    "is_mapped",
    "is_plain",
    "is_transformed",
    "result_of",
]

#: What is a number to torch while it traces.
NUMBERS = (int, float, torch.SymInt, torch.SymFloat)

#: What runs calls on distributed tensors (DTensor): `fusedops.distributed` puts it here when it is
#: imported, which whoever calls an op with such a tensor has done.
on_ranks: Callable[[OpCall], Any] | None = None


def is_distributed(value: Any) -> bool:
    """Whether this is a distributed tensor. Its module is not imported to find out."""
    return type(value).__name__ == "DTensor"


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
    check_transforms(name)
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: x must be a torch.Tensor, got {type(x).__name__}")
    check_names(op, name, operands)
    check_flag(name, "training", options.get("training", True))
    dtype = (op.quantized or x.dtype) if options.get("dtype") is None else options["dtype"]
    if options.get("out") is not None:
        raise UnsupportedError(
            f"{name}: out= does not go with tracing (torch.compile, torch.export, dispatch modes, "
            "tensors of other classes); leave it away, or use op.unfused"
        )
    reduced = find_reduced(op, name, x.shape, options)
    lacking = op.lacking(operands)
    if lacking:
        op.check_partners(operands, lacking)
    text = lacking_text(op.text, lacking) if lacking else op.text
    written = OpCall(op, text, x, operands, options, reduced, dtype)
    if is_distributed(x):
        assert on_ranks is not None, "fusedops.distributed has not been imported"
        return on_ranks(written)
    call = forward_call(written)
    return result_of(op, call, reduced, torch.ops.fusedops.forward(*call))


def forward_call(written: OpCall) -> ForwardCall:
    """The arguments of ``fusedops::forward`` for a call.

    Raises:
        TypeError, ValueError: An operand or the generator is of the wrong kind.
        UnsupportedError: As `call_operator` says.
    """
    op, text, x, operands, options, reduced, dtype = written
    name = op.name
    names: list[str] = []
    tensors: list[Tensor] = []
    numbers: list[float] = []
    counts: list[int] = []
    lacking = op.lacking(operands)
    for key in op.slots:
        if key in lacking:
            continue
        value = operands[key]
        if isinstance(value, Tensor) and key not in op.probabilities:
            names.append(key)
            tensors.append(value)
            continue
        if isinstance(value, bool) or not isinstance(value, NUMBERS):
            value = check_number(op, key, value)
        if key in op.counted:
            counts.append(value)
        else:
            numbers.append(value)
    draw = None
    if options.get("training", True):
        draw = draw_for(op, x, operands, options.get("generator"))
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *tensors))
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
    # AOTInductor runs no operator whose list of tensors is empty, and that of torch 2.14 makes None
    # of an empty list of SymInts, so counts may be None. DTensor would redistribute an x that is
    # given twice.
    if not tensors and not is_distributed(x):
        names, tensors = ["x"], [x]
    return ForwardCall(
        x, tensors, names, numbers, counts or None, draw, text, dim, dtype, keep, part_of or None
    )


def result_of(
    op: Runnable, call: ForwardCall, reduced: Sequence[int], outputs: Sequence[Any]
) -> Any:
    """The result of an op's call, of what the operator has returned for it."""
    if call.keep:
        outputs = outputs[:-1]
    if len(reduced) > 1:
        rank = call.x.dim()
        outputs = [restored(y, reduced).contiguous() if y.dim() == rank else y for y in outputs]
    return outputs[0] if len(op.outputs) == 1 else op.result_type(*outputs)


def _flat(part_of: Any, dims: list[int] | None) -> list[int]:
    """The option as the operator takes it, for an x whose dimensions are in the order of `dims`."""
    if part_of is None:
        return []
    sizes, first = part_of
    if dims is not None:
        sizes, first = [sizes[dim] for dim in dims], [first[dim] for dim in dims]
    return [*sizes, *first]


def check_transforms(name: str) -> None:
    """Raise UnsupportedError inside of what does not see into a fused kernel."""
    if is_transformed():
        raise UnsupportedError(
            f"{name}: torch.func transforms (vmap, grad, jvp) and forward-mode derivatives do not "
            f"see into a fused kernel; under them use {UNFUSED}"
        )


def is_transformed() -> bool:
    """Whether this is inside vmap, grad or jvp, or forward-mode derivatives are on."""
    depth: int = torch._C._functorch.get_dynamic_layer_stack_depth()
    return depth > 0 or forward_ad._current_level >= 0


def is_mapped(*tensors: Tensor) -> bool:
    """Whether autograd functions of ours must not run: in vmap, jvp or a vectorized backward pass.

    torch.func.grad runs them. A vectorized backward pass is known by its tensors.
    """
    if torch.compiler.is_compiling():
        return False
    if any(map(torch._C._functorch.is_legacy_batchedtensor, tensors)):
        return True
    if not is_transformed():
        return False
    grad = torch._C._functorch.TransformType.Grad
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return forward_ad._current_level >= 0 or any(one.key() != grad for one in levels)


def is_plain() -> bool:
    """Whether tensors have values that the host may read: no compiler, transform or mode acts."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    return not is_transformed()


def is_exporting() -> bool:
    """Whether torch.export traces."""
    return torch.compiler.is_exporting()


# Dynamo asks as it compiles, and guards the transforms by itself. This is what
# `torch.compiler.assume_constant_result` does; that would import all of Dynamo here. Of
# torch.compiler.is_exporting it knows the answer in releases such as 2.11, and that is always yes.
is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]
is_exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]


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
