# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Matmul: a batched product of two activations, and a STORE after it."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedops.declare.interactive import CallSignature
from fusedops.product.declaration import TAKEN
from fusedops.product.factors import check_factors, wrong_shape
from fusedops.product.single import SingleProduct

__all__ = ["Matmul"]


class Matmul(SingleProduct):
    """``y = store(x @ other)``: batches of matrix products with all that follows elementwise.

    A call is ``op(x, other, **operands, **options)``: x of shape (..., M, K) and other of shape
    (..., K, N), as for `torch.matmul`; batch dimensions broadcast. Scores of attention are
    ``op(q, k.mT)``: a transposed view is read in place. Both are float16, bfloat16, float32 or
    float64, of one dtype unless torch.autocast is on, and on one device. y has shape (..., M, N).

    All that is said of a `Linear` holds here: of the kernels, the product's among them where that
    was measured to be faster, of operands, dropouts, outputs, gradients and options. Masks set
    elements to -inf by selection, and these have no gradient; queries are the rows of y, keys its
    columns. One kernel neither reads nor multiplies for a tile all of which a `Causal` or a
    `Window` masks.

    Args:
        store: The functors applied to the product, in order; none by default.

    Raises:
        TypeError: store holds something that is no functor, or an argument is unknown. A call: a
            factor is no floating tensor, or they have two dtypes.
        ValueError: A functor has no meaning in a STORE, or stands behind a Tap and may not. A call:
            a shape or a device does not fit.

    >>> import torch, fusedops as fo
    >>> scores = fo.Matmul(store=[fo.Scale("scale"), fo.Causal()])
    >>> q, k = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0, 4.0], [6.0, 8.0]])
    >>> scores(q, k.mT, scale=0.5)
    tensor([[1., -inf],
            [2., 4.]])
    """

    inputs: ClassVar[tuple[str, ...]] = ("x", "other")
    formula: ClassVar[str] = "x @ other"
    __signature__ = CallSignature(inputs, TAKEN)

    def check(self, first: Any, second: Any) -> None:
        """Raise TypeError or ValueError for factors that do not fit."""
        check_factors(self.name, self.inputs, (first, second))
        for key, factor in zip(self.inputs, (first, second), strict=True):
            if factor.dim() < 2:
                cure = f"a vector is a matrix of one row or column: {key}[None], {key}[:, None]"
                raise wrong_shape(self.name, key, factor, "(..., rows, columns)", cure)
        columns = first.shape[-1]
        if second.shape[-2] != columns:
            cure = "K is the number of x's columns"
            if second.shape[-1] == columns:
                cure = "pass other.mT, as of keys for scores of attention"
            wanted = f"(..., {columns}, N) for x of shape {tuple(first.shape)}"
            raise wrong_shape(self.name, "other", second, wanted, cure)
        mine, others = first.shape[:-2], second.shape[:-2]
        for at in range(1, min(len(mine), len(others)) + 1):
            if mine[-at] != others[-at] and 1 not in (mine[-at], others[-at]):
                raise ValueError(
                    f"{self.name}: the batch dimensions of x and other must broadcast, got "
                    f"{tuple(mine)} and {tuple(others)}; add or expand dimensions"
                )

    @staticmethod
    def turned(second: Tensor) -> Tensor:
        """The second factor in the shape (..., N, K), and from there as it was."""
        return second.mT

    def shape(self, first: Tensor, second: Tensor) -> tuple[int, ...]:
        """The shape of the product of checked factors."""
        batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])  # type: ignore[no-untyped-call]
        return (*batch, first.shape[-2], second.shape[-1])

    def product(self, first: Tensor, second: Tensor, operand: Tensor | None = None, /) -> Tensor:
        """The product, by torch."""
        return torch.matmul(first, second)
