# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`explain` of matrix products: what runs each product and the functors after it, and why."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.errors import counted
from fusedops.explain.picture import Bar
from fusedops.explain.report import Explanation, Kept, ProductExplanation
from fusedops.product.factors import factor_dtype

if TYPE_CHECKING:
    from typing import ClassVar, Protocol

    from fusedops.product.choice import Choice
    from fusedops.product.declaration import ProductOp
    from fusedops.product.epilogue import Epilogue

    class OfOneProduct(Protocol):
        """The part of an op with one product that this module reads; `SingleProduct` has it."""

        inputs: ClassVar[tuple[str, ...]]
        formula: ClassVar[str]
        epilogue: Epilogue
        has_added: str | None

        @property
        def of_product(self) -> tuple[str, ...]: ...
        def read_by_store(
            self, z: Tensor, arguments: dict[str, Any]
        ) -> tuple[Tensor, dict[str, Any]]: ...
        def shape(self, first: Tensor, second: Tensor) -> tuple[int, ...]: ...
        def alone(self, first: Tensor, arguments: dict[str, Any]) -> bool: ...
        def that_adds(self, second: Tensor, arguments: dict[str, Any]) -> OfOneProduct: ...
        def choice(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Choice: ...
        def run_store(
            self, epilogue: Epilogue, z: Tensor, arguments: Mapping[str, Any], way: str
        ) -> Any: ...


__all__ = ["explain_layers", "explain_product", "with_scales"]


def explain_product(
    op: OfOneProduct,
    first: Tensor,
    second: Tensor,
    arguments: dict[str, Any],
    choice: Choice | None = None,
) -> ProductExplanation:
    """Explain a call whose factors have been checked; nothing is computed.

    `choice` says how it is run, where that is not what `op` would choose.

    Raises:
        TypeError, ValueError: An argument does not fit, as in a call.
    """
    shape, dtype = op.shape(first, second), factor_dtype(first)
    flops = 2 * math.prod(shape) * first.shape[-1]
    size = math.prod(shape) * dtype.itemsize
    factors = dict(zip(op.inputs, (first, second), strict=True))
    able = torch.is_grad_enabled()
    wanted = [key for key, one in factors.items() if able and one.requires_grad]
    z = torch.empty(shape, dtype=dtype, device=first.device)  # not touched
    z.requires_grad_(bool(wanted))
    declared, op = op, op.that_adds(second, arguments)
    operand = op.has_added
    added = "" if operand is None else f", which adds {operand!r}"
    added_bytes = arguments[operand].nbytes if operand is not None else 0
    reads = tuple(Bar(key, read=one.nbytes) for key, one in factors.items())
    product = Bar("z", written=size)
    fused: tuple[Bar, ...] = (*reads, product)
    name = op.formula if operand is None else f"{op.formula} + {operand}"
    unfused: tuple[Bar, ...] = (Bar(name, sum(one.read for one in reads) + added_bytes, size),)
    kernels = 1
    kept = [Kept.given(key, one) for key, one in factors.items()] if wanted else []
    store: Explanation | None = None
    notes = []
    z, arguments = op.read_by_store(z, arguments)
    if op.alone(first, arguments):
        op.epilogue.bind(z, arguments)
        why = "the STORE is empty" if operand is None else "that is all of the STORE"
        by = "torch's product"
        if choice is not None and choice.tiling is not None:
            by = f"one kernel ({choice.tiling.name})"
        implementation = f"{by} alone{added}: {why}, and no byte is moved for it"
    else:
        found: Explanation = op.run_store(op.epilogue, z, arguments, "explain")
        store = dataclasses.replace(found, op=declared.epilogue.plain)
        picture = found.picture()
        # Of the kernel after the product, x is the product.
        further = tuple(one for one in picture.fused if one.name not in ("x", *op.of_product))
        unfused += picture.unfused
        tiling, why = choice or op.choice(first, second, arguments)
        if tiling is not None:
            keeps = any(one.name == "x" for one in store.kept)
            # z is not read, and written if it is kept
            fused = (*reads, *([product] if keeps else []), *further)
            implementation = (
                f"one kernel for product and STORE ({tiling.name}), with tiles of {tiling.rows} x "
                f"{tiling.cols}, {why}"
            )
        else:
            kernels = 2
            fused += (Bar("z again", read=size), *further)
            implementation = (
                f"torch's product{added}, then one kernel for the STORE, which moves {store.bytes} "
                f"bytes, {size} of them z again: {why}"
            )
        if dtype.itemsize < 4:
            notes.append(
                f"the product{' and ' + repr(operand) if operand else ''} is accumulated in "
                f"float32 and rounded to {_short(dtype)} before the STORE gets it "
                "(docs/explanation/products.md has the bound)"
            )
        again = f"the product, which the STORE's gradient reads; to multiply again is {flops} flops"
        parts = [one for one in store.kept if one.name in ("x", *op.of_product)]
        if parts:
            held = sum(one.bytes for one in parts)
            kept.append(Kept("z", again, held, held))
        kept += [one for one in store.kept if one not in parts]
    steps = [_of_z(store.backward)] if store is not None and store.backward else []
    if wanted:
        steps.append(f"{counted(len(wanted), 'product')} for {' and '.join(wanted)}")
    sizes = f"{tuple(first.shape)} and {tuple(second.shape)} -> z {tuple(shape)}"
    return ProductExplanation(
        op=declared,
        kept=tuple(kept),
        backward="; then ".join(steps) or None,
        flops=flops,
        bytes=sum(one.bytes for one in fused),
        product=f"z = {op.formula}: {sizes} in {_short(dtype)}, {flops} flops",
        implementation=implementation,
        store=store,
        notes=tuple(notes),
        kernels=kernels,
        fused=fused,
        unfused=unfused,
    )


def with_scales(
    op: OfOneProduct,
    first: Tensor,
    second: Tensor,
    arguments: dict[str, Any],
    scales: Mapping[str, Tensor],
    by_torch: bool,
    choice: Choice,
) -> ProductExplanation:
    """Explain a call whose factors and scales have been checked; nothing is computed.

    `arguments` are without the scales; `by_torch` says whether torch's product applies these.
    """
    told = explain_product(op, first, second, arguments, choice)
    bars = tuple(Bar(name, read=one.nbytes) for name, one in scales.items())
    names = " and ".join(scales)
    note = f"torch._scaled_mm multiplies with {names}"
    if told.store is not None and choice.tiling is not None:
        note = f"one kernel multiplies by {names}, before the STORE"
    elif not by_torch:
        note = f"both factors are multiplied by {names} in float32 first"
    return dataclasses.replace(
        told,
        bytes=told.bytes + sum(one.read for one in bars),
        fused=(*told.fused[:2], *bars, *told.fused[2:]),
        notes=(note, *told.notes),
    )


def explain_layers(
    op: ProductOp,
    first: ProductExplanation,
    second: ProductExplanation,
    backward: Choice | None,
    operands: Mapping[str, Any],
) -> ProductExplanation:
    """Explain a call of an `MLP` from the reports of its two layers.

    `backward` says how the gradient of the tensor between the layers, h, and what follows of it are
    run where h is made again in the backward pass; None where h is kept. The operands are those of
    the first layer.
    """
    told = None
    kept = [dataclasses.replace(one, name="w1") if one.name == "w" else one for one in first.kept]
    names = {"x": "h", "w": "w2", "z": "z2"}
    if backward is not None:  # h follows from all operands, and is not kept itself
        known = {one.name for one in kept}
        tensors = {key: one for key, one in operands.items() if isinstance(one, Tensor)}
        kept += [Kept.given(key, one) for key, one in tensors.items() if key not in known]
        by = "the kernel that makes its gradient and goes back through hidden"
        if backward.tiling is None:
            by = f"a kernel that moves {0 if first.store is None else first.store.bytes} bytes"
        told = f"h is made again from z in the backward pass, by {by}, and not kept "
        told += f"({backward.why})"
    for one in second.kept:
        if one.name != "x" or backward is None:
            kept.append(dataclasses.replace(one, name=names.get(one.name, one.name)))
    return ProductExplanation(
        op=op,
        kept=tuple(kept),
        backward=told,
        flops=first.flops + second.flops,
        bytes=first.bytes + second.bytes,
        layers=(first, second),
        kernels=first.kernels + second.kernels,
        fused=_of_layers(first.fused, second.fused),
        unfused=_of_layers(first.unfused, second.unfused),
    )


def _of_layers(first: Sequence[Bar], second: Sequence[Bar]) -> tuple[Bar, ...]:
    """The bytes of both layers, by names that say which."""
    layers = enumerate((first, second), 1)
    return tuple(
        dataclasses.replace(one, name=f"{number}: {one.name}")
        for number, bars in layers
        for one in bars
    )


def _of_z(backward: str) -> str:
    """The text about the STORE's backward pass, which calls its x z, as the product is called."""
    head, _, rest = backward.partition(" by ")
    names = ", ".join(
        "z" if name == "x" else name for name in head.removeprefix("gradients of ").split(", ")
    )
    return f"gradients of {names} by {rest}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
