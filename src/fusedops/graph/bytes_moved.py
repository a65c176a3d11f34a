# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Byte model: memory traffic of a region run op by op, against one fused kernel.

- Before: each node reads every tensor that it takes and writes its result. A view is no node of a
  region, a conversion that changes no dtype moves nothing, and neither does a dropout that drops
  nothing. A function of torch that is a reduction counts as one operation.
- After: the kernel reads x and each operand once, and writes y and what it saves.
- The cross entropy of torch counts as a log-softmax and what reads it.
- A tensor counts its elements times its element size, so one that is broadcast counts small.
- A size that is dynamic counts as the example that the graph was captured with.

A region is fused where that is fewer bytes. So a softmax or a norm that stands alone, its weight
and bias included, stays as it is: it moves the same bytes either way, and other compilers have good
kernels for it. Two exceptions are measured, on a GPU:

- alone, rows of 4096 columns and more go 1.3 to 2.3 times as fast forward as through torch.compile,
  and no slower backward; of 1024 columns they are equal
  (benchmarks/results/targets-h200.md);
- a norm of less than 256 columns without a dropout is left, since Inductor has what is around it in
  one kernel as well: a model of 128 columns lost 1 percent of a step (benchmarks/log, 24).

The backward pass is not in the model: its kernel reads and writes the same chain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import fx

from fusedops.graph.nodes import cast_of, dropout_of, example, hint, tensors_of
from fusedops.graph.reductions import Reduction
from fusedops.graph.region import Region

#: Columns from which a plain softmax or norm is faster on a GPU than what torch.compile makes.
LONG = 4096
#: Columns from which a norm with something around it is, where nothing drops.
_WIDE = 256


class Moved(NamedTuple):
    """Bytes that a region moves run op by op, and as one fused kernel."""

    before: int
    after: int


def moved(region: Region[Reduction]) -> Moved:
    """Bytes that the model counts for a region, before and after fusion."""
    before = sum(_bytes([*tensors_of(node), node]) for node in region.nodes if not _idle(node))
    if region.root.kind == "CrossEntropy" and not region.root.inner:
        before += 2 * _bytes([region.root.source])  # a log-softmax, written and read
    outputs = [region.result, *region.saved]
    return Moved(before, _bytes([*region.leaves, *outputs]))


def why_left(region: Region[Reduction], by: Moved) -> str:
    """Why fusing a region does not pay; empty if it does."""
    columns = _gpu_columns(region)
    if by.after >= by.before and not (columns is not None and columns >= LONG):
        return "nothing around it can join" if region.stops else "alone it moves the same bytes"
    norm = region.root.kind.endswith("Norm")
    if norm and columns is not None and columns < _WIDE and not _drops(region):
        return f"norms of less than {_WIDE} columns are as fast otherwise, where nothing drops"
    return ""


def _gpu_columns(region: Region[Reduction]) -> int | None:
    """The static row length of a reduction on a GPU; None on a CPU or if it is dynamic."""
    source, dim = example(region.root.source), region.root.dim
    if source is None or source.device.type != "cuda" or dim is None:
        return None
    columns = math.prod(source.shape[one] for one in dim)
    return columns if isinstance(columns, int) else None


def _drops(region: Region[Reduction]) -> bool:
    return any((drop := dropout_of(node)) is not None and drop[1] > 0 for node in region.nodes)


def _bytes(nodes: Iterable[fx.Node]) -> int:
    return sum(_size(example(node)) for node in nodes)


def _size(tensor: Any) -> int:
    if tensor is None:
        return 0
    count = tensor.element_size()
    for size in tensor.shape:
        count *= hint(size)
    return int(count)


def _idle(node: fx.Node) -> bool:
    drop, cast = dropout_of(node), cast_of(node)
    if drop is not None:
        return drop[1] == 0
    if cast is None:
        return False
    source = example(cast[0])
    return source is not None and source.dtype is cast[1]
