# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Norms of each row, with functors before and after them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from fusedops.declare.operator import RowParts, Statistic, WholeRow
from fusedops.errors import check_flag, shortened
from fusedops.functors import Functor, is_finite
from fusedops.row_op import RowOp


class PresentRows:
    """The rows of a tensor without their masked elements, which are zero, and zero in any result.

    Attributes:
        count: How many elements of each row are left, of size 1 in the last dimension.
        value: The rows, with 0 for what is masked.
    """

    def __init__(self, value: Tensor, masked: bool) -> None:
        """`masked` says whether there are masks; otherwise -inf is a value like any other."""
        present = value != -torch.inf if masked else torch.ones_like(value, dtype=torch.bool)
        self._present = present if masked else None
        self.count = present.sum(-1, keepdim=True).to(value.dtype)
        self.value = self.within(value)

    def within(self, value: Tensor) -> Tensor:
        """A tensor of the rows' shape with zeros where they are masked, by selection."""
        if self._present is None:
            return value
        return torch.where(self._present, value, torch.zeros_like(value))

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the unmasked elements of each row; NaN if there are none."""
        return self.within(value).sum(-1, keepdim=True) / self.count

    def normalized(self, *, eps: float, centred: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """A LayerNorm, or an RMSNorm where it is not centred: the result, and mean and rstd."""
        mean = self.mean(self.value)
        apart = self.value
        if centred:
            apart = self.within(apart - mean)
            # The rounding of a mean far above the deviations would show in all of them.
            apart = self.within(apart - self.mean(apart))
        rstd = torch.rsqrt(self.mean(apart.square()) + eps)
        of_rows = mean[..., 0] if centred else torch.zeros_like(rstd[..., 0])
        return self.within(apart * rstd), {"mean": of_rows, "rstd": rstd[..., 0]}


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


class _Norm(RowOp):
    """Base of the norms; masks in the LOAD exclude elements from the row."""

    numbers = ("eps",)
    several_dims = True
    masks = True
    zeroes_masked = True
    pairs = True
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
            load,
            store,
            **self.sizes,
            eps=_eps(self, eps),
            stats=check_flag(type(self).__name__, "stats", stats),
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
        super().__init__(
            load, store, eps=_eps(self, eps), stats=check_flag(type(self).__name__, "stats", stats)
        )

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
