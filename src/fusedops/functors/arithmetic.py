# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Functors that add, multiply and round: Scale, Bias, Affine and Cast."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fusedops.errors import check_flag
from fusedops.functors.base import Functor
from fusedops.functors.fields import Named, check_dtype, check_name, shown
from fusedops.functors.operands import Operand, Reads, Role
from fusedops.functors.protocols import Chain, Writer

__all__ = ["Affine", "Bias", "Cast", "Scale"]


@dataclasses.dataclass(frozen=True, repr=False)
class AddedBias(Named):
    """A bias that x has in it already: x as it is, with the gradient of ``Bias``.

    No declaration of a user names it. An op with a product whose STORE begins with a ``Bias`` runs
    as one that begins with this where the product adds the bias, of one number a column
    (product/linear.py).
    """

    bias: str
    roles: ClassVar[Mapping[str, Role]] = {"bias": Role.VALUE}
    header: ClassVar[str] = "added_bias.cuh"
    is_affine: ClassVar[bool] = True

    @property
    def has_added(self) -> str | None:
        return self.bias

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        bias = torch.as_tensor(chain.value(self.bias)).to(x.dtype)
        # Less a zero that has the bias's gradient. It is zero for an infinite bias as well, where
        # the difference is NaN; and -0.0 less 0.0 is -0.0, as -0.0 plus 0.0 is not.
        return x - (bias.detach() - bias).nan_to_num()

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, ())

    def emit(self, writer: Writer) -> str:
        return f"AddedBias<{writer.operand(self.bias)}>"


@dataclasses.dataclass(frozen=True, repr=False)
class Scale(Named):
    """Multiply: ``x * scale``. Masked elements stay masked whatever the scale.

    Args:
        scale: The name of an operand: a floating tensor of any dtype that broadcasts against x, or
            a number. A number is an argument of the kernel, so a new one builds nothing; a 0-d
            tensor is read on the device. Both x and a tensor have gradients.
        optional: Whether a call may leave it out or give None for it; it then runs without the
            functor.

    Raises:
        TypeError, ValueError: scale cannot be the name of an operand.

    >>> import torch, fusedops as fo
    >>> fo.Softmax(load=[fo.Scale("scale")])(torch.zeros(2, 4), scale=0.5)[0]
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    scale: str
    optional: bool = dataclasses.field(default=False, kw_only=True)
    roles: ClassVar[Mapping[str, Role]] = {"scale": Role.VALUE}
    header: ClassVar[str] = "scale.cuh"
    elementwise: ClassVar[bool] = True
    is_affine: ClassVar[bool] = True

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return x * chain.value(self.scale)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(self.scale in wanted, (self.scale,))

    def emit(self, writer: Writer) -> str:
        return f"Scale<{writer.operand(self.scale)}>"


@dataclasses.dataclass(frozen=True, repr=False)
class Bias(Named):
    """Add: ``x + bias``.

    Args:
        bias: The name of an operand: a floating tensor of any dtype that broadcasts against x, or a
            number. Both x and a tensor have gradients.
        optional: Whether a call may leave it out or give None for it; it then runs without the
            functor.

    Raises:
        TypeError, ValueError: bias cannot be the name of an operand.

    >>> import torch, fusedops as fo
    >>> fo.LayerNorm(load=[fo.Bias("b")])(torch.zeros(1, 2), b=torch.tensor([1.0, 3.0]))
    tensor([[-1.0000,  1.0000]])
    """

    bias: str
    optional: bool = dataclasses.field(default=False, kw_only=True)
    roles: ClassVar[Mapping[str, Role]] = {"bias": Role.VALUE}
    header: ClassVar[str] = "bias.cuh"
    elementwise: ClassVar[bool] = True
    is_affine: ClassVar[bool] = True

    @property
    def adds(self) -> str | None:
        return self.bias if type(self) is Bias else None  # a derived class may do more

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return x + chain.value(self.bias)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, ())

    def emit(self, writer: Writer) -> str:
        return f"Bias<{writer.operand(self.bias)}>"


@dataclasses.dataclass(frozen=True)
class Affine(Functor):
    """Multiply and add: ``x * gamma + beta``, of which one may be left out.

    With `zero_centred` it is ``x * (1 + gamma) + beta``, as with the weights of Gemma and with
    Megatron's ``layernorm_zero_centered_gamma``: ``1 + gamma`` is computed in the compute type, so
    that nothing of a 16-bit gamma is rounded away.

    Args:
        gamma, beta: The names of operands, or None: floating tensors of any dtype that broadcast
            against x, in norms of shape (columns,) as a rule, or numbers. Tensors have gradients.
        optional: Whether a call may leave out either or both, or give None: it then runs as
            declared without those.
        zero_centred: Whether gamma is stored as its difference from 1.

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
    zero_centred: bool = dataclasses.field(default=False, kw_only=True)
    optional: bool = dataclasses.field(default=False, kw_only=True)
    header: ClassVar[str] = "affine.cuh"
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.gamma is None and self.beta is None:
            raise ValueError("Affine: needs gamma, beta or both; leave the functor out otherwise")
        for field in ("gamma", "beta"):
            if getattr(self, field) is not None:
                check_name(self, field, getattr(self, field))
        check_flag(type(self).__name__, "optional", self.optional)
        check_flag(type(self).__name__, "zero_centred", self.zero_centred)
        if self.zero_centred and self.gamma is None:
            raise ValueError("Affine: zero_centred says what gamma is, and there is none")

    def operands(self) -> tuple[Operand, ...]:
        return tuple(
            Operand(name, Role.VALUE) for name in (self.gamma, self.beta) if name is not None
        )

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        if self.gamma is not None:
            x = x * self._factor(chain)
        return x if self.beta is None else x + chain.value(self.beta)

    @property
    def channel_operands(self) -> tuple[str, ...]:
        return tuple(name for name in (self.gamma, self.beta) if name is not None)

    def intermediates(self, x: Tensor, chain: Chain) -> tuple[Tensor, ...]:
        return () if self.gamma is None else (x * self._factor(chain),)

    def _factor(self, chain: Chain) -> Tensor | float:
        assert self.gamma is not None
        gamma = chain.value(self.gamma)
        return 1 + gamma if self.zero_centred else gamma

    def gradients(self) -> tuple[str | None, ...]:
        return (self.gamma, self.beta)

    def reads(self, wanted: Collection[str]) -> Reads:
        gamma = () if self.gamma is None else (self.gamma,)
        return Reads(self.gamma in wanted, gamma)

    def emit(self, writer: Writer) -> str:
        gamma = writer.absent() if self.gamma is None else writer.operand(self.gamma)
        beta = writer.absent() if self.beta is None else writer.operand(self.beta)
        return f"Affine<{gamma}, {beta}{', true' if self.zero_centred else ''}>"

    def without(self, names: Collection[str]) -> Affine | None:
        gamma, beta = (None if one in names else one for one in (self.gamma, self.beta))
        if gamma is None and beta is None:
            return None
        centred = self.zero_centred and gamma is not None
        return dataclasses.replace(self, gamma=gamma, beta=beta, zero_centred=centred)

    __repr__ = shown


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
    elementwise: ClassVar[bool] = True
    is_affine: ClassVar[bool] = True
    rounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_dtype(self, "dtype", self.dtype)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return x.to(self.dtype).to(x.dtype)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, ())

    def emit(self, writer: Writer) -> str:
        writer.constant(0)
        return f"Cast<{writer.storage(self.dtype)}>"
