# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Dimensions of x: those that are reduced, those whose coordinates are read, and their order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fusedops.bind.scalars import read_ints
from fusedops.bind.shard_offset import Whole
from fusedops.declare.declaration import Declaration
from fusedops.errors import counted, shortened


def read_positions(op: Declaration, rank: int) -> tuple[int, ...]:
    """The dimensions of an x of this rank whose coordinates are read, ascending and from 0."""
    return tuple(sorted({dim % rank for dim in op.positions})) if op.positions else ()


def check_positions(
    op: Declaration, shape: Sequence[int], reduced: Sequence[int], part_of: Whole | None
) -> None:
    """Raise ValueError for positions along dimensions that x lacks, or in which it is not whole.

    ``part_of`` says of which tensor x is a part, and has been checked.
    """
    rank = len(shape)
    if op.causal and len(reduced) == rank:
        functor = next(one for one in op.load if one.needs_query)
        raise ValueError(
            f"{op.name}: {functor!r} compares the number of a query with that of a key, but x of "
            f"shape {tuple(shape)} has no dimension of queries, all are reduced; "
            "give it one: x[None] is a single query, which stands at the first key, or with "
            "align='bottom-right' at the last"
        )
    for functor in (*op.load, *op.store):
        for dim in functor.positions:
            if not -rank <= dim < rank:
                raise ValueError(
                    f"{op.name}: {functor!r} reads position({dim}), but x has "
                    f"{counted(rank, 'dimension')}; give x in as many dimensions "
                    "as the functor counts on"
                )
            if part_of is not None and part_of.sizes[dim] != shape[dim]:
                raise ValueError(
                    f"{op.name}: {functor!r} reads position({dim}), along which x must be whole, "
                    f"got {shape[dim]} of {part_of.sizes[dim]} by part_of; give x whole there"
                )


def check_packed(
    op: Declaration, name: str, shape: Sequence[int], reduced: tuple[int, ...]
) -> None:
    """Raise ValueError for rows whose columns cannot be pairs in a byte of y."""
    if reduced != (len(shape) - 1,) or shape[-1] % 16 != 0:
        raise ValueError(
            f"{name}: {op.store[-1]!r} makes two columns of y a byte, for rows along x's last "
            f"dimension of a multiple of 16 columns, got x of shape {tuple(shape)} and rows "
            f"along dimensions {reduced}; pad x, or choose a dtype of 8 bits"
        )


def blocks_shape(layout: str, rows: tuple[int, ...], blocks: int) -> tuple[int, ...]:
    """The shape of an output of one number for each of so many blocks a row."""
    if layout == "tiles":
        return ((math.prod(rows) + 127) // 128 * ((blocks + 3) // 4) * 512,)
    return (blocks, *rows) if layout == "columns" else (*rows, blocks)


def order(rank: int, reduced: Sequence[int]) -> list[int]:
    """A permutation of x's dimensions that puts the reduced ones last."""
    return [dim for dim in range(rank) if dim not in reduced] + list(reduced)


def arranged(tensor: Tensor, shape: Sequence[int], reduced: Sequence[int]) -> Tensor:
    """A view that broadcasts against x's shape, with the reduced dimensions last.

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
    """Undo `arranged` for a tensor of x's shape."""
    there = order(tensor.dim(), reduced)
    return tensor.permute([there.index(dim) for dim in range(len(there))])


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a dense tensor of this shape, in elements."""
    strides = [1] * len(shape)
    step = 1
    for dim in range(len(shape) - 1, 0, -1):
        step *= shape[dim] or 1
        strides[dim - 1] = step
    return tuple(strides)


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
