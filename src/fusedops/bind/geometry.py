# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The geometry of a call: the strides of every operand along rows and columns.

A row op sees its operands as a grid of rows and columns, however many dimensions the tensors have
and whatever they share by broadcasting. This module turns shapes and strides into that grid:
dimensions of size 1 vanish, neighbours merge where every operand's strides allow it, and the rows
are put into the order in which they are best visited. It knows nothing of torch or of any
operator: integers in, integers out. Every plan is placed, so it is done in C++ (csrc/geometry.cpp).
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from fusedops import _runtime

#: The most row dimensions that a kernel can address; each number of them is a variant of its own.
MAX_ROW_DIMS = _runtime.MAX_ROW_DIMS

#: Operands of fewer bytes than this stay in the caches in whatever order the rows are visited.
SHARED_BYTES = _runtime.SHARED_BYTES


#: A tensor's shape and strides, in elements. Or, of an index that is computed from coordinates and
#: has no memory, such as the row number in dropout: what a step along each of x's dimensions adds.
Strided: TypeAlias = "tuple[Sequence[int], Sequence[int]] | tuple[Sequence[int]]"


class Placed(NamedTuple):
    """The strides of one operand, in elements; 0 where it is broadcast."""

    #: The stride along each row dimension of the `Geometry`, outermost first.
    row_strides: tuple[int, ...]
    column_stride: int  # the stride from one element of a row to the next
    #: The number of neighbouring columns that share each element, such as height times width where
    #: an image's channels have one number each. Column c reads the element at ``c // repeats *
    #: column_stride``.
    repeats: int = 1


class Geometry(NamedTuple):
    """Rows and columns of a call."""

    rows: int  # the number of rows
    columns: int  # the row length in elements
    #: The sizes of the row dimensions after merging, outermost first; never empty, and their
    #: product is `rows`.
    sizes: tuple[int, ...]
    #: The strides of each operand, in the order given; None for an operand whose reduced dimensions
    #: do not merge into one column dimension, after leaving out the innermost ones over which it is
    #: broadcast, so that it has to be copied first.
    placed: tuple[Placed | None, ...]
    #: The row dimensions of x, without those of size 1, in the order in which they are visited,
    #: outermost first.
    order: tuple[int, ...]


class Sharing(NamedTuple):
    """Which elements of x share one element of an operand."""

    #: "each": no elements share one; "column": rows share one; "row": the columns of a row share
    #: one, and maybe rows too; "channel": several neighbouring columns of a row share one, and
    #: maybe rows too; "apart": the rows that share one are not neighbours in processing order.
    kind: str
    group: int  # number of neighbouring rows that share one element
    outer: int  # the operand's stride from group to group, in elements; -1 where it is not constant
    of_all: bool = False  # whether all rows share the elements, be it only one row


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
    fields = _runtime.place(Placed, shape, reduced, operands, element_bytes, summed)
    return tuple.__new__(Geometry, fields)


def shares_of(
    places: Sequence[Placed],
    sizes: Sequence[int],
    columns: int,
    of_row: Sequence[bool] = (),
    whole: Sequence[bool] = (),
) -> list[Sharing]:
    """How rows share the elements of operands.

    The sizes are those of the row dimensions of x, outermost first. `of_row` says of each operand
    whether the columns of a row share one element, also where there is one column, `whole` whether
    all rows share the elements, be it only one row; none of them by default.
    """
    return _runtime.shares(Sharing, places, sizes, columns, of_row, whole)
