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
    """Zeroes elements with probability p and scales the others so that the expectation is exact.

    Which elements is a function of seed, offset, row and column alone (docs/dropout.md): the same
    on every device, and nothing is stored. ``torch.manual_seed`` and ``generator=`` decide seed and
    offset. p = 0 and ``training=False`` leave the functor out; p = 1 gives zeros.

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
