# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of a table that is looked up: sums over equal indices, in a fixed order.

A backward kernel writes the gradient of every element of the index. Here the elements are put into
the order of their indices by a stable sort, cut into blocks of `BLOCK` neighbours with the same
index, and summed block by block; then the blocks' sums likewise, until each entry has one. No sum
depends on the order in which threads run, and no size depends on the indices: nothing waits for the
device. torch's own `index_add` and `index_put` add by atomics on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fusedops.bind.tables import contribution_sizes

if TYPE_CHECKING:
    from fusedops.functors import TableOf

#: The most numbers that are added up at a time.
BLOCK = 64


def of_table(
    each: Tensor, index: Tensor, table: TableOf, shape: Sequence[int], rank: int
) -> Tensor:
    """The gradient of a table of this shape from that of each element of the index.

    Args:
        each: The gradients of what was looked up, in the shape of `bind.tables.contribution_sizes`,
            or in x's shape where the rows that share them are not those that a block works on.
        index: The index.
        table: The table and its dimension of x.
        shape: The shape of the table.
        rank: The number of x's dimensions.
    """
    entries, heads = shape[0], shape[1] if len(shape) > 1 else 1
    each = each.sum_to_size(contribution_sizes(table, shape, index.shape, rank))
    each = each[(None,) * (rank - each.dim())]
    index = index[(None,) * (rank - index.dim())].long()
    if heads > 1:
        assert table.dim is not None
        each = each.movedim(table.dim, 0)
        index = index.movedim(table.dim, 0)
        if index.shape[0] > 1:  # each head has indices of its own, and so entries of its own
            own = torch.arange(heads, device=index.device).view(-1, *[1] * (rank - 1))
            known = (index >= 0) & (index < entries)
            index = torch.where(known, index + own * entries, -1)
            summed = sorted_sums(each.reshape(1, -1), index.reshape(-1), heads * entries)
            return summed.view(heads, entries).t().reshape(shape)
        summed = sorted_sums(each.reshape(heads, -1), index.reshape(-1), entries)
        return summed.t().reshape(shape)
    return sorted_sums(each.reshape(1, -1), index.reshape(-1), entries).reshape(shape)


def sorted_sums(each: Tensor, index: Tensor, entries: int) -> Tensor:
    """For each entry the sum of the columns whose index it is; of other indices nothing is added.

    `each` has shape (rows, columns), `index` (columns,), and the sums (rows, entries).
    """
    if not index.numel():
        return each.new_zeros(each.shape[0], entries)
    ordered, order = torch.sort(index, stable=True)
    numbers = torch.arange(entries, device=index.device)
    # Of each entry, where it begins and ends among the values that are left to be summed.
    begin = torch.searchsorted(ordered, numbers)
    end = torch.searchsorted(ordered, numbers, right=True)
    longest = index.numel()
    values, places = each, order
    while longest > 1:
        blocks = (end - begin + (BLOCK - 1)) // BLOCK
        last = blocks.cumsum(0)
        # No entry has more blocks than full ones and one that is not.
        count = min(values.shape[1] // BLOCK + entries, values.shape[1])
        number = torch.arange(count, device=index.device)
        entry = torch.searchsorted(last, number, right=True).clamp_(max=entries - 1)
        first = begin[entry] + (number - (last - blocks)[entry]) * BLOCK
        at = first[:, None] + torch.arange(BLOCK, device=index.device)
        inside = (at < end[entry][:, None]) & (number < last[-1])[:, None]
        at = torch.where(inside, at, 0)
        taken = values[:, places[at]]
        values = torch.where(inside, taken, 0).sum(-1)
        places = torch.arange(count, device=index.device)
        begin, end = last - blocks, last
        longest = -(-longest // BLOCK)
    held = begin < end
    taken = values[:, places[torch.where(held, begin, 0)]]
    return torch.where(held, taken, 0)
