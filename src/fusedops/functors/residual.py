# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The residual connection, and functors that write intermediate values as outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import ClassVar

import torch
from torch import Tensor

from fusedops.errors import check_flag, shortened
from fusedops.functors.base import Functor
from fusedops.functors.fields import (
    check_dtype,
    check_name,
    check_stream,
    is_finite,
    plain_number,
    rounded,
    shown,
)
from fusedops.functors.operands import Operand, Reads, Role, Stream
from fusedops.functors.protocols import Chain, Writer

__all__ = ["Residual", "Save", "Tap"]


@dataclasses.dataclass(frozen=True)
class Residual(Functor):
    """The residual connection: ``x + alpha * residual``.

    Args:
        residual: The name of an operand: a floating tensor that broadcasts against x, or a number.
        alpha: A finite number, a constant of the declaration; or the name of an operand, as
            residual. Tensors have gradients.
        save: The name under which the op also returns the sum, of x's shape and rounded to the
            residual's dtype (to x's where the residual is a number); in a LOAD alone. The chain
            goes on with the rounded value, so that the result is exactly the norm of the stream. In
            float16 a sum beyond 65504 is infinite there; `dtype` torch.float32 keeps it.
        dtype: The dtype of the saved sum, torch.float32 for a residual stream that is kept in it,
            say; None for the residual's. The chain goes on with the value rounded to it.
        optional: Whether a call may leave the residual out or give None for it. It then runs
            without the functor; with `save`, with `Save` in its place: what is saved is the value
            without a residual, in `dtype`, or in x's dtype where that is None. An alpha that is an
            operand may be left out with it, or alone: it is 1 then.

    Raises:
        TypeError, ValueError: A name cannot be that of an operand or of a result, or alpha is no
            finite number.

    >>> import torch, fusedops as fo
    >>> op = fo.LayerNorm(load=[fo.Residual("r", save="stream")])
    >>> y, stream = op(torch.tensor([[1.0, 2.0]]), r=torch.tensor([[1.0, 4.0]]))
    >>> stream
    tensor([[2., 6.]])
    """

    residual: str
    alpha: float | str = 1.0
    save: str | None = None
    dtype: torch.dtype | None = dataclasses.field(default=None, kw_only=True)
    optional: bool = dataclasses.field(default=False, kw_only=True)
    header: ClassVar[str] = "residual.cuh"
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_name(self, "residual", self.residual)
        if self.save is not None:
            check_stream(self, "save", self.save)
        object.__setattr__(self, "alpha", plain_number(self.alpha))
        if isinstance(self.alpha, str):
            check_name(self, "alpha", self.alpha)
        elif isinstance(self.alpha, bool) or not isinstance(self.alpha, (int, float)):
            got = shortened(self.alpha)
            raise TypeError(f"Residual: alpha must be a number or an operand's name, got {got}")
        elif not is_finite(self.alpha):
            raise ValueError(f"Residual: alpha must be finite, got {shortened(self.alpha)}")
        if self.dtype is not None:
            check_dtype(self, "dtype", self.dtype)
            if self.save is None:
                raise ValueError(
                    "Residual: dtype is that of the saved sum, and nothing is saved; name the sum "
                    "with save=, or use Cast to round without saving"
                )
        check_flag(type(self).__name__, "optional", self.optional)

    def operands(self) -> tuple[Operand, ...]:
        mine = Operand(self.residual, Role.VALUE)
        return (mine, Operand(self.alpha, Role.VALUE)) if isinstance(self.alpha, str) else (mine,)

    @property
    def saves(self) -> Stream | None:
        return None if self.save is None else Stream(self.save, self.residual, self.dtype)

    @property
    def shares_gradient(self) -> str | None:
        alone = type(self) is Residual  # a derived class may do more
        return self.residual if alone and self.alpha == 1.0 else None

    def without(self, names: Collection[str]) -> Functor | None:
        if self.residual not in names:
            return dataclasses.replace(self, alpha=1.0)
        return None if self.save is None else Save(self.save, dtype=self.dtype)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        alpha = chain.value(self.alpha) if isinstance(self.alpha, str) else self.alpha
        total = x + alpha * chain.value(self.residual)
        return total if self.save is None else chain.save(self.save, total)

    def reads(self, wanted: Collection[str]) -> Reads:
        alpha = (self.alpha,) if isinstance(self.alpha, str) else ()
        # The residual itself takes part in alpha's gradient alone.
        skip = (self.residual,) if alpha and self.alpha in wanted else ()
        return Reads(False, (*skip, *alpha))

    def emit(self, writer: Writer) -> str:
        skip = writer.operand(self.residual)
        alpha = (
            writer.operand(self.alpha)
            if isinstance(self.alpha, str)
            else writer.number(rounded(self.alpha, writer.compute))
        )
        if self.save is None:
            return f"Residual<{skip}, {alpha}>"
        stream, joining = writer.output(self.save), writer.output_gradient(self.save)
        return f"SavedResidual<{skip}, {alpha}, {stream}, {joining}>"

    __repr__ = shown


