# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The fused row ops: softmax, log-softmax and norms with functors around them.

May import: errors, functors, declare, row_op, masked_rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedops.declare.operator import RowParts, Statistic, WholeRow
from fusedops.errors import shortened
from fusedops.functors import Functor, check_name, is_finite
from fusedops.masked_rows import PresentRows
from fusedops.row_op import RowOp

__all__ = ["L2Norm", "LayerNorm", "LogSoftmax", "RMSNorm", "Softmax"]


def _flag(op: RowOp, name: str, value: object) -> bool:
    """An argument of a declaration that is True or False; raises TypeError for anything else."""
    if not isinstance(value, (bool, int)) or value not in (True, False):
        kind = type(op).__name__
        raise TypeError(f"{kind}: {name} must be True or False, got {shortened(value)}")
    return bool(value)


def _eps(op: RowOp, value: float) -> float:
    """The eps of a norm as a float; raises ValueError if it is negative or not finite."""
    if not is_finite(value) or value < 0:
        kind = type(op).__name__
        raise ValueError(f"{kind}: eps must be a finite number >= 0, got {shortened(value)}")
    return float(value)


def _weighted(parts: Iterable[tuple[Tensor, float]]) -> Tensor:
    """The sum of values by their weights, in order."""
    first, *others = [one * weight for one, weight in parts]
    for one in others:
        first = first + one
    return first


def _with_weights(parts: Tensor, columns: Sequence[int]) -> list[tuple[Tensor, float]]:
    """The numbers of each rank that has columns, and its share of all columns."""
    total = sum(columns)
    pairs = zip(parts.unbind(-2), columns, strict=True)
    return [(one, count / total) for one, count in pairs if count]


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

    Raises:
        TypeError: load or store holds something that is no functor, lse is no bool, sink is no
            name, or an argument is unknown.
        ValueError: empty_row is something else, or a functor has no meaning where it stands.

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
    ) -> None:
        name = type(self).__name__
        if empty_row not in ("zero", "nan"):
            raise ValueError(f"{name}: empty_row must be 'zero' or 'nan', got {empty_row!r}")
        constants: dict[str, Any] = {"empty_row": empty_row}
        if _flag(self, "lse", lse):
            constants["lse"] = True
        if sink is not None:
            check_name(self, "sink", sink)
            constants["sink"] = sink
        super().__init__(load, store, **constants)

    @property
    def from_result(self) -> bool:
        # NaN in an empty row would not tell that the row is masked.
        return bool(self.constants["empty_row"] == "zero")

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
        options = (str("lse" in self.constants).lower(),) if len(self.constants) > 1 else ()
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


class _Norm(RowOp):
    """Base of the norms; masks in the LOAD exclude elements from the row."""

    numbers = ("eps",)
    several_dims = True
    masks = True
    zeroes_masked = True
    #: The C++ struct; its gradient and the two for a LOAD with masks are named after it.
    struct: ClassVar[str]

    def cpp(self, compute: str, *operands: str) -> str:
        return f"{'Masked' * self.masked}{self.struct}<{compute}>"

    def gradient_cpp(self, compute: str, *operands: str) -> str:
        return f"{'Masked' * self.masked}{self.struct}Gradient<{compute}>"

    def headers(self, gradient: bool = False) -> Sequence[str]:
        if self.zeroes:
            return ["op/masked_norm_gradient.cuh" if gradient else "op/masked_norm.cuh"]
        return super().headers(gradient)


