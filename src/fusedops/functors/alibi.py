# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Attention with linear biases."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fusedops.functors.base import Operand, Reads, Role
from fusedops.functors.fields import check_flag, check_name, shown
from fusedops.functors.position import Positioned

if TYPE_CHECKING:
    from fusedops.functors.protocols import Chain, Writer

__all__ = ["Alibi"]


@dataclasses.dataclass(frozen=True)
class Alibi(Positioned):
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
    header: ClassVar[str] = "alibi.cuh"

    def __post_init__(self) -> None:
        check_name(self, "slopes", self.slopes)
        check_flag(self, "optional")
        self.check_position()

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.slopes, Role.ROW),)

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

    __repr__ = shown