@dataclasses.dataclass(frozen=True)
class _Output(Functor):
    """Base of the functors that write the value as an output, and do nothing else."""

    name: str
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        check_stream(self, "name", self.name)
        if self.dtype is not None:
            check_dtype(self, "dtype", self.dtype)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, ())


@dataclasses.dataclass(frozen=True)
class Save(_Output):
    """Save the value as an output, of x's shape; the chain goes on with it as it was rounded.

    This is what `Residual` with ``save=`` does, without a residual: the first layer of a network
    whose residual stream is kept in float32 has none yet. In a LOAD alone.

    Args:
        name: The name under which the op returns the value. It has a gradient.
        dtype: The dtype of the output: torch.float16, torch.bfloat16, torch.float32 or
            torch.float64; None for x's.

    Raises:
        TypeError, ValueError: name cannot be that of a result, or dtype is another.

    >>> import torch, fusedops as fo
    >>> op = fo.LayerNorm(load=[fo.Scale("s"), fo.Save("scaled", dtype=torch.float64)])
    >>> op(torch.tensor([[1.0, 2.0]]), s=3.0).scaled
    tensor([[3., 6.]], dtype=torch.float64)
    """

    header: ClassVar[str] = "save.cuh"
    elementwise: ClassVar[bool] = True
    is_affine: ClassVar[bool] = True

    @property
    def saves(self) -> Stream:
        return Stream(self.name, dtype=self.dtype)

    @property
    def passes_gradient(self) -> bool:
        return type(self) is Save

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return chain.save(self.name, x)

    def emit(self, writer: Writer) -> str:
        return f"Save<{writer.output(self.name)}, {writer.output_gradient(self.name)}>"


@dataclasses.dataclass(frozen=True)
class Tap(_Output):
    """Return the value at this place of a STORE as a further output; the chain goes on with it.

    Before a `Dropout` it gives the probabilities of a softmax, or the result of a norm before its
    `Affine`. It has a gradient, which joins that of y in the same backward kernel. Nothing else
    changes: the chain is not rounded, and y has the bits that it has without. In a STORE alone;
    what a LOAD returns is a `Save`.

    Args:
        name: The name under which the op returns the value, of x's shape.
        dtype: The dtype of the output: torch.float16, torch.bfloat16, torch.float32 or
            torch.float64; None for that of y.

    Raises:
        TypeError, ValueError: name cannot be that of a result, or dtype is another.

    >>> import torch, fusedops as fo
    >>> op = fo.Softmax(store=[fo.Tap("probs"), fo.Dropout("p")])
    >>> op(torch.zeros(1, 2), p=1.0)
    SoftmaxResult(y=tensor([[0., 0.]]), probs=tensor([[0.5000, 0.5000]]))
    """

    header: ClassVar[str] = "tap.cuh"

    @property
    def taps(self) -> Stream:
        return Stream(self.name, dtype=self.dtype)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        chain.tap(self.name, x)
        return x

    def emit(self, writer: Writer) -> str:
        return f"Tap<{writer.output(self.name)}, {writer.output_gradient(self.name)}>"
