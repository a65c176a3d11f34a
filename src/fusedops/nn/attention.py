# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Attention softmax with scaling, bias, masks, soft cap, dropout and sinks."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops import ops
from fusedops.errors import check_flag, shortened
from fusedops.functors import (
    Alibi,
    Bias,
    Causal,
    Dropout,
    Functor,
    Mask,
    Scale,
    Softcap,
    Tap,
    Window,
)
from fusedops.nn.base import (
    Declares,
    acts,
    check_finite,
    check_probability,
    declared,
)

if TYPE_CHECKING:
    from fusedops.declare.results import Result


class AttentionSoftmax(Declares):
    r"""``dropout(softmax(softcap(scores * scale) + bias))`` over the keys, masked, in one kernel.

    For where attention weights are wanted for themselves, or modified by what a fused attention
    does not know. Masks follow `torch.nn.functional.scaled_dot_product_attention`: True takes part.
    What is masked out, by mask, by ``causal``, by ``window`` or by a bias of -inf, has weight 0 and
    gradient 0 whatever lies there; a query without any key gets zeros.

    Dropout acts in training alone; `torch.manual_seed` reproduces it. Arithmetic is in float32
    (float64 where the scores are); the result has the dtype of the scores. The module has no
    parameters: slopes and sinks belong to the model, and are given to the call.

    Args:
        scale: What the scores are multiplied by, such as ``head_dim**-0.5``; None: they are as they
            should be.
        p: The probability with which dropout zeroes a weight.
        causal: True: query q takes part with keys up to q, and nothing is read for it. A
            `fusedops.Causal` says otherwise, say ``Causal("bottom-right")`` with a cache of keys.
        window: An int n: a query takes part with its own key and the n keys before it, aligned as
            ``causal`` is, and nothing is read for it. A `fusedops.Window` says otherwise. None: no
            window.
        softcap: A number c above 0: scaled scores become ``c * tanh(scores / c)``, before bias and
            masks. None: they stay.
        lse: Return a `fusedops.SoftmaxResult`, the named tuple ``(y, lse)``, instead of the
            weights: lse is the logsumexp of each query, which has a gradient.
        probs: Return a `fusedops.ProbsResult`, ``(y, probs)``, or with ``lse`` a
            `fusedops.ProbsLseResult`, ``(y, probs, lse)``: probs are the weights before dropout,
            which have a gradient of their own.

    Raises:
        TypeError: If causal, window, lse or probs is of another type.
        ValueError: If p is no probability, scale no finite number, softcap no finite number above
            0, or window negative.

    >>> import torch, fusedops as fo
    >>> softmax = fo.nn.AttentionSoftmax(scale=0.5)
    >>> softmax(torch.zeros(1, 3), mask=torch.tensor([True, True, False]))
    tensor([[0.5000, 0.5000, 0.0000]])
    >>> fo.nn.AttentionSoftmax(lse=True)(torch.zeros(1, 3), sink=torch.tensor(0.0))
    SoftmaxResult(y=tensor([[0.2500, 0.2500, 0.2500]]), lse=tensor([1.3863]))
    """

    _settings = frozenset({"scale", "p", "causal", "window", "softcap", "lse", "probs"})

    def __init__(
        self,
        *,
        scale: float | None = None,
        p: float = 0.0,
        causal: bool | Causal = False,
        window: int | Window | None = None,
        softcap: float | None = None,
        lse: bool = False,
        probs: bool = False,
    ) -> None:
        super().__init__()
        name = "AttentionSoftmax"
        if not isinstance(causal, (bool, Causal)):
            raise TypeError(
                f"{name}: causal must be True, False or a fusedops.Causal, got {causal!r}"
            )
        if isinstance(window, bool) or not isinstance(window, (int, Window, type(None))):
            got = shortened(window)
            wanted = "an int, None or a fusedops.Window(left, right), None for no limit on a side"
            raise TypeError(f"{name}: window must be {wanted}; got {got}")
        if isinstance(window, int) and window < 0:
            raise ValueError(
                f"{name}: window must be at least 0, the number of keys before a query's own, got "
                f"{shortened(window)}"
            )
        if softcap is not None and check_finite(name, "softcap", softcap) <= 0:
            raise ValueError(f"{name}: softcap must be above 0, or None for none, got {softcap!r}")
        self.scale = None if scale is None else check_finite(name, "scale", scale)
        self.p = check_probability(name, p)
        self.causal = causal
        self.window = window
        self.softcap = None if softcap is None else float(softcap)
        self.lse = check_flag(name, "lse", lse)
        self.probs = check_flag(name, "probs", probs)
        self._settle()

    def forward(
        self,
        scores: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        slopes: Tensor | None = None,
        sink: Tensor | None = None,
    ) -> Result:
        """Turn scores into weights.

        Args:
            scores: ``[..., query, key]``.
            mask: Bool, broadcasts against the scores: True takes part.
            bias: Floating, broadcasts against the scores, and is added after scale and softcap: a
                pair bias, or a mask of zeros and -inf (or a dtype's lowest value).
            slopes: Floating: attention with linear biases, ``- slopes * |query - key|``, where
                positions are aligned as for ``causal`` and ``window``. One number a head, of shape
                ``[heads]`` for scores of shape ``[..., heads, query, key]``, or what broadcasts
                against the scores.
            sink: Floating: one more logit of each query, which takes part in the sum and has no
                weight in the result. One number a head, as slopes, or what broadcasts against the
                scores and has size 1 in the last dimension.

        Returns:
            Weights, of the scores' shape and dtype; with ``lse`` a named tuple of these and the
            logsumexp, of shape ``[..., query]`` in float32 (float64 where the scores are); with
            ``probs`` the weights before dropout stand between the two.

        Raises:
            TypeError, ValueError: A tensor does not fit; the message says how to mend it.
        """
        op, arguments = self._call(mask, bias, slopes, sink)
        return op(scores, **arguments)

    if TYPE_CHECKING:
        __call__ = forward

    def unfused(
        self,
        scores: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        slopes: Tensor | None = None,
        sink: Tensor | None = None,
    ) -> Result:
        """Run `forward` as a chain of torch calls: same results, same dropout mask."""
        op, arguments = self._call(mask, bias, slopes, sink)
        return op.unfused(scores, **arguments)

    def op(
        self, *, mask: bool = False, bias: bool = False, slopes: bool = False, sink: bool = False
    ) -> ops.Softmax:
        """The declaration that a call runs, with a mask, a bias, slopes and a sink or without.

        >>> import fusedops as fo
        >>> fo.nn.AttentionSoftmax().op(mask=True)
        Softmax(load=[Mask(mask='mask', keep=True)], empty_row='zero')
        """
        given = (mask, bias, slopes, sink)
        causal: Any = self.causal
        if isinstance(causal, Causal):
            causal = (causal.align, causal.offset)
        window: Any = self.window
        if isinstance(window, Window):
            window = (window.left, window.right, window.align, window.offset)
        own = (
            self.scale is not None,
            acts(self.p),
            causal,
            window,
            type(window),  # True is equal to 1, and no number of keys
            self.softcap is not None,
            self.lse,
            self.probs,
        )
        settings = ("AttentionSoftmax", given, own)
        op: ops.Softmax | None = declared.get(settings)
        if op is None:
            load = self._load(mask, bias, slopes)
            store: list[Functor] = [Tap("probs")] if self.probs else []
            if acts(self.p):
                store.append(Dropout("p"))
            op = ops.Softmax(load, store, lse=self.lse, sink="sink" if sink else None)
            declared[settings] = op
        return op

    def _load(self, mask: bool, bias: bool, slopes: bool) -> list[Functor]:
        load: list[Functor] = []
        if self.scale is not None:
            load.append(Scale("scale"))
        if self.softcap is not None:
            load.append(Softcap("softcap"))
        if bias:
            load.append(Bias("bias"))
        causal, window = self.causal, self.window
        place: Causal | Window = Causal()
        if isinstance(causal, Causal):
            place = causal
        elif isinstance(window, Window):
            place = window
        if slopes:
            load.append(Alibi("slopes", place.align, place.offset))
        if mask:
            load.append(Mask("mask", keep=True))
        if isinstance(window, int):  # which is causal, too
            load.append(Window(window, 0, place.align, place.offset))
        else:
            if causal:
                load.append(causal if isinstance(causal, Causal) else Causal())
            if window is not None:
                load.append(window)
        return load

    def _declare(self) -> None:
        flags = (False, True)
        for mask, bias, slopes, sink in itertools.product(flags, repeat=4):
            AttentionSoftmax.op(self, mask=mask, bias=bias, slopes=slopes, sink=sink)

    def extra_repr(self) -> str:
        """The settings for the module's repr; rare ones only where they are not default."""
        settings = [f"scale={self.scale}", f"p={self.p}", f"causal={self.causal}"]
        if self.window is not None:
            settings.append(f"window={self.window}")
        if self.softcap is not None:
            settings.append(f"softcap={self.softcap}")
        if self.lse:
            settings.append("lse=True")
        if self.probs:
            settings.append("probs=True")
        return ", ".join(settings)

    def _call(
        self,
        mask: Tensor | None,
        bias: Tensor | None,
        slopes: Tensor | None,
        sink: Tensor | None,
    ) -> tuple[ops.Softmax, dict[str, Any]]:
        """The declaration that a call runs, and the arguments of the call."""
        given = {"mask": mask, "bias": bias, "slopes": slopes, "sink": sink}
        op = self.op(**{name: value is not None for name, value in given.items()})
        arguments: dict[str, Any] = {}
        if self.scale is not None:
            arguments["scale"] = self.scale
        if self.softcap is not None:
            arguments["softcap"] = self.softcap
        if bias is not None:
            _check_kind("bias", bias, floating=True)
            arguments["bias"] = bias
        if mask is not None:
            _check_kind("mask", mask, floating=False)
            arguments["mask"] = mask
        if slopes is not None:
            arguments["slopes"] = _of_heads("slopes", slopes)
        if sink is not None:
            arguments["sink"] = _of_heads("sink", sink)
        if acts(self.p):
            arguments.update(p=self.p, training=self.training)
        return op, arguments


def _of_heads(name: str, value: Tensor) -> Tensor:
    """One number a head as a tensor that broadcasts against scores; others as they are."""
    if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"AttentionSoftmax: {name} must be a floating-point tensor, got {got}; pass one number "
            "a head, of shape (heads,)"
        )
    return value[:, None, None] if value.dim() == 1 else value


def _check_kind(name: str, value: Tensor, *, floating: bool) -> None:
    """Mask and bias are easily confused, as torch's attention takes both under one name."""
    dtype = value.dtype if isinstance(value, Tensor) else None
    if dtype is not None and (dtype.is_floating_point if floating else dtype is torch.bool):
        return
    wanted = "a floating-point tensor" if floating else "a bool tensor (True takes part)"
    if floating:
        cure = "pass a bool mask as mask="
    elif dtype is not None and not dtype.is_floating_point:
        cure = f"write {name} != 0, or {name} == 0 if what is not zero is masked out"
    else:
        cure = "pass a mask that is added as bias="
    got = type(value).__name__ if dtype is None else dtype
    raise TypeError(f"AttentionSoftmax: {name} must be {wanted}, got {got}; {cure}")
