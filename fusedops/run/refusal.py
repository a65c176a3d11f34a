# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Say why a call cannot take the fused path: what the gate's reasons mean for these arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fusedops.bind.bind import Bound, bind
from fusedops.errors import UnsupportedError

if TYPE_CHECKING:
    from fusedops._runtime import Reason
    from fusedops.declare.declaration import Declaration

__all__ = ["refuse"]


def refuse(
    op: Declaration, reason: Reason, x: Any, operands: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Raise what the gate's reason means for these arguments; return if it means nothing bad."""
    name = type(op).__name__
    if reason in ("arguments", "device", "overlap"):
        bound = bind(op, x, operands, options)
        if reason == "overlap":
            raise ValueError(
                f"{name}: out must overlap neither an input nor another output nor itself, judged "
                f"by first and last elements, but {_overlap(bound)}; pass other memory, or leave "
                "out= away and get a new tensor"
            )
        if reason == "device":
            raise UnsupportedError(
                f"{name}: x must be on the CPU or a CUDA device, got {bound.x.device}; op.unfused "
                "runs on any device"
            )
        return
    meaning: dict[Reason, str] = {
        "subclass": "x and its operands must be plain torch.Tensor or Parameter, got {kinds}; pass "
        "x.as_subclass(torch.Tensor), or use op.unfused",
        "neg": "a tensor has its negative bit set, so its memory holds other numbers; use "
        ".resolve_neg()",
        "conj": "a tensor has its conjugate bit set, so its memory holds other numbers; use "
        ".resolve_conj()",
        "mode": "a torch dispatch or function mode is active, which a fused kernel would bypass; "
        "use op.unfused under it",
        "functorch": "torch.func transforms (vmap, grad, jvp) do not see into a fused kernel; use "
        "op.unfused under them",
        "tracing": "torch.jit.trace does not see into a fused kernel; use torch.compile or "
        "torch.export, or op.unfused",
        "layout": "tensors must be dense and strided, got {layouts}; use .to_dense() or "
        ".dequantize()",
        "grad": "{grads} requires grad, which this call has no gradients for; call it under "
        "torch.no_grad(), detach() what needs no gradient, or use op.unfused, which differentiates",
        "dual": "forward-mode derivatives do not reach into a fused kernel; use op.unfused",
        "storage": "a tensor has no memory of its own (fake, meta, zero or functional tensors); "
        "pass plain tensors, or use op.unfused",
    }
    named = {"x": x, **operands}
    tensors = [value for value in (x, *operands.values()) if isinstance(value, Tensor)]
    text = meaning.get(reason, f"the call cannot take the fused path: {reason}").format(
        kinds=", ".join(sorted({type(value).__name__ for value in tensors})),
        layouts=", ".join(sorted({str(value.layout) for value in tensors})),
        grads=" and ".join(
            repr(key)
            for key, value in named.items()
            if isinstance(value, Tensor) and value.requires_grad
        )
        or "out",
    )
    raise UnsupportedError(f"{name}: {text}")


def _overlap(bound: Bound) -> str:
    """Which output overlaps what, by the bytes between their first and last elements."""
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
