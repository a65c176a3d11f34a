# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A bias that a product has added before the functors get its value."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fusedops.functors.base import Functor, Operand, Reads, Role
from fusedops.functors.fields import check_name, shown

if TYPE_CHECKING:
    from fusedops.functors.protocols import Chain, Writer

__all__ = ["AddedBias"]


@dataclasses.dataclass(frozen=True)
class AddedBias(Functor):
    """A bias that x has in it already: x as it is, with the gradient of ``Bias``.

    No declaration of a user names it. An op with a product whose STORE begins with a ``Bias`` runs
    as one that begins with this where the product adds the bias (product/linear.py).

    Args:
        bias: The name of the operand, a tensor of one number a column.
    """

    bias: str
    header: ClassVar[str] = "added_bias.cuh"
    is_affine: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_name(self, "bias", self.bias)

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.bias, Role.VALUE),)

    @property
    def has_added(self) -> str | None:
        return self.bias

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        bias = torch.as_tensor(chain.value(self.bias)).to(x.dtype)
        # Less a zero that has the bias's gradient. It is zero for an infinite bias as well, where
        # the difference is NaN; and -0.0 less 0.0 is -0.0, as -0.0 plus 0.0 is not.
        return x - (bias.detach() - bias).nan_to_num()

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, ())

    def emit(self, writer: Writer) -> str:
        return f"AddedBias<{writer.operand(self.bias)}>"

    __repr__ = shown
