# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Norms of the sum of a block's output and the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from fusedops import ops
from fusedops.errors import check_flag
from fusedops.functors import Bias, Dropout, Functor, Residual
from fusedops.nn.base import (
    Declares,
    acts,
    check_dtype,
    check_finite,
    check_probability,
    declared,
)
from fusedops.nn.norms import UnitOffset, affine, arguments_of, default_eps

if TYPE_CHECKING:
    from fusedops.declare.results import Result


#: The class of a norm's declaration.
Op = TypeVar("Op", ops.LayerNorm, ops.RMSNorm)


class _Residual(Declares):
    """Base of the norms of a residual sum."""

    p: float
    alpha: float
    return_stream: bool

    def _set(self, name: str, p: float, alpha: float, return_stream: bool) -> None:
        self.p = check_probability(name, p)
        self.alpha = check_finite(name, "alpha", alpha)
        self.return_stream = check_flag(name, "return_stream", return_stream)

    if TYPE_CHECKING:

        def __call__(
            self, x: Tensor, residual: Tensor, *, input_bias: Tensor | None = None
        ) -> Result:
            """As `forward`."""

    def forward(
        self, x: Tensor, residual: Tensor | None = None, *, input_bias: Tensor | None = None
    ) -> Result:
        """Normalise the sum.

        Args:
            x: What is added to the residual, ``[..., *normalized_shape]``.
            residual: Broadcasts against x; a call has to give it.
            input_bias: Added to x before dropout; broadcasts against x.

        Returns:
            y, of x's shape and dtype; with ``return_stream`` a named tuple of y and the stream,
            which has x's shape and the residual's dtype.

        Raises:
            TypeError, ValueError: A tensor does not fit; the message says how to mend it.
        """
        op = self._op_of(x, input_bias)
        return op(x, **self._call(x, residual, input_bias))

    def unfused(
        self, x: Tensor, residual: Tensor | None = None, *, input_bias: Tensor | None = None
    ) -> Result:
        """Run `forward` as a chain of torch calls: same results, same dropout mask."""
        op = self._op_of(x, input_bias)
        return op.unfused(x, **self._call(x, residual, input_bias))

    def _op_of(self, x: Tensor, input_bias: Tensor | None) -> ops.LayerNorm:
        """The declaration that a call with these arguments runs."""
        raise NotImplementedError

    def _parameters_for(self, x: Tensor) -> dict[str, Any]:
        """The norm's own parameters, as arguments of the op."""
        raise NotImplementedError

    def _declared(
        self, kind: type[Op], input_bias: bool, parameters: tuple[bool, bool, bool], eps: float
    ) -> Op:
        """The norm of this kind, whose STORE is `affine` of these parameters."""
        drops, stream = acts(self.p), self.return_stream
        numbers: tuple[Any, ...] = self.alpha, type(self.alpha), eps, type(eps)
        settings = ("residual", kind, input_bias, drops, stream, *parameters, *numbers)
        op: Op | None = declared.get(settings)
        if op is None:
            op = declared[settings] = kind(self._load(input_bias), affine(*parameters), eps=eps)
        return op

    def _load(self, input_bias: bool) -> list[Functor]:
        load: list[Functor] = []
        if input_bias:
            load.append(Bias("input_bias"))
        if acts(self.p):
            load.append(Dropout("p"))
        save = "stream" if self.return_stream else None
        return [*load, Residual("residual", alpha=self.alpha, save=save)]

    def _call(
        self, x: Tensor, residual: Tensor | None, input_bias: Tensor | None
    ) -> dict[str, Any]:
        if residual is None:  # Python's own error would name neither the module nor a cure
            raise TypeError(
                f"{type(self).__name__}: missing argument 'residual', the tensor that x is added "
                "to; call the module with (x, residual), or use the norm of torch without it"
            )
        arguments = self._parameters_for(x)
        arguments["residual"] = residual
        if input_bias is not None:
            arguments["input_bias"] = input_bias
        if acts(self.p):
            arguments.update(p=self.p, training=self.training)
        return arguments

    def extra_repr(self) -> str:
        """The settings for the module's repr: the norm's, then the residual sum's."""
        return (
            f"{super().extra_repr()}, p={self.p}, alpha={self.alpha}, "
            f"return_stream={self.return_stream}"
        )


