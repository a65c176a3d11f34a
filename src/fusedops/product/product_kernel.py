# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The kernel that multiplies and runs an epilogue: its factors, its argument, its variant."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops.bind.bind import Bound
from fusedops.errors import CompilerNotFound, MissingVariantError, UnknownArchError
from fusedops.generate.product import Factor, write_factors
from fusedops.generate.source import Member
from fusedops.generate.views import STORAGE
from fusedops.plan.placing import parts_of
from fusedops.plan.planned import Call, Results, Tensors
from fusedops.product.factors import matrices_of, matrix_of, product_sizes
from fusedops.schedule.architectures import ProductTiling

if TYPE_CHECKING:
    from typing import Protocol

    from fusedops.bind.geometry import Geometry
    from fusedops.generate.arguments import ArgumentWriter
    from fusedops.generate.target import Target
    from fusedops.generate.views import View
    from fusedops.plan.placing import Outline
    from fusedops.plan.reading import Reading

    class Buildable(Protocol):
        """What is launched, before its kernels are built."""

        def build(self) -> _runtime.Plan: ...


__all__ = ["Product", "ProductPass", "build_or_warn", "by_none", "factors_of", "is_near"]

#: Less than this is the distance of neighbouring rows: it is multiplied in 32 bits by up to 12
#: (`NearRow` in row/index.cuh).
MOST_APART = 1 << 28


def factors_of(
    bound: Bound, x: Tensor, w: Tensor, slot: int, tiling: ProductTiling
) -> tuple[Factor, Factor] | None:
    """The factors as bulk copies read them, or None where no kernel runs such a call.

    w is given as it lies: of shape (..., K, N) where the tiling is MN-major. `slot` is its number
    in the call.
    """
    if bound.compute is not torch.float32 or bound.whole is not None or bound.tables:
        return None
    x_box, w_box = tiling.boxes
    if w.dim() > 2:
        if not tiling.several:
            return None
        return matrices_of((x, w), (0, slot), (x_box, w_box))
    x_matrix, w_matrix = matrix_of(x, 0, x_box), matrix_of(w, slot, w_box)
    return None if x_matrix is None or w_matrix is None else (x_matrix, w_matrix)


def is_near(call: Call) -> bool:
    """Whether columns merge, and neighbouring rows lie no further apart than a tile can address."""
    places = call.geometry.placed
    return all(place is not None and place.row_strides[-1] < MOST_APART for place in places)


class ProductPass:
    """What the passes with one product in their kernel share.

    `bound` is the call of the epilogue, `dtype` that of the factors; the tiling has been chosen.

    Attributes:
        rows, columns: Those of a product.
        batches: How many products of that size there are.
    """

    rows: int
    columns: int
    batches = 1
    gradient = from_result = False
    from_stream: str | None = None
    in_order = True

    def __init__(self, bound: Bound, dtype: torch.dtype, tiling: ProductTiling) -> None:
        self.bound, self.op = bound, bound.op
        self.forms: dict[Any, Any] = {}
        self.tiling, self.info = tiling, tiling.name
        self.dtype = dtype

    def schedule(
        self, geometry: Geometry, outline: Outline, target: Target, reading: Reading
    ) -> tuple[ProductTiling, str]:
        """The tiling."""
        return self.tiling, self.tiling.storage

    def streams(self, views: Mapping[Any, View]) -> tuple[dict[str, View], dict[str, View]]:
        """The outputs; nothing joins them."""
        return {name: views["out", name] for name in self.bound.outputs}, {}

    def types(self, call: Call) -> None:
        """Tensor maps are made of the sizes."""

    def settled(self, call: Call) -> Call | None:
        """The call, unless a tile cannot address its tensors."""
        return call if is_near(call) else None

    def launch(self, call: Call, results: Results) -> tuple[int, int, int, int, int]:
        """Rows, grain, grid, block and shared memory of the kernel."""
        tiling, target = self.tiling, call.target
        grid = tiling.grid(self.rows, self.columns, target.multiprocessors, self.batches)
        return self.batches * self.rows, 1, grid, tiling.threads, tiling.shared_bytes


