# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Run a call on contiguous copies where its reduced dimensions do not merge into one column stride.

Where instead the row dimensions are too many for a kernel, the caller has to make the copies:
`dense_cure` says of which tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.bind.geometry import Operand, place
from fusedops.generate.views import Part, contiguous
from fusedops.run.runnable import Runnable

__all__ = ["copies", "dense_cure", "options", "order", "run_on_copies", "seen", "shares_neighbours"]


def order(bound: Bound) -> list[int]:
    """The dimensions of x in the order that they have in the copies: the reduced ones last."""
    return [dim for dim in range(bound.x.dim()) if dim not in bound.reduced] + list(bound.reduced)


def seen(bound: Bound, tensor: Tensor) -> Tensor:
    """A view of a tensor of the call, its dimensions in the order of `order`.

    A tensor that is broadcast over some of the reduced dimensions, but not over the innermost ones
    alone, is expanded to all of them.
    """
    x = bound.x
    full = tensor[(None,) * (x.dim() - tensor.dim())]
    whole = not shares_neighbours([full.shape[dim] != 1 for dim in bound.reduced])
    wide = [size if whole and dim in bound.reduced else -1 for dim, size in enumerate(x.shape)]
    return full.expand(wide).permute(order(bound))


def shares_neighbours(held: Sequence[bool]) -> bool:
    """Whether the columns that share an element are neighbours, which a kernel reads in place.

    `held` says of each reduced dimension, ascending, whether the operand has it in a size other
    than 1; the dimensions that it does not have so must be the last.
    """
    return not any(inner and not outer for outer, inner in itertools.pairwise(held))


def options(bound: Bound) -> dict[str, Any]:
    """The options by name with which the call on copies computes what the given call means."""
    rank = bound.x.dim()
    return {
        "dim": tuple(range(rank - len(bound.reduced), rank)),
        "dtype": bound.dtype,
        "training": bool(bound.slots),
        "generator": bound.generator,
    }


def copies(bound: Bound) -> tuple[Tensor, dict[str, Any]]:
    """Contiguous copies of x and of the tensor operands, with the reduced dimensions last.

    Returns:
        The copy of x, and the operands by name; numbers are as given.
    """
    operands = {
        name: seen(bound, value).contiguous() if isinstance(value, Tensor) else value
        for name, value in bound.operands.items()
    }
    return seen(bound, bound.x).contiguous(), operands


def run_on_copies(op: Runnable, bound: Bound) -> Any:
    """Run a call on contiguous copies, and return its result in x's order of dimensions.

    Outputs of the shape of x are copied back, and so are those that the call gave in out. `explain`
    lists all these copies.
    """
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
    """Say which tensor to make contiguous so that a kernel takes the other tensors as they are.

    Args:
        bound: The checked call.
        inputs: The tensors that the call was given, by name, x first.
        parts: The tensors that could not be placed: those of `inputs` in their order, then others.
        operands: The shapes and strides of `parts`, then of the virtual operands.
        sizes: The element size in bytes of each of `operands`.

    Returns:
        The cure as a phrase for an error's message.
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
