# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tensor views and scalars of a kernel's argument, and how torch's tensors become them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops.bind.geometry import Placed

#: C++ storage types by torch dtype.
STORAGE: dict[torch.dtype, str] = {
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
    torch.float32: "float",
    torch.float64: "double",
    torch.float8_e4m3fn: "float8_e4m3",
    torch.float8_e5m2: "float8_e5m2",
    torch.float4_e2m1fn_x2: "float4_e2m1x2",
    torch.float8_e8m0fnu: "uint8_t",  # an exponent, which functors write as one
    torch.bool: "uint8_t",
    torch.uint8: "uint8_t",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
}


class View(NamedTuple):
    """A tensor operand with its strides along rows and columns."""

    storage: str  # C++ storage type of its elements
    placed: Placed  # its row strides and column stride, in elements
    #: Vector width of its accesses, in elements; 0 on a CPU. Where neighbouring columns share each
    #: element (`Placed.repeats`), the columns of a pack that share one for certain.
    width: int
    #: Source of its pointer at each call, as (kind, source); None for a null pointer.
    patch: tuple[int, int] | None
    shared: bool  # whether all rows read the same columns of it


class Number(NamedTuple):
    """A number operand, read at each call."""

    slot: int  # number of the operand's slot
    integer: bool = False  # whether it is an integer; otherwise it has the compute type


class OtherHalf(NamedTuple):
    """The second half of a product's columns, an operand that the product's kernel has itself."""

    storage: str  # C++ storage type of the product


class Part(NamedTuple):
    """A tensor that the kernel addresses, before its dimensions are mapped to rows and columns."""

    #: Those of the tensor, with strides in elements.
    shape: Sequence[int]
    strides: Sequence[int]
    dtype: torch.dtype
    patch: tuple[int, int]  # source of its pointer at each call, as (kind, source)
    alignment: int  # alignment of its pointer in bytes, 16 at most
    #: Whether all rows read the same columns of it, whatever the number of rows. Judged by its
    #: dimensions, not by strides: with a batch of one every stride is 0, and a last batch of one
    #: must not build a variant of its own.
    shared: bool = False


class Blank(NamedTuple):
    """A tensor with symbolic shape, strides and alignment, shared by calls of many sizes."""

    key: Any  # what the part is called
    #: The tensor that it is, or whose shape it has. There is no part where a call has none, or a
    #: number in its place.
    name: Any
    #: Whether it is that tensor, be it dense or not; otherwise it is a dense tensor that the call
    #: allocates.
    given: bool
    #: The count of numbers of a row, of a dense tensor of so many of each row; 0 of one of the
    #: shape of `name`.
    numbers: int
    dtype: torch.dtype | None  # the dtype; None for that of `name`
    #: As in `Part`.
    patch: tuple[int, int]
    shared: bool = False


def filled(
    blanks: Sequence[Blank],
    values: Mapping[Any, Any],
    shape: Sequence[int],
    reduced: Sequence[int],
) -> dict[Any, Part]:
    """The parts of a call by key, in order. In C++ (csrc/parts.cpp), as every plan needs them.

    `values` are the tensors of the call by name, and pairs of the dtype and the shape of those that
    are not at hand.
    """
    return _runtime.parts(Part, blanks, values, shape, reduced)


def part_of(tensor: Tensor, patch: tuple[int, int], shared: bool = False) -> Part:
    """The shape, strides, dtype and pointer alignment of a tensor, as a `Part`."""
    alignment = math.gcd(tensor.data_ptr(), 16)
    fields = tensor.shape, tensor.stride(), tensor.dtype, patch, alignment, shared
    return tuple.__new__(Part, fields)  # at half the cost of a call of the class


def views_of(
    parts: Sequence[Part], places: Sequence[Placed | None], width: int, columns: int
) -> list[View]:
    """The views of parts in their places, the first of `places`, all of which have one.

    `width` is the vector width of a GPU's tile, 0 on a CPU. A tensor with rows is accessed as wide
    as `columns` allow, even where it has a single row: a batch of one then needs no kernel of its
    own. In C++ (csrc/geometry.cpp), as places are.
    """
    return _runtime.views(View, STORAGE, parts, places, width, columns)


def widened(part: Part, reduced: Sequence[int]) -> Part:
    """A statistic of rows with the reduced dimensions inserted again, of size 1 and stride 0."""
    of_rows, row_strides, dtype, patch, alignment, shared = part
    shape, strides = list(of_rows), list(row_strides)
    for dim in reduced:
        shape.insert(dim, 1)
        strides.insert(dim, 0)
    return tuple.__new__(Part, (shape, strides, dtype, patch, alignment, shared))


def blocks_view(view: View, step: int) -> View:
    """A view whose columns are the blocks of a row, `step` elements apart.

    `view` is that of a tensor of one number a row, or of as many as there are blocks.
    """
    storage, place, width, patch, _ = view
    return View(storage, Placed(place.row_strides, step), width, patch, shared=False)


def kept_view(view: View, numbers: int, width: int) -> View:
    """A view whose columns are the numbers kept of a row.

    `width` is the largest vector width in elements.
    """
    storage, place, _, patch, shared = view
    power = numbers & -numbers  # no vector accesses of three elements
    width = min(width, power if power == numbers else 1)
    fields = storage, Placed(place.row_strides, 1), width, patch, shared
    return tuple.__new__(View, fields)
