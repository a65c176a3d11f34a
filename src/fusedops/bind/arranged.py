# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The order of dimensions in which several reduced ones can be made one: the reduced ones last."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor


def order(rank: int, reduced: Sequence[int]) -> list[int]:
    """The dimensions of x in that order."""
    return [dim for dim in range(rank) if dim not in reduced] + list(reduced)


def arranged(tensor: Tensor, shape: Sequence[int], reduced: Sequence[int]) -> Tensor:
    """A view of a tensor that broadcasts against x's shape, its dimensions in that order.

    A tensor that is broadcast over some of the reduced dimensions, but not over the innermost ones
    alone, is expanded to all of them.
    """
    full = tensor[(None,) * (len(shape) - tensor.dim())]
    if not shares_neighbours([full.shape[dim] != 1 for dim in reduced]):
        full = full.expand([size if dim in reduced else -1 for dim, size in enumerate(shape)])
    return full.permute(order(len(shape), reduced))


def shares_neighbours(held: Sequence[bool]) -> bool:
    """Whether the columns that share an element are neighbours, which a kernel reads in place.

    `held` says of each reduced dimension, ascending, whether the operand has it in a size other
    than 1; the dimensions that it does not have so must be the last.
    """
    return not any(inner and not outer for outer, inner in itertools.pairwise(held))


def restored(tensor: Tensor, reduced: Sequence[int]) -> Tensor:
    """A view of an arranged tensor of x's shape, its dimensions in x's order again."""
    there = order(tensor.dim(), reduced)
    return tensor.permute([there.index(dim) for dim in range(len(there))])
