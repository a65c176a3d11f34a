# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The report of `explain` of a matrix product: what implements it, and the kernel after it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from fusedops.errors import counted
from fusedops.explain.report import Explanation, Kept
from fusedops.product.choice import Choice
from fusedops.product.factors import factor_dtype

if TYPE_CHECKING:
    from typing import Protocol

    from fusedops.product.choice import Choice
    from fusedops.product.declaration import ProductOp
    from fusedops.product.epilogue import Epilogue

    class OfOneProduct(Protocol):
        """The part of an op with one product that this module reads; `SingleProduct` has it."""

        inputs: ClassVar[tuple[str, ...]]
        formula: ClassVar[str]
        epilogue: Epilogue

        def shape(self, first: Tensor, second: Tensor) -> tuple[int, ...]: ...

        has_added: str | None

        def alone(self, first: Tensor, arguments: dict[str, Any]) -> bool: ...
        def that_adds(self, second: Tensor, arguments: dict[str, Any]) -> OfOneProduct: ...
        def choice(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Choice: ...
        def run_store(
            self, epilogue: Epilogue, z: Tensor, arguments: Mapping[str, Any], way: str
        ) -> Any: ...


if TYPE_CHECKING:
    from fusedops.product.declaration import ProductOp

__all__ = ["PairExplanation", "ProductExplanation", "explain_pair", "explain_product", "given"]


@dataclasses.dataclass(frozen=True)
class PairExplanation:
    """What a call of an op with two products would run, and why; print it, or read its attributes.

    Attributes:
        op: The declaration that is called.
        first, second: The reports of the two layers, as those of two `Linear`.
        kept: The tensors saved for the backward pass; none if no gradient is wanted. The hidden
            tensor, which the second layer reads, is called h.
        backward: How the gradient of h and what follows of it are run then, and why; None if h is
            kept.
        flops: The floating-point operations of both products.
        bytes: The bytes that must move in the forward pass.
    """

    op: ProductOp
    first: ProductExplanation
    second: ProductExplanation
    kept: tuple[Kept, ...]
    flops: int
    bytes: int
    backward: Choice | None

    @property
    def recomputed(self) -> bool:
        """Whether h is made again in the backward pass, in place of being kept."""
        return self.backward is not None

    def __str__(self) -> str:
        lines = [f"{type(self.op).__name__}", f"  op    {self.op!r}"]
        lines += [f"  kept  {one}" for one in self.kept]
        if self.backward is not None:
            tiling, why = self.backward
            by = "the kernel that makes its gradient and goes back through hidden"
            if tiling is None:
                made = self.first.store
                by = f"a kernel that moves {0 if made is None else made.bytes} bytes"
            lines.append(
                f"  h     made again from z in the backward pass, by {by}, and not kept ({why})"
            )
        lines.append(f"  bytes {self.bytes} (each element that is touched, once by each kernel)")
        for which, report in (("first", self.first), ("second", self.second)):
            lines += [f"  {line}" for line in f"the {which} layer: {report}".splitlines()]
        return "\n".join(lines)


def explain_pair(
    op: ProductOp,
    first: ProductExplanation,
    second: ProductExplanation,
    backward: Choice | None,
    operands: Mapping[str, Any],
) -> PairExplanation:
    """The report of an op from those of its layers, `backward` as in `PairExplanation`.

    `operands` are those of the first layer.
    """
    kept = [dataclasses.replace(one, name="w1") if one.name == "w" else one for one in first.kept]
    if backward is not None:  # h follows from all of them
        known = {one.name for one in kept}
        kept += [
            given(key, one)
            for key, one in operands.items()
            if isinstance(one, Tensor) and key not in known
        ]
    for one in second.kept:
        if one.name == "x" and backward is not None:
            continue
        names = {"x": "h", "w": "w2", "z": "z2"}
        kept.append(dataclasses.replace(one, name=names.get(one.name, one.name)))
    return PairExplanation(
        op=op,
        first=first,
        second=second,
        kept=tuple(kept),
        flops=first.flops + second.flops,
        bytes=first.bytes + second.bytes,
        backward=backward,
    )


@dataclasses.dataclass(frozen=True)
class ProductExplanation:
    """What a call of an op with one product would run, and why; print it, or read its attributes.

    Attributes:
        op: The declaration that is called.
        product: The product, its dtype and its size, in words.
        implementation: What runs the product and the functors after it, with the reason and the
            bytes that the functors move beside the product, in words.
        kept: The tensors saved for the backward pass; none if no gradient is wanted.
        backward: What the backward pass would run, in words; None if no gradient is wanted.
        flops: The floating-point operations of the product.
        bytes: The bytes that must move: each element once that the product reads and writes, and
            those of the kernel after it.
        store: What the kernel after the product would be; None if there is none.
        notes: Further remarks, in words.
    """

    op: ProductOp
    product: str
    implementation: str
    kept: tuple[Kept, ...]
    backward: str | None
    flops: int
    bytes: int
    store: Explanation | None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            ("op", repr(self.op)),
            ("product", self.product),
            ("implementation", self.implementation),
            *(("kept", str(one)) for one in self.kept),
            *([("backward", self.backward)] if self.backward else []),
            ("bytes", f"{self.bytes} (each element that is touched, once by each kernel)"),
            *(("note", text) for text in self.notes),
        ]
        width = max(len(name) for name, _ in lines)
        told = [type(self.op).__name__, *(f"  {name:<{width}}  {text}" for name, text in lines)]
        if self.store is not None:
            told += [f"  {line}" for line in f"the STORE: {self.store}".splitlines()]
        return "\n".join(told)


