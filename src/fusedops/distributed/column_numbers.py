# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of a norm's row of which ranks have parts: those of a part, and those of the whole.

They are merged in the order of the ranks, so that all ranks have the same bits: mean and variance
by Chan's formula for several parts (Chan, Golub, LeVeque 1983), which adds up no large squares,
mean squares by their weights, and lengths as the length of the vector of lengths. It is plain
torch, and torch differentiates it; Dynamo traces it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fusedops.distributed.column_parts import SCALE, SHIFT

__all__ = ["of_part", "of_whole"]


def of_part(name: str, value: Tensor, numbers: int) -> Tensor:
    """The numbers of each row of `value`, in a last dimension of their own."""
    if value.shape[-1] == 0:
        # Of no weight in the whole; made of the value, since all ranks must have the same graph.
        return value.sum(-1, keepdim=True).expand(*value.shape[:-1], numbers)
    if name == "LayerNorm":
        variance, mean = torch.var_mean(value, -1, correction=0, keepdim=True)
        return torch.cat([mean, variance], -1)
    if name == "RMSNorm":
        return value.square().mean(-1, keepdim=True)
    length: Tensor = torch.linalg.vector_norm(value, dim=-1, keepdim=True)
    return length


def of_whole(
    name: str, numbers: Sequence[Tensor], columns: Sequence[int], eps: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What the second kernel takes, by operand, and the statistics of the whole row, by name.

    Args:
        name: The name of the op.
        numbers: Those of all parts, one tensor for each, whose last dimension holds them.
        columns: How many columns each part has.
        eps: The op's.
    """
    total = sum(columns)
    parts = [(one, count / total) for one, count in zip(numbers, columns, strict=True) if count]
    if name == "L2Norm":
        lengths = torch.cat([one for one, _ in parts], -1)
        length = torch.linalg.vector_norm(lengths, dim=-1, keepdim=True)
        length = length + (length - length).detach()  # NaN where it is infinite
        return {SCALE: length.clamp_min(eps).reciprocal()}, {"norm": length[..., 0]}
    if name == "RMSNorm":
        scale = torch.rsqrt(_weighted(parts) + eps)
        return {SCALE: scale}, {"mean": torch.zeros_like(scale[..., 0]), "rstd": scale[..., 0]}
    means = [(one[..., :1], weight) for one, weight in parts]
    # Differences from the first mean are small where all are large and close.
    first = means[0][0]
    mean = first + _weighted([(one - first, weight) for one, weight in means])
    spread = [(one[..., 1:] + (one[..., :1] - mean).square(), weight) for one, weight in parts]
    scale = torch.rsqrt(_weighted(spread) + eps)
    return {SHIFT: -mean, SCALE: scale}, {"mean": mean[..., 0], "rstd": scale[..., 0]}


def _weighted(parts: Sequence[tuple[Tensor, float]]) -> Tensor:
    """The sum of values by their weights, in order."""
    first, *others = [one * weight for one, weight in parts]
    for one in others:
        first = first + one
    return first
