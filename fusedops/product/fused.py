# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A linear layer whose product and STORE are one kernel, where that is faster (`choice`)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops._runtime import Reason
from fusedops.bind.bind import Bound
from fusedops.bind.generator import draw
from fusedops.errors import CompilerNotFound, MissingVariantError, UnknownArchError
from fusedops.generate.arguments import ArgumentWriter
from fusedops.generate.members import Member
from fusedops.generate.product import THREADS, Factor, ProductTiling, write_factors
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.generate.views import STORAGE
from fusedops.jit import env
from fusedops.product.choice import choose
from fusedops.product.single import SingleProduct
from fusedops.product.trained import train
from fusedops.run.forward import DLPACK
from fusedops.run.kernel_members import declared
from fusedops.run.placing import parts_of, placed, queries, row_maps, row_numbers, views_of
from fusedops.run.reading import padded, rank_of
from fusedops.run.saved_tensors import needed

__all__ = ["FusedLinear", "describe", "tiling_of"]

#: Columns of a pack, `kPack` in gemm/epilogue.cuh.
_WIDTH = 8
#: CUtensorMapDataType in cuda.h.
_KINDS = {torch.float16: 6, torch.bfloat16: 9}
#: The architecture, whose wgmma is in no other's code.
_ARCH = "sm_90a"


def tiling_of(op: SingleProduct, x: Tensor, w: Tensor) -> ProductTiling | None:
    """The tiling of one kernel for a call, or None where two kernels are to be run.

    It looks at shapes and types alone; what else keeps a call from it, `describe` finds out.
    """
    if x.dtype not in _KINDS or w.dtype is not x.dtype or not x.is_cuda:
        return None
    n, k = w.shape
    rows = math.prod(x.shape[:-1])
    if not type(rows) is type(n) is type(k) is int:
        return None  # sizes of a tracer
    return _chosen(op, rows, n, k, x.dtype, x.device)


@functools.lru_cache(maxsize=4096)
def _chosen(
    op: SingleProduct,
    rows: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    device: torch.device,
) -> ProductTiling | None:
    if Target.of(device).arch != "sm_90" or not _able(op):
        return None
    tiling = choose(rows, n, k)
    return None if tiling is None else dataclasses.replace(tiling, dtype=STORAGE[dtype])


def _able(op: SingleProduct) -> bool:
    """Whether a tile of a product can run the functors: each element by itself, none masked."""
    epilogue = op.epilogue
    chain = (*epilogue.load, *epilogue.store)
    return not (
        any(functor.masks for functor in chain)
        or epilogue.quantized is not None
        or epilogue.maxima
        or epilogue.causal
    )


