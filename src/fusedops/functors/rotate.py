# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The functor that turns pairs of columns: rotary position embedding."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedops.errors import check_flag, shortened
from fusedops.functors.fields import Named
from fusedops.functors.operands import Reads, Role
from fusedops.functors.protocols import Chain, Writer

__all__ = ["Rotate"]


@dataclasses.dataclass(frozen=True, repr=False)
class Rotate(Named):
    """Rotary position embedding: turn each pair of columns of a row by an angle of its own.

    Of a row's first ``dims`` columns, i and ``i + dims / 2`` are a pair, as in Llama, or with
    ``interleaved=True`` 2i and 2i + 1, as in GPT-J; a is the first of the two and b the second::

        y[a] = x[a] * cos[a] - x[b] * sin[a]
        y[b] = x[b] * cos[b] + x[a] * sin[b]

    The other columns stay as they are. QK-norm and rotation are one kernel, and so is their
    gradient, the inverse rotation and the norm's: ``fo.RMSNorm(store=[fo.Affine("g", None),
    fo.Rotate("cos", "sin")])``. In a LOAD or a STORE of LayerNorm, RMSNorm and L2Norm, and in a
    Map; once in a declaration, beside no masks and saved streams. The value of the other column is
    read or computed a second time, so no tile changes a bit. x may be a slice of a packed
    projection, and ``out=x`` writes in place.

    Su, Lu, Pan, Murtadha, Wen and Liu, "RoFormer: Enhanced Transformer with Rotary Position
    Embedding" (2021).

    Args:
        cos, sin: The names of operands: the cosines and sines of the angles, floating tensors of
            any dtype. In the dimension of the columns their size is ``dims / 2``, one number a
            pair, or ``dims``, of which each column of a pair has its own; in all other dimensions
            they broadcast against x. They have no gradient.
        interleaved: Whether pairs are neighbours.
        dims: How many columns are turned, an even number; None for all.

    Raises:
        TypeError, ValueError: cos or sin cannot be the name of an operand, interleaved is no bool,
            dims is no even number above 0. A call: a row has an odd number of columns, or fewer
            than ``dims``, or several dimensions; a table has another size.

    >>> import torch, fusedops as fo
    >>> op = fo.Map(load=[fo.Rotate("cos", "sin")])
    >>> quarter = {"cos": torch.zeros(2), "sin": torch.ones(2)}
    >>> op(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), **quarter)
    tensor([[-3., -4.,  1.,  2.]])
    """

    cos: str
    sin: str
    interleaved: bool = False
    dims: int | None = None
    roles: ClassVar[Mapping[str, Role]] = {"cos": Role.TABLE, "sin": Role.TABLE}
    header: ClassVar[str] = "rotate.cuh"
    pairs: ClassVar[bool] = True
    cancels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag(type(self).__name__, "interleaved", self.interleaved)
        dims = self.dims
        if dims is not None and (not isinstance(dims, int) or isinstance(dims, bool)):
            raise TypeError(
                f"Rotate: dims must be an even number of columns, or None for all, got "
                f"{shortened(dims)}"
            )
        if dims is not None and (dims < 2 or dims % 2):
            raise ValueError(
                f"Rotate: dims must be an even number of columns above 0, or None for all, got "
                f"{dims}"
            )

    def gradients(self) -> tuple[str | None, ...]:
        return (None, None)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, (self.cos, self.sin))

    def check_row(
        self, name: str, shape: Sequence[int], reduced: Sequence[int], operands: Mapping[str, Any]
    ) -> None:
        if len(reduced) != 1:
            raise ValueError(
                f"{name}: {self!r} pairs the columns of one dimension, got rows of the dimensions "
                f"{tuple(reduced)}; reduce one, or rotate in a Map of its own"
            )
        (dim,) = reduced
        columns, rank = shape[dim], len(shape)
        dims = columns if self.dims is None else self.dims
        if dims > columns or dims % 2:
            wanted = (
                "an even number of columns" if self.dims is None else f"{dims} columns at least"
            )
            raise ValueError(
                f"{name}: {self!r} needs rows of {wanted}, got {columns} in x of shape "
                f"{tuple(shape)}{'; dims= turns the first ones alone' if self.dims is None else ''}"
            )
        sizes = []
        for key in (self.cos, self.sin):
            own = operands[key].shape
            lead = rank - len(own)
            sizes.append(own[dim - lead] if dim >= lead else 1)
            others = [(own[d - lead], shape[d]) for d in range(max(lead, 0), rank) if d != dim]
            if lead < 0 or not all(one in (1, size) for one, size in others):
                raise ValueError(
                    f"{name}: operand {key!r} of shape {tuple(own)} does not broadcast against x "
                    f"of shape {tuple(shape)}; of tables of positions and columns, beside "
                    f"(batch, positions, heads, columns), give {key}[:, None]"
                )
            if sizes[-1] not in (dims // 2, dims):
                raise ValueError(
                    f"{name}: operand {key!r} must have {dims // 2} columns, one for each pair, or "
                    f"{dims}, got shape {tuple(own)} for {self!r} and x of shape {tuple(shape)}"
                )
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"{name}: operands {self.cos!r} and {self.sin!r} must have as many columns as each "
                f"other, got {sizes[0]} and {sizes[1]}"
            )

    def _turned(self, x: Tensor, chain: Chain) -> tuple[Tensor, Tensor]:
        """What the result of the turned columns is the sum of."""
        dims = x.shape[-1] if self.dims is None else self.dims
        tables = [chain.as_given(name).to(x.dtype) for name in (self.cos, self.sin)]
        shared = tables[0].shape[-1] != dims
        x = x[..., :dims]
        if self.interleaved:
            first, second = x[..., ::2], x[..., 1::2]
            other = torch.stack((-second, first), -1).flatten(-2)
            cos, sin = (one.repeat_interleave(2, -1) if shared else one for one in tables)
        else:
            first, second = x[..., : dims // 2], x[..., dims // 2 :]
            other = torch.cat((-second, first), -1)
            cos, sin = (torch.cat((one, one), -1) if shared else one for one in tables)
        return x * cos, other * sin

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        kept, turned = self._turned(x, chain)
        return torch.cat((kept + turned, x[..., kept.shape[-1] :]), -1)

    def intermediates(self, x: Tensor, chain: Chain) -> tuple[Tensor, ...]:
        rest = x[..., x.shape[-1] if self.dims is None else self.dims :]
        return tuple(torch.cat((one, rest), -1) for one in self._turned(x, chain))

    def distance_in(self, columns: int) -> int:
        if self.dims not in (None, columns):
            return 0
        return 1 if self.interleaved else columns // 2

    def emit(self, writer: Writer) -> str:
        dims = writer.columns if self.dims is None else self.dims
        cos, sin = writer.operand(self.cos), writer.operand(self.sin)
        shared = writer.columns_of(self.cos) != dims
        given = (self.interleaved, shared, dims == writer.columns)
        flags = ", ".join(str(one).lower() for one in given)
        return f"Rotate<{cos}, {sin}, {dims // 2}, {flags}>"
