# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a functor is given: a writer of the kernel's argument, and a chain of torch calls.

Functors are written against these two types alone, and so know neither the generator of the code
(`generate`) nor the unfused reference (`reference`) that call them.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["Chain", "Writer"]


class Writer(Protocol):
    """Appends the members of a functor's C++ struct to the kernel's argument, in their order.

    A method that returns a string returns the C++ type of the member that it appends.

    Attributes:
        compute: The C++ compute type, "float" or "double".
        rank: How many dimensions the rows have.
        queries: How many queries there are, for masks that are made from indices.
        columns: How many columns a row has.
    """

    compute: str
    rank: int
    queries: int
    columns: int

    def operand(self, name: str) -> str:
        """A tensor or a number given at the call."""

    def output(self, name: str) -> str:
        """A tensor that the kernel writes; in a gradient, one that the forward pass wrote."""

    def output_gradient(self, name: str) -> str:
        """The gradient of a saved stream."""

    def number(self, value: float) -> str:
        """A constant of the declaration, in the compute type."""

    def absent(self) -> str:
        """Stands for a member that the declaration leaves out."""

    def constant(self, value: int) -> None:
        """A 64-bit integer."""

    def query_map(self) -> None:
        """The map from a row's coordinates to the number of its query."""

    def dropout(self, p: str) -> str:
        """Seed, offset, threshold, scale and the map to the logical row; `p` names the operand."""

    def storage(self, dtype: torch.dtype) -> str:
        """The C++ type of a torch dtype; appends nothing."""


class Chain(Protocol):
    """What a functor may ask of a call while it runs as torch calls.

    Tensors have the reduced dimensions last, flattened to one.

    Attributes:
        columns: How many columns a row has.
        queries: How many queries there are.
    """

    columns: int
    queries: int

    def tensor(self, name: str) -> Any:
        """An operand as given, arranged; numbers as they are."""

    def value(self, name: str) -> Tensor | float:
        """A floating operand in the compute type."""

    def column(self) -> Tensor:
        """The number of each column."""

    def query(self) -> Tensor:
        """The number of each row's query, as a column."""

    def save(self, name: str, value: Tensor) -> Tensor:
        """Keep a value as an output; the chain goes on with what was kept."""

    def dropout(self, functor: Any) -> tuple[Tensor, float]:
        """The elements that a functor which draws keeps, of x's shape, and their scale."""
