# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Biases of attention scores that a kernel makes itself: ALiBi's slopes, and lookups in a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import ClassVar

from torch import Tensor

from fusedops.errors import shortened
from fusedops.functors.fields import Named
from fusedops.functors.masks import Positioned
from fusedops.functors.operands import Reads, Role
from fusedops.functors.protocols import Chain, TableOf, Writer

__all__ = ["Alibi", "Gather"]


@dataclasses.dataclass(frozen=True, repr=False)
class Gather(Named):
    """``x + table[index]``: a bias of x's shape looked up in a small table.

    It is T5's bias by bucket and Swin's by relative position: neither the bias nor the index is
    made in x's size. An index outside of the table gives NaN, and nothing outside is read.

    The gradient of the table is a sum over equal indices, in a fixed order and without atomics, so
    it has the same bits in every run. It is added up from one number for each element of the index
    (and for each size of `dim`), which the backward kernel writes in the compute type.

    Args:
        table: The name of an operand: a floating tensor of shape (entries, n), where n is x's size
            in the dimension `dim`, or 1: one bias for each entry and head. With ``dim=None`` its
            shape is (entries,).
        index: The name of an operand: a tensor of integers that broadcasts against x, one entry for
            each query and key of shape (queries, keys), say.
        dim: The dimension of x that the table's second one stands for, no reduced one: by default
            the heads of an x of shape (batch, heads, queries, keys).
        optional: Whether a call may leave both out or give None for them; it then runs without
            the functor.

    Raises:
        TypeError, ValueError: table or index cannot be the name of an operand, or dim is no int.

    >>> import torch, fusedops as fo
    >>> table, index = torch.tensor([[0.0], [1.0]]), torch.tensor([[0, 1], [1, 0]])
    >>> op = fo.Softmax(load=[fo.Gather("table", "index")])
    >>> op(torch.zeros(1, 2, 2), table=table, index=index)
    tensor([[[0.2689, 0.7311],
             [0.7311, 0.2689]]])
    """

    table: str
    index: str
    dim: int | None = -3
    optional: bool = dataclasses.field(default=False, kw_only=True)
    roles: ClassVar[Mapping[str, Role]] = {"table": Role.TABLE, "index": Role.IDS}
    header: ClassVar[str] = "gather.cuh"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim is not None and (not isinstance(self.dim, int) or isinstance(self.dim, bool)):
            raise TypeError(
                f"Gather: dim must be an int, a dimension of x, or None for a table of one "
                f"dimension, got {shortened(self.dim)}"
            )

    @property
    def tables(self) -> tuple[TableOf, ...]:
        return (TableOf(self.table, self.index, self.dim),)

    @property
    def positions(self) -> tuple[int, ...]:
        return () if self.dim is None else (self.dim,)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return x + chain.gathered(self.tables[0])

    def gradients(self) -> tuple[str | None, ...]:
        return (self.table, None)

    def reads(self, wanted: Collection[str]) -> Reads:
        # By whoever adds up the gradients of equal indices.
        return Reads(False, (self.index,) if self.table in wanted else ())

    def emit(self, writer: Writer) -> str:
        table = writer.table(self.table)
        return f"Gather<{table}, {writer.operand(self.index)}>"


@dataclasses.dataclass(frozen=True, repr=False)
class Alibi(Named, Positioned):
    """Attention with linear biases: ``x - slope * |q' - k|`` for query q and key k.

    ``q' = q + offset``, and ``q + offset + keys - queries`` with ``align="bottom-right"``. Queries
    are x's last dimension that is not reduced, keys are the columns. No tensor of x's size is read.

    Press, Smith and Lewis, "Train Short, Test Long" (2022), in the symmetric form for attention in
    both directions. Beside `Causal` it gives the paper's own probabilities: the two forms differ by
    a constant a row.

    Args:
        slopes: The name of an operand: a floating tensor that broadcasts against x and has size 1
            in the reduced dimension, or a number. One slope a head has shape (heads, 1, 1) for x of
            shape (batch, heads, queries, keys). A tensor has a gradient.
        align, offset: As for `Causal`.
        optional: Whether a call may leave the operand out or give None for it; it then runs without
            the functor.

    Raises:
        TypeError, ValueError: slopes cannot be the name of an operand, or align or offset is
            refused as by `Causal`. A call: a tensor has several slopes a row.

    >>> import torch, fusedops as fo
    >>> fo.Softmax(load=[fo.Alibi("slopes")])(torch.zeros(2, 2), slopes=1.0)
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """

    slopes: str
    align: str = "top-left"
    offset: int = 0
    optional: bool = dataclasses.field(default=False, kw_only=True)
    roles: ClassVar[Mapping[str, Role]] = {"slopes": Role.ROW}
    header: ClassVar[str] = "alibi.cuh"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_position()

    def gradients(self) -> tuple[str | None, ...]:
        return (self.slopes,)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return x - chain.value(self.slopes) * self.ahead(chain).abs().to(x.dtype)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, ())  # the distance is the gradient's only factor

    def emit(self, writer: Writer) -> str:
        slopes = writer.operand(self.slopes)
        query = writer.query_map()
        writer.constant(self.shift(writer.queries, writer.columns) + writer.first_query)
        return f"Alibi<{slopes}, {query}>"
