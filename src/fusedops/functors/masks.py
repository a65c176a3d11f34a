# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Masks: functors that remove elements from a row, by a tensor, by position, length or segment.

`Positioned` is the base of those that compare a query's position with a key's; `Alibi` is another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from torch import Tensor

from fusedops.errors import check_flag, shortened
from fusedops.functors.base import Functor
from fusedops.functors.fields import Named, plain_number
from fusedops.functors.operands import Place, Reads, Role
from fusedops.functors.protocols import Chain, Writer

__all__ = ["Causal", "Lengths", "Mask", "Segments", "Window"]

#: Beyond every row; a sum of a few of them still fits 64 bits.
FAR = 1 << 60


class Positioned(Functor):
    """A functor that compares a query's position, shifted to ``q'``, with the key's.

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
        """Raise TypeError or ValueError for an invalid align or offset."""
        kind = type(self).__name__
        if self.align not in ("top-left", "bottom-right"):
            raise ValueError(
                f"{kind}: align must be 'top-left' or 'bottom-right', got {self.align!r}"
            )
        object.__setattr__(self, "offset", plain_number(self.offset))
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


class _Masking(Functor):
    """Base of masks whose gradient reads no tensor."""

    masks: ClassVar[bool] = True

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, ())


@dataclasses.dataclass(frozen=True, repr=False)
class Mask(Named, _Masking):
    """``x.masked_fill(mask, -inf)``, by selection: what lies under the mask cannot leak.

    True is masked out, as by torch's ``masked_fill`` and ``key_padding_mask``. It takes part with
    ``keep=True``, as in the bool ``attn_mask`` of torch's ``scaled_dot_product_attention`` and in
    the ``mask=`` of `fusedops.nn.AttentionSoftmax`, which declares ``Mask("mask", keep=True)``.

    Args:
        mask: The name of an operand: a bool tensor that broadcasts against x, in the reduced
            dimension as well.
        keep: What True means: with False that the element is masked out, with True that it takes
            part, the convention of attention masks in torch.
        optional: Whether a call may leave the mask out or give None for it; it then runs without
            the functor.

    Raises:
        TypeError, ValueError: mask cannot be the name of an operand, or keep is no bool.

    >>> import torch, fusedops as fo
    >>> fo.Softmax(load=[fo.Mask("m")])(torch.zeros(1, 2), m=torch.tensor([False, True]))
    tensor([[1., 0.]])
    """

    mask: str
    keep: bool = False
    optional: bool = dataclasses.field(default=False, kw_only=True)
    roles: ClassVar[Mapping[str, Role]] = {"mask": Role.FLAGS}
    header: ClassVar[str] = "mask.cuh"
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag(type(self).__name__, "keep", self.keep)

    def masked(self, chain: Chain) -> Tensor:
        flags: Tensor = chain.tensor(self.mask)
        return ~flags if self.keep else flags

    def emit(self, writer: Writer) -> str:
        return f"Mask<{writer.operand(self.mask)}, {str(self.keep).lower()}>"


@dataclasses.dataclass(frozen=True)
class Causal(_Masking, Positioned):
    """Causal attention: query q sees key k when ``k <= q'``, where ``q' = q + offset``.

    Queries are x's last dimension that is not reduced, keys are the columns. No tensor is read, and
    masked columns are not loaded.

    Args:
        align: With "top-left" the mask is torch's ``tril(offset)``. With "bottom-right" the last
            query sees the last key: ``q' = q + offset + keys - queries``.
        offset: How many keys further each query sees.

    Raises:
        TypeError, ValueError: align is another word, or offset no int within +-2**60.

    >>> import torch, fusedops as fo
    >>> fo.Softmax(load=[fo.Causal()])(torch.zeros(2, 2))
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """

    align: str = "top-left"
    offset: int = 0
    header: ClassVar[str] = "causal.cuh"
    bounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check_position()

    def masked(self, chain: Chain) -> Tensor:
        return self.ahead(chain) > 0

    def emit(self, writer: Writer) -> str:
        query = writer.query_map()
        writer.constant(self.shift(writer.queries, writer.columns) + writer.first_query)
        return f"Causal<{query}>"


@dataclasses.dataclass(frozen=True)
class Window(_Masking, Positioned):
    """Sliding-window attention: query q sees key k when ``q' - left <= k <= q' + right``.

    ``q' = q + offset``, and ``q + offset + keys - queries`` with ``align="bottom-right"``. Queries
    are x's last dimension that is not reduced, keys are the columns. No tensor is read, and masked
    columns are not loaded.

    The query's own key counts in neither size: a query sees up to ``left + 1 + right`` keys. The
    ``sliding_window`` of transformers counts it, so that ``sliding_window=w`` is ``Window(w - 1)``.

    Args:
        left, right: How many keys before and after q' a query sees; None is no limit on that side,
            so that ``Window(None)`` is ``Causal()``.
        align, offset: As for `Causal`.

    Raises:
        TypeError, ValueError: A size is negative or no int, both are None, or align or offset is
            refused as by `Causal`.

    >>> import torch, fusedops as fo
    >>> fo.Softmax(load=[fo.Window(1)])(torch.zeros(3, 3))
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 0.5000, 0.5000]])
    """

    left: int | None
    right: int | None = 0
    align: str = "top-left"
    offset: int = 0
    header: ClassVar[str] = "window.cuh"
    bounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for field in ("left", "right"):
            size = plain_number(getattr(self, field))
            if size is None:
                continue
            object.__setattr__(self, field, size)
            if not isinstance(size, int) or isinstance(size, bool):
                raise TypeError(
                    f"Window: {field} must be an int >= 0 or None (no limit), got "
                    f"{shortened(size)}; write Window(left, right)"
                )
            if not 0 <= size <= FAR:
                raise ValueError(
                    f"Window: {field} must be an int >= 0 or None (no limit), got "
                    f"{shortened(size)}; "
                    + ("use None" if size > 0 else "None is no limit, and offset= moves the window")
                )
        if self.left is None and self.right is None:
            raise ValueError(
                "Window: left and right cannot both be None, which masks nothing; leave the "
                "functor out or limit a side"
            )
        self.check_position()

    def sizes(self) -> tuple[int, int]:
        """The limits left and right as numbers; `FAR` stands for no limit."""
        return FAR if self.left is None else self.left, FAR if self.right is None else self.right

    def masked(self, chain: Chain) -> Tensor:
        left, right = self.sizes()
        ahead = self.ahead(chain)
        return (ahead < -left) | (ahead > right)

    def emit(self, writer: Writer) -> str:
        left, right = self.sizes()
        position = self.shift(writer.queries, writer.columns) + writer.first_query
        query = writer.query_map()
        writer.constant(position - left)
        writer.constant(position + right + 1)
        return f"Window<{query}>"


@dataclasses.dataclass(frozen=True, repr=False)
class Lengths(Named, _Masking):
    """Each row keeps its first n columns: ``k < n``. Others are masked and not loaded.

    Args:
        lengths: The name of an operand: an int, or an int32 or int64 tensor that broadcasts against
            x and has size 1 in the reduced dimensions. For x of shape (batch, heads, queries,
            keys), for example, its shape is (batch, 1, 1, 1).
        optional: Whether a call may leave the operand out or give None for it; it then runs without
            the functor.

    Raises:
        TypeError, ValueError: lengths cannot be the name of an operand.

    >>> import torch, fusedops as fo
    >>> fo.Softmax(load=[fo.Lengths("n")])(torch.zeros(1, 3), n=2)
    tensor([[0.5000, 0.5000, 0.0000]])
    """

    lengths: str
    optional: bool = dataclasses.field(default=False, kw_only=True)
    roles: ClassVar[Mapping[str, Role]] = {"lengths": Role.COUNT}
    header: ClassVar[str] = "lengths.cuh"
    bounds: ClassVar[bool] = True

    def on_columns(self, place: Place) -> Functor:
        return self  # its operand counts

    def masked(self, chain: Chain) -> Tensor:
        lengths: Tensor | int = chain.tensor(self.lengths)
        return chain.column() >= lengths

    def emit(self, writer: Writer) -> str:
        return f"Lengths<{writer.operand(self.lengths)}>"


@dataclasses.dataclass(frozen=True, repr=False)
class Segments(Named, _Masking):
    """Keep the elements whose query and key are of the same segment; the others are masked.

    Several sequences packed into one row attend each to itself: ``queries == keys``, compared as
    integers, so that ids of any size are told apart.

    Args:
        queries: The name of an operand: a tensor of integers (uint8, int8, int16, int32 or int64)
            that broadcasts against x and has size 1 in the reduced dimension. One id a query has
            shape (batch, 1, queries, 1) for x of shape (batch, heads, queries, keys).
        keys: The same for keys, with size 1 in the dimension of the queries, x's last that is not
            reduced: (batch, 1, 1, keys), say. The two may be of different dtypes.
        optional: Whether a call may leave both out or give None for them; it then runs without the
            functor.

    Raises:
        TypeError, ValueError: queries or keys cannot be the name of an operand. A call: a tensor
            has several ids a query, or a key.

    >>> import torch, fusedops as fo
    >>> op, ids = fo.Softmax(load=[fo.Segments("q", "k")]), torch.tensor([0, 0, 1])
    >>> op(torch.zeros(3, 3), q=ids[:, None], k=ids)
    tensor([[0.5000, 0.5000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """

    queries: str
    keys: str
    optional: bool = dataclasses.field(default=False, kw_only=True)
    roles: ClassVar[Mapping[str, Role]] = {"queries": Role.ROW_IDS, "keys": Role.KEY_IDS}
    header: ClassVar[str] = "segments.cuh"
    elementwise: ClassVar[bool] = True

    def masked(self, chain: Chain) -> Tensor:
        queries: Tensor = chain.tensor(self.queries)
        keys: Tensor = chain.tensor(self.keys)
        return queries != keys

    def emit(self, writer: Writer) -> str:
        queries = writer.operand(self.queries)
        return f"Segments<{queries}, {writer.operand(self.keys)}>"
