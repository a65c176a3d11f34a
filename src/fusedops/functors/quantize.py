# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Results of 8 bits: the functor that ends a STORE."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import ClassVar

import torch
from torch import Tensor

from fusedops.errors import shortened
from fusedops.functors.base import Functor
from fusedops.functors.fields import check_name, check_stream, shown
from fusedops.functors.operands import EIGHT_BITS, Operand, Reads, Role
from fusedops.functors.protocols import Chain, Writer

__all__ = ["Quantize"]


@dataclasses.dataclass(frozen=True)
class Quantize(Functor):
    """``round(v * scale)`` in 8 bits: y's dtype is float8_e4m3fn or float8_e5m2.

    The last functor of a STORE. The product is rounded once, to nearest even, from the compute
    type; what is beyond the dtype's largest number, infinity included, becomes that number, and NaN
    stays NaN. `scale` is multiplied by, as TransformerEngine's ``scale`` is; a product that reads y
    wants ``1 / scale``, which TransformerEngine calls ``scale_inv`` and ``torch._scaled_mm``
    ``scale_a``.

    y has no gradient, nor has `scale`, and a call that wants one of y raises `UnsupportedError`:
    torch would round the gradient to 8 bits as well, and where to scale it is the caller's recipe.
    The other outputs of the op, such as saved streams, keep theirs.

    Args:
        scale: The name of the scale: a floating tensor that broadcasts against x, or a number.
        dtype: torch.float8_e4m3fn or torch.float8_e5m2.
        amax: The name of a further output: the largest ``abs(v)`` before the scale, over all
            elements, a float32 tensor without dimensions; None for none. It is NaN if some v is, 0
            if there are no elements, and the same in every run, since a maximum does not depend on
            an order.

    Raises:
        TypeError, ValueError: A name cannot be that of an operand or of a result, or dtype is
            another.

    >>> import torch, fusedops as fo
    >>> op = fo.RMSNorm(store=[fo.Quantize("scale", torch.float8_e4m3fn, amax="amax")])
    >>> y, amax = op(torch.tensor([[3.0, 4.0]]), scale=100.0)
    >>> y.float(), amax
    (tensor([[ 88., 112.]]), tensor(1.1314))
    """

    scale: str
    dtype: torch.dtype
    amax: str | None = None
    header: ClassVar[str] = "quantize.cuh"
    differentiable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_name(self, "scale", self.scale)
        if not isinstance(self.dtype, torch.dtype) or self.dtype not in EIGHT_BITS:
            allowed = " or ".join(map(str, EIGHT_BITS))
            raise TypeError(
                f"Quantize: dtype must be {allowed}, got {shortened(self.dtype)}; dtypes of 16 "
                "bits and more are chosen with dtype= of the call"
            )
        if self.amax is not None:
            check_stream(self, "amax", self.amax)
            if self.amax == self.scale:
                raise ValueError(
                    f"Quantize: scale, an operand, and amax, a result, are both named "
                    f"{self.amax!r}; use two names"
                )

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.scale, Role.VALUE),)

    @property
    def quantizes(self) -> torch.dtype:
        return self.dtype

    @property
    def maximum(self) -> str | None:
        return self.amax

    def gradients(self) -> tuple[str | None, ...]:
        return (None,)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, ())

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        if self.amax is not None:
            chain.maximum(self.amax, x)
        largest = torch.finfo(self.dtype).max
        return (x * chain.value(self.scale)).clamp(-largest, largest)

    def emit(self, writer: Writer) -> str:
        scale = writer.operand(self.scale)
        amax = writer.absent() if self.amax is None else writer.output(self.amax)
        return f"Quantize<{scale}, {amax}>"

    def __repr__(self) -> str:
        return shown(self, "amax")
