# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The operands of a kernel: views of tensors, on their way from torch to the argument; numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fusedops.bind.geometry import Placed

__all__ = [
    "STORAGE",
    "Number",
    "Part",
    "View",
    "contiguous",
    "kept_part",
    "kept_view",
    "part_of",
    "view_of",
    "widened",
]

#: C++ storage types of torch's.
STORAGE: dict[torch.dtype, str] = {
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
    torch.float32: "float",
    torch.float64: "double",
    torch.bool: "uint8_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
}


class View(NamedTuple):
    """An operand that is a tensor.

    Attributes:
        patch: Where its pointer comes from at each call.
        shared: All rows read the same columns of it.
    """

    storage: str
    placed: Placed
    width: int
    patch: tuple[int, int]
    shared: bool


class Number(NamedTuple):
    """An operand that is a number, read from the slot at each call."""

    slot: int
    integer: bool = False


class Part(NamedTuple):
    """A tensor that the kernel addresses, before it has its place among rows and columns.

    Attributes:
        patch: Where its pointer comes from at each call.
        alignment: Of its pointer, in bytes, 16 at most.
        shared: All rows read the same columns of it, whatever the number of rows. Judged by its
            dimensions, not by strides: with a batch of one every stride is 0, and a last batch of
            one must not build a variant of its own.
    """

    shape: Sequence[int]
    strides: Sequence[int]
    dtype: torch.dtype
    patch: tuple[int, int]
    alignment: int
    shared: bool = False


def part_of(tensor: Tensor, patch: tuple[int, int], shared: bool = False) -> Part:
    """What a kernel wants to know of a tensor."""
    alignment = math.gcd(tensor.data_ptr(), 16)
    return Part(tensor.shape, tensor.stride(), tensor.dtype, patch, alignment, shared)


def view_of(part: Part, place: Placed | None, width: int) -> View:
    """A part in its place; `width` is that of a GPU's tile, 0 on a CPU."""
    assert place is not None  # the caller has seen to it: _columns_apart
    if width:
        width = width_of(place, part.dtype.itemsize, part.alignment, width)
    return View(STORAGE[part.dtype], place, width, part.patch, part.shared)


def width_of(where: Placed, size: int, aligned: int, width: int) -> int:
    """Elements that can be read at once: what pointer and strides allow, 16 bytes at most."""
    if where.column_stride != 1:
        return 1
    while width > 1 and (
        width * size > 16
        or aligned % (width * size)
        or any(step % width for step in where.row_strides)
    ):
        width //= 2
    return width


def contiguous(shape: Sequence[int]) -> list[int]:
    """The strides of a dense tensor."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    return strides


def widened(part: Part, reduced: Sequence[int]) -> Part:
    """A statistic with the reduced dimensions back, as size 1."""
    shape, strides = list(part.shape), list(part.strides)
    for dim in reduced:
        shape.insert(dim, 1)
        strides.insert(dim, 0)
    return part._replace(shape=shape, strides=strides)


def kept_part(
    shape: Sequence[int], dtype: torch.dtype, patch: tuple[int, int], reduced: Sequence[int]
) -> Part:
    """What is kept of rows, some numbers each, in the dimensions of x."""
    part = Part(shape[:-1], contiguous(shape)[:-1], dtype, patch, 16)
    return widened(part, reduced)


def kept_view(view: View, numbers: int, width: int) -> View:
    """The numbers kept of a row as its columns."""
    place = view.placed._replace(column_stride=1)
    power = numbers & -numbers  # no accesses of three
    return view._replace(placed=place, width=min(width, power if power == numbers else 1))
