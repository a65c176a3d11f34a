# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The position of a query among the keys, which functors made from indices share."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from fusedops.errors import shortened
from fusedops.functors.base import Functor, Place

if TYPE_CHECKING:
    from fusedops.functors.protocols import Chain

#: Beyond every row; a sum of a few of them still fits 64 bits.
FAR = 1 << 60


class Positioned(Functor):
    """A functor that compares the number of a query, moved to ``q'``, with that of a key.

    Queries are x's last dimension that is not reduced, keys the columns. A call whose x has no such
    dimension is refused.

    Attributes:
        align: With "top-left" the first query stands at the first key, ``q' = q + offset``; with
            "bottom-right" the last at the last, ``q' = q + offset + keys - queries``.
        offset: Moves all queries towards later keys.
    """

    align: str
    offset: int
    needs_query: ClassVar[bool] = True

    def check_position(self) -> None:
        """Raise TypeError or ValueError if align or offset is none that the functor takes."""
        kind = type(self).__name__
        if self.align not in ("top-left", "bottom-right"):
            raise ValueError(
                f"{kind}: align must be 'top-left' or 'bottom-right', got {self.align!r}"
            )
        if not isinstance(self.offset, int) or isinstance(self.offset, bool):
            raise TypeError(f"{kind}: offset must be an int, got {shortened(self.offset)}")
        if abs(self.offset) > FAR:
            raise ValueError(f"{kind}: offset must be within +-2**60, got {shortened(self.offset)}")

    def shift(self, queries: int, columns: int) -> int:
        """The number that is added to a query's number to get its position among the keys."""
        return self.offset + (columns - queries if self.align == "bottom-right" else 0)

    def on_columns(self, place: Place) -> Functor:
        positioned: Any = self  # a dataclass, as all functors are
        offset = self.shift(place.queries, place.columns) + place.query - place.column
        moved: Functor = dataclasses.replace(positioned, align="top-left", offset=offset)
        return moved

    def ahead(self, chain: Chain) -> Tensor:
        """The distance ``k - q'`` from each query to each key, of shape (queries, columns)."""
        return chain.column() - (chain.query() + self.shift(chain.queries, chain.columns))
