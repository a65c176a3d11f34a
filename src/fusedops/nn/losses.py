# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy, alone and after a linear layer, as modules with torch's arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fusedops import ops
from fusedops.errors import shortened
from fusedops.functors import Bias, Softcap, is_finite
from fusedops.nn.base import Declares, check_dtype, declared
from fusedops.product import LinearCrossEntropy


def _settings_of(loss: Any) -> dict[str, Any]:
    """The settings that both losses hand to their ops."""
    return {
        "ignore_index": loss.ignore_index,
        "label_smoothing": loss.label_smoothing,
        "z_loss": loss.z_loss,
        "reduction": loss.reduction,
    }


def _exact(*settings: Any) -> tuple[Any, ...]:
    """A key of settings of just these types: True is equal to 1, and no number of bytes."""
    return (*settings, *[type(one) for one in settings])


class CrossEntropyLoss(Declares, nn.CrossEntropyLoss):
    r"""``log(sum_j exp(x_j)) - x_target`` of each row, averaged, as `torch.nn.CrossEntropyLoss`.

    Arguments are torch's, and the module is an instance of torch's class: x has shape (C,),
    (N, C) or (N, C, d1, ...), and the target, uint8 or of a signed integer dtype, x's shape without
    C; or it has x's shape and holds probabilities, which have no gradient. x is read once forward,
    and once backward where its gradient is written once. The loss is float32 (float64 where x is),
    whatever the dtype of x, under autocast as well; torch's has the dtype of x.

    Args:
        weight: None: losses of classes are weighted by what ``reduction="none"`` returns.
        size_average, reduce: None; torch has replaced them by reduction.
        ignore_index: The target of rows that do not count.
        reduction: ``"mean"`` over the rows that count, ``"sum"`` or ``"none"``.
        label_smoothing: The share in [0, 1] of the target that all classes have in equal parts.
        z_loss: ``z_loss * lse ** 2`` is added to the loss of each row.
        inplace: Whether the gradient of x is written to x's memory: as of `fusedops.CrossEntropy`.

    Raises:
        TypeError: ignore_index is no int, or inplace no bool.
        ValueError: A number is out of its range, or there is a weight, size_average or reduce.

    >>> import torch, fusedops as fo
    >>> loss = fo.nn.CrossEntropyLoss(label_smoothing=0.1)
    >>> loss(torch.zeros(2, 4), torch.tensor([3, -100]))
    tensor(1.3863)
    """

    _settings = frozenset({"ignore_index", "reduction", "label_smoothing", "z_loss", "inplace"})

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        z_loss: float = 0.0,
        inplace: bool = False,
    ) -> None:
        if weight is not None:
            raise ValueError(
                "CrossEntropyLoss: weight must be None: it would weight the rows by their targets, "
                'as (weight[target] * CrossEntropyLoss(reduction="none")(x, target)).sum() / '
                "weight[target].sum() does"
            )
        if size_average is not None or reduce is not None:
            raise ValueError(
                "CrossEntropyLoss: size_average and reduce must be None; write reduction="
            )
        super().__init__(
            ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )
        self.z_loss = z_loss
        self.inplace = inplace
        self._settle()

    def _key(self, soft: bool = False) -> tuple[Any, ...]:
        return (ops.CrossEntropy, *_exact(*_settings_of(self).values(), self.inplace), soft)

    def _declare(self) -> None:
        for soft in (False, True):
            key = self._key(soft)
            if key not in declared:
                settings = _settings_of(self)
                declared[key] = ops.CrossEntropy(**settings, inplace=self.inplace, soft=soft)

    def op(self, soft: bool = False) -> ops.CrossEntropy:
        """The op that the module calls; `soft` is that of a target of probabilities."""
        found: ops.CrossEntropy = declared[self._key(soft)]
        return found

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compute the loss; the arguments have torch's names."""
        return self._run(input, target, "__call__")

    def unfused(self, input: Tensor, target: Tensor) -> Tensor:
        """The same as a chain of torch calls: same arguments, same results."""
        return self._run(input, target, "unfused")

    def _run(self, input: Tensor, target: Tensor, way: str) -> Tensor:
        soft = isinstance(target, Tensor) and target.is_floating_point()
        if soft and target.shape != input.shape:
            raise ValueError(
                "CrossEntropyLoss: a target of floating numbers must have a weight for each class, "
                f"in input's shape {tuple(input.shape)}, got {tuple(target.shape)}; if it holds "
                "classes, convert it with target.long()"
            )
        op = self.op(soft) if way == "__call__" else self.op(soft).unfused
        loss: Tensor = op(input, target=target, dim=1 if input.dim() > 1 else 0)
        return loss

    def extra_repr(self) -> str:
        """The arguments that are not torch's defaults."""
        return _shown(self, **_DEFAULTS, inplace=False)