def explain_product(
    op: OfOneProduct,
    first: Tensor,
    second: Tensor,
    arguments: dict[str, Any],
    apart: str | None = None,
) -> ProductExplanation:
    """Explain a call whose factors have been checked; nothing is computed.

    Args:
        op: The op.
        first: The left factor.
        second: The right one.
        arguments: Operands and options.
        apart: Why torch's product runs whatever `op` would choose, if it does.

    Raises:
        TypeError, ValueError: An argument does not fit, as in a call.
    """
    shape, dtype = op.shape(first, second), factor_dtype(first)
    inner = first.shape[-1]
    flops = 2 * math.prod(shape) * inner
    size = math.prod(shape) * dtype.itemsize
    z = torch.empty(shape, dtype=dtype, device=first.device)  # not touched
    factors = (first, second)
    learns = torch.is_grad_enabled() and any(one.requires_grad for one in factors)
    z.requires_grad_(learns)
    declared, op = op, op.that_adds(second, arguments)
    operand = op.has_added
    told: Explanation | None = None
    if op.alone(first, arguments):
        op.epilogue.bind(z, arguments)
    else:
        told = op.run_store(op.epilogue, z, arguments, "explain")
    moved = sum(one.numel() * one.element_size() for one in factors) + size
    added = "" if operand is None else f", which adds {operand!r}"
    kept = [given(key, one) for key, one in zip(op.inputs, factors, strict=True) if learns]
    notes = []
    if told is None:
        why = "the STORE is empty" if operand is None else "that is all of the STORE"
        implementation = f"torch's product alone{added}: {why}, and no byte is moved for it"
    else:
        told = dataclasses.replace(told, op=declared.epilogue.plain)
        moved += told.bytes
        tiling, why = (None, apart) if apart else op.choice(first, second, arguments)
        if tiling is not None:
            keeps = any(one.name == "x" for one in told.kept)
            moved -= size if keeps else 2 * size  # z is not read, and written if it is kept
            implementation = (
                f"one kernel for product and STORE ({tiling.name}), with tiles of {tiling.rows} x "
                f"{tiling.cols}, {why}"
            )
        else:
            implementation = (
                f"torch's product{added}, then one kernel for the STORE, which moves {told.bytes} "
                f"bytes, {size} of them z again: {why}"
            )
        if dtype.itemsize < 4:
            notes.append(
                f"the product{' and ' + repr(operand) if operand else ''} is accumulated in "
                f"float32 and rounded to {_short(dtype)} before the STORE gets it (docs/gemm.md "
                "has the bound)"
            )
        kept += [_renamed(one, flops) for one in told.kept]
    backward = None
    if learns:
        wanted = [key for key, one in zip(op.inputs, factors, strict=True) if one.requires_grad]
        products = f"{counted(len(wanted), 'product')} for {' and '.join(wanted)}"
        through = None if told is None else told.backward
        backward = products if through is None else f"{_of_z(through)}; then {products}"
    elif told is not None and told.backward:
        backward = _of_z(told.backward)
    sizes = f"{tuple(first.shape)} and {tuple(second.shape)} -> z {tuple(shape)}"
    return ProductExplanation(
        op=cast("ProductOp", declared),
        product=f"z = {op.formula}: {sizes} in {_short(dtype)}, {flops} flops",
        implementation=implementation,
        kept=tuple(kept),
        backward=backward,
        flops=flops,
        bytes=moved,
        store=told,
        notes=tuple(notes),
    )


def given(key: str, tensor: Tensor) -> Kept:
    """The report of a tensor of the caller's that is kept."""
    size = tensor.numel() * tensor.element_size()
    return Kept(key, "the tensor that was given, not a copy", size, 0)


def _renamed(kept: Kept, flops: int) -> Kept:
    """What the kernel keeps of its x is the product."""
    if kept.name != "x":
        return kept
    what = f"the product, which the STORE's gradient reads; to multiply again is {flops} flops"
    return Kept("z", what, kept.bytes, kept.bytes)


def _of_z(backward: str) -> str:
    """The words of the kernel's backward pass, in which its x is the product."""
    head, _, rest = backward.partition(" by ")
    names = ", ".join(
        "z" if name == "x" else name for name in head.removeprefix("gradients of ").split(", ")
    )
    return f"gradients of {names} by {rest}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
