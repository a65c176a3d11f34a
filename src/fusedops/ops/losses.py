# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Losses of each row: operators whose results are numbers of rows, with functors before them."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fusedops.declare.operator import Statistic
from fusedops.errors import check_flag, shortened
from fusedops.functors import Functor, Role, is_finite, plain_number
from fusedops.functors.operands import IDS
from fusedops.ops.loss_parts import LossOfParts
from fusedops.row_op import RowOp
from fusedops.torch_ops.tracing import is_distributed, is_plain

if TYPE_CHECKING:
    from fusedops.declare.results import Result

_REDUCTIONS = ("none", "mean", "sum")


class CrossEntropy(LossOfParts, RowOp):
    """``loss = log(sum_j exp(v_j)) - v_target`` of each row of ``v = load(x)``; there is no y.

    One kernel reads x once and writes one number a row; what is of x's size, a softmax or a
    masked copy, is never written. The backward pass reads x once more and writes its gradient once.
    The reduction of all rows is a sum in float32 in a fixed order. A call is
    ``op(x, target=labels)``: labels are uint8 or of any signed integer dtype, and have x's shape
    without the dimension of the classes, which is ``dim``, the last by default. `__call__`
    describes the rest.

    An element that a mask in the LOAD takes out, or that is -inf by itself, is no class: it has no
    probability, no gradient, and no part in label smoothing. A row whose target is masked has a
    loss of +inf, and a row without classes one of NaN.

    A row whose target is ``ignore_index`` has the loss 0 and the gradient 0, whatever it holds, NaN
    included. Any other target must be the number of a class: on a CPU one that is not raises
    IndexError, unless the call is in compiled code; elsewhere it makes the row's loss and gradient
    NaN. It is never used as an address.

    Classes of a DTensor may be sharded over ranks, which gather a few numbers a row, and no logits
    (docs/how-to/many-gpus.md); its targets are not checked.

    Args:
        load: The functors applied to x before the reduction, in order; none by default. The
            gradients of their operands are computed with that of x.
        store: Empty: an operator without y has nothing to store.
        ignore_index: The target of rows that do not count; -100 by default.
        label_smoothing: A number eps in [0, 1], 0 by default: the loss is then
            ``(1 - eps) * loss + eps * (lse - mean_j v_j)``, the mean over the row's classes.
        z_loss: A finite number >= 0, 0 by default: ``z_loss * lse ** 2`` is added to the loss.
        reduction: ``"mean"`` over the rows that are not ignored (NaN where there are none), the
            default; ``"sum"``; or ``"none"`` for one loss a row, of the shape of labels.
        lse, log_prob, entropy, largest, correct: Whether a call also returns ``lse``; ``log_prob =
            v_target - lse``; the entropy of the row's softmax; its largest logit, NaN where a logit
            is +inf or NaN; and 1.0 where no class is larger than the target's, else 0.0, as in a
            row without classes or whose largest is NaN. Each is one number a row whatever the
            reduction, and 0 in a row that is ignored. All but the last two are differentiable.
            False by default.
        inplace: Whether the gradient of x is written to x's memory, which saves as much memory.
            x is lost then. It must be no leaf of autograd's, and nothing else may read it in the
            backward pass: torch raises an error if something does, as after any operation in place.
            In compiled code, of a DTensor, and where elements of x share memory, the gradient has
            memory of its own all the same. False by default.
        soft: Whether the target is a tensor that broadcasts against x, with a weight p_j for each
            class, a probability most often: ``loss = sum_j p_j (lse - v_j)``. It has no gradient.
            No row is ignored then, and the mean is over all. False by default.

    All results are float32 (float64 if x is float64).

    Raises:
        TypeError: load holds something that is no functor, an argument is of the wrong kind or
            unknown.
        ValueError: A number is out of its range, store is not empty, or a functor has no meaning
            where it stands.

    >>> import torch, fusedops as fo
    >>> op = fo.CrossEntropy(load=[fo.Softcap("cap")], reduction="none")
    >>> op(torch.zeros(2, 4), target=torch.tensor([3, -100]), cap=30.0)
    tensor([1.3863, 0.0000])
    >>> fo.CrossEntropy(lse=True)(torch.zeros(2, 4), target=torch.tensor([3, 0]))
    CrossEntropyResult(loss=tensor(1.3863), lse=tensor([1.3863, 1.3863]))
    """

    header = "op/cross_entropy.cuh"
    gradient_header = "op/cross_entropy_gradient.cuh"
    kept = 2
    numbers = ("label_smoothing", "z_loss")
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "loss": Statistic("loss", option="", differentiable=True),
        "lse": Statistic("lse", option="lse", differentiable=True),
        "log_prob": Statistic("log_prob", option="log_prob", differentiable=True),
        "entropy": Statistic("entropy", option="entropy", differentiable=True),
        "largest": Statistic("largest", option="largest"),
        "correct": Statistic("correct", option="correct"),
    }
    masks = True
    has_result = False
    reduces_gradient = False
    row_roles: Mapping[str, Role] = types.MappingProxyType({"target": Role.TARGET})

    def __init__(
        self,
        load: Iterable[Functor] = (),
        store: Iterable[Functor] = (),
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        reduction: str = "mean",
        lse: bool = False,
        log_prob: bool = False,
        entropy: bool = False,
        largest: bool = False,
        correct: bool = False,
        inplace: bool = False,
        soft: bool = False,
    ) -> None:
        name = type(self).__name__
        if reduction not in _REDUCTIONS:
            raise ValueError(
                f"{name}: reduction must be one of {', '.join(map(repr, _REDUCTIONS))}, got "
                f"{shortened(reduction)}"
            )
        ignored = plain_number(ignore_index)
        if type(ignored) is not int or not -(2**63) <= ignored < 2**63:
            raise TypeError(
                f"{name}: ignore_index must be an int of 64 bits, got {shortened(ignore_index)}"
            )
        if not is_finite(label_smoothing) or not 0 <= label_smoothing <= 1:
            raise ValueError(
                f"{name}: label_smoothing must be a number in [0, 1], got "
                f"{shortened(label_smoothing)}"
            )
        if not is_finite(z_loss) or z_loss < 0:
            raise ValueError(
                f"{name}: z_loss must be a finite number >= 0, got {shortened(z_loss)}"
            )
        constants: dict[str, Any] = {
            "ignore_index": ignored,
            "label_smoothing": float(label_smoothing),
            "z_loss": float(z_loss),
            "reduction": reduction,
        }
        wanted = {"lse": lse, "log_prob": log_prob, "entropy": entropy, "largest": largest}
        wanted.update(correct=correct, inplace=inplace, soft=soft)
        constants.update({key: True for key, one in wanted.items() if check_flag(name, key, one)})
        self.in_place = "inplace" in constants
        self.soft = "soft" in constants
        if self.soft:
            self.row_roles = {"target": Role.VALUE}
            for key in constants.keys() & {"log_prob", "correct"}:
                raise ValueError(f"{name}: {key} is that of a class; leave it out with soft=True")
        self.kept = 2 + (constants["label_smoothing"] > 0) + ("entropy" in constants) + self.soft
        super().__init__(load, store, **constants)
        self._rows: CrossEntropy | None = None
        if reduction != "none":
            self._rows = type(self)(self.load, **{**constants, "reduction": "none"})
        if self.store:
            raise ValueError(
                f"{self.name}: store must be empty, got {list(self.store)!r}: the results are "
                "numbers of rows, which no functor follows; compute with them in torch"
            )

    @property
    def rows(self) -> CrossEntropy:
        """The op that gives one loss a row, which runs the calls."""
        return self if self._rows is None else self._rows

    @property
    def row_operands(self) -> tuple[str, ...]:
        return ("target",)

    @functools.cached_property
    def undifferentiated(self) -> frozenset[str]:
        """The floating operands without a gradient: weights of classes among them."""
        return super().undifferentiated.union(["target"] * self.soft)

    def __call__(self, x: Tensor, /, *others: Any, **arguments: Any) -> Result:
        if others:
            raise TypeError(
                f"{self.name} takes one positional argument, the tensor x, got {1 + len(others)}; "
                "the target, operands and options are given by keyword: target=..."
            )
        target: Any = arguments.get("target")
        plain = type(target) is Tensor and type(x) in (Tensor, torch.nn.Parameter)
        plain = plain and target.device.type == "cpu"
        if self.soft:
            self._check_weights(target)
        elif plain and is_plain():
            self._check_range(x, target, arguments.get("dim"))
        if self.in_place and x.is_leaf and x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{self.name}: x is a leaf that requires grad, whose gradient would take the place "
                "of its values; leave inplace=True out"
            )
        rows = self.rows
        if rows is not self and arguments.get("out") is not None:
            raise ValueError(
                f"{self.name}: out= goes with reduction='none', got it with reduction="
                f"{self.constants['reduction']!r}, which makes one number of all rows; leave it out"
            )
        result = RowOp.__call__(rows, x, **arguments)
        return result if rows is self else self._as_given(result, x.shape, arguments)

    def _check_weights(self, target: Any) -> None:
        """Raise TypeError or ValueError for weights that are a number or have a gradient."""
        if target is not None and not isinstance(target, Tensor):
            raise TypeError(
                f"{self.name}: target must be a tensor with a weight for each class, got "
                f"{type(target).__name__}"
            )
        if target is not None and target.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{self.name}: target requires grad, and weights of classes have no gradient here; "
                "detach() it"
            )

    def _check_range(self, x: Tensor, target: Tensor, dim: Any) -> None:
        """Raise IndexError for a target that is no class, where that is known at no cost."""
        one = isinstance(dim, (tuple, list)) and len(dim) == 1
        at = dim[0] if one else -1 if dim is None else dim
        fits = isinstance(at, int) and -x.dim() <= at < x.dim() and target.dtype in IDS
        if not fits or target.numel() == 0:
            return  # an error of the call's own, or nothing to look at
        least, most = target.aminmax()
        if least.item() >= 0 and most.item() < x.shape[at]:
            return
        target = target.long()
        wrong = ((target < 0) | (target >= x.shape[at])) & ~self.is_ignored(target)
        if bool(wrong.any()):
            raise IndexError(
                f"{self.name}: target {int(target[wrong].flatten()[0])} is no class of x of shape "
                f"{tuple(x.shape)}, whose classes are 0 to {x.shape[at] - 1}; give rows that do "
                f"not count the target {self.constants['ignore_index']}, or say ignore_index="
            )

    def _traced(self, x: Any, operands: dict[str, Any], options: dict[str, Any]) -> Any:
        return super()._traced(x, self._as_wide(x, operands, options.get("dim")), options)

    def explain(self, x: Tensor, /, **arguments: Any) -> Any:
        if is_distributed(x):
            arguments = self._as_wide(x, arguments, arguments.get("dim"))
        return super().explain(x, **arguments)

    def _as_wide(self, x: Any, operands: dict[str, Any], dim: Any) -> dict[str, Any]:
        """The operands with a target that has as many dimensions as x.

        So whoever broadcasts, cuts or guards sizes need not know of targets.
        """
        target: Any = operands.get("target")
        tensors = isinstance(target, Tensor) and isinstance(x, Tensor)
        if tensors and not self.soft and target.dim() == x.dim() - 1:
            at = -1 if dim is None else dim[0] if isinstance(dim, (tuple, list)) else dim
            return {**operands, "target": target.unsqueeze(at)}
        return operands

    def over_rows(
        self, x: Tensor, arguments: dict[str, Any]
    ) -> tuple[RowOp, Tensor, dict[str, Any]]:
        """The call of the op that gives one loss a row."""
        if self.rows is not self:
            return self.rows.over_rows(x, arguments)
        if self.soft:
            self._check_weights(arguments.get("target"))
        return super().over_rows(x, arguments)

    def _as_given(self, result: Any, shape: Sequence[int], options: Mapping[str, Any]) -> Any:
        """The result with the mean or the sum of all rows' losses, which is added in float32."""
        reduction = self.constants["reduction"]
        if reduction == "none":
            return result
        loss, *others = (result,) if isinstance(result, Tensor) else result
        total = loss.sum()
        if not self.soft:
            total = self.reduced(total, options["target"])
        elif reduction == "mean":
            total = total / max(loss.numel(), 1)
        return self.wrap(dict(zip(self.outputs, (total, *others), strict=True)))

    def reduced(self, total: Tensor, target: Tensor) -> Tensor:
        """The sum of all rows' losses, or their mean over the rows that count, of their sum."""
        if self.constants["reduction"] != "mean":
            return total
        counted: Tensor = self.is_counted(target).sum()
        return total / counted

    def ignored(self, *operands: Tensor) -> Tensor | None:
        if self.soft:
            return None
        return self.is_ignored(operands[0])

    def reference(self, value: Tensor, *operands: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if self.soft:
            return self._soft_reference(value, operands[0].to(value.dtype))
        label, ignored = operands[0].long(), self.is_ignored(operands[0])
        known = (label >= 0) & (label < value.shape[-1]) & ~ignored
        value = value.masked_fill(ignored, 0.0)
        gone = value == -torch.inf
        value = torch.where(gone, value.detach(), value)
        empty = gone.all(-1, keepdim=True)
        safe = value.masked_fill(empty, 0.0)
        largest = safe.detach().amax(-1, keepdim=True)
        lse = largest + (safe - largest).exp().sum(-1, keepdim=True).log()
        lse = lse.masked_fill(empty, -torch.inf)
        at = value.gather(-1, torch.where(known, label, 0).expand(*value.shape[:-1], 1))
        at = torch.where(known, at, torch.nan)
        count = (~gone).sum(-1, keepdim=True)
        mean = value.masked_fill(gone, 0.0).sum(-1, keepdim=True) / count
        loss = torch.where(at == -torch.inf, lse - at, self.loss_of(lse - at, lse - mean, lse))
        log_p = (safe - lse.masked_fill(empty, 0.0)).masked_fill(gone, 0.0)
        terms = log_p.exp() * log_p
        entropy = -terms.masked_fill(gone, 0.0).sum(-1, keepdim=True)
        largest = value.detach().amax(-1, keepdim=True)
        found = {
            "loss": loss,
            "lse": lse,
            "log_prob": at - lse,
            "entropy": entropy.masked_fill(empty, torch.nan),
            "largest": largest.where(lse == lse, torch.nan),
            "correct": ((at >= largest) & ~empty & (lse == lse)).to(value.dtype),
        }
        return value, {name: one.masked_fill(ignored, 0.0)[..., 0] for name, one in found.items()}

    def _soft_reference(self, value: Tensor, p: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        gone = value == -torch.inf
        empty = gone.all(-1, keepdim=True)
        lse = torch.logsumexp(value.masked_fill(empty, 0.0), -1, keepdim=True)
        lse = lse.masked_fill(empty, -torch.inf).masked_fill(lse == torch.inf, torch.nan)
        log_p = (value - lse.masked_fill(lse == -torch.inf, 0.0)).masked_fill(gone, 0.0)
        weighed = torch.where(gone & (p != 0), torch.inf, -p * log_p)
        mean = log_p.sum(-1, keepdim=True) / (~gone).sum(-1, keepdim=True)
        loss = self.loss_of(weighed.sum(-1, keepdim=True), -mean, lse)
        entropy = -(log_p.exp() * log_p).masked_fill(gone, 0.0).sum(-1, keepdim=True)
        found = {
            "loss": loss.masked_fill(empty, torch.nan),
            "lse": lse,
            "entropy": entropy.masked_fill(empty, torch.nan),
            "largest": value.detach().amax(-1, keepdim=True).where(lse == lse, torch.nan),
        }
        return value, {name: one[..., 0] for name, one in found.items()}

    def reference_of_nothing(self, value: Tensor, *operands: Tensor) -> Mapping[str, Tensor]:
        if self.soft:
            return super().reference_of_nothing(value, *operands)
        ignored = self.is_ignored(operands[0])[..., 0]
        ignored = ignored.expand(value.shape[:-1])
        nothing = value.new_full(value.shape[:-1], torch.nan).masked_fill(ignored, 0.0)
        return {name: nothing.clone() for name in self.statistics}

    def _cpp(self, *kinds: str) -> str:
        constants = self.constants
        ignored = str(constants["ignore_index"])
        if constants["ignore_index"] == -(2**63):  # no literal
            ignored = f"{1 - 2**63}LL - 1"
        flags = (constants["label_smoothing"] > 0, constants["z_loss"] > 0, "entropy" in constants)
        compute, *operands = kinds
        numbers = [] if self.soft else [ignored]
        return ", ".join((compute, *numbers, *(str(one).lower() for one in flags), *operands))

    def cpp(self, compute: str, *operands: str) -> str:
        return f"{'Soft' * self.soft}CrossEntropy<{self._cpp(compute, *operands)}>"

    def gradient_cpp(self, compute: str, *operands: str) -> str:
        return f"{'Soft' * self.soft}CrossEntropyGradient<{self._cpp(compute, *operands)}>"

    def headers(self, gradient: bool = False) -> Sequence[str]:
        return ["op/soft_cross_entropy.cuh"] if self.soft else super().headers(gradient)

    def gradient_sizes(
        self, value: Tensor, result: Tensor, upstream: Tensor, statistics: Mapping[str, Tensor]
    ) -> Tensor | None:
        share = torch.softmax(value, -1)
        lse = torch.logsumexp(value, -1, keepdim=True).abs()
        sizes = torch.zeros_like(value)
        for name, one in statistics.items():
            size = one[..., None].abs()
            log_p = torch.log_softmax(value, -1).abs().masked_fill(value == -torch.inf, 0.0)
            factor = 1 + 2 * self.constants["z_loss"] * lse
            factor = factor + (2 * log_p + lse if name == "entropy" else 0)
            sizes = sizes + size * (share * factor + 1)
        return sizes

    def statistic_sizes(self, name: str, value: Tensor, statistic: Tensor) -> Tensor:
        there = value.masked_fill(value == -torch.inf, 0.0)
        spread = there.abs().amax(-1)
        sizes = statistic.abs() + spread + float(torch.tensor(value.shape[-1] + 1.0).log()) + 1
        if name == "loss":
            sizes = sizes + self.constants["z_loss"] * sizes.square()
        return sizes * (1 + spread) if name == "entropy" else sizes
