# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Operands of functors and their roles, the streams that they write, and what a gradient reads."""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

import torch

from fusedops.functors.protocols import TableOf

__all__ = [
    "BLOCK_LAYOUTS",
    "WHOLE_ROW",
    "Operand",
    "Place",
    "Reads",
    "Role",
    "Stream",
    "TableOf",
]

#: The dtypes that x, results and operands of values may have.
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: The dtypes of ids: of classes, documents, experts, rows of a table.
IDS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
#: The dtypes of 8 bits that results may have.
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)

#: The `block` of a functor that needs the largest value of a whole row; kWholeRow in C++.
WHOLE_ROW = 0

#: How an output of one number for each block lies. "rows": x's dimensions that are not reduced,
#: then the blocks of a row. "columns": the blocks, then those. "tiles": flat, in tiles of 128 rows
#: by 4 blocks, all of 512 numbers; row r and block b of a tile are at
#: ``16 * (r % 32) + 4 * (r // 32) + b``.
BLOCK_LAYOUTS = ("rows", "columns", "tiles")


class Role(enum.Enum):
    """The role of an operand, which decides what a call may pass for it."""

    VALUE = "a floating-point tensor or a number"
    FLAGS = "a bool tensor"
    COUNT = "an int32 or int64 tensor or an int"
    IDS = "a tensor of integers"
    ROW_IDS = "a tensor of integers, one id a query"
    KEY_IDS = "a tensor of integers, one id a key"
    TABLE = "a floating-point tensor"
    INTEGER = "a tensor of integers or bools, or an int"
    PROBABILITY = "a float in [0, 1]"
    ROW = "a floating-point tensor of one number a row, or a number"
    TARGET = "a tensor of integers, one column a row"

    __hash__ = object.__hash__  # each is there once; Enum's hashes its name, in Python


@dataclasses.dataclass(frozen=True)
class Operand:
    """An operand of a functor: the call must give it a value.

    Attributes:
        name: The keyword under which the call gives the value.
        role: The kind of value.
        declare: How another declaration takes other values, for the error that refuses these; or
            empty.
    """

    name: str
    role: Role
    declare: str = dataclasses.field(default="", compare=False)


class Reads(NamedTuple):
    """The values that the gradient of a functor reads.

    Attributes:
        input: Whether it reads the value that the functor got in the forward pass.
        operands: The names of the operands that it reads.
    """

    input: bool
    operands: tuple[str, ...]


class Stream(NamedTuple):
    """A saved stream: an output of x's shape that a functor of a LOAD writes.

    Attributes:
        name: The name of the output, a field of the op's result.
        like: The operand whose dtype the stream has where the call gives a tensor for it. Where the
            call gives a number, and where `like` is None, the stream has the dtype of x.
        dtype: The dtype of the stream, whatever the operands have; None: as `like` says.
    """

    name: str
    like: str | None = None
    dtype: torch.dtype | None = None


class Place(NamedTuple):
    """Where a rank's shard of x lies in the whole tensor.

    Attributes:
        query: The number of its first query, in x's last dimension that is not reduced.
        column: The number of its first column.
        queries, columns: How many of both x has.
    """

    query: int
    column: int
    queries: int
    columns: int
