# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""LayerNorm and RMSNorm over trailing dimensions, and what the residual norms share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fusedops import ops
from fusedops.errors import check_flag
from fusedops.functors import Affine, Functor
from fusedops.nn.base import Declares, check_dtype, declared


def affine(weight: bool, bias: bool, unit_offset: bool = False) -> list[Functor]:
    """The STORE of a norm that has these parameters."""
    if weight and unit_offset:
        return [Affine("weight", zero_centred=True)]
    names = ("weight" if weight else None, "bias" if bias else None)
    return [Affine(*names)] if any(names) else []


def default_eps(dtype: torch.dtype | None) -> float:
    """The eps of an RMSNorm with eps=None, which follows from x's dtype.

    It is torch's: that of the type which the arithmetic is in.
    """
    return torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps


def arguments_of(
    x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None
) -> dict[str, Any]:
    """The parameters of a norm over the end of x's shape, as a call of its op takes them."""
    arguments: dict[str, Any] = {}
    # The last dimension is what an op takes anyway, and options cost host time.
    if not (isinstance(x, Tensor) and x.shape[-1:] == shape):
        arguments["normalized_shape"] = shape
    if weight is not None:
        arguments["weight"] = weight
    if bias is not None:
        arguments["bias"] = bias
    return arguments