class ResidualLayerNorm(_Residual, nn.LayerNorm):
    r"""``LayerNorm(dropout(x + input_bias) + alpha * residual) * weight + bias`` in one kernel.

    The parameters are those of `torch.nn.LayerNorm` by name, shape and initial value: either loads
    the other's ``state_dict``, and code that sorts parameters or initialises modules by class sees
    a LayerNorm. What is normalised is the *stream*:

    - post-norm, as in BERT: ``hidden = norm(dense_out, hidden)``;
    - pre-norm, as in GPT, with ``return_stream=True``: ``y, stream = norm(block_out, stream)``,
      where y goes into the next block, and the stream past it. Gradients flow through both.

    The bias of the linear layer that made x can be left out there and be given here:
    ``norm(functional.linear(h, dense.weight), hidden, input_bias=dense.bias)``.

    Dropout acts in training alone; `torch.manual_seed` reproduces it. Arithmetic is in float32
    (float64 where x is), y has x's dtype and the stream has the residual's, so the residual, weight
    and bias may stay in float32 beside an x in half.

    Args:
        normalized_shape: The end of x's shape to normalise over: an int or several.
        eps: Added to the variance.
        elementwise_affine: Whether there is a weight, and a bias.
        bias: False leaves the bias out.
        device: Of the parameters.
        dtype: Of the parameters: half, bfloat16, float or double.
        p: The probability with which dropout zeroes elements of ``x + input_bias``.
        alpha: What the residual is multiplied by.
        return_stream: Return a `fusedops.StreamResult`, the named tuple ``(y, stream)``, instead
            of y.

    Raises:
        TypeError: If dtype is none of the four, or return_stream no bool.
        ValueError: If p is no probability, or eps or alpha no finite number.

    >>> import torch, fusedops as fo
    >>> norm = fo.nn.ResidualLayerNorm(2)
    >>> norm(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]])).detach()
    tensor([[-1.0000,  1.0000]])
    >>> norm.load_state_dict(torch.nn.LayerNorm(2).state_dict())
    <All keys matched successfully>
    """

    _settings = frozenset({"p", "alpha", "eps", "weight", "bias", "return_stream"})

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        p: float = 0.0,
        alpha: float = 1.0,
        return_stream: bool = False,
    ) -> None:
        check_dtype("ResidualLayerNorm", dtype)
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self._set("ResidualLayerNorm", p, alpha, return_stream)
        self._settle()

    def op(self, *, input_bias: bool = False) -> ops.LayerNorm:
        """The declaration that a call runs, with an ``input_bias`` or without.

        >>> import fusedops as fo
        >>> fo.nn.ResidualLayerNorm(8).op()  # doctest: +ELLIPSIS
        LayerNorm(load=[Residual(residual='residual', ...)], store=[Affine(...)], eps=1e-05, ...)
        """
        parameters = (self.weight is not None, self.bias is not None, False)
        return self._declared(ops.LayerNorm, input_bias, parameters, self.eps)

    def _op_of(self, x: Tensor, input_bias: Tensor | None) -> ops.LayerNorm:
        return self.op(input_bias=input_bias is not None)

    def _declare(self) -> None:
        for input_bias in (False, True):
            ResidualLayerNorm.op(self, input_bias=input_bias)

    def _parameters_for(self, x: Tensor) -> dict[str, Any]:
        return arguments_of(x, self.normalized_shape, self.weight, self.bias)


class ResidualRMSNorm(UnitOffset, _Residual, nn.RMSNorm):
    r"""``RMSNorm(dropout(x + input_bias) + alpha * residual) * weight`` in one kernel.

    The weight is that of `torch.nn.RMSNorm` by name, shape and initial value, or with
    ``unit_offset`` that of Gemma's, as for `RMSNorm`; either loads the other's ``state_dict``. What
    is normalised is the *stream*, and a call is one of `ResidualLayerNorm`. In a pre-norm model, as
    Llama is, ``y, stream = norm(block_out, stream)`` with ``return_stream=True``.

    Args:
        normalized_shape: The end of x's shape to normalise over: an int or several.
        eps: Added to the mean square. None is torch's default, the ``torch.finfo(...).eps`` of the
            type that the arithmetic is in: float64 where x is, else float32.
        elementwise_affine: Whether there is a weight.
        device: Of the weight.
        dtype: Of the weight: half, bfloat16, float or double.
        unit_offset: Whether what multiplies is ``1 + weight``.
        p: The probability with which dropout zeroes elements of ``x + input_bias``.
        alpha: What the residual is multiplied by.
        return_stream: Return a `fusedops.StreamResult`, the named tuple ``(y, stream)``, instead
            of y.

    Raises:
        TypeError: If dtype is none of the four, or unit_offset or return_stream no bool.
        ValueError: If p is no probability, or eps or alpha no finite number.

    >>> import torch, fusedops as fo
    >>> norm = fo.nn.ResidualRMSNorm(2, eps=0.0, return_stream=True)
    >>> y, stream = norm(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 4.0]]))
    >>> y.detach(), stream.detach()
    (tensor([[0.2000, 1.4000]]), tensor([[1., 7.]]))
    """

    _settings = frozenset({"p", "alpha", "eps", "weight", "unit_offset", "return_stream"})

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        unit_offset: bool = False,
        p: float = 0.0,
        alpha: float = 1.0,
        return_stream: bool = False,
    ) -> None:
        check_dtype("ResidualRMSNorm", dtype)
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self._set("ResidualRMSNorm", p, alpha, return_stream)
        self.unit_offset = check_flag("ResidualRMSNorm", "unit_offset", unit_offset)
        self.reset_parameters()
        self._settle()

    def op(self, *, input_bias: bool = False, dtype: torch.dtype = torch.float32) -> ops.RMSNorm:
        """The declaration that a call runs, for an x of this dtype, which eps=None depends on.

        >>> import fusedops as fo
        >>> fo.nn.ResidualRMSNorm(8, eps=1e-6).op()  # doctest: +ELLIPSIS
        RMSNorm(load=[Residual(residual='residual', ...)], store=[Affine(...)], eps=1e-06, ...)
        """
        eps = default_eps(dtype) if self.eps is None else self.eps
        parameters = (self.weight is not None, False, self.unit_offset)
        return self._declared(ops.RMSNorm, input_bias, parameters, eps)

    def _op_of(self, x: Tensor, input_bias: Tensor | None) -> ops.RMSNorm:
        dtype = x.dtype if isinstance(x, Tensor) else torch.float32
        return self.op(input_bias=input_bias is not None, dtype=dtype)

    def _declare(self) -> None:
        for dtype in (torch.float32, torch.float64):
            for input_bias in (False, True):
                ResidualRMSNorm.op(self, input_bias=input_bias, dtype=dtype)

    def _parameters_for(self, x: Tensor) -> dict[str, Any]:
        return arguments_of(x, self.normalized_shape, self.weight, None)
