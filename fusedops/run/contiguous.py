# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A call on dense copies, for reduced dimensions that lie so that no kernel has them as columns.

Copies of rows are the caller's to make: `dense_cure` says of what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.bind.geometry import Operand, place
from fusedops.generate.views import Part, contiguous
from fusedops.run.runnable import Runnable

__all__ = ["copies", "dense_cure", "options", "order", "run_on_copies", "seen"]


def order(bound: Bound) -> list[int]:
    """The dimensions of x, the reduced ones last: as they are in the copies."""
    return [dim for dim in range(bound.x.dim()) if dim not in bound.reduced] + list(bound.reduced)


def seen(bound: Bound, tensor: Tensor) -> Tensor:
    """A tensor of the call in that order, with all reduced dimensions if it has one of them."""
    x = bound.x
    full = tensor[(None,) * (x.dim() - tensor.dim())]
    whole = any(full.shape[dim] != 1 for dim in bound.reduced)
    wide = [size if whole and dim in bound.reduced else -1 for dim, size in enumerate(x.shape)]
    return full.expand(wide).permute(order(bound))


def options(bound: Bound) -> dict[str, Any]:
    """The options of the call on copies."""
    rank = bound.x.dim()
    return {
        "dim": tuple(range(rank - len(bound.reduced), rank)),
        "dtype": bound.dtype,
        "training": bool(bound.slots),
        "generator": bound.generator,
    }


def copies(bound: Bound) -> tuple[Tensor, dict[str, Any]]:
    """Of x and of the operands, with the reduced dimensions last and dense."""
    operands = {
        name: seen(bound, value).contiguous() if isinstance(value, Tensor) else value
        for name, value in bound.operands.items()
    }
    return seen(bound, bound.x).contiguous(), operands


def run_on_copies(op: Runnable, bound: Bound) -> Any:
    """Run a call on copies; `explain` says so."""
    dense, operands = copies(bound)
    results = op(dense, **operands, **options(bound))
    names = op.outputs
    tensors = dict(zip(names, [results] if len(names) == 1 else results, strict=True))
    back = [order(bound).index(dim) for dim in range(dense.dim())]
    for name, tensor in tensors.items():
        if tensor.dim() == dense.dim():
            tensors[name] = tensor.permute(back).contiguous()
        if name in bound.out:
            tensors[name] = bound.out[name].copy_(tensors[name])
    return op.wrap(tensors)


def dense_cure(
    bound: Bound,
    inputs: Mapping[str, Part],
    parts: Sequence[Part],
    operands: Sequence[Operand],
    sizes: Sequence[int],
) -> str:
    """Which tensor to make contiguous, so that a kernel takes the others as they are.

    Args:
        bound: The call.
        inputs: What the call was given, by name.
        parts: What could not be placed: these, in their order, and others.
        operands: The shapes and strides of `parts` and of what else is placed.
        sizes: Their element sizes.
    """
    shape = tuple(bound.x.shape)
    for at, (name, part) in enumerate(inputs.items()):
        if at >= len(parts) or parts[at] != part:
            break  # a gradient's
        changed = [*operands]
        changed[at] = (shape, contiguous(shape))
        try:
            place(shape, bound.reduced, changed, sizes)
        except ValueError:
            continue
        return "pass x.contiguous()" if name == "x" else f"pass {name}.expand(x.shape).contiguous()"
    return "pass x.contiguous(), and operands made contiguous, b.expand(x.shape).contiguous() say"
