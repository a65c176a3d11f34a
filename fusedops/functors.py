# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The functors: what can stand before and after a row reduction.

Each class is a declaration, a value that holds names and constants. ``apply`` (for masks:
``masked``) is its meaning in torch, which ``op.unfused`` runs; ``spell`` names the C++ struct of
the same name in ``include/fusedops/functor/`` and lists the struct's members in order.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import keyword
import math
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fusedops.codegen import Arguments
    from fusedops.unfused import Chain

__all__ = [
    "Affine",
    "Bias",
    "Cast",
    "Causal",
    "Dropout",
    "Functor",
    "Lengths",
    "Mask",
    "Operand",
    "Residual",
    "Role",
    "Scale",
    "is_finite",
    "rounded",
]


class Role(enum.Enum):
    """What an operand is, which decides what may be passed for it."""

    VALUE = "a floating-point tensor or a number"
    FLAGS = "a bool tensor"
    COUNT = "an int32 or int64 tensor or an int"
    PROBABILITY = "a float in [0, 1]"


@dataclasses.dataclass(frozen=True)
class Operand:
    """A name that the call must give a value to."""

    name: str
    role: Role


class Functor:
    """Base of all functors; not for direct use."""

    header: ClassVar[str]
    #: Takes elements out of the row: stands in the LOAD of softmax and log-softmax alone.
    masks: ClassVar[bool] = False
    #: Asks which query a row is.
    needs_query: ClassVar[bool] = False

    def operands(self) -> tuple[Operand, ...]:
        """The operands that a call gives, in the order of the C++ struct's members."""
        return ()

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        """The functor in torch; x and all operands have the reduced dimensions last, flattened."""
        raise NotImplementedError

    def masked(self, chain: Chain) -> Tensor:
        """For functors that mask, in place of `apply`: the elements that leave the row."""
        raise NotImplementedError

    def spell(self, write: Arguments) -> str:
        """The C++ type; calls on ``write`` append its members."""
        raise NotImplementedError


def _check_name(functor: object, field: str, name: object) -> None:
    kind = type(functor).__name__
    if not isinstance(name, str):
        raise TypeError(
            f"{kind}: {field} names an operand and must be a string, got {name!r}; the value "
            "itself is given at the call"
        )
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{kind}: {field} must be usable as a keyword argument, got {name!r}")


def is_finite(value: object) -> bool:
    """Whether a constant is a number that a double can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the largest double
        return False


def rounded(value: float, compute: str) -> float:
    """A constant in the compute type; infinite, as in torch, where float has no room for it."""
    return ctypes.c_float(value).value if compute == "float" else value


@dataclasses.dataclass(frozen=True)
class Scale(Functor):
    """``x * scale``; the scale is a number or a tensor that broadcasts against x.

    A number is an argument of the kernel (a new one builds nothing); a 0-d tensor is read on the
    device. Masked elements stay masked whatever the scale.

    >>> import torch, fusedops as fo
    >>> fo.Softmax(load=[fo.Scale("scale")])(torch.zeros(2, 4), scale=0.5)[0]
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    scale: str
    header: ClassVar[str] = "scale.cuh"

    def __post_init__(self) -> None:
        _check_name(self, "scale", self.scale)

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.scale, Role.VALUE),)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return x * chain.value(self.scale)

    def spell(self, write: Arguments) -> str:
        return f"Scale<{write.operand(self.scale)}>"


@dataclasses.dataclass(frozen=True)
class Bias(Functor):
    """``x + bias``; the bias is a tensor that broadcasts against x, or a number.

    >>> import torch, fusedops as fo
    >>> fo.LayerNorm(load=[fo.Bias("b")])(torch.zeros(1, 2), b=torch.tensor([1.0, 3.0]))
    tensor([[-1.0000,  1.0000]])
    """

    bias: str
    header: ClassVar[str] = "bias.cuh"

    def __post_init__(self) -> None:
        _check_name(self, "bias", self.bias)

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.bias, Role.VALUE),)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return x + chain.value(self.bias)

    def spell(self, write: Arguments) -> str:
        return f"Bias<{write.operand(self.bias)}>"


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
        _check_name(self, "mask", self.mask)
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
        _check_name(self, "lengths", self.lengths)

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.lengths, Role.COUNT),)

    def masked(self, chain: Chain) -> Tensor:
        lengths: Tensor | int = chain.tensor(self.lengths)
        return chain.column() >= lengths

    def spell(self, write: Arguments) -> str:
        return f"Lengths<{write.operand(self.lengths)}>"


