# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The kernel that multiplies and runs an epilogue: its factors, its argument, its variant."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops.bind.bind import Bound
from fusedops.bind.geometry import Geometry, Placed
from fusedops.errors import CompilerNotFound, MissingVariantError, UnknownArchError
from fusedops.generate.arguments import ArgumentWriter
from fusedops.generate.product import Factor, write_factors
from fusedops.generate.source import Member
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.generate.views import STORAGE, Number, Part, View
from fusedops.product.factors import matrices_of, matrix_of, product_sizes
from fusedops.run.kernel_members import declared
from fusedops.run.outline import outline_of
from fusedops.run.placing import (
    DrawnRows,
    parts_of,
    placed,
    placed_views,
    queries,
    row_maps,
    row_numbers,
)
from fusedops.run.planned import Launch, Planned
from fusedops.run.reading import padded, rank_of
from fusedops.schedule.architectures import ProductTiling

__all__ = ["WIDTH", "InOrder", "build_or_warn", "describe", "factors_of", "in_order"]

#: Columns of a pack, `kPack` in gemm/epilogue.cuh.
WIDTH = 8
#: Less than this is the distance of neighbouring rows: it is multiplied in 32 bits by up to 7
#: (`NearRow` in row/index.cuh).
MOST_APART = 1 << 29


def factors_of(
    bound: Bound, x: Tensor, w: Tensor, slot: int, tiling: ProductTiling
) -> tuple[Factor, Factor] | None:
    """The factors as bulk copies read them, or None where no kernel runs such a call.

    Args:
        bound: The call of the epilogue.
        x: The left factor.
        w: The right one, as it lies: of shape (..., K, N) where the tiling is MN-major.
        slot: The number of w in the call.
        tiling: The form of the kernel.
    """
    if bound.compute is not torch.float32 or bound.whole is not None or bound.tables:
        return None
    x_box, w_box = tiling.boxes
    if w.dim() > 2:
        return matrices_of((x, w), (0, slot), (x_box, w_box))
    x_matrix, w_matrix = matrix_of(x, 0, x_box), matrix_of(w, slot, w_box)
    return None if x_matrix is None or w_matrix is None else (x_matrix, w_matrix)


class InOrder(NamedTuple):
    """The tensors of an epilogue, placed; rows are in the order of the product's.

    Attributes:
        bound: The call of the epilogue.
        geometry: The rows and columns.
        places: How the parts lie, in their order, then the maps from a row to numbers.
        drawn: The maps to the numbers in the dropout contract.
    """

    bound: Bound
    geometry: Geometry
    places: Sequence[Placed | None]
    drawn: DrawnRows

    def argument(
        self,
        maps: Iterable[Placed | None],
        operands: Mapping[str, View | Number],
        outputs: Mapping[str, View],
        slots: Mapping[str, int],
    ) -> tuple[ArgumentWriter, list[Member]]:
        """The kernel's argument as far as the declaration says it.

        Args:
            maps: Those of `places` that are no parts.
            operands: What functors read, by name.
            outputs: What they write, by name.
            slots: The numbers of the operands in the call.
        """
        bound, geometry = self.bound, self.geometry
        write = ArgumentWriter(
            compute="float",
            sizes=geometry.sizes,
            columns=geometry.columns,
            queries=queries(bound),
            operands=operands,
            outputs=outputs,
            maps=row_maps(bound, maps, self.drawn),
            slots=slots,
            drawn_in_memory=isinstance(bound.generator, Tensor),
            in_order=True,
        )
        return write, declared(bound, write, geometry)

    def variant(
        self,
        entry: str,
        write: ArgumentWriter,
        members: list[Member],
        factors: tuple[Factor, Factor],
        tiling: ProductTiling,
        dtype: torch.dtype,
    ) -> Variant:
        """The variant; the factors are appended to its argument.

        Args:
            entry: The kernel template.
            write: The argument.
            members: Its members.
            factors: The factors.
            tiling: The form of the kernel.
            dtype: The dtype of the factors.
        """
        bound, op = self.bound, self.bound.op
        x, w = factors
        members += write_factors(write, _runtime.TENSOR_MAP, x, w, tiling)
        return Variant(
            arch=tiling.compiled_for,
            schedule=tiling.storage,
            tile=tiling,
            members=tuple(members),
            words=len(write.words),
            op="Matmul" if x.batch else "Linear",
            headers=tuple(op.headers()),
            load=bound.load,
            store=bound.store,
            dtype=dtype,
            declaration=op.declaration,
            definitions=op.definitions,
            entry=entry,
        )


