# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""GroupNorm and InstanceNorm: which channels of x make a row, and the checks of that.

May import: errors, functors, bind, channel_norm.
"""

from __future__ import annotations

from collections.abc import Iterable

from fusedops.bind.scalars import read_int
from fusedops.channel_norm import _ChannelNorm
from fusedops.errors import shortened
from fusedops.functors import Functor

__all__ = ["GroupNorm", "InstanceNorm"]


class GroupNorm(_ChannelNorm):
    """``y = (v - mean) / sqrt(variance + eps)`` over each group of channels of ``v = load(x)``.

    x has shape (N, C, ...), as for `torch.nn.GroupNorm`: a row is C / num_groups neighbouring
    channels of a sample with all their spatial dimensions. The variance is the biased one. The
    affine part is a functor of the STORE, ``Affine("gamma", "beta")``: gamma and beta of shape (C,)
    are torch's weight and bias. Any other operand broadcasts against x, one number for each channel
    as (C, 1, 1) where x has two spatial dimensions; so do gamma and beta of other than one
    dimension, such as (N, C, 1, 1).

    A call takes what `__call__` describes, but neither ``dim`` nor ``normalized_shape``. y has x's
    shape and is contiguous. Nothing is copied for an x of contiguous samples; one in
    ``channels_last`` is copied to be so, and `explain` says it.

    Args:
        num_groups: The number of groups into which the channels are cut, at least 1; it divides C.
        load: The functors applied to x before the reduction, in order; none by default.
        store: The functors applied to the result before it is written, in order; none by default.
        eps: The number added to the variance, finite and >= 0; 1e-5 by default.
        stats: Whether a call also returns mean and ``rstd = 1 / sqrt(variance + eps)``, of shape
            (N, num_groups), in float32 (float64 if x or y is float64); False by default.

    Raises:
        TypeError: num_groups is no int, load or store holds something that is no functor, stats is
            no bool, or an argument is unknown.
        ValueError: num_groups or eps is out of its range, or a functor has no meaning where it
            stands. A call: num_groups does not divide the channels of x, or a shape does not fit.

    >>> import torch, fusedops as fo
    >>> op = fo.GroupNorm(2, store=[fo.Affine("gamma", "beta")])
    >>> x = torch.tensor([[[0.0], [2.0], [3.0], [7.0]]])
    >>> op(x, gamma=torch.ones(4), beta=torch.tensor([0.0, 0.0, 3.0, 3.0]))[0, :, 0]
    tensor([-1.0000,  1.0000,  2.0000,  4.0000])
    """

    def __init__(
        self,
        num_groups: int,
        load: Iterable[Functor] = (),
        store: Iterable[Functor] = (),
        *,
        eps: float = 1e-5,
        stats: bool = False,
    ) -> None:
        number = read_int(num_groups)
        if number is None:
            raise TypeError(f"GroupNorm: num_groups must be an int, got {shortened(num_groups)}")
        if number < 1:
            raise ValueError(f"GroupNorm: num_groups must be at least 1, got {number}")
        self.sizes = {"num_groups": number}
        super().__init__(load, store, eps=eps, stats=stats)

    def _groups(self, channels: int) -> int:
        groups = int(self.sizes["num_groups"])
        if channels % groups:
            raise ValueError(
                f"{self.name}: the {channels} channels of x, its dimension 1, must be a multiple "
                f"of num_groups, got num_groups={groups}; declare a number of groups that divides "
                f"{channels}"
            )
        return groups


class InstanceNorm(_ChannelNorm):
    """``y = (v - mean) / sqrt(variance + eps)`` over each channel of ``v = load(x)``.

    x has shape (N, C, ...), as for `torch.nn.InstanceNorm2d` and its kin: a row is one channel of a
    sample with all its spatial dimensions, of which there is at least one. Statistics are those of
    the call; there are no running ones. All else is as for `GroupNorm`, of which it is the case of
    one channel a group: gamma and beta of `Affine` have shape (C,), the statistics (N, C). An x in
    ``channels_last`` is read in place, its columns C elements apart.

    >>> import torch, fusedops as fo
    >>> fo.InstanceNorm()(torch.tensor([[[0.0, 2.0], [5.0, 1.0]]]))
    tensor([[[-1.0000,  1.0000],
             [ 1.0000, -1.0000]]])
    """

    together = False
    _fewest = 3
    _shape = "(N, C, *spatial), with a spatial dimension"

    def _groups(self, channels: int) -> int:
        return channels
