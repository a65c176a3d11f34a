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
from fusedops.product.product_kernel import build_or_warn

__all__ = ["by_none", "chosen_without_store", "without_store"]

_NAME = "GroupedLinear"


class _WithoutStore:
    """``x[group] @ w[group].T`` by one kernel, chosen and planned once for each kind of call."""

    def __init__(self) -> None:
        self.epilogue = Epilogue(_NAME, ())
        self.available = True
        slots = [(name, _runtime.SLOT_TENSOR) for name in ("offsets", "w")]
        self.slots = {name: number for number, (name, _) in enumerate(slots, 1)}
        how = functools.partial(draw, op=_NAME)
        self.call = _runtime.Dispatcher(_NAME, slots, self._slow, how, label=f"{_NAME}()")

    def _slow(
        self, reason: Reason, x: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Plan | Delegate | None:
        if reason is not Reason.MISS:
            return None
        w, ends = operands["w"], operands["offsets"]
        tiling = chosen_without_store(x, w).tiling
        bound = None if tiling is None else bind_groups(self.epilogue, x, w, {}, (), None)
        if tiling is None or bound is None:
            return Delegate(by_none)
        one = GroupedProduct(bound, x, w, ends, self.slots, None, False, tiling, ends=True)
        planned = plan(one)
        made = None if planned is None else build_or_warn(planned, _NAME)
        self.available = self.available and (planned is None or made is not None)
        return made or Delegate(by_none)


def by_none(x: Tensor, /, **operands: Tensor) -> None:
    """Leave a call to torch."""


@functools.cache
def _op() -> _WithoutStore:
    return _WithoutStore()


def without_store(x: Tensor, w: Tensor, ends: Tensor) -> Tensor | None:
    """The product of each group of rows, by one kernel; None where torch's is to be taken.

    Args:
        x: The rows, of shape (T, K).
        w: A matrix for each group, of shape (E, N, K).
        ends: Where the groups end, of shape (E,) and int32; the last one is T.
    """
    if torch.compiler.is_compiling() or not x.is_cuda or not _op().available:
        return None
    result: Tensor | None = _op().call(x, offsets=ends, w=w)
    return result


def chosen_without_store(x: Tensor, w: Tensor) -> Choice:
    """How such a product is run, as far as sizes and dtypes decide it."""
    if env.record_file() is not None:
        return Choice(None, "calls are recorded, and no list of kernels has those of groups")
    return chosen_for_groups(_op().epilogue, x, w, {}, 1, Target.of(x.device))
