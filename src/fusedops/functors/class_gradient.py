# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""ClassGradient: what the epilogue of a product makes of logits in the backward pass of a loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fusedops.functors.base import Functor, Operand, Reads, Role
from fusedops.functors.fields import shown

if TYPE_CHECKING:
    from fusedops.functors.protocols import Chain, Writer

__all__ = ["ClassGradient"]


@dataclasses.dataclass(frozen=True)
class ClassGradient(Functor):
    """``of_loss * (exp(x - lse) - [column = label])``, the gradient of a cross entropy by x.

    No declaration of a user names it. A row whose lse is +inf is ignored and has zeros.

    Args:
        lse: The name of the operand with the logarithm of each row's sum.
        of_loss: The name of that with the gradient of each row's loss.
        label: The name of that with the column of each row's target, which may be none.
    """

    lse: str = "lse"
    of_loss: str = "of_loss"
    label: str = "label"
    header: ClassVar[str] = "class_gradient.cuh"
    differentiable: ClassVar[bool] = False

    def operands(self) -> tuple[Operand, ...]:
        return (
            Operand(self.lse, Role.VALUE),
            Operand(self.of_loss, Role.VALUE),
            Operand(self.label, Role.INTEGER),
        )

    @property
    def positions(self) -> tuple[int, ...]:
        return (-1,)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        lse, of_loss, label = (chain.value(one.name) for one in self.operands())
        there = (chain.position(-1) == label).to(x.dtype)
        found = of_loss * (torch.exp(x - lse) - there)
        nothing = (torch.as_tensor(lse) == torch.inf) | (x == -torch.inf)
        return torch.where(nothing, 0.0, found)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, ())

    def emit(self, writer: Writer) -> str:
        named = ", ".join(writer.operand(one.name) for one in self.operands())
        return f"ClassGradient<{named}>"

    __repr__ = shown
