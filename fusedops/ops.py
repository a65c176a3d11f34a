# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The fused row ops: softmax, log-softmax, LayerNorm and RMSNorm with functors around them.

May import: errors, functors, declare, row_op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from fusedops.declare.operator import Statistic
from fusedops.errors import shortened
from fusedops.functors import Functor, is_finite
from fusedops.row_op import RowOp

__all__ = ["LayerNorm", "LogSoftmax", "RMSNorm", "Softmax"]


class Softmax(RowOp):
    """``y_i = exp(v_i - max v) / sum_j exp(v_j - max v)`` over each row of ``v = load(x)``.

    The shapes, dtypes, operands and options of a call ``op(x, ...)`` are described at `RowOp`.

    Args:
        load: The functors applied to x before the reduction, in order; none by default.
        store: The functors applied to the result before it is written, in order; none by default.
        empty_row: What a row whose maximum is -inf gives, say a fully masked one: ``"zero"``, the
            default, gives zeros, and ``"nan"`` gives torch's answer, NaN.

    Raises:
        TypeError: load or store holds something that is no functor, or an argument is unknown.
        ValueError: empty_row is something else, or a functor has no meaning where it stands.

    >>> import torch, fusedops as fo
    >>> op = fo.Softmax(load=[fo.Scale("scale"), fo.Mask("m")])
    >>> op(torch.zeros(1, 3), scale=0.5, m=torch.tensor([False, False, True]))
    tensor([[0.5000, 0.5000, 0.0000]])
    """

    header = "op/softmax.cuh"
    gradient_header = "op/softmax_gradient.cuh"
    kept = 2
    masks = True
    gradient_schedule = "softmax"

    def __init__(
        self,
        load: Iterable[Functor] = (),
        store: Iterable[Functor] = (),
        *,
        empty_row: str = "zero",
    ) -> None:
        if empty_row not in ("zero", "nan"):
            raise ValueError(
                f"{type(self).__name__}: empty_row must be 'zero' or 'nan', got {empty_row!r}"
            )
        super().__init__(load, store, empty_row=empty_row)

    def reference(self, value: Tensor, *operands: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        gone = value == -torch.inf
        empty = gone.all(-1, keepdim=True)
        # What has left the row has no gradient and hands none on, by selection: on its way in, and
        # on its way out.
        safe = value.masked_fill(gone, -torch.inf).masked_fill(empty, 0.0)
        result = torch.log_softmax(safe, -1) if self.logarithmic else torch.softmax(safe, -1)
        result = torch.where(gone, result.detach(), result)
        filler = (
            torch.nan
            if self.constants["empty_row"] == "nan"
            else -torch.inf
            if self.logarithmic
            else 0.0
        )
        return result.masked_fill(empty, filler), {}

    def cpp(self, compute: str, *operands: str) -> str:
        log = str(self.logarithmic).lower()
        nan = str(self.constants["empty_row"] == "nan").lower()
        return f"Softmax<{compute}, {log}, {nan}>"

    def gradient_cpp(self, compute: str, *operands: str) -> str:
        return self.cpp(compute, *operands).replace("Softmax", "SoftmaxGradient")

    def gradient_sizes(
        self, value: Tensor, result: Tensor, upstream: Tensor, statistics: Mapping[str, Tensor]
    ) -> Tensor | None:
        if self.logarithmic:
            return upstream + result.exp() * upstream.square().sum(-1, keepdim=True).sqrt()
        return result * (upstream + (result * upstream).sum(-1, keepdim=True))


class LogSoftmax(Softmax):
    """``y_i = v_i - max v - log(sum_j exp(v_j - max v))`` over each row of ``v = load(x)``.

    The arguments are those of `Softmax`, but a row whose maximum is -inf gives -inf by default, and
    NaN, torch's answer, with ``empty_row="nan"``. `RowOp` describes what a call takes.

    >>> import torch, fusedops as fo
    >>> fo.LogSoftmax()(torch.zeros(1, 2))
    tensor([[-0.6931, -0.6931]])
    """

    logarithmic = True


class LayerNorm(RowOp):
    """``y = (v - mean) / sqrt(variance + eps)`` over each row of ``v = load(x)``.

    The variance is the biased one. The affine part is a functor of the STORE: `Affine`. The shapes,
    dtypes, operands and options of a call ``op(x, ...)`` are described at `RowOp`.

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
    kept = 3
    numbers = ("eps",)
    statistics: ClassVar[Mapping[str, Statistic]] = {
        "mean": Statistic("mean"),
        "rstd": Statistic("rstd"),
    }
    several_dims = True
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
        if not is_finite(eps) or eps < 0:
            raise ValueError(
                f"{type(self).__name__}: eps must be a finite number >= 0, got {shortened(eps)}"
            )
        if stats not in (True, False):
            raise TypeError(
                f"{type(self).__name__}: stats must be True or False, got {shortened(stats)}"
            )
        super().__init__(load, store, **self.sizes, eps=float(eps), stats=bool(stats))

    def reference(self, value: Tensor, *operands: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        eps = float(self.constants["eps"])
        result, mean, rstd = torch.native_layer_norm(value, value.shape[-1:], None, None, eps)
        return result, {"mean": mean[..., 0], "rstd": rstd[..., 0]}

    def cpp(self, compute: str, *operands: str) -> str:
        return f"LayerNorm<{compute}>"

    def gradient_cpp(self, compute: str, *operands: str) -> str:
        return f"LayerNormGradient<{compute}>"

    def gradient_sizes(
        self, value: Tensor, result: Tensor, upstream: Tensor, statistics: Mapping[str, Tensor]
    ) -> Tensor | None:
        rstd = self.reference(value)[1]["rstd"][..., None]
        along = result.abs() * (upstream * result.abs()).mean(-1, keepdim=True)
        return rstd * (upstream + upstream.mean(-1, keepdim=True) + along)

    def statistic_sizes(self, name: str, value: Tensor, statistic: Tensor) -> Tensor:
        return value.abs().amax(-1) if name == "mean" else statistic.abs()


class RMSNorm(LayerNorm):
    """``y = v / sqrt(mean(v * v) + eps)`` over each row of ``v = load(x)``.

    The arguments are those of `LayerNorm`, but eps, which is added to the mean square, is 1e-6 by
    default. With ``stats=True`` the mean returned is the one that is subtracted, zero, and rstd is
    ``1 / sqrt(mean(v * v) + eps)``. `RowOp` describes what a call takes.

    >>> import torch, fusedops as fo
    >>> fo.RMSNorm()(torch.tensor([[3.0, 3.0]]))
    tensor([[1.0000, 1.0000]])
    """

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
        rstd = torch.rsqrt(value.square().mean(-1, keepdim=True) + float(self.constants["eps"]))
        of_rows = rstd[..., 0]
        return value * rstd, {"mean": torch.zeros_like(of_rows), "rstd": of_rows}

    def cpp(self, compute: str, *operands: str) -> str:
        return f"RmsNorm<{compute}>"

    def gradient_cpp(self, compute: str, *operands: str) -> str:
        return f"RmsNormGradient<{compute}>"
