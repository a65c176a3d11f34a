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
from fusedops._runtime import Delegate, Plan, Reason
from fusedops.bind.generator import draw
from fusedops.generate.target import Target
from fusedops.jit import env
from fusedops.plan.planner import plan
from fusedops.product.choice import Choice
from fusedops.product.epilogue import Epilogue
from fusedops.product.grouped_kernel import GroupedProduct, bind_groups, chosen_for_groups
from fusedops.product.product_kernel import build_or_warn, by_none

__all__ = ["RECORDED", "WITHOUT", "chosen_without_store", "left_to_torch", "without_store"]

#: Why torch multiplies where calls are recorded.
RECORDED = "calls are recorded, and no list of kernels has those of groups"
#: And where a kernel could not be built.
WITHOUT = "one kernel could not be had, as a warning said"

_NAME = "GroupedLinear"
_EMPTY = Epilogue(_NAME, ())


class _WithoutStore:
    """``x[group] @ w[group].T`` by one kernel, chosen and planned once for each kind of call.

    Args:
        moves: Whether a call says where each row goes.
        ends: Whether a call says where groups end, else where they begin and the last one ends.
    """

    def __init__(self, moves: bool, ends: bool) -> None:
        self.available = True
        self.moves, self.ends = moves, ends
        names = ["offsets", *["to"] * moves, "w"]
        slots = [(name, _runtime.SLOT_TENSOR) for name in names]
        self.slots = {name: number for number, (name, _) in enumerate(slots, 1)}
        how = functools.partial(draw, op=_NAME)
        self.call = _runtime.Dispatcher(_NAME, slots, self._slow, how, label=f"{_NAME}()")

    def _slow(
        self, reason: Reason, x: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Plan | Delegate | None:
        if reason is not Reason.MISS:
            return None
        w, offsets = operands["w"], operands["offsets"]
        tiling = chosen_without_store(x, w).tiling
        bound = None if tiling is None else bind_groups(_EMPTY, x, w, {}, (), None)
        if tiling is None or bound is None or len(offsets) != len(w) + (not self.ends):
            return left_to_torch()
        given = bound, x, w, offsets, self.slots, None, False, tiling
        planned = plan(GroupedProduct(*given, ends=self.ends, moves=self.moves))
        made = None if planned is None else build_or_warn(planned, _NAME)
        self.available = self.available and (planned is None or made is not None)
        return made or left_to_torch()


def left_to_torch() -> Delegate | None:
    """What answers calls that torch has; nothing that would outlive a recording of calls."""
    return None if env.record_file() is not None else Delegate(by_none)


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