def in_order(bound: Bound, parts: Sequence[Part]) -> InOrder | None:
    """Place the tensors of an epilogue; None if columns do not merge or rows lie too far apart."""
    outline = outline_of(bound)
    drawn = row_numbers(bound, outline)
    geometry = placed(bound, parts, drawn, in_order=True)
    if any(place is None or place.row_strides[-1] >= MOST_APART for place in geometry.placed):
        return None
    geometry = padded(geometry, rank_of(outline.broadcasts, geometry.sizes))
    return InOrder(bound, geometry, geometry.placed, drawn)


def describe(
    bound: Bound, x: Tensor, w: Tensor, tiling: ProductTiling, target: Target
) -> Planned | None:
    """The launch of a call, or None where a kernel of this kind cannot run it.

    Args:
        bound: The call of the STORE, on a product that need not be there.
        x: The factor of shape (..., M, K).
        w: The factor of shape (N, K), or (..., N, K) of many products; either may be contiguous.
        tiling: The form of the kernel, but for which of them is.
        target: The GPU that the grid is for.
    """
    shape, batches, rows = product_sizes(x, w)
    slots = bound.op.slots
    if w.stride(-1) != 1 and w.stride(-2) == 1:
        w, tiling = w.mT, dataclasses.replace(tiling, mn_major=True)
    factors = factors_of(bound, x, w, len(slots) + 1, tiling)
    if factors is None:
        return None
    inputs, outputs = parts_of(bound)
    del inputs["x"]
    placing = in_order(bound, [*inputs.values(), *outputs.values()])
    if placing is None:
        return None
    places = placing.places
    columns = placing.geometry.columns
    operands, views = placed_views(bound, inputs, outputs, places, WIDTH, columns)
    if not _begins(bound, operands, x.dtype):
        return None
    maps = iter(places[len(inputs) + len(outputs) :])
    write, members = placing.argument(maps, operands, views, slots)
    members.append(Member(write.output("y"), "y"))
    entry = "batched_product" if factors[0].batch else "product"
    variant = placing.variant(entry, write, members, factors, tiling, x.dtype)
    grid = tiling.grid(rows, shape[-1], target.multiprocessors, batches)
    launch = launch_of(variant, write, batches * rows, grid)
    written = [(bound.output_dtype(name), bound.output_shape(name)) for name in bound.outputs]
    draws = bound.op.dropouts if bound.dropout_slots else 0
    return Planned((launch,), written, draws, tiling.name)


def launch_of(variant: Variant, write: ArgumentWriter, rows: int, grid: int) -> Launch:
    """The launch of a kernel that multiplies."""
    tiling = variant.tile
    assert isinstance(tiling, ProductTiling)
    argument = (variant, write.pack(), write.patches, rows)
    return Launch(*argument, grid=grid, block=tiling.threads, shared=tiling.shared_bytes)


def _begins(bound: Bound, operands: Mapping[str, View | Number], dtype: torch.dtype) -> bool:
    """Whether sums can begin with what the product adds, by words of 16 bytes."""
    added = bound.op.load[0].has_added if bound.op.load else None
    if added is None:
        return True
    bias = operands[added]
    return isinstance(bias, View) and (bias.storage, bias.width) == (STORAGE[dtype], WIDTH)


def build_or_warn(planned: Planned, declaration: str) -> _runtime.Plan | None:
    """Build one kernel for a product and its functors; None, after a warning, if it cannot be had.

    What two kernels need may be there.
    """
    try:
        return planned.build()
    except (MissingVariantError, CompilerNotFound, UnknownArchError) as error:
        warnings.warn(
            f"{declaration}: a product and the functors beside it run as two kernels, for one "
            f"kernel cannot be had; that is right, and may be slower. {error}",
            RuntimeWarning,
            stacklevel=3,
        )
        return None