class LinearCrossEntropyLoss(Declares):
    r"""``CrossEntropyLoss(Linear(x))`` whose logits never exist whole: a language model's end.

    As `torch.nn.LinearCrossEntropyLoss`, whose parameters it has by the same names,
    ``linear.weight`` of shape (C, K) and ``linear.bias`` of shape (C,), so that one loads the state
    of the other. x has shape (..., K), and the target, uint8 or of a signed integer dtype, shape
    (...). The loss is float32 (float64 where x is). `fusedops.LinearCrossEntropy` says how it is
    computed.

    Args:
        in_features: K.
        num_classes: C.
        bias: Whether a learnt bias is added to the logits.
        device: The device of the parameters.
        dtype: Their dtype.
        reduction: ``"mean"`` over the rows that count, ``"sum"`` or ``"none"``.
        ignore_index: The target of rows that do not count.
        label_smoothing: The share in [0, 1] of the target that all classes have in equal parts.
        z_loss: ``z_loss * lse ** 2`` is added to the loss of each row.
        softcap: A number: logits become ``softcap * tanh(logits / softcap)``; None for none.
        memory: The bytes that a step may take beside x, the weight and their gradients to be
            faster; None for the least. `fusedops.LinearCrossEntropy` says what they are spent on.

    Raises:
        TypeError: dtype is no floating dtype of the library, or ignore_index no int.
        ValueError: A number is out of its range.

    >>> import torch, fusedops as fo
    >>> loss = fo.nn.LinearCrossEntropyLoss(8, 100, softcap=30.0)
    >>> loss(torch.zeros(2, 3, 8), torch.tensor([[3, 4, -100], [5, 6, 7]]))
    tensor(4.6052, grad_fn=<DivBackward0>)
    """

    _settings = frozenset(
        {"ignore_index", "reduction", "label_smoothing", "z_loss", "softcap", "memory"}
    )

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float | None = None,
        memory: int | None = None,
    ) -> None:
        super().__init__()
        check_dtype("LinearCrossEntropyLoss", dtype)
        self.linear = nn.Linear(in_features, num_classes, bias=bias, device=device, dtype=dtype)
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.z_loss = z_loss
        self.softcap = softcap
        self.memory = memory
        self._settle()

    def _key(self) -> tuple[Any, ...]:
        biased, capped = self.linear.bias is not None, self.softcap is not None
        settings = _exact(*_settings_of(self).values(), self.memory)
        return (LinearCrossEntropy, *settings, biased, capped)

    def _declare(self) -> None:
        if self.softcap is not None and not (is_finite(self.softcap) and self.softcap > 0):
            raise ValueError(
                "LinearCrossEntropyLoss: softcap must be a finite number above 0, or None for "
                f"none, got {shortened(self.softcap)}"
            )
        key = self._key()
        if key not in declared:
            *_, biased, capped = key
            load = [*[Bias("bias")] * biased, *[Softcap("softcap")] * capped]
            settings = _settings_of(self)
            declared[key] = LinearCrossEntropy(load, **settings, memory=self.memory)

    def op(self) -> LinearCrossEntropy:
        """The op that the module calls."""
        if self._key() not in declared:  # its Linear has got a bias, or none any more
            self._declare()
        found: LinearCrossEntropy = declared[self._key()]
        return found

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compute the loss; the arguments have torch's names."""
        loss: Tensor = self.op()(input, self.linear.weight, **self._arguments(target))
        return loss

    def unfused(self, input: Tensor, target: Tensor) -> Tensor:
        """The same as torch operations on all logits: same arguments, same results."""
        op = self.op()
        loss: Tensor = op.unfused(input, self.linear.weight, **self._arguments(target))
        return loss

    def _arguments(self, target: Tensor) -> dict[str, Any]:
        operands: dict[str, Any] = {"target": target}
        if self.linear.bias is not None:
            operands["bias"] = self.linear.bias
        if self.softcap is not None:
            operands["softcap"] = self.softcap
        return operands

    def extra_repr(self) -> str:
        """The arguments that are not the defaults."""
        return _shown(self, **_DEFAULTS, softcap=None, memory=None)


_DEFAULTS: dict[str, Any] = {"ignore_index": -100, "label_smoothing": 0.0, "z_loss": 0.0}


def _shown(loss: nn.Module, **defaults: Any) -> str:
    """The reduction of a loss, and those of its settings that are not these defaults."""
    changed = [name for name, one in defaults.items() if getattr(loss, name) != one]
    return ", ".join(f"{name}={getattr(loss, name)!r}" for name in ("reduction", *changed))
