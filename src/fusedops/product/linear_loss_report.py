# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What `LinearCrossEntropy.explain` says: the way a call goes, its products and its memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fusedops.errors import counted
from fusedops.explain.report import Kept, ProductExplanation
from fusedops.product.factors import factor_dtype
from fusedops.product.linear_loss_logits import (
    Sweeps,
    block_columns,
    chunk_rows,
    classes_ahead,
    sweeps_of,
    why_late,
)

__all__ = ["explanation"]


def explanation(op: Any, x: Tensor, w: Tensor, operands: Mapping[str, Tensor]) -> Any:
    """The explanation of a call with these tensors."""
    rows, classes, size = math.prod(x.shape[:-1]), w.shape[0], factor_dtype(x).itemsize
    flops, named = 2 * rows * w.numel(), {"x": x, "w": w}
    sweeps = sweeps_of(op, x, w, operands)
    ahead = classes_ahead(rows, classes, size) if "w" in sweeps.early else 0
    whole = [name for name in sweeps.early if name != "w" or ahead == classes]
    late = [name for name in sweeps.wanted if name not in whole]
    backward: list[str] = []
    if classes <= block_columns(x.shape[-1], classes) or x.numel() == 0:
        told = f"one block: the product, {rows * classes * size} bytes, then a CrossEntropy"
        kernels, early = 2, dict[str, Tensor]()
        backward += [f"one kernel, and {_products(sweeps.wanted)}"] * bool(sweeps.wanted)
    else:
        why = why_late(op, x, operands, sweeps.wanted)
        told, kernels = _forward(x, w[:ahead], classes, sweeps, size, why)
        named["w"] = w[:ahead]
        early = {k: one for k, one in named.items() if k in sweeps.early}
        if late:
            backward.append(_late(rows, w[ahead:], late, size))
        if early:
            backward.append("the gradients of the forward pass are multiplied by that of the loss")
    kept = [Kept.given(key, one) for key, one in (("x", x), ("w", w)) if late]
    for name, one in early.items():
        of = one.numel() * size
        kept.append(Kept(f"gradient of {name}", "made in the forward pass", of, of))
    return ProductExplanation(
        op=op,
        kept=tuple(kept),
        backward="; ".join(backward) or None,
        flops=flops,
        bytes=x.nbytes + w.nbytes + 2 * rows * classes * size,
        product=f"z = x @ w.T: {tuple(x.shape)} and {tuple(w.shape)}, {flops} flops",
        implementation=told,
        kernels=kernels,
    )


def _products(wanted: Sequence[str]) -> str:
    made = [f"a product for {one}" for one in wanted if one in ("x", "w")]
    return " and ".join(made) or "a sum"


def _forward(
    x: Tensor, ahead: Tensor, classes: int, sweeps: Sweeps, size: int, why: str
) -> tuple[str, int]:
    """What the forward pass runs, in words, and how many kernels that are.

    `ahead` are the rows of w, of all classes, whose gradient it makes.
    """
    rows, features = math.prod(x.shape[:-1]), x.shape[-1]
    if not sweeps.early:
        columns = block_columns(features, classes)
        blocks = math.ceil(classes / columns)
        told = (
            f"{counted(blocks, 'block')} of {columns} classes: a product of "
            f"{rows * columns * size} bytes, then one kernel that reads it and writes a few "
            f"numbers a row; the logits of all classes would be {rows * classes * size} bytes"
        )
        if why and sweeps.wanted:
            told += f"; all gradients are made in the backward pass: {why}"
        return told, 2 * blocks
    sums = ahead.numel() * max(size, 4) // size
    taken = chunk_rows(rows, features, classes, of_w="w" in sweeps.wanted, sums=sums)
    taken = min(taken, rows)
    chunks = math.ceil(rows / taken)
    made = [f"a product of {taken * classes * size} bytes", "a kernel for the loss"]
    made += ["one for the gradient of the logits in their memory"]
    made += [f"a product for {name}" for name in ("x", "w") if name in sweeps.early]
    told = f"{counted(chunks, 'chunk')} of {taken} rows: {', '.join(made)}"
    if "w" in sweeps.early:
        of = "w" if len(ahead) == classes else f"the first {len(ahead)} classes of w"
        said = "added up"
        if size < 4:
            said += " in float32"
        told += f"; the gradient of {of} is {said}, {ahead.numel() * max(size, 4)} bytes"
    return told, chunks * len(made)


def _late(rows: int, w: Tensor, late: Sequence[str], size: int) -> str:
    """What the backward pass multiplies again, in words."""
    classes, features = w.shape
    columns = block_columns(features, classes, backward=True)
    told = (
        f"{counted(math.ceil(classes / columns), 'block')} of {columns} classes: the product "
        f"again, {2 * rows * w.numel()} flops in all, {rows * columns * size} bytes, a kernel for "
        f"its gradient, and {_products(late)}"
    )
    if "x" in late and size < 4:
        return f"{told}; the gradient of x is added up in float32, {rows * features * 4} bytes"
    if late == ["w"]:
        return (
            f"{told}; a sum of these classes' gradient would take {w.numel() * max(size, 4)} "
            "bytes in the forward pass"
        )
    return told
