# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Modules over fused ops, for where `torch.nn.LayerNorm` and a softmax stand today.

A module chooses its declaration by its own settings and by which operands a call gives. Equal
choices share one declaration in the whole process, and with it the plans of its kernels. `op(...)`
of a module returns it, to be printed, explained or called.

May import: functors, bind, ops.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fusedops.bind.bind import FLOATING
from fusedops.functors import Affine, Bias, Causal, Dropout, Functor, Mask, Residual, Scale
from fusedops.functors.base import is_finite
from fusedops.ops import LayerNorm, Softmax

__all__ = ["AttentionSoftmax", "ResidualLayerNorm"]


class _Declares(nn.Module):
    """A module that declares what its calls may ask for as soon as its settings are known.

    Inside torch.compile nothing can be declared, and what a declaration refuses is refused here,
    not at the first call.
    """

    #: What a declaration depends on; the last one is the last that `__init__` sets.
    _settings: ClassVar[tuple[str, ...]]

    def _declare(self) -> None:
        raise NotImplementedError

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self._settings and self._settings[-1] in self.__dict__:
            self._declare()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._declare()


class ResidualLayerNorm(_Declares, nn.LayerNorm):
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
        return_stream: Return ``(y, stream)``, a named tuple, instead of y.

    Raises:
        TypeError: If dtype is none of the four.
        ValueError: If p is no probability, or eps or alpha no finite number.

    >>> import torch, fusedops as fo
    >>> norm = fo.nn.ResidualLayerNorm(2)
    >>> norm(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]])).detach()
    tensor([[-1.0000,  1.0000]])
    >>> norm.load_state_dict(torch.nn.LayerNorm(2).state_dict())
    <All keys matched successfully>
    """

    _settings = ("p", "alpha", "eps", "weight", "bias", "return_stream")

    def __init__(
        self,
        normalized_shape: int | list[int] | torch.Size,
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
        if dtype not in (None, *FLOATING):
            allowed = ", ".join(map(str, FLOATING))
            raise TypeError(f"ResidualLayerNorm: dtype must be one of {allowed}, got {dtype}")
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self.p = _probability("ResidualLayerNorm", p)
        self.alpha = _finite("ResidualLayerNorm", "alpha", alpha)
        self.return_stream = return_stream

    def forward(  # type: ignore[override]  # takes the residual, too
        self, x: Tensor, residual: Tensor, *, input_bias: Tensor | None = None
    ) -> Any:
        """Normalises the sum.

        Args:
            x: What is added to the residual, ``[..., *normalized_shape]``.
            residual: Broadcasts against x.
            input_bias: Added to x before dropout; broadcasts against x.

        Returns:
            y, of x's shape and dtype; with ``return_stream`` a named tuple of y and the stream,
            which has x's shape and the residual's dtype.

        Raises:
            TypeError, ValueError: A tensor does not fit; the message says how to mend it.
        """
        op = self.op(input_bias=input_bias is not None)
        return op(x, **self._arguments(x, residual, input_bias))

    def unfused(self, x: Tensor, residual: Tensor, *, input_bias: Tensor | None = None) -> Any:
        """The same as a chain of torch calls: same arguments, same results, same dropout mask."""
        op = self.op(input_bias=input_bias is not None)
        return op.unfused(x, **self._arguments(x, residual, input_bias))

    def op(self, *, input_bias: bool = False) -> LayerNorm:
        """The declaration that a call runs, with an ``input_bias`` or without.

        >>> import fusedops as fo
        >>> fo.nn.ResidualLayerNorm(8).op()  # doctest: +ELLIPSIS
        LayerNorm(load=[Residual(residual='residual', ...)], store=[Affine(...)], eps=1e-05, ...)
        """
        settings = (
            input_bias,
            self.p > 0,
            self.alpha,
            self.return_stream,
            self.weight is not None,
            self.bias is not None,
            self.eps,
        )
        op: LayerNorm | None = _declared.get(settings)
        if op is None:
            op = _declared[settings] = _add_norm(*settings)
        return op

    def _declare(self) -> None:
        for input_bias in (False, True):
            ResidualLayerNorm.op(self, input_bias=input_bias)

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"{super().extra_repr()}, p={self.p}, alpha={self.alpha}, "
            f"return_stream={self.return_stream}"
        )

    def _arguments(self, x: Tensor, residual: Tensor, input_bias: Tensor | None) -> dict[str, Any]:
        arguments: dict[str, Any] = {"residual": residual}
        # The last dimension is what an op takes anyway, and options cost host time.
        if not (isinstance(x, Tensor) and x.shape[-1:] == self.normalized_shape):
            arguments["normalized_shape"] = self.normalized_shape
        if input_bias is not None:
            arguments["input_bias"] = input_bias
        if self.p > 0:
            arguments.update(p=self.p, training=self.training)
        if self.weight is not None:
            arguments["weight"] = self.weight
        if self.bias is not None:
            arguments["bias"] = self.bias
        return arguments


class AttentionSoftmax(_Declares):
    r"""``dropout(softmax(scores * scale + bias))`` over the keys, masked, in one kernel.

    For where attention weights are wanted for themselves, or modified by what a fused attention
    does not know. Masks follow `torch.nn.functional.scaled_dot_product_attention`: True takes part.
    What is masked out, by mask, by ``causal`` or by a bias of -inf, has weight 0 and gradient 0
    whatever lies there; a query without any key gets zeros.

    Dropout acts in training alone; `torch.manual_seed` reproduces it. Arithmetic is in float32
    (float64 where the scores are); the result has the dtype of the scores.

    Args:
        scale: What the scores are multiplied by, such as ``head_dim**-0.5``; None: they are as they
            should be.
        p: The probability with which dropout zeroes a weight.
        causal: True: query q takes part with keys up to q, and nothing is read for it. A
            `fusedops.Causal` says otherwise, say ``Causal("bottom-right")`` with a cache of keys.

    Raises:
        TypeError: If causal is neither a bool nor a `fusedops.Causal`.
        ValueError: If p is no probability or scale no finite number.

    >>> import torch, fusedops as fo
    >>> softmax = fo.nn.AttentionSoftmax(scale=0.5)
    >>> softmax(torch.zeros(1, 3), mask=torch.tensor([True, True, False]))
    tensor([[0.5000, 0.5000, 0.0000]])
    """

    _settings = ("scale", "p", "causal")

    def __init__(
        self, *, scale: float | None = None, p: float = 0.0, causal: bool | Causal = False
    ) -> None:
        super().__init__()
        if not isinstance(causal, (bool, Causal)):
            raise TypeError(
                f"AttentionSoftmax: causal must be True, False or a fusedops.Causal, got {causal!r}"
            )
        self.scale = None if scale is None else _finite("AttentionSoftmax", "scale", scale)
        self.p = _probability("AttentionSoftmax", p)
        self.causal = causal

    def forward(
        self, scores: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Turns scores into weights.

        Args:
            scores: ``[..., query, key]``.
            mask: Bool, broadcasts against the scores: True takes part.
            bias: Floating, broadcasts against the scores, and is added after the scale: a pair
                bias, or a mask of zeros and -inf (or a dtype's lowest value).

        Returns:
            Weights, of the scores' shape and dtype.

        Raises:
            TypeError, ValueError: A tensor does not fit; the message says how to mend it.
        """
        op = self.op(mask=mask is not None, bias=bias is not None)
        result: Tensor = op(scores, **self._arguments(mask, bias))
        return result

    def unfused(
        self, scores: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """The same as a chain of torch calls: same arguments, same results, same dropout mask."""
        op = self.op(mask=mask is not None, bias=bias is not None)
        result: Tensor = op.unfused(scores, **self._arguments(mask, bias))
        return result

    def op(self, *, mask: bool = False, bias: bool = False) -> Softmax:
        """The declaration that a call runs, with a mask and a bias or without.

        >>> import fusedops as fo
        >>> fo.nn.AttentionSoftmax().op(mask=True)
        Softmax(load=[Mask(mask='mask', keep=True)], empty_row='zero')
        """
        causal = self.causal
        where = None
        if isinstance(causal, Causal):
            where = (causal.align, causal.offset)
        elif causal:
            where = ("top-left", 0)
        settings = (self.scale is not None, bias, mask, where, self.p > 0)
        op: Softmax | None = _declared.get(settings)
        if op is None:
            op = _declared[settings] = _attention_softmax(*settings)
        return op

    def _declare(self) -> None:
        for mask in (False, True):
            for bias in (False, True):
                AttentionSoftmax.op(self, mask=mask, bias=bias)

    def extra_repr(self) -> str:
        """The settings."""
        return f"scale={self.scale}, p={self.p}, causal={self.causal}"

    def _arguments(self, mask: Tensor | None, bias: Tensor | None) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        if self.scale is not None:
            arguments["scale"] = self.scale
        if bias is not None:
            _check_kind("bias", bias, floating=True)
            arguments["bias"] = bias
        if mask is not None:
            _check_kind("mask", mask, floating=False)
            arguments["mask"] = mask
        if self.p > 0:
            arguments.update(p=self.p, training=self.training)
        return arguments


#: The declarations of all modules by their settings. A plain dictionary, since Dynamo reads one
#: where it would look into a cached function.
_declared: dict[tuple[Any, ...], Any] = {}


def _add_norm(
    input_bias: bool,
    dropout: bool,
    alpha: float,
    stream: bool,
    weight: bool,
    bias: bool,
    eps: float,
) -> LayerNorm:
    load: list[Functor] = []
    if input_bias:
        load.append(Bias("input_bias"))
    if dropout:
        load.append(Dropout("p"))
    load.append(Residual("residual", alpha=alpha, save="stream" if stream else None))
    names = ("weight" if weight else None, "bias" if bias else None)
    return LayerNorm(load=load, store=[Affine(*names)] if any(names) else [], eps=eps)


def _attention_softmax(
    scale: bool, bias: bool, mask: bool, causal: tuple[str, int] | None, dropout: bool
) -> Softmax:
    load: list[Functor] = []
    if scale:
        load.append(Scale("scale"))
    if bias:
        load.append(Bias("bias"))
    if mask:
        load.append(Mask("mask", keep=True))
    if causal is not None:
        load.append(Causal(*causal))
    return Softmax(load=load, store=[Dropout("p")] if dropout else [])


def _probability(module: str, p: float) -> float:
    if not is_finite(p) or not 0 <= p <= 1:
        raise ValueError(f"{module}: p must be a probability in [0, 1], got {p!r}")
    return float(p)


def _finite(module: str, name: str, value: float) -> float:
    if not is_finite(value):
        raise ValueError(f"{module}: {name} must be a finite number, got {value!r}")
    return float(value)


def _check_kind(name: str, value: Tensor, *, floating: bool) -> None:
    """Mask and bias are easily confused, as torch's attention takes both under one name."""
    dtype = value.dtype if isinstance(value, Tensor) else None
    if dtype is not None and (dtype.is_floating_point if floating else dtype is torch.bool):
        return
    wanted = "a floating-point tensor" if floating else "a bool tensor (True takes part)"
    if floating:
        cure = "pass a bool mask as mask="
    elif dtype is not None and not dtype.is_floating_point:
        cure = f"write {name} != 0"
    else:
        cure = "pass a mask that is added as bias="
    got = type(value).__name__ if dtype is None else dtype
    raise TypeError(f"AttentionSoftmax: {name} must be {wanted}, got {got}; {cure}")
