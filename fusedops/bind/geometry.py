# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The geometry of a call: the strides of every operand along rows and columns.

A row op sees its operands as a grid of rows and columns, however many dimensions the tensors have
and whatever they share by broadcasting. This module turns shapes and strides into that grid:
dimensions of size 1 vanish, neighbours merge where every operand's strides allow it, and the rows
are put into the order in which they are best visited. It knows nothing of torch or of any
operator: integers in, integers out.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, TypeAlias

#: The most row dimensions that a kernel can address; each number of them is a variant of its own.
MAX_ROW_DIMS = 5

#: Operands of fewer bytes than this stay in the caches in whatever order the rows are visited.
SHARED_BYTES = 1 << 20


class Virtual(NamedTuple):
    """A number computed from the coordinates, such as the row that dropout counts: no memory.

    Attributes:
        strides: What one step along each of x's dimensions adds to the number.
    """

    strides: Sequence[int]


#: A tensor's shape and strides (in elements), or a `Virtual`.
Strided: TypeAlias = "tuple[Sequence[int], Sequence[int]] | Virtual"


class Placed(NamedTuple):
    """The strides of one operand, in elements; 0 where it is broadcast.

    Attributes:
        row_strides: The stride along each row dimension of the `Geometry`, outermost first.
        column_stride: The stride from one element of a row to the next.
        repeats: The number of neighbouring columns that share each element, such as height times
            width where an image's channels have one number each. Column c reads the element at
            ``c // repeats * column_stride``.
    """

    row_strides: tuple[int, ...]
    column_stride: int
    repeats: int = 1


class Geometry(NamedTuple):
    """Rows and columns of a call.

    Attributes:
        rows: The number of rows.
        columns: The row length in elements.
        sizes: The sizes of the row dimensions after merging, outermost first; never empty, and
            their product is `rows`.
        placed: The strides of each operand, in the order given; None for an operand whose reduced
            dimensions do not merge into one column dimension, after leaving out the innermost ones
            over which it is broadcast, so that it has to be copied first.
        order: The row dimensions of x, without those of size 1, in the order in which they are
            visited, outermost first.
    """

    rows: int
    columns: int
    sizes: tuple[int, ...]
    placed: tuple[Placed | None, ...]
    order: tuple[int, ...]


class Mismatch(NamedTuple):
    """Why a shape does not broadcast against x's.

    Attributes:
        dim: The dimension, counted from the end (-1 is the last).
        got: The operand's size in that dimension.
        wanted: The size of x in that dimension, or None if x has no such dimension.
    """

    dim: int
    got: int
    wanted: int | None


class _Group(NamedTuple):
    """Row dimensions merged into one: its size, each operand's stride, its dimensions of x."""

    size: int
    strides: tuple[int, ...]
    dims: tuple[int, ...]


def mismatch(shape: Sequence[int], operand: Sequence[int]) -> Mismatch | None:
    """Return where the shape `operand` fails to broadcast against `shape`; None if it does not.

    Unlike in torch, the operand may not have more dimensions than x: the result has x's shape.

    >>> mismatch((8, 16, 32), (16, 1))
    >>> mismatch((8, 16, 32), (8, 32))
    Mismatch(dim=-2, got=8, wanted=16)
    """
    extra = len(operand) - len(shape)
    if extra > 0:
        return Mismatch(-len(shape) - 1, operand[extra - 1], None)
    for dim, (got, wanted) in enumerate(zip(reversed(operand), reversed(shape), strict=False), 1):
        if got != wanted and got != 1:
            return Mismatch(-dim, got, wanted)
    return None


