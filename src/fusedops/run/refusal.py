# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that the C++ gate has stopped: those for the dispatcher of torch, errors for all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from fusedops._runtime import Reason
from fusedops.bind.bind import Bound, bind
from fusedops.bind.operands import check_layouts, described
from fusedops.errors import UNFUSED, UnsupportedError

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration

#: The gate's reasons for calls in which a torch mode or a tensor's class takes part, as in tracing.
_DISPATCHED = (Reason.MODE, Reason.SUBCLASS, Reason.STORAGE)

#: What is wrong and how to mend it, where the arguments themselves are all right.
_MEANING = {
    Reason.SUBCLASS: "{classes} must be plain, a torch.Tensor or Parameter; pass the plain tensor "
    f"in it, say {{plain}}, or use {UNFUSED}",
    Reason.NEG: "{negative} must not have its negative bit set, for its memory holds other "
    "numbers; use .resolve_neg()",
    Reason.CONJ: "{conjugate} must not have its conjugate bit set, for its memory holds other "
    "numbers; use .resolve_conj()",
    Reason.MODE: "a torch dispatch or function mode is active, which a fused kernel would bypass; "
    f"under it use {UNFUSED}",
    Reason.FUNCTORCH: "torch.func transforms (vmap, grad, jvp) do not see into a fused kernel; "
    f"under them use {UNFUSED}",
    Reason.TRACING: "torch.jit.trace does not see into a fused kernel; use torch.compile or "
    f"torch.export, or {UNFUSED}",
    Reason.LAYOUT: f"tensors must be dense and strided, got {{layouts}}; use {UNFUSED}",
    Reason.GRAD: "{grads} requires grad, which this call has no gradients for; call it under "
    f"torch.no_grad(), detach() what needs no gradient, or use {UNFUSED}",
    Reason.DUAL: f"forward-mode derivatives do not reach into a fused kernel; use {UNFUSED}",
    Reason.STORAGE: "{without} has no memory of its own (fake, meta, zero or functional tensors); "
    f"pass plain tensors, or use {UNFUSED}",
}


def stands_for_an_operator(reason: Reason, x: Any) -> bool:
    """Whether a call that the gate stopped for this reason is one for torch's dispatcher."""
    if reason is Reason.TRACING:
        return torch._C._get_tracing_state() is None  # torch.jit.trace has no lists of names
    return reason in _DISPATCHED or (
        reason is Reason.DEVICE and isinstance(x, Tensor) and x.is_meta
    )


