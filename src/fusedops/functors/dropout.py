# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The dropout functor, with a counter-based (Philox) mask."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from fusedops.errors import shortened
from fusedops.functors.base import Functor
from fusedops.functors.fields import check_name, shown
from fusedops.functors.operands import Operand, Reads, Role
from fusedops.functors.protocols import Chain, Writer

__all__ = ["Dropout"]


@dataclasses.dataclass(frozen=True)
class Dropout(Functor):
    """Zero each element with probability p; multiply the others so that the expectation is exact.

    Which elements are zeroed is a function of seed, offset, row and column alone
    (docs/explanation/dropout.md): the same on every device, and no mask is stored.
    ``torch.manual_seed`` and the option ``generator=`` of a call determine seed and offset. A call
    with p = 0 or ``training=False`` runs without the functor; p = 1 gives zeros.

    p is rounded to the nearest multiple of 2**-16, half to even, but never to 0 or 1: 0.1 drops
    with probability 6554/65536. What is kept is multiplied by the inverse of the rounded
    probability of being kept, so it is the rounded p that the expectation is exact for.

    With `shared`, elements that differ only in their coordinates along those dimensions are kept or
    zeroed together: ``shared=-1`` drops whole rows of the last dimension, ``shared=(1, 2)`` is
    stochastic depth per sample for x of shape (batch, tokens, channels), and ``shared=-3`` the
    row-wise dropout of AlphaFold for x of shape (..., rows, columns, channels).

    Args:
        p: The name of an operand: a float in [0, 1].
        shared: A dimension of x, or several, along which all elements have one draw; none by
            default. Negative ones count from the end. Of the reduced dimensions of a call it names
            either all or none.

    Raises:
        TypeError, ValueError: p cannot be the name of an operand, or shared is no int and no
            sequence of different ints. A call: x has no such dimension, or some but not all of the
            reduced dimensions are shared.

    >>> import torch, fusedops as fo
    >>> op = fo.LayerNorm(store=[fo.Dropout("p")])
    >>> op(torch.randn(2, 4), p=1.0)
    tensor([[0., 0., 0., 0.],
            [0., 0., 0., 0.]])
    """

    p: str
    shared: int | Sequence[int] = ()
    header: ClassVar[str] = "dropout.cuh"

    def __post_init__(self) -> None:
        check_name(self, "p", self.p)
        shared: Any = self.shared
        if type(shared) is int:
            shared = (shared,)
        if not isinstance(shared, (tuple, list)) or any(type(one) is not int for one in shared):
            raise TypeError(
                "Dropout: shared must be a dimension of x or several, an int or a tuple of ints, "
                f"got {shortened(self.shared)}"
            )
        if len({*shared}) != len(shared):
            raise ValueError(f"Dropout: shared must name each dimension once, got {shared}")
        object.__setattr__(self, "shared", tuple(shared))  # a list cannot be hashed

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.p, Role.PROBABILITY),)

    @property
    def draws(self) -> str:
        return self.p

    @property
    def shares(self) -> tuple[int, ...]:
        return cast("tuple[int, ...]", self.shared)

    def sharing(self, dims: Sequence[int]) -> Dropout:
        return dataclasses.replace(self, shared=tuple(dims))

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        kept, scale = chain.dropout(self)
        return torch.where(kept, x * scale, 0.0)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, (self.p,))

    def emit(self, writer: Writer) -> str:
        return writer.dropout(self.p)

    def __repr__(self) -> str:
        return shown(self, "shared")
