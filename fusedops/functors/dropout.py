# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Dropout."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fusedops.functors.base import Functor, Operand, Reads, Role, check_name

if TYPE_CHECKING:
    from fusedops.functors.protocols import Chain, Writer

__all__ = ["Dropout"]


@dataclasses.dataclass(frozen=True)
class Dropout(Functor):
    """Zero each element with probability p; multiply the others so that the expectation is exact.

    Which elements are zeroed is a function of seed, offset, row and column alone (docs/dropout.md):
    the same on every device, and no mask is stored. ``torch.manual_seed`` and the option
    ``generator=`` of a call determine seed and offset. A call with p = 0 or ``training=False`` runs
    without the functor; p = 1 gives zeros.

    Args:
        p: The name of an operand: a float in [0, 1].

    Raises:
        TypeError, ValueError: p cannot be the name of an operand.

    >>> import torch, fusedops as fo
    >>> op = fo.LayerNorm(store=[fo.Dropout("p")])
    >>> op(torch.randn(2, 4), p=1.0)
    tensor([[0., 0., 0., 0.],
            [0., 0., 0., 0.]])
    """

    p: str
    header: ClassVar[str] = "dropout.cuh"

    def __post_init__(self) -> None:
        check_name(self, "p", self.p)

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.p, Role.PROBABILITY),)

    @property
    def draws(self) -> str:
        return self.p

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        kept, scale = chain.dropout(self)
        return torch.where(kept, x * scale, 0.0)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, (self.p,))

    def emit(self, writer: Writer) -> str:
        return writer.dropout(self.p)