class FusedLinear:
    """Runs the calls of a `Linear` that one kernel serves; the others as two kernels.

    Args:
        op: The layer.

    Attributes:
        able: Whether kernels can be had: False once one was missing and there was no compiler.
    """

    def __init__(self, op: SingleProduct) -> None:
        self._op = op
        self.able = True
        epilogue = op.epilogue
        kinds = [*epilogue.kinds, ("w", _runtime.SLOT_TENSOR)]
        self._call = _runtime.Dispatcher(
            op.name,
            kinds,
            self._slow,
            functools.partial(draw, op=op.name),
            epilogue.result_type if len(epilogue.outputs) > 1 else None,
            self._differentiate,
            epilogue.label,
        )

    def __call__(self, x: Tensor, w: Tensor, arguments: Mapping[str, Any]) -> Any:
        """Run a call with checked factors."""
        return self._call(x, w=w, **arguments)

    def _slow(
        self, reason: Reason, x: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        """Return the plan of a call that has none yet, or its result by two kernels."""
        w = operands.pop("w")
        arguments = {**operands, **options}
        if reason is Reason.MISS and env.record_file() is None:
            plan = self._plan(x, w, arguments)
            if plan is not None:
                return plan
        return self._apart(x, w, arguments)

    def _differentiate(self, options: dict[str, Any] | None, x: Tensor, *values: Any) -> Any:
        *others, w = values
        op, epilogue = self._op, self._op.epilogue
        named = zip(epilogue.slots, others, strict=True)
        given = {name: value for name, value in named if value is not None}
        arguments = {**given, **(options or {})}
        if arguments.get("out") is not None:
            return self._apart(x, w, arguments)  # where it is refused
        wanted = {name for name, one in given.items() if _learns(one)}
        if _learns(x) or _learns(w):
            wanted.add("x")
        if needed(epilogue, wanted).x:
            return op.run_keeping(x, w, arguments)[1]
        outputs = train(epilogue, self._outputs, op.shape(x, w), options, x, w, others)
        return outputs[0] if len(outputs) == 1 else epilogue.result_type._make(outputs)

    def _outputs(self, x: Tensor, w: Tensor, arguments: Mapping[str, Any]) -> Sequence[Tensor]:
        found = self(x, w, arguments)
        return (found,) if isinstance(found, Tensor) else found

    def _apart(self, x: Tensor, w: Tensor, arguments: dict[str, Any]) -> Any:
        """Run a call by torch's product and a kernel after it."""
        return SingleProduct.run(self._op, x, w, arguments, self._op.product)

    def _plan(self, x: Tensor, w: Tensor, arguments: dict[str, Any]) -> Any:
        op, epilogue = self._op, self._op.epilogue
        tiling = tiling_of(op, x, w)
        if tiling is None or epilogue.lacking(arguments):
            return None
        z = torch.empty(op.shape(x, w), dtype=x.dtype, device=x.device)  # for its shape alone
        bound = epilogue.bind(z, arguments)
        target = Target.of(x.device)
        told = describe(bound, x, w, tiling)
        if told is None:
            return None
        variant, write = told
        try:
            kernel = variant.kernel()
        except (MissingVariantError, CompilerNotFound, UnknownArchError):
            self.able = False
            return None  # what two kernels need may be there
        rows, (n, _) = math.prod(x.shape[:-1]), w.shape
        outputs = [
            (*DLPACK[bound.output_dtype(name)], bound.output_shape(name)) for name in bound.outputs
        ]
        return _runtime.Plan(
            kernel=kernel,
            words=write.pack(),
            patches=write.patches,
            outputs=outputs,
            rows=rows,
            grain=1,
            grid=tiling.grid(rows, n, target.multiprocessors),
            block=THREADS,
            shared=tiling.shared_bytes,
            draws=epilogue.dropouts if bound.dropout_slots else 0,
            info=tiling.name,
        )


def _learns(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def describe(
    bound: Bound, x: Tensor, w: Tensor, tiling: ProductTiling
) -> tuple[Variant, ArgumentWriter] | None:
    """The variant and the argument of a call, or None where a kernel of this kind cannot run it.

    Args:
        bound: The call of the STORE, on a product that need not be there.
        x: The factor of shape (..., K).
        w: The factor of shape (N, K).
        tiling: The form of the kernel.
    """
    op = bound.op
    x_matrix = _factor(x, 0, tiling.rows)
    w_matrix = _factor(w, len(op.slots) + 1, tiling.cols // 2)
    if x_matrix is None or w_matrix is None or bound.compute is not torch.float32:
        return None
    if isinstance(bound.generator, Tensor) or bound.whole is not None or bound.tables:
        return None
    inputs, outputs = parts_of(bound)
    del inputs["x"]
    drawn = row_numbers(bound)
    geometry = placed(bound, [*inputs.values(), *outputs.values()], drawn)
    if None in geometry.placed or [*geometry.order] != sorted(geometry.order):
        return None  # rows must come as the product has them
    geometry = padded(geometry, rank_of(bound, geometry.sizes))
    columns = geometry.columns
    places = iter(geometry.placed)
    operands, views = views_of(bound, inputs, outputs, places, _WIDTH, columns)
    write = ArgumentWriter(
        compute="float",
        sizes=geometry.sizes,
        columns=columns,
        queries=queries(bound),
        operands=operands,
        outputs=views,
        maps=row_maps(bound, places, drawn),
        slots=op.slots,
    )
    members = declared(bound, write, geometry)
    members.append(Member(write.output("y"), "y"))
    members += write_factors(write, _runtime.TENSOR_MAP, x_matrix, w_matrix, tiling)
    variant = Variant(
        arch=_ARCH,
        schedule=tiling.storage,
        tile=tiling,
        members=tuple(members),
        words=len(write.words),
        op="Linear",
        headers=tuple(op.headers()),
        load=bound.load,
        store=bound.store,
        dtype=x.dtype,
        declaration=op.declaration,
        definitions=op.definitions,
        entry="product",
    )
    return variant, write


def _factor(factor: Tensor, slot: int, box: int) -> Factor | None:
    """A factor as a matrix that bulk copies can read; None where they cannot."""
    columns = factor.shape[-1]
    try:
        matrix = factor.view(-1, columns)
    except RuntimeError:
        return None  # rows that are not evenly apart
    pitch = matrix.stride(0) * factor.element_size()
    if matrix.stride(1) != 1 or pitch % 16 or factor.data_ptr() % 16:
        return None
    return Factor(slot, matrix.shape[0], columns, pitch, box, _KINDS[factor.dtype])
