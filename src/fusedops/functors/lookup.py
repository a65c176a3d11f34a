# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a functor says of a table that it looks up."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TableOf"]


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