class LayerNorm(Declares, nn.LayerNorm):
    r"""``(x - mean) / sqrt(variance + eps) * weight + bias``, as `torch.nn.LayerNorm`.

    Mean and biased variance are those of each row, the last dimensions of x. Arguments, parameters,
    ``state_dict`` and initial values are torch's, and the module is an instance of torch's class.
    Arithmetic is in float32 (float64 where x is), whatever the dtypes of x and of the parameters,
    which may differ; y has x's dtype, under autocast as well.

    Args:
        normalized_shape: The end of x's shape to normalise over: an int or several.
        eps: Added to the variance.
        elementwise_affine: Whether there is a weight, and a bias.
        bias: False leaves the bias out.
        device: Of the parameters.
        dtype: Of the parameters: half, bfloat16, float or double.

    Raises:
        TypeError: If dtype is none of the four.
        ValueError: If eps is no finite number of at least 0.

    Attributes:
        weight, bias: Parameters of shape ``normalized_shape``, or None.

    >>> import torch, fusedops as fo
    >>> norm = fo.nn.LayerNorm(2)
    >>> norm(torch.tensor([[1.0, 3.0]])).detach()
    tensor([[-1.0000,  1.0000]])
    >>> norm.load_state_dict(torch.nn.LayerNorm(2).state_dict())
    <All keys matched successfully>
    """

    _settings = frozenset({"eps", "weight", "bias"})

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_dtype("LayerNorm", dtype)
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self._settle()

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each row.

        Args:
            input: x, ``[..., *normalized_shape]``, half, bfloat16, float or double.

        Returns:
            y, of x's shape and dtype.

        Raises:
            TypeError, ValueError: x does not fit; the message says how to mend it.
        """
        arguments = self._arguments(input)
        # Not `op`: to look a parameter up again takes as long as a part of the call.
        y: Tensor = self._op_with("weight" in arguments, "bias" in arguments)(input, **arguments)
        return y

    if TYPE_CHECKING:
        __call__ = forward

    def unfused(self, input: Tensor) -> Tensor:
        """Run `forward` as a chain of torch calls: same results."""
        y: Tensor = self.op().unfused(input, **self._arguments(input))
        return y

    def op(self) -> ops.LayerNorm:
        """The declaration that a call runs.

        >>> import fusedops as fo
        >>> fo.nn.LayerNorm(8, bias=False).op()
        LayerNorm(store=[Affine(gamma='weight', beta=None)], eps=1e-05, stats=False)
        """
        return self._op_with(self.weight is not None, self.bias is not None)

    def _op_with(self, weight: bool, bias: bool) -> ops.LayerNorm:
        settings = ("LayerNorm", weight, bias, self.eps, type(self.eps))
        op: ops.LayerNorm | None = declared.get(settings)
        if op is None:
            store = affine(*settings[1:3])
            op = declared[settings] = ops.LayerNorm(store=store, eps=self.eps)
        return op

    def _declare(self) -> None:
        LayerNorm.op(self)

    def _arguments(self, x: Tensor) -> dict[str, Any]:
        return arguments_of(x, self.normalized_shape, self.weight, self.bias)


class UnitOffset(Declares):
    """A norm whose weight may be stored as its difference from 1."""

    unit_offset: bool = False  # also while torch's constructor sets the weight

    def reset_parameters(self) -> None:
        """Set the weight to the identity: ones, or zeros with ``unit_offset``."""
        weight: Any = self.weight
        if weight is not None:
            nn.init.constant_(weight, 0.0 if self.unit_offset else 1.0)

    def extra_repr(self) -> str:
        """The other settings, and ``unit_offset`` where it is True."""
        return super().extra_repr() + (", unit_offset=True" if self.unit_offset else "")


class RMSNorm(UnitOffset, nn.RMSNorm):
    r"""``x / sqrt(mean(x * x) + eps) * weight``, as `torch.nn.RMSNorm`, or Gemma's.

    The mean is that of each row, the last dimensions of x. Arguments, parameters, ``state_dict``
    and initial values are torch's, and the module is an instance of torch's class. With
    ``unit_offset`` it is the norm of Gemma: the row is multiplied by ``1 + weight``, and the weight
    is zero at first. Arithmetic is in float32 (float64 where x is), whatever the dtypes of x and
    weight, which may differ; y has x's dtype.

    Args:
        normalized_shape: The end of x's shape to normalise over: an int or several.
        eps: Added to the mean square. None is torch's default, the ``torch.finfo(...).eps`` of the
            type that the arithmetic is in.
        elementwise_affine: Whether there is a weight.
        device: Of the weight.
        dtype: Of the weight: half, bfloat16, float or double.
        unit_offset: Whether what multiplies is ``1 + weight``.

    Raises:
        TypeError: If dtype is none of the four, or unit_offset no bool.
        ValueError: If eps is no finite number of at least 0.

    Attributes:
        weight: A parameter of shape ``normalized_shape``, or None.

    >>> import torch, fusedops as fo
    >>> norm = fo.nn.RMSNorm(2, eps=0.0, unit_offset=True)
    >>> norm(torch.tensor([[1.0, 7.0]])).detach()
    tensor([[0.2000, 1.4000]])
    >>> norm.weight.detach()
    tensor([0., 0.])
    """

    _settings = frozenset({"eps", "weight", "unit_offset"})

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        unit_offset: bool = False,
    ) -> None:
        check_dtype("RMSNorm", dtype)
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self.unit_offset = check_flag("RMSNorm", "unit_offset", unit_offset)
        self.reset_parameters()
        self._settle()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each row.

        Args:
            x: ``[..., *normalized_shape]``, half, bfloat16, float or double.

        Returns:
            y, of x's shape and dtype.

        Raises:
            TypeError, ValueError: x does not fit; the message says how to mend it.
        """
        arguments = self._arguments(x)
        y: Tensor = self._op_of(x, "weight" in arguments)(x, **arguments)
        return y

    if TYPE_CHECKING:
        __call__ = forward

    def unfused(self, x: Tensor) -> Tensor:
        """Run `forward` as a chain of torch calls: same results."""
        arguments = self._arguments(x)
        y: Tensor = self._op_of(x, "weight" in arguments).unfused(x, **arguments)
        return y

    def op(self, *, dtype: torch.dtype = torch.float32) -> ops.RMSNorm:
        """The declaration that a call runs, for an x of this dtype, which eps=None depends on.

        >>> import fusedops as fo
        >>> fo.nn.RMSNorm(8, eps=1e-6).op()
        RMSNorm(store=[Affine(gamma='weight', beta=None)], eps=1e-06, stats=False)
        """
        return self._op_with(dtype, self.weight is not None)

    def _op_of(self, x: Tensor, weight: bool) -> ops.RMSNorm:
        return self._op_with(x.dtype if isinstance(x, Tensor) else torch.float32, weight)

    def _op_with(self, dtype: torch.dtype, weight: bool) -> ops.RMSNorm:
        eps = default_eps(dtype) if self.eps is None else self.eps
        settings = ("RMSNorm", weight, self.unit_offset, eps, type(eps))
        op: ops.RMSNorm | None = declared.get(settings)
        if op is None:
            store = affine(weight, False, self.unit_offset)
            op = declared[settings] = ops.RMSNorm(store=store, eps=eps)
        return op

    def _declare(self) -> None:
        for dtype in (torch.float32, torch.float64):
            RMSNorm.op(self, dtype=dtype)

    def _arguments(self, x: Tensor) -> dict[str, Any]:
        return arguments_of(x, self.normalized_shape, self.weight, None)