def place(
    shape: Sequence[int],
    reduced: Sequence[int],
    operands: Sequence[Strided],
    element_bytes: Sequence[int],
    summed: Sequence[int] = (),
) -> Geometry:
    """Place `operands` on a grid of rows and columns.

    Args:
        shape: The shape of x.
        reduced: The dimensions that make a row, not negative and ascending.
        operands: The shape and strides (in elements) of x, of the outputs and of all else that is
            addressed; each broadcasts against `shape`.
        element_bytes: The size in bytes of an element of each operand.
        summed: The indices of operands that are sums over the dimensions over which they are
            broadcast; those dimensions are moved innermost whatever the operand's size.

    Returns:
        The rows and columns, with the strides of each operand.

    Raises:
        ValueError: More than `MAX_ROW_DIMS` row dimensions are left after merging.

    >>> place((4, 3, 8), (2,), [((4, 3, 8), (24, 8, 1)), ((3, 1), (1, 1))], [4, 4]).placed
    (Placed(row_strides=(24, 8), column_stride=1, repeats=1), \
Placed(row_strides=(0, 1), column_stride=0, repeats=1))
    """
    rank = len(shape)
    strides = [
        one.strides
        if isinstance(one, Virtual)
        else one[1]
        if one[0] == shape
        else _expanded(rank, one[0], one[1])
        for one in operands
    ]
    columns = prod([shape[dim] for dim in reduced])
    along: list[tuple[int, int] | None] | None = None
    if len(reduced) != 1 or columns == 1:  # seldom: nearly always there is nothing to merge
        along = [
            _column_stride(shape, reduced, own, operand)
            for own, operand in zip(strides, operands, strict=True)
        ]
    steps = list(zip(*strides, strict=True)) or [()] * len(shape)
    groups = [
        _Group(size, steps[dim], (dim,))
        for dim, size in enumerate(shape)
        if size != 1 and dim not in reduced
    ]
    rows = prod([group.size for group in groups])
    if rows != 1 and rows * columns:
        if len(groups) > 1:
            groups = _merged(groups)
        if len(groups) > 1:
            column_strides: list[int | None] = [own[reduced[0]] for own in strides]
            if along is not None:
                column_strides = [None if one is None else one[0] for one in along]
            groups = _ordered(groups, columns, column_strides, operands, element_bytes, summed)
        if len(groups) > MAX_ROW_DIMS:
            sizes = tuple(group.size for group in groups)
            raise ValueError(f"{len(groups)} row dimensions {sizes}, at most {MAX_ROW_DIMS} work")
    else:  # One row, or nothing to visit at all: there is nowhere to step to.
        dims = tuple(dim for group in groups for dim in group.dims)
        groups = [_Group(rows, (0,) * len(operands), dims)]

    row_strides = zip(*[group.strides for group in groups], strict=True)
    placed: list[Placed | None]
    if along is None:  # a tuple is made at half the cost of a call of its class
        column, new = reduced[0], tuple.__new__
        both = zip(row_strides, strides, strict=True)
        placed = [new(Placed, (row, own[column], 1)) for row, own in both]
    else:
        pairs = zip(row_strides, along, strict=True)
        placed = [None if one is None else Placed(row, *one) for row, one in pairs]
    return Geometry(
        rows,
        columns,
        tuple([group.size for group in groups]),
        tuple(placed),
        tuple([dim for group in groups for dim in group.dims]),
    )


def _expanded(rank: int, shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The stride of an operand along each of x's dimensions, 0 where it is broadcast."""
    steps = [0 if size == 1 else step for size, step in zip(shape, strides, strict=True)]
    return [0] * (rank - len(shape)) + steps


def _column_stride(
    shape: Sequence[int], reduced: Sequence[int], strides: Sequence[int], operand: Strided
) -> tuple[int, int] | None:
    """The stride from one element of a row to the next, and how many columns share each element.

    None where no single stride visits the elements in order.
    """
    step = None
    reach = 0
    repeats = 1
    for dim in reversed(reduced):
        if shape[dim] == 1:
            continue
        if step is None and strides[dim] == 0:
            repeats *= shape[dim]
            continue
        if step is None:
            step = strides[dim]
        elif strides[dim] != reach:
            return None
        reach = strides[dim] * shape[dim]
    if step is not None:
        return step, repeats
    if repeats > 1:  # one element a row
        return 0, 1
    # One column: any step will do. A tensor that has the dimension counts as dense, like its
    # siblings with more columns, so that it shares their variant.
    if isinstance(operand, Virtual):
        return strides[reduced[-1]], 1
    return int(len(operand[0]) >= len(shape) - reduced[-1]), 1


def _merged(groups: list[_Group]) -> list[_Group]:
    """Merge each group with the one inside it where every operand can walk both in one stride."""
    merged = [groups[0]]
    for inner in groups[1:]:
        outer = merged[-1]
        if outer.strides == tuple([step * inner.size for step in inner.strides]):
            merged[-1] = _Group(outer.size * inner.size, inner.strides, outer.dims + inner.dims)
        else:
            merged.append(inner)
    return merged


def _ordered(
    groups: list[_Group],
    columns: int,
    column_strides: Sequence[int | None],
    operands: Sequence[Strided],
    element_bytes: Sequence[int],
    summed: Sequence[int],
) -> list[_Group]:
    """Move dimensions over which large operands are broadcast innermost, so that reuse is close.

    Rows that share such an operand become neighbours: an attention bias shared over the batch is
    read from memory once in this order, and once per batch in the order of x's dimensions. Of two
    such dimensions the one that saves more bytes is the inner one.
    """
    saved = [0] * len(groups)
    strides = zip(*[group.strides for group in groups], strict=True)
    for i, steps in enumerate(strides):
        if 0 not in steps or not any(steps):
            continue
        if isinstance(operands[i], Virtual) or not (column_strides[i] or i in summed):
            continue
        used = [group.size for group, step in zip(groups, steps, strict=True) if step]
        size = prod(used) * (columns if column_strides[i] else 1) * element_bytes[i]
        if size >= SHARED_BYTES or i in summed:
            saved = [was + size * (not step) for was, step in zip(saved, steps, strict=True)]
    if not any(saved):
        return groups
    return _merged([groups[i] for i in sorted(range(len(groups)), key=saved.__getitem__)])