def refuse(
    op: Declaration, reason: Reason, x: Any, operands: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Raise the error for a call that the gate stopped; return if its arguments are all right.

    x, operands and options are as they were given, of any type.

    Raises:
        TypeError, ValueError: An argument does not fit, or out overlaps another tensor.
        UnsupportedError: The call is sound, but no fused kernel can run it.
    """
    name = op.name
    if reason in (Reason.ARGUMENTS, Reason.DEVICE, Reason.OVERLAP):
        bound = bind(op, x, operands, options)
        if reason is Reason.OVERLAP:
            raise ValueError(
                f"{name}: out must overlap neither an input nor another output nor itself, judged "
                f"by first and last elements, but {_overlap(bound)}; pass other memory, or leave "
                "out= away and get a new tensor"
            )
        if reason is Reason.DEVICE:
            raise UnsupportedError(
                f"{name}: x must be on the CPU or a CUDA device, got {bound.x.device}; on "
                f"other devices use {UNFUSED}"
            )
        return
    outs = options.get("out")
    outs = outs if isinstance(outs, (tuple, list)) else [outs]
    named = {"x": x, **operands, **{f"out[{k}]": one for k, one in enumerate(outs)}}
    if len(outs) == 1:
        named["out"] = named.pop("out[0]")
    check_layouts(name, named)
    if reason is Reason.CONJ:
        bind(op, x, operands, options)  # says what to do with complex numbers
    tensors = {key: value for key, value in named.items() if isinstance(value, Tensor)}

    def those(of: Callable[[Tensor], bool]) -> str:
        return " and ".join(described(k) for k, one in tensors.items() if of(one)) or "a tensor"

    classes = {key: one for key, one in tensors.items() if not _is_plain(one)}
    text = _MEANING[reason].format(
        classes=_classes(classes),
        plain=_plain_tensor(classes),
        negative=those(lambda one: one.is_neg()),
        conjugate=those(lambda one: one.is_conj()),
        layouts=", ".join(f"{described(k)}: {one.layout}" for k, one in tensors.items()),
        grads=" and ".join(repr(k) for k, one in tensors.items() if one.requires_grad) or "out",
        without=those(lambda one: not _is_plain(one) or one.is_meta or not _has_memory(one)),
    )
    raise UnsupportedError(f"{name}: {text}")


def is_of_classes(error: Exception) -> bool:
    """Whether an error of torch says that a tensor's class or a mode lacks our operators.

    Other errors at run time are about the machine, such as those of memory.
    """
    by_kind = isinstance(error, (NotImplementedError, TypeError, AssertionError))
    return by_kind or "got mixed torch.Tensor and DTensor" in str(error)


def refuse_classes(op: Declaration, named: Mapping[str, Any], error: Exception) -> NoReturn:
    """Raise UnsupportedError for a tensor's class or a mode that does not support our operators.

    `named` are x and the operands by name, `error` is what the class or the mode raised.
    """
    classes = {
        key: one for key, one in named.items() if isinstance(one, Tensor) and not _is_plain(one)
    }
    plain = [
        key for key, one in named.items() if isinstance(one, Tensor) and _is_plain(one) and classes
    ]
    if plain and "got mixed torch.Tensor and DTensor" in str(error):
        raise UnsupportedError(
            f"{op.name}: {' and '.join(map(described, plain))} must be distributed as "
            f"{_classes(classes)} is, got plain tensors; distribute_tensor(tensor, mesh, "
            "placements) makes such a one, distribute_module the parameters of a module, or give "
            f"the op the shards alone, say {next(iter(classes))}.to_local()"
        ) from error
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    raise UnsupportedError(
        f"{op.name}: {_classes(classes) or 'a mode'} cannot be computed with here ({said}); give "
        f"the op plain tensors, say {next(iter(classes), 'x')}.to_local() of a DTensor, or use "
        f"{UNFUSED}"
    ) from error


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter)


def _classes(tensors: Mapping[str, Tensor]) -> str:
    said = (f"{described(key)}, a {type(one).__name__}," for key, one in tensors.items())
    return " and ".join(said)


def _plain_tensor(classes: Mapping[str, Tensor]) -> str:
    """The expression for the plain tensor in the first of these."""
    key, tensor = next(iter(classes.items()), ("x", None))
    local = hasattr(tensor, "to_local")  # a DTensor
    return f"{key}.to_local()" if local else f"{key}.as_subclass(torch.Tensor)"


def _has_memory(tensor: Tensor) -> bool:
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:
        return False


def _overlap(bound: Bound) -> str:
    """Name an output and what it overlaps, judged by the bytes from first to last element."""
    inputs = {"x": bound.x, **bound.operands}
    for name, out in bound.out.items():
        for key, value in inputs.items():
            if isinstance(value, Tensor) and _share(out, value):
                return f"the out for {name!r} reaches into the memory range of {key!r}"
        for key, value in bound.out.items():
            if key != name and _share(out, value):
                return f"the out for {name!r} reaches into the memory range of that for {key!r}"
    return "an out has strides by which its elements share memory"


def _share(a: Tensor, b: Tensor) -> bool:
    def extent(tensor: Tensor) -> tuple[int, int]:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((size - 1) * step for size, step in steps)
        return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

    (a_begin, a_end), (b_begin, b_end) = extent(a), extent(b)
    return a.numel() > 0 and b.numel() > 0 and a_begin < b_end and b_begin < a_end
