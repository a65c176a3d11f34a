# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows without a STORE, as steps have them, by one kernel where it is faster.

Without gradients an empty STORE is planned as any other one (`grouped`). Here are the products of
forward passes with gradients, and those of the gradient of x.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops.generate.target import Target
from fusedops.jit import env
from fusedops.plan.planned import Planned
from fusedops.plan.planner import plan
from fusedops.product.choice import Choice
from fusedops.product.epilogue import Epilogue
from fusedops.product.grouped_kernel import GroupedProduct, bind_groups, chosen_for_groups
from fusedops.product.kernel_or_torch import KernelOrTorch

__all__ = ["RECORDED", "WITHOUT", "chosen_without_store", "without_store"]

#: Why torch multiplies where calls are recorded.
RECORDED = "calls are recorded, and no list of kernels has those of groups"
#: And where a kernel could not be built.
WITHOUT = "one kernel could not be had, as a warning said"

_NAME = "GroupedLinear"
_EMPTY = Epilogue(_NAME, ())


class _WithoutStore(KernelOrTorch):
    """``x[group] @ w[group].T`` by one kernel.

    Args:
        moves: Whether a call says where each row goes.
        ends: Whether a call says where groups end, else where they begin and the last one ends.
    """

    def __init__(self, moves: bool, ends: bool) -> None:
        super().__init__(_NAME, "torch's grouped product runs")
        self.moves, self.ends = moves, ends
        names = ["offsets", *["to"] * moves, "w"]
        self.slots = {name: number for number, name in enumerate(names, 1)}
        slots = [(name, _runtime.SLOT_TENSOR) for name in names]
        self.call = self.dispatcher(slots, label=f"{_NAME}()")

    def planned(self, x: Any, operands: dict[str, Any]) -> Planned | None:
        """The kernel of a call; None where torch has to run."""
        w, offsets = operands["w"], operands["offsets"]
        tiling = chosen_without_store(x, w).tiling
        bound = None if tiling is None else bind_groups(_EMPTY, x, w, {}, (), None)
        if tiling is None or bound is None or len(offsets) != len(w) + (not self.ends):
            return None
        given = bound, x, w, offsets, self.slots, None, False, tiling
        return plan(GroupedProduct(*given, ends=self.ends, moves=self.moves))


@functools.cache
def _op(moves: bool, ends: bool) -> _WithoutStore:
    return _WithoutStore(moves, ends)


def without_store(
    x: Tensor, w: Tensor, offsets: Tensor, to: Tensor | None = None, *, ends: bool
) -> Tensor | None:
    """The product of each group of rows, by one kernel; None where torch's is to be taken.

    Args:
        x: The rows, of shape (T, K).
        w: A matrix for each group, of shape (E, N, K).
        offsets: Where the groups are.
        to: The row of the result that each row of x makes, each once, as int64 of shape (T,); the
            same one if it is not given.
        ends: Whether offsets are where each group ends, of shape (E,), else where each begins and
            the last one ends, (E + 1,).
    """
    if torch.compiler.is_compiling() or not x.is_cuda:
        return None
    op = _op(to is not None, ends)
    if not op.available:
        return None
    places = {} if to is None else {"to": to}
    result: Tensor | None = op.call(x, offsets=offsets, w=w, **places)
    return result


def chosen_without_store(x: Tensor, w: Tensor) -> Choice:
    """How such a product is run, as far as sizes and dtypes decide it."""
    if env.record_file() is not None:
        return Choice(None, RECORDED)
    if not _op(moves=False, ends=True).available:
        return Choice(None, WITHOUT)
    # A backward pass has the dtype of its product, whatever autocast says by then.
    return chosen_for_groups(_EMPTY, x, w, {}, 1, Target.of(x.device), x.dtype)
