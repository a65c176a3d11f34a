# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Softmax and log-softmax over each row, with functors before and after them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedops.declare.operator import RowParts, Statistic, WholeRow
from fusedops.errors import check_flag
from fusedops.functors import Functor, check_name
from fusedops.row_op import RowOp


class Softmax(RowOp):
    """``y_i = exp(v_i - max v) / sum_j exp(v_j - max v)`` over each row of ``v = load(x)``.

    The shapes, dtypes, operands and options of a call ``op(x, ...)`` are described at `__call__`.

    Args:
        load: The functors applied to x before the reduction, in order; none by default.
        store: The functors applied to the result before it is written, in order; none by default.
        empty_row: What a row whose maximum is -inf gives, say a fully masked one: ``"zero"``, the
            default, gives zeros, and ``"nan"`` gives torch's answer, NaN.
        lse: Whether a call also returns ``lse = log(sum_j exp(v_j))``, one number for each row, of
            x's shape without the reduced dimension, in float32 (float64 if x or y is float64). It
            is differentiable; -inf for an empty row, which has no gradient, and NaN for a row that
            holds NaN or +inf. False by default.
        sink: The name of an operand that is one more logit of each row, s, as attention sinks are:
            it takes part in maximum and sum (and so in lse), and has no column in y. A call gives
            it as a number, or as a tensor that broadcasts against x and has size 1 in the reduced
            dimension: shape (heads, 1, 1) for an x of shape (batch, heads, queries, keys). It has a
            gradient. A sink of -inf is as none. None, the default, for no sink.
        save_result: Whether the backward pass reads y as it was returned, rounded to its dtype, in
            place of x, as torch's softmax does: it computes ``dx_i = y_i (g_i - sum_j g_j y_j)`` of
            that y and the incoming gradient g. With d_i half an ulp of y_i in y's dtype, dx_i
            is then off by up to ``d_i |g_i - sum_j g_j y_j| + (y_i + d_i) sum_j |g_j| d_j`` beside
            its own rounding. x can be freed, and no exponentials are computed again. A y of float32
            or float64 is read in any case. Without functors alone. False by default.

    Raises:
        TypeError: load or store holds something that is no functor, lse or save_result is no bool,
            sink is no name, or an argument is unknown.
        ValueError: empty_row is something else, a functor has no meaning where it stands, or
            save_result is True with functors or with ``empty_row="nan"``, or in a `LogSoftmax`.

    >>> import torch, fusedops as fo
    >>> op = fo.Softmax(load=[fo.Scale("scale"), fo.Mask("m")])
    >>> op(torch.zeros(1, 3), scale=0.5, m=torch.tensor([False, False, True]))
    tensor([[0.5000, 0.5000, 0.0000]])
    >>> fo.Softmax(lse=True, sink="s")(torch.zeros(1, 3), s=0.0)
    SoftmaxResult(y=tensor([[0.2500, 0.2500, 0.2500]]), lse=tensor([1.3863]))
    """

    header = "op/softmax.cuh"
    gradient_header = "op/softmax_gradient.cuh"
    kept = 2
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "lse": Statistic("lse", option="lse", differentiable=True)
    }
    masks = True
    gradient_schedule = "softmax"

    def __init__(
        self,
        load: Iterable[Functor] = (),
        store: Iterable[Functor] = (),
        *,
        empty_row: str = "zero",
        lse: bool = False,
        sink: str | None = None,
        save_result: bool = False,
    ) -> None:
        name = type(self).__name__
        if empty_row not in ("zero", "nan"):
            raise ValueError(f"{name}: empty_row must be 'zero' or 'nan', got {empty_row!r}")
        constants: dict[str, Any] = {"empty_row": empty_row}
        if check_flag(name, "lse", lse):
            constants["lse"] = True
        if sink is not None:
            check_name(self, "sink", sink)
            constants["sink"] = sink
        if check_flag(name, "save_result", save_result):
            constants["save_result"] = True
        super().__init__(load, store, **constants)
        if save_result:
            self._check_result()

    def _check_result(self) -> None:
        """Raises a ValueError where the gradient does not follow from y as it is returned."""
        reason = ""
        if self.logarithmic:
            reason = "an error of y is one of the exponent: use Softmax, or leave it away"
        elif self.load or self.store:
            reason = "y is not the result of the softmax alone: leave it or the functors away"
        elif not self.from_result:
            reason = "a row of NaN does not tell what is masked: use empty_row='zero'"
        if reason:
            raise ValueError(f"{type(self).__name__}: save_result must be False here, for {reason}")

    @property
    def from_result(self) -> bool:
        # NaN in an empty row would not tell that the row is masked.
        return bool(self.constants["empty_row"] == "zero")

    @property
    def from_rounded_result(self) -> bool:
        return "save_result" in self.constants

    @property
    def row_operands(self) -> tuple[str, ...]:
        return (self.constants["sink"],) if "sink" in self.constants else ()

    def reads(self, wanted: Collection[str]) -> tuple[str, ...]:
        return tuple(name for name in self.row_operands if name in wanted)

    def reference(self, value: Tensor, *operands: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        columns = value.shape[-1]
        sinks = [sink.expand(*value.shape[:-1], 1) for sink in operands]
        value = torch.cat([value, *sinks], -1) if sinks else value
        gone = value == -torch.inf
        empty = gone.all(-1, keepdim=True)
        # What has left the row has no gradient and hands none on, by selection: on its way in, and
        # on its way out.
        safe = value.masked_fill(gone, -torch.inf).masked_fill(empty, 0.0)
        result = torch.log_softmax(safe, -1) if self.logarithmic else torch.softmax(safe, -1)
        result = torch.where(gone, result.detach(), result)
        statistics = {}
        if self.constants.get("lse"):
            largest = safe.detach().amax(-1, keepdim=True)
            lse = largest + (safe - largest).exp().sum(-1, keepdim=True).log()
            statistics["lse"] = lse.masked_fill(empty, -torch.inf)[..., 0]
        filler = (
            torch.nan
            if self.constants["empty_row"] == "nan"
            else -torch.inf
            if self.logarithmic
            else 0.0
        )
        return result.masked_fill(empty, filler)[..., :columns], statistics

    @property
    def row_parts(self) -> RowParts | None:
        if self.logarithmic and self.masked:
            return None  # an empty part would be -inf less -inf
        own = {**self.constants, "lse": True, "empty_row": "zero"}
        own.pop("save_result", None)
        log = self.logarithmic
        return RowParts(1, "the logarithm of each row's sum", shift=log, scale=not log, own=own)

    def of_parts(self, here: Tensor, parts: Tensor, columns: Sequence[int]) -> WholeRow:
        # A softmax of part of a row is that of the whole but for a factor.
        total = torch.logsumexp(parts, -2)
        known = {"lse": total[..., 0]}
        if self.logarithmic:
            return WholeRow(shift=here - total, statistics=known)
        empty = total == -torch.inf
        factor = torch.where(empty, 0.0, here - torch.where(empty, 0.0, total)).exp()
        if self.constants["empty_row"] == "nan":
            factor = torch.where(empty, torch.nan, factor)
        return WholeRow(scale=factor, statistics=known)

    def reference_of_nothing(self, value: Tensor, *operands: Tensor) -> dict[str, Tensor]:
        rows = value.shape[:-1]
        for sink in operands:
            return {"lse": sink.expand(*rows, 1)[..., 0].clone()}
        return {"lse": value.new_full(rows, -torch.inf)}

    def cpp(self, compute: str, *operands: str) -> str:
        log = str(self.logarithmic).lower()
        nan = str(self.constants["empty_row"] == "nan").lower()
        has_options = "lse" in self.constants or "sink" in self.constants
        options = (str("lse" in self.constants).lower(),) if has_options else ()
        return f"Softmax<{', '.join((compute, log, nan, *options, *operands))}>"

    def gradient_cpp(self, compute: str, *operands: str) -> str:
        *sink, of_lse = operands
        if not sink:
            operands = () if of_lse == "Absent" else ("NoOperand", of_lse)
        return self.cpp(compute, *operands).replace("Softmax", "SoftmaxGradient", 1)

    def gradient_sizes(
        self, value: Tensor, result: Tensor, upstream: Tensor, statistics: Mapping[str, Tensor]
    ) -> Tensor | None:
        if self.logarithmic:
            share = result.exp()
            sizes = upstream + share * upstream.square().sum(-1, keepdim=True).sqrt()
        else:
            share = result
            sizes = share * (upstream + (share * upstream).sum(-1, keepdim=True))
        for of_lse in statistics.values():
            sizes = sizes + share * of_lse[..., None]
        return sizes

    def statistic_sizes(self, name: str, value: Tensor, statistic: Tensor) -> Tensor:
        # Maximum and logarithm of the sum, which is at most the number of terms.
        return statistic.abs() + math.log(value.shape[-1] + 1) + 1


class LogSoftmax(Softmax):
    """``y_i = v_i - max v - log(sum_j exp(v_j - max v))`` over each row of ``v = load(x)``.

    The arguments are those of `Softmax`, but a row whose maximum is -inf gives -inf by default, and
    NaN, torch's answer, with ``empty_row="nan"``. A sink is part of the logarithm's sum.
    `__call__` describes what a call takes.

    >>> import torch, fusedops as fo
    >>> fo.LogSoftmax()(torch.zeros(1, 2))
    tensor([[-0.6931, -0.6931]])
    """

    logarithmic = True
