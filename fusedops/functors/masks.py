# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Functors that take elements out of a row."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fusedops.functors.base import Functor, Operand, Role, check_name

if TYPE_CHECKING:
    from fusedops.codegen import Arguments
    from fusedops.unfused import Chain

__all__ = ["Causal", "Lengths", "Mask"]


@dataclasses.dataclass(frozen=True)
class Mask(Functor):
    """``x.masked_fill(mask, -inf)``, by selection: what lies under the mask cannot leak.

    ``keep=False``: True is masked out. ``keep=True``: True takes part, the attention convention.
    The mask is a bool tensor that broadcasts against x, in the last dimension as well.

    >>> import torch, fusedops as fo
    >>> fo.Softmax(load=[fo.Mask("m")])(torch.zeros(1, 2), m=torch.tensor([False, True]))
    tensor([[1., 0.]])
    """

    mask: str
    keep: bool = False
    header: ClassVar[str] = "mask.cuh"
    masks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_name(self, "mask", self.mask)
        if not isinstance(self.keep, bool):
            raise TypeError(f"Mask: keep must be True or False, got {self.keep!r}")

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.mask, Role.FLAGS),)

    def masked(self, chain: Chain) -> Tensor:
        flags: Tensor = chain.tensor(self.mask)
        return ~flags if self.keep else flags

    def spell(self, write: Arguments) -> str:
        return f"Mask<{write.operand(self.mask)}, {str(self.keep).lower()}>"


@dataclasses.dataclass(frozen=True)
class Causal(Functor):
    """Query q sees key k when ``k <= q + offset``: ``"top-left"``, torch's ``tril(offset)``.

    With ``"bottom-right"`` the last query sees the last key: ``k <= q + offset + keys - queries``.
    Queries are x's last dimension that is not reduced, keys the columns. No tensor is read, and
    what is masked out is not loaded.

    >>> import torch, fusedops as fo
    >>> fo.Softmax(load=[fo.Causal()])(torch.zeros(2, 2))
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """

    align: str = "top-left"
    offset: int = 0
    header: ClassVar[str] = "causal.cuh"
    masks: ClassVar[bool] = True
    needs_query: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.align not in ("top-left", "bottom-right"):
            raise ValueError(
                f"Causal: align must be 'top-left' or 'bottom-right', got {self.align!r}"
            )
        if not isinstance(self.offset, int) or isinstance(self.offset, bool):
            raise TypeError(f"Causal: offset must be an int, got {self.offset!r}")

    def shift(self, queries: int, columns: int) -> int:
        """What is added to a query's number to get its last column."""
        return self.offset + (columns - queries if self.align == "bottom-right" else 0)

    def masked(self, chain: Chain) -> Tensor:
        last = chain.query() + self.shift(chain.queries, chain.columns)
        return chain.column() > last

    def spell(self, write: Arguments) -> str:
        write.query_map()
        write.constant(self.shift(write.queries, write.columns))
        return f"Causal<{write.rank}>"


@dataclasses.dataclass(frozen=True)
class Lengths(Functor):
    """Each row keeps its first n columns: ``k < n``.

    n is an int, or an int32 or int64 tensor that broadcasts against x and has size 1 in the reduced
    dimensions: for x of shape (batch, heads, queries, keys), say, shape (batch, 1, 1, 1).

    >>> import torch, fusedops as fo
    >>> fo.Softmax(load=[fo.Lengths("n")])(torch.zeros(1, 3), n=2)
    tensor([[0.5000, 0.5000, 0.0000]])
    """

    lengths: str
    header: ClassVar[str] = "lengths.cuh"
    masks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_name(self, "lengths", self.lengths)

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.lengths, Role.COUNT),)

    def masked(self, chain: Chain) -> Tensor:
        lengths: Tensor | int = chain.tensor(self.lengths)
        return chain.column() >= lengths

    def spell(self, write: Arguments) -> str:
        return f"Lengths<{write.operand(self.lengths)}>"
