# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Interfaces that functors use: `Writer` of a kernel's argument, `Chain` of torch calls.

Functors know these types alone, and so neither the generator of the code (`generate`) nor the
unfused reference (`reference`) that call them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class TableOf(NamedTuple):
    """A table that a functor looks up.

    Attributes:
        table: The name of the operand, of shape (entries, n), or (entries,) if `dim` is None.
        indices: The name of the operand that holds the indices.
        dim: The dimension of x that the second one of the table stands for.
    """

    table: str
    indices: str
    dim: int | None


class Writer(Protocol):
    """Appends the members of a functor's C++ struct to the kernel's argument, in their order.

    A method that returns a string returns the C++ type of the member that it appends.

    Attributes:
        compute: The C++ compute type, "float" or "double".
        rank: How many dimensions the rows have.
        queries: How many queries there are, for masks that are made from indices.
        first_query: What is added to the number of a query that the map gives: not 0 where x is a
            part of a tensor, whose queries are counted.
        columns: How many columns a row has.
    """

    compute: str
    rank: int
    queries: int
    first_query: int
    columns: int

    def operand(self, name: str) -> str:
        """Append an operand by its name: a tensor or a number that the call gives."""

    def columns_of(self, name: str) -> int:
        """How many columns a table of a functor with `pairs` has; appends nothing."""

    def output(self, name: str) -> str:
        """Append a stream by its name: written by the forward kernel, read by the backward one."""

    def output_gradient(self, name: str) -> str:
        """Append the gradient of a saved stream by its name; ``Absent`` if it has no gradient."""

    def number(self, value: float) -> str:
        """Append a constant of the declaration, in the compute type."""

    def of_blocks(self, name: str, layout: str) -> str:
        """Append the output of a number for each block, whose columns are the blocks of a row."""

    def absent(self) -> str:
        """Append a placeholder for a member that the declaration leaves out."""

    def constant(self, value: int) -> None:
        """Append a 64-bit integer."""

    def query_map(self) -> str:
        """Append a map from a row to the number of its query, counted from x's first."""

    def table(self, name: str) -> str:
        """Append a table by its name, then its entries and the step from one to the next."""

    def position(self, dim: int) -> str:
        """Append the coordinate along a dimension of x, as an operand of 64-bit integers."""

    def dropout(self, p: str) -> str:
        """Append a ``Dropout``: seed, offset, threshold, scale and the map to the logical row.

        `p` is the name of the probability operand. Where seed and offset lie in memory, as in a
        captured graph, the type is ``DropoutFrom``. The number of the row and the column are those
        of the functor's `shares`.
        """

    def storage(self, dtype: torch.dtype) -> str:
        """The C++ type of a torch dtype; appends nothing."""


class Chain(Protocol):
    """The facts of a call that runs as a chain of torch calls, for `Functor.apply`.

    Tensors have the reduced dimensions last, flattened to one.

    Attributes:
        columns: How many columns a row has.
        queries: How many queries there are.
    """

    columns: int
    queries: int

    def tensor(self, name: str) -> Any:
        """An operand: a number, or a tensor of its own dtype that broadcasts to (..., columns)."""

    def value(self, name: str) -> Tensor | float:
        """A floating operand: a tensor in the compute type, or a number."""

    def as_given(self, name: str) -> Tensor:
        """A tensor operand of its own dtype and number of columns, dimensions arranged."""

    def column(self) -> Tensor:
        """The numbers of the columns, of shape (columns,)."""

    def query(self) -> Tensor:
        """The numbers of the queries, of shape (queries, 1)."""

    def position(self, dim: int) -> Tensor:
        """The coordinates along a dimension of x, in int64, to broadcast to (..., columns)."""

    def gathered(self, table: TableOf) -> Tensor:
        """Values looked up in a table, in the compute type, to broadcast to (..., columns)."""

    def nothing(self) -> Tensor:
        """One element in the compute type, on x's device, which stands for any value."""

    def save(self, name: str, value: Tensor) -> Tensor:
        """Save a value as an output; return it rounded to the output's dtype, to go on with."""

    def tap(self, name: str, value: Tensor) -> None:
        """Keep a value of the STORE as an output, without rounding the chain."""

    def maximum(self, name: str, value: Tensor) -> None:
        """Keep the largest magnitude of a value of the STORE as an output."""

    def keep_blocks(self, name: str, values: Tensor) -> None:
        """Keep a number of each block of columns, which the last dimension counts, as an output."""

    def dropout(self, functor: Any) -> tuple[Tensor, float]:
        """Draw the mask of a functor that draws.

        Returns:
            A bool tensor, True where the element is kept, and the number by which kept elements
            are multiplied.
        """
