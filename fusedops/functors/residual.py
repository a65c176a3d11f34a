# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The residual connection."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar, Generic, overload

from torch import Tensor

from fusedops.errors import shortened
from fusedops.functors.base import (
    Functor,
    Operand,
    Reads,
    Role,
    Stream,
    check_name,
    check_stream,
    is_finite,
    rounded,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from fusedops.functors.protocols import Chain, Writer

    #: str where the stream is saved, None where it is not: an op's result depends on it.
    SaveT = TypeVar("SaveT", bound=str | None, covariant=True, default=str | None)
else:
    from typing import TypeVar

    SaveT = TypeVar("SaveT", covariant=True)

__all__ = ["Residual"]


@dataclasses.dataclass(frozen=True)
class Residual(Functor, Generic[SaveT]):
    """The residual connection: ``x + alpha * residual``.

    Args:
        residual: The name of an operand: a floating tensor that broadcasts against x, or a number.
        alpha: A finite number, a constant of the declaration; or the name of an operand, as
            residual. Tensors have gradients.
        save: The name under which the op also returns the sum, of x's shape and rounded to the
            residual's dtype (to x's where the residual is a number); in a LOAD alone. The chain
            goes on with the rounded value, so that the result is exactly the norm of the stream.

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
    header: ClassVar[str] = "residual.cuh"

    if TYPE_CHECKING:

        @overload
        def __init__(
            self: Residual[None], residual: str, alpha: float | str = ..., save: None = ...
        ) -> None: ...
        @overload
        def __init__(
            self: Residual[str], residual: str, alpha: float | str = ..., *, save: str
        ) -> None: ...
        @overload
        def __init__(self: Residual[str], residual: str, alpha: float | str, save: str) -> None: ...
        @overload
        def __init__(
            self, residual: str, alpha: float | str = ..., save: str | None = ...
        ) -> None: ...
        def __init__(
            self, residual: str, alpha: float | str = 1.0, save: str | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        check_name(self, "residual", self.residual)
        if self.save is not None:
            check_stream(self, "save", self.save)
        if isinstance(self.alpha, str):
            check_name(self, "alpha", self.alpha)
        elif isinstance(self.alpha, bool) or not isinstance(self.alpha, (int, float)):
            got = shortened(self.alpha)
            raise TypeError(f"Residual: alpha must be a number or an operand's name, got {got}")
        elif not is_finite(self.alpha):
            raise ValueError(f"Residual: alpha must be finite, got {shortened(self.alpha)}")

    def operands(self) -> tuple[Operand, ...]:
        mine = Operand(self.residual, Role.VALUE)
        return (mine, Operand(self.alpha, Role.VALUE)) if isinstance(self.alpha, str) else (mine,)

    @property
    def saves(self) -> Stream | None:
        return None if self.save is None else Stream(self.save, like=self.residual)

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