class Product(ProductPass):
    """The pass of a product and its STORE as one kernel.

    Args:
        bound: The call of the STORE, on a product that need not be there.
        x: The factor of shape (..., M, K).
        w: The factor of shape (N, K), or (..., N, K) of many products; either may be contiguous.
        tiling: The form of the kernel, but for which of them is.
        scales: Those of factors of 8 bits, of shapes (M, K / 128) and (N / 128, K / 128). They
            stand before w among the arguments of the call.
    """

    def __init__(
        self,
        bound: Bound,
        x: Tensor,
        w: Tensor,
        tiling: ProductTiling,
        scales: tuple[Tensor, ...] = (),
    ) -> None:
        shape, self.batches, self.rows = product_sizes(x, w)
        self.columns = shape[-1]
        if w.stride(-1) != 1 and w.stride(-2) == 1 and not tiling.eight_bits:
            w, tiling = w.mT, dataclasses.replace(tiling, mn_major=True)
        super().__init__(bound, x.dtype, tiling)
        self.slots, self.scales = bound.op.slots, scales
        self.factors = factors_of(bound, x, w, len(self.slots) + 1 + len(scales), tiling)
        batched = self.factors is not None and self.factors[0].batch
        self.product = "Matmul" if batched else "Linear"
        single = "product" if tiling.several else "few_rows_product"
        self.entry = "batched_product" if batched else "scaled_product" if scales else single

    def tensors(self, outline: Outline, vectors: bool) -> Tensors | None:
        """The operands and outputs of the STORE; None if bulk copies cannot read the factors."""
        if self.factors is None:
            return None
        parts = parts_of(self.bound, outline, vectors)
        del parts["x"]
        return parts, ()

    def settled(self, call: Call) -> Call | None:
        """The call, unless a tile cannot address its tensors, or begin with what is added."""
        added = self.op.load[0].has_added if self.op.load else None
        if added is not None:  # read by words of 16 bytes
            bias = call.views.get(added)
            own = STORAGE[self.dtype], self.tiling.width
            if bias is None or (bias.storage, bias.width) != own:
                return None
        return super().settled(call)

    def results(self, call: Call) -> Results:
        """The outputs of the STORE."""
        bound = self.bound
        return Results(
            [(bound.output_dtype(name), bound.output_shape(name)) for name in bound.outputs]
        )

    def members(
        self, call: Call, write: ArgumentWriter, declared: Sequence[Member], results: Results
    ) -> list[Member]:
        """Write y, scales of the factors, and these."""
        assert self.factors is not None
        members = [Member(write.output("y"), "y")]
        for slot, one in enumerate(self.scales, len(self.slots) + 1):
            write.pointer((_runtime.POINTER, slot))
            write.constant(*one.stride())
        if self.scales:
            members.append(Member("gemm::BlockScales", "scales"))
        return members + write_factors(write, *self.factors, self.tiling)


def by_none(x: Tensor, /, **operands: Tensor) -> None:
    """Leave a call to what runs instead: a `Delegate` to this is remembered, as a plan is."""


def build_or_warn(
    planned: Buildable,
    declaration: str,
    instead: str = "a product and the functors beside it run as two kernels",
) -> _runtime.Plan | None:
    """Build the one kernel of a product; None, after a warning, if it cannot be had.

    What runs `instead` may be there.
    """
    try:
        return planned.build()
    except (MissingVariantError, CompilerNotFound, UnknownArchError) as error:
        warnings.warn(
            f"{declaration}: {instead}, for one kernel cannot be had; that is right, and may be "
            f"slower. {error}",
            RuntimeWarning,
            stacklevel=3,
        )
        return None
