# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The dimensions that a call reduces, from its options and the shape of x."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fusedops.bind.scalars import read_ints
from fusedops.declare.declaration import Declaration
from fusedops.errors import counted, shortened


def order(rank: int, reduced: Sequence[int]) -> list[int]:
    """The dimensions of x in that order."""
    return [dim for dim in range(rank) if dim not in reduced] + list(reduced)


def arranged(tensor: Tensor, shape: Sequence[int], reduced: Sequence[int]) -> Tensor:
    """A view of a tensor that broadcasts against x's shape, its dimensions in that order.

    A tensor that is broadcast over some of the reduced dimensions, but not over the innermost ones
    alone, is expanded to all of them.
    """
    full = tensor[(None,) * (len(shape) - tensor.dim())]
    if not shares_neighbours([full.shape[dim] != 1 for dim in reduced]):
        full = full.expand([size if dim in reduced else -1 for dim, size in enumerate(shape)])
    return full.permute(order(len(shape), reduced))


def shares_neighbours(held: Sequence[bool]) -> bool:
    """Whether the columns that share an element are neighbours, which a kernel reads in place.

    `held` says of each reduced dimension, ascending, whether the operand has it in a size other
    than 1; the dimensions that it does not have so must be the last.
    """
    return not any(inner and not outer for outer, inner in itertools.pairwise(held))


def restored(tensor: Tensor, reduced: Sequence[int]) -> Tensor:
    """A view of an arranged tensor of x's shape, its dimensions in x's order again."""
    there = order(tensor.dim(), reduced)
    return tensor.permute([there.index(dim) for dim in range(len(there))])


def find_reduced(
    op: Declaration, name: str, sizes: Sequence[int], options: Mapping[str, Any]
) -> tuple[int, ...]:
    """The dimensions that make a row, ascending and from 0, of an x of shape `sizes`.

    Raises:
        TypeError, ValueError: dim or normalized_shape is of the wrong kind, or does not fit x.
    """
    dim = options.get("dim")
    shape = options.get("normalized_shape")
    if len(sizes) == 0:
        raise ValueError(
            f"{name}: x must have at least one dimension, got a 0-d tensor; use x[None]"
        )
    if shape is not None:
        if not op.several_dims:
            raise TypeError(f"{name}: normalized_shape is an option of norms; use dim=")
        if dim is not None:
            raise TypeError(f"{name}: give dim or normalized_shape, not both")
        wanted = read_ints(name, "normalized_shape", shape)
        if not wanted or tuple(sizes[-len(wanted) :]) != wanted:
            raise ValueError(
                f"{name}: normalized_shape must be the end of x's shape {tuple(sizes)}, "
                f"got {shortened(wanted)}"
            )
        return tuple(range(len(sizes) - len(wanted), len(sizes)))
    if dim is None:
        return (len(sizes) - 1,)
    if type(dim) is tuple and len(dim) == 1 and type(dim[0]) is int and dim[0] == len(sizes) - 1:
        return dim  # the last, as most calls have it
    dims = read_ints(name, "dim", dim)
    if len(dims) != 1 and not op.several_dims:
        raise TypeError(f"{name}: dim must be one int, got {shortened(dim)}")
    for one in dims:
        if not -len(sizes) <= one < len(sizes):
            raise ValueError(
                f"{name}: dim must be within x's {counted(len(sizes), 'dimension')}, "
                f"got {shortened(dim)}"
            )
    result = tuple(sorted({one % len(sizes) for one in dims}))
    if not result or len(result) != len(dims):
        raise ValueError(f"{name}: dim must name each dimension once, got {shortened(dim)}")
    return result