class LayerNorm(_Norm):
    """``y = (v - mean) / sqrt(variance + eps)`` over each row of ``v = load(x)``.

    The variance is the biased one. The affine part is a functor of the STORE: `Affine`. Masks in
    the LOAD, such as `Lengths`, leave a row fewer elements: mean and variance are over these, and
    what is masked is 0 in y, whatever the STORE does, and has no gradient. A row of which nothing
    is left is 0. The shapes, dtypes, operands and options of a call ``op(x, ...)`` are described at
    `__call__`.

    Args:
        load: The functors applied to x before the reduction, in order; none by default.
        store: The functors applied to the result before it is written, in order; none by default.
        eps: The number added to the variance, finite and >= 0; 1e-5 by default.
        stats: Whether a call also returns mean and ``rstd = 1 / sqrt(variance + eps)``, one number
            for each row, in float32 (float64 if x or y is float64); False by default.

    Raises:
        TypeError: load or store holds something that is no functor, stats is no bool, or an
            argument is unknown.
        ValueError: eps is out of its range, or a functor has no meaning where it stands.

    >>> import torch, fusedops as fo
    >>> fo.LayerNorm()(torch.tensor([[0.0, 2.0]]))
    tensor([[-1.0000,  1.0000]])
    """

    header = "op/norm.cuh"
    gradient_header = "op/norm_gradient.cuh"
    struct = "LayerNorm"
    kept = 3
    kept_of_masks = 1
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "mean": Statistic("mean"),
        "rstd": Statistic("rstd"),
    }
    centred = True
    #: What a derived class's declaration says of the rows, before eps and stats.
    sizes: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self,
        load: Iterable[Functor] = (),
        store: Iterable[Functor] = (),
        *,
        eps: float = 1e-5,
        stats: bool = False,
    ) -> None:
        super().__init__(
            load, store, **self.sizes, eps=_eps(self, eps), stats=_flag(self, "stats", stats)
        )

    def reference(self, value: Tensor, *operands: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        eps = float(self.constants["eps"])
        if self.zeroes:
            return PresentRows(value, True).normalized(eps=eps, centred=self.centred)
        result, mean, rstd = torch.native_layer_norm(value, value.shape[-1:], None, None, eps)
        return result, {"mean": mean[..., 0], "rstd": rstd[..., 0]}

    @property
    def row_parts(self) -> RowParts | None:
        return RowParts(2, "each row's mean and variance", shift=True)

    def part_numbers(self, value: Tensor) -> Tensor:
        variance, mean = torch.var_mean(value, -1, correction=0, keepdim=True)
        return torch.cat([mean, variance], -1)

    def of_parts(self, here: Tensor, parts: Tensor, columns: Sequence[int]) -> WholeRow:
        # The formula of Chan, Golub and LeVeque (1983) for several parts adds up no large squares.
        weighted = _with_weights(parts, columns)
        means = [(one[..., :1], weight) for one, weight in weighted]
        # Differences from the first mean are small where all are large and close.
        first = means[0][0]
        mean = first + _weighted([(one - first, weight) for one, weight in means])
        spread = [
            (one[..., 1:] + (one[..., :1] - mean).square(), weight) for one, weight in weighted
        ]
        scale = torch.rsqrt(_weighted(spread) + float(self.constants["eps"]))
        return WholeRow(-mean, scale, {"mean": mean[..., 0], "rstd": scale[..., 0]})

    def gradient_sizes(
        self, value: Tensor, result: Tensor, upstream: Tensor, statistics: Mapping[str, Tensor]
    ) -> Tensor | None:
        known = self.reference(value)[1]
        if "rstd" not in known:  # of a class derived from this, which has other statistics
            return None
        rstd = known["rstd"][..., None]
        rows = PresentRows(value, self.zeroes)
        along = result.abs() * rows.mean(upstream * result.abs())
        return rows.within(rstd * (upstream + rows.mean(upstream) + along))

    def statistic_sizes(self, name: str, value: Tensor, statistic: Tensor) -> Tensor:
        if name != "mean":
            return statistic.abs()
        return PresentRows(value, self.zeroes).value.abs().amax(-1)


class RMSNorm(LayerNorm):
    """``y = v / sqrt(mean(v * v) + eps)`` over each row of ``v = load(x)``.

    The arguments are those of `LayerNorm`, but eps, which is added to the mean square, is 1e-6 by
    default. With ``stats=True`` the mean returned is the one that is subtracted, zero, and rstd is
    ``1 / sqrt(mean(v * v) + eps)``. `__call__` describes what a call takes.

    >>> import torch, fusedops as fo
    >>> fo.RMSNorm()(torch.tensor([[3.0, 3.0]]))
    tensor([[1.0000, 1.0000]])
    """

    struct = "RmsNorm"
    kept = 1
    centred = False

    def __init__(
        self,
        load: Iterable[Functor] = (),
        store: Iterable[Functor] = (),
        *,
        eps: float = 1e-6,
        stats: bool = False,
    ) -> None:
        super().__init__(load, store, eps=eps, stats=stats)

    def reference(self, value: Tensor, *operands: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if self.zeroes:
            return super().reference(value)
        rstd = torch.rsqrt(value.square().mean(-1, keepdim=True) + float(self.constants["eps"]))
        of_rows = rstd[..., 0]
        return value * rstd, {"mean": torch.zeros_like(of_rows), "rstd": of_rows}

    @property
    def row_parts(self) -> RowParts | None:
        return RowParts(1, "each row's size")

    def part_numbers(self, value: Tensor) -> Tensor:
        return value.square().mean(-1, keepdim=True)

    def of_parts(self, here: Tensor, parts: Tensor, columns: Sequence[int]) -> WholeRow:
        mean_square = _weighted(_with_weights(parts, columns))
        scale = torch.rsqrt(mean_square + float(self.constants["eps"]))
        known = {"mean": torch.zeros_like(scale[..., 0]), "rstd": scale[..., 0]}
        return WholeRow(scale=scale, statistics=known)


class L2Norm(_Norm):
    """``y = v / max(sqrt(sum(v * v)), eps)`` over each row of ``v = load(x)``.

    As torch.nn.functional.normalize, but a row is NaN where its squares overflow or where it holds
    NaN or Inf. Masks in the LOAD are as for `LayerNorm`. The shapes, dtypes, operands and options
    of a call ``op(x, ...)`` are described at `__call__`.

    Args:
        load: The functors applied to x before the reduction, in order; none by default.
        store: The functors applied to the result before it is written, in order; none by default.
        eps: The least number that a row is divided by, finite and >= 0; 1e-12 by default.
        stats: Whether a call also returns ``norm = sqrt(sum(v * v))``, one number for each row, in
            float32 (float64 if x or y is float64), which has no gradient; False by default.

    Raises:
        TypeError: load or store holds something that is no functor, stats is no bool, or an
            argument is unknown.
        ValueError: eps is out of its range, or a functor has no meaning where it stands.

    >>> import torch, fusedops as fo
    >>> fo.L2Norm()(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """

    header = "op/l2_norm.cuh"
    gradient_header = "op/l2_norm_gradient.cuh"
    struct = "L2Norm"
    kept = 2
    statistics: ClassVar[Mapping[str, Statistic]] = {"norm": Statistic("norm")}

    def __init__(
        self,
        load: Iterable[Functor] = (),
        store: Iterable[Functor] = (),
        *,
        eps: float = 1e-12,
        stats: bool = False,
    ) -> None:
        super().__init__(load, store, eps=_eps(self, eps), stats=_flag(self, "stats", stats))

    def reference(self, value: Tensor, *operands: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        rows = PresentRows(value, self.zeroes)
        norm = torch.linalg.vector_norm(rows.value, dim=-1, keepdim=True)
        norm = norm + (norm - norm).detach()  # NaN where it is infinite
        result = rows.value / norm.clamp_min(self.constants["eps"])
        return rows.within(result), {"norm": norm[..., 0]}

    @property
    def row_parts(self) -> RowParts | None:
        return RowParts(1, "each row's size")

    def part_numbers(self, value: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(value, dim=-1, keepdim=True)
        return length

    def of_parts(self, here: Tensor, parts: Tensor, columns: Sequence[int]) -> WholeRow:
        lengths = torch.cat([one for one, _ in _with_weights(parts, columns)], -1)
        length = torch.linalg.vector_norm(lengths, dim=-1, keepdim=True)
        length = length + (length - length).detach()  # NaN where it is infinite
        scale = length.clamp_min(float(self.constants["eps"])).reciprocal()
        return WholeRow(scale=scale, statistics={"norm": length[..., 0]})

    def gradient_sizes(
        self, value: Tensor, result: Tensor, upstream: Tensor, statistics: Mapping[str, Tensor]
    ) -> Tensor | None:
        along = result.abs() * (upstream * result.abs()).sum(-1, keepdim=True)
        rows = PresentRows(value, self.zeroes)
        norm: Tensor = torch.linalg.vector_norm(rows.value, dim=-1, keepdim=True)
        return (upstream + along) / norm.clamp_min(float(self.constants["eps"]))
