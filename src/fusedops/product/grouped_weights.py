# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of the matrices of a grouped product, by one kernel that sums over groups' rows.

Of ``z = x[group] @ w[group].T`` it is ``dw[group] = dz[group].T @ x[group]``, of groups whose sizes
are known on the device alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops.generate.product import MOST_GROUPS, write_factors
from fusedops.generate.source import Member
from fusedops.generate.target import Target
from fusedops.generate.views import Part
from fusedops.jit import env
from fusedops.plan.planned import Call, Planned, Results, Tensors
from fusedops.plan.planner import plan
from fusedops.product.choice import MOST_ROWS, Choice, decided, features_of_sizes
from fusedops.product.epilogue import Epilogue
from fusedops.product.factors import HALVES, matrix_of
from fusedops.product.grouped_kernel import write_groups
from fusedops.product.grouped_plain import RECORDED, WITHOUT
from fusedops.product.kernel_or_torch import KernelOrTorch
from fusedops.product.product_kernel import ProductPass
from fusedops.schedule import override
from fusedops.schedule.architectures import ProductTiling

if TYPE_CHECKING:
    from fusedops.generate.arguments import ArgumentWriter
    from fusedops.plan.placing import Outline

__all__ = ["chosen_for_weights", "gradient_of_weights", "planned_for_weights"]

#: What the kernel runs after the product: it writes the sums.
_STORE = Epilogue("GroupedLinear", ())
_LABEL = "gradient of GroupedLinear's w"


def gradient_of_weights(dz: Tensor, x: Tensor, ends: Tensor) -> Tensor | None:
    """``dz[group].T @ x[group]`` of each group, of shape (E, N, K); None where torch's has to run.

    Args:
        dz: The gradient of the product, of shape (T, N).
        x: The rows of all groups, of shape (T, K).
        ends: Where the groups end, of shape (E,) and int32; the last one is T.
    """
    if torch.compiler.is_compiling() or not dz.is_cuda:
        return None
    if not _of_weights.available:
        return None
    made: Tensor | None = _of_weights.call(dz, x=x, ends=ends)
    return made


def chosen_for_weights(dz: Tensor, x: Tensor, groups: int, target: Target) -> Choice:
    """How such a gradient is computed, as far as sizes and dtypes decide it; None is torch's."""
    if env.record_file() is not None:
        return Choice(None, RECORDED)
    if not _of_weights.available:
        return Choice(None, WITHOUT)
    if dz.dtype is not x.dtype or x.dtype not in HALVES:
        return Choice(None, "the kernel multiplies float16 and bfloat16 alone, both of one")
    (depth, rows), columns = dz.shape, x.shape[1]
    found = features_of_sizes(_STORE, (rows, columns, depth, groups), x.dtype, {}, target)
    if isinstance(found, Choice):
        return found
    found = found._replace(ragged_depth=True, store=_LABEL)
    choice = decided(found, target, override.current().product)
    tiling = choice.tiling
    if tiling is None:
        return choice
    if tiling.in_turns or not tiling.several:
        return Choice(None, f"there is no kernel for sums over groups of the tiling {tiling.name}")
    if not 1 <= groups <= MOST_GROUPS or max(depth, rows * groups, columns) >= MOST_ROWS:
        most = f"from 1 to {MOST_GROUPS} groups, and fewer than {MOST_ROWS} rows and columns in all"
        return Choice(None, f"the kernel takes {most}")
    if columns % 8 or not depth or not tiling.covers(rows, columns):
        tiles = f"tiles of {tiling.rows} x {tiling.cols}, and x columns of a multiple of 8"
        return Choice(None, f"the kernel has {tiles}")
    return choice


def planned_for_weights(
    dz: Tensor, x: Tensor, ends: Tensor, tiling: ProductTiling, target: Target | None = None
) -> Planned | None:
    """A call as one kernel; None if it cannot read these tensors."""
    return plan(GroupedWeights(dz, x, ends, tiling), target)


class GroupedWeights(ProductPass):
    """The pass of the gradient of all groups' matrices as one kernel.

    The arguments are those of `gradient_of_weights`, and the form of the kernel but for the
    factors, of which both are MN-major.
    """

    entry = "grouped_weights"
    product = "GroupedLinear"

    def __init__(self, dz: Tensor, x: Tensor, ends: Tensor, tiling: ProductTiling) -> None:
        self.batches, self.depth, self.rows, self.columns = len(ends), *dz.shape, x.shape[1]
        tiling = dataclasses.replace(tiling, mn_major=True, x_mn_major=True)
        of_all = x.new_empty((1, self.columns)).expand(self.batches * self.rows, self.columns)
        super().__init__(_STORE.bind(of_all, {}), x.dtype, tiling)
        self.slots: dict[str, int] = {}
        self.info = f"{tiling.name}, gradient of w"
        first, second = tiling.boxes
        self.factors = matrix_of(dz, 0, first), matrix_of(x, 1, second)
        self.ends = ends

    def tensors(self, outline: Outline, vectors: bool) -> Tensors | None:
        """The result; None if bulk copies cannot read the factors, or the kernel the ends."""
        if None in self.factors or self.ends.stride(0) != 1:
            return None
        shape, strides = (self.batches * self.rows, self.columns), (self.columns, 1)
        (name,) = self.bound.outputs
        return {("out", name): Part(shape, strides, self.dtype, (_runtime.OUTPUT, 0), 16)}, ()

    def results(self, call: Call) -> Results:
        """The gradient."""
        return Results([(self.dtype, (self.batches, self.rows, self.columns))])

    def members(
        self, call: Call, write: ArgumentWriter, declared: Sequence[Member], results: Results
    ) -> list[Member]:
        """Write the result, where the groups end, and the factors."""
        dz, x = self.factors
        assert dz is not None
        assert x is not None
        members = [Member(write.output("y"), "y"), Member("gemm::Groups", "groups")]
        write_groups(write, self.ends, 2, self.depth, self.batches, ends=True)
        return members + write_factors(write, dz, x, self.tiling)


class _OfWeights(KernelOrTorch):
    """Such gradients by one kernel."""

    def __init__(self) -> None:
        super().__init__(_LABEL, "torch's grouped product runs")
        self.call = self.dispatcher([(name, _runtime.SLOT_TENSOR) for name in ("x", "ends")])

    def planned(self, x: Tensor, operands: dict[str, Any]) -> Planned | None:
        """The kernel of a call, of which x is dz; None where torch has to run."""
        dz, x, ends = x, operands["x"], operands["ends"]
        tiling = chosen_for_weights(dz, x, len(ends), Target.of(dz.device)).tiling
        return None if tiling is None else planned_for_weights(dz, x, ends, tiling)


_of_weights = _OfWeights()