@dataclasses.dataclass(frozen=True)
class Dropout(Functor):
    """Zeroes elements with probability p and scales the others so that the expectation is exact.

    Which elements is a function of seed, offset, row and column alone (docs/dropout.md): the same
    on every device, and nothing is stored. ``torch.manual_seed`` and ``generator=`` decide seed and
    offset. p = 0 and ``training=False`` leave the functor out; p = 1 gives zeros.

    >>> import torch, fusedops as fo
    >>> op = fo.LayerNorm(store=[fo.Dropout("p")])
    >>> op(torch.randn(2, 4), p=1.0)
    tensor([[0., 0., 0., 0.],
            [0., 0., 0., 0.]])
    """

    p: str
    header: ClassVar[str] = "dropout.cuh"

    def __post_init__(self) -> None:
        _check_name(self, "p", self.p)

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.p, Role.PROBABILITY),)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        kept, scale = chain.dropout(self)
        return torch.where(kept, x * scale, 0.0)

    def spell(self, write: Arguments) -> str:
        write.dropout(self.p)
        return f"Dropout<{write.compute}, {write.rank}>"


@dataclasses.dataclass(frozen=True)
class Residual(Functor):
    """``x + alpha * residual``; alpha is a number, or the name of an operand.

    ``save="stream"`` also returns the sum under that name, rounded to the residual's dtype; the
    chain goes on with the rounded value, so the result is exactly the norm of the stream.

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

    def __post_init__(self) -> None:
        _check_name(self, "residual", self.residual)
        if self.save is not None:
            _check_name(self, "save", self.save)
            if self.save.startswith("_") or hasattr(tuple, self.save):
                raise ValueError(
                    "Residual: save names a field of the result, a named tuple, so it must neither "
                    "begin with an underscore nor be a method of tuples (count, index), got "
                    f"{self.save!r}"
                )
        if isinstance(self.alpha, str):
            _check_name(self, "alpha", self.alpha)
        elif isinstance(self.alpha, bool) or not isinstance(self.alpha, (int, float)):
            raise TypeError(
                f"Residual: alpha must be a number or an operand's name, got {self.alpha!r}"
            )
        elif not is_finite(self.alpha):
            raise ValueError(f"Residual: alpha must be finite, got {self.alpha!r}")

    def operands(self) -> tuple[Operand, ...]:
        mine = Operand(self.residual, Role.VALUE)
        return (mine, Operand(self.alpha, Role.VALUE)) if isinstance(self.alpha, str) else (mine,)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        alpha = chain.value(self.alpha) if isinstance(self.alpha, str) else self.alpha
        total = x + alpha * chain.value(self.residual)
        return total if self.save is None else chain.save(self.save, total)

    def spell(self, write: Arguments) -> str:
        skip = write.operand(self.residual)
        alpha = (
            write.operand(self.alpha)
            if isinstance(self.alpha, str)
            else write.number(rounded(self.alpha, write.compute))
        )
        if self.save is None:
            return f"Residual<{skip}, {alpha}>"
        return f"SavedResidual<{skip}, {alpha}, {write.output(self.save)}>"


@dataclasses.dataclass(frozen=True)
class Affine(Functor):
    """``x * gamma + beta``; either may be left out. Both broadcast against x.

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
                _check_name(self, field, getattr(self, field))

    def operands(self) -> tuple[Operand, ...]:
        return tuple(
            Operand(name, Role.VALUE) for name in (self.gamma, self.beta) if name is not None
        )

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        if self.gamma is not None:
            x = x * chain.value(self.gamma)
        return x if self.beta is None else x + chain.value(self.beta)

    def spell(self, write: Arguments) -> str:
        gamma = write.absent() if self.gamma is None else write.operand(self.gamma)
        beta = write.absent() if self.beta is None else write.operand(self.beta)
        return f"Affine<{gamma}, {beta}>"


@dataclasses.dataclass(frozen=True)
class Cast(Functor):
    """Rounds to a floating dtype and goes on, as ``x.to(dtype)`` within a chain does.

    >>> import torch, fusedops as fo
    >>> fo.LayerNorm(load=[fo.Cast(torch.float16)])(torch.tensor([[0.0, 1.0]]))
    tensor([[-1.0000,  1.0000]])
    """

    dtype: torch.dtype
    header: ClassVar[str] = "cast.cuh"

    def __post_init__(self) -> None:
        known = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        if self.dtype not in known:
            raise TypeError(
                f"Cast: dtype must be one of {', '.join(map(str, known))}, got {self.dtype!r}"
            )

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return x.to(self.dtype).to(x.dtype)

    def spell(self, write: Arguments) -> str:
        write.constant(0)
        return f"Cast<{write.storage(self.dtype)}>"
