# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Functors that add and multiply."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fusedops.functors.base import Functor, Operand, Reads, Role, check_name

if TYPE_CHECKING:
    from fusedops.functors.protocols import Chain, Writer

__all__ = ["Affine", "Bias", "Cast", "Scale"]


@dataclasses.dataclass(frozen=True)
class Scale(Functor):
    """Multiply: ``x * scale``. Masked elements stay masked whatever the scale.

    Args:
        scale: The name of an operand: a floating tensor of any dtype that broadcasts against x, or
            a number. A number is an argument of the kernel, so a new one builds nothing; a 0-d
            tensor is read on the device. Both x and a tensor have gradients.

    Raises:
        TypeError, ValueError: scale cannot be the name of an operand.

    >>> import torch, fusedops as fo
    >>> fo.Softmax(load=[fo.Scale("scale")])(torch.zeros(2, 4), scale=0.5)[0]
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    scale: str
    header: ClassVar[str] = "scale.cuh"

    def __post_init__(self) -> None:
        check_name(self, "scale", self.scale)

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.scale, Role.VALUE),)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return x * chain.value(self.scale)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(self.scale in wanted, (self.scale,))

    def emit(self, writer: Writer) -> str:
        return f"Scale<{writer.operand(self.scale)}>"


@dataclasses.dataclass(frozen=True)
class Bias(Functor):
    """Add: ``x + bias``.

    Args:
        bias: The name of an operand: a floating tensor of any dtype that broadcasts against x, or a
            number. Both x and a tensor have gradients.

    Raises:
        TypeError, ValueError: bias cannot be the name of an operand.

    >>> import torch, fusedops as fo
    >>> fo.LayerNorm(load=[fo.Bias("b")])(torch.zeros(1, 2), b=torch.tensor([1.0, 3.0]))
    tensor([[-1.0000,  1.0000]])
    """

    bias: str
    header: ClassVar[str] = "bias.cuh"

    def __post_init__(self) -> None:
        check_name(self, "bias", self.bias)

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.bias, Role.VALUE),)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return x + chain.value(self.bias)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, ())

    def emit(self, writer: Writer) -> str:
        return f"Bias<{writer.operand(self.bias)}>"


@dataclasses.dataclass(frozen=True)
class Affine(Functor):
    """Multiply and add: ``x * gamma + beta``, of which one may be left out.

    Args:
        gamma, beta: The names of operands, or None: floating tensors of any dtype that broadcast
            against x, in norms of shape (columns,) as a rule, or numbers. Tensors have gradients.

    Raises:
        TypeError, ValueError: gamma or beta cannot be the name of an operand, or both are None.

    >>> import torch, fusedops as fo
    >>> op = fo.LayerNorm(store=[fo.Affine("gamma", "beta")])
    >>> gamma, beta = torch.tensor([2.0, 2.0]), torch.tensor([1.0, 0.0])
    >>> op(torch.tensor([[0.0, 2.0]]), gamma=gamma, beta=beta)
    tensor([[-1.0000,  2.0000]])
    """

    gamma: str | None = None
    beta: str | None = None
    header: ClassVar[str] = "affine.cuh"

    def __post_init__(self) -> None:
        if self.gamma is None and self.beta is None:
            raise ValueError("Affine: needs gamma, beta or both; leave the functor out otherwise")
        for field in ("gamma", "beta"):
            if getattr(self, field) is not None:
                check_name(self, field, getattr(self, field))

    def operands(self) -> tuple[Operand, ...]:
        return tuple(
            Operand(name, Role.VALUE) for name in (self.gamma, self.beta) if name is not None
        )

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        if self.gamma is not None:
            x = x * chain.value(self.gamma)
        return x if self.beta is None else x + chain.value(self.beta)

    @property
    def channel_operands(self) -> tuple[str, ...]:
        return tuple(name for name in (self.gamma, self.beta) if name is not None)

    def intermediates(self, x: Tensor, chain: Chain) -> tuple[Tensor, ...]:
        return () if self.gamma is None else (x * chain.value(self.gamma),)

    def gradients(self) -> tuple[str | None, ...]:
        return (self.gamma, self.beta)

    def reads(self, wanted: Collection[str]) -> Reads:
        gamma = () if self.gamma is None else (self.gamma,)
        return Reads(self.gamma in wanted, gamma)

    def emit(self, writer: Writer) -> str:
        gamma = writer.absent() if self.gamma is None else writer.operand(self.gamma)
        beta = writer.absent() if self.beta is None else writer.operand(self.beta)
        return f"Affine<{gamma}, {beta}>"


@dataclasses.dataclass(frozen=True)
class Cast(Functor):
    """Round to a floating dtype, as ``x.to(dtype)`` does; the chain goes on in the compute type.

    The gradient is rounded to it as well, as torch's is.

    Args:
        dtype: torch.float16, torch.bfloat16, torch.float32 or torch.float64.

    Raises:
        TypeError: dtype is another.

    >>> import torch, fusedops as fo
    >>> fo.LayerNorm(load=[fo.Cast(torch.float16)])(torch.tensor([[0.0, 1.0]]))
    tensor([[-1.0000,  1.0000]])
    """

    dtype: torch.dtype
    header: ClassVar[str] = "cast.cuh"
    rounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        known = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        if self.dtype not in known:
            raise TypeError(
                f"Cast: dtype must be one of {', '.join(map(str, known))}, got {self.dtype!r}"
            )

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return x.to(self.dtype).to(x.dtype)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, ())

    def emit(self, writer: Writer) -> str:
        writer.constant(0)
        return f"Cast<{writer.storage(self.dtype)}>"
