# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What `LinearCrossEntropy.explain` says: the way a call goes, its products and its memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedops.errors import counted
from fusedops.explain.forward import notes_of_tanh
from fusedops.explain.report import Kept, ProductExplanation
from fusedops.product.factors import factor_dtype
from fusedops.product.linear_loss_kernel import explained
from fusedops.product.linear_loss_logits import (
    Logits,
    Sweeps,
    ahead_of,
    block_columns,
    chunk_of,
    keeps_logits,
    sweeps_of,
    why_late,
)


def explanation(op: Any, x: Tensor, w: Tensor, arguments: Mapping[str, Any]) -> Any:
    """The explanation of a call with these factors, and operands and targets by name."""
    operands = {k: one for k, one in arguments.items() if isinstance(one, Tensor)}
    target = operands.pop("target")
    dtype = factor_dtype(x)
    rows, classes, size = math.prod(x.shape[:-1]), w.shape[0], dtype.itemsize
    flops, named = 2 * rows * w.numel(), {"x": x, "w": w}
    of_x, of_w = _as_cast(x, dtype), _as_cast(w, dtype)
    sweeps = sweeps_of(op, of_x, of_w, operands)
    ahead = ahead_of(op, of_x, of_w) if "w" in sweeps.early else 0
    whole = [name for name in sweeps.early if name != "w" or ahead == classes]
    late = [name for name in sweeps.wanted if name not in whole]
    backward: list[str] = []
    kept_whole = keeps_logits(op, x, w, arguments.values())
    if classes <= block_columns(x.shape[-1], classes) or x.numel() == 0 or kept_whole:
        told = f"one block: the product, {rows * classes * size} bytes, then a CrossEntropy"
        if kept_whole:
            told += f"; at most {rows * classes * size} bytes beside x, w and their gradients"
        kernels, early = 2, dict[str, Tensor]()
        backward += [f"one kernel, and {_products(sweeps.wanted)}"] * bool(sweeps.wanted)
    else:
        why = why_late(op, of_x, operands, sweeps.wanted)
        if sweeps.early:
            told, kernels = _by_rows(op, of_x, of_w, ahead, sweeps, size)
        else:
            numbers = {k: one for k, one in arguments.items() if not isinstance(one, Tensor)}
            logits = Logits(op, of_x, of_w, target, operands, numbers)
            told, kernels = _by_classes(logits, op, size)
            if why and sweeps.wanted:
                told += f"; all gradients are made in the backward pass: {why}"
        named["w"] = w[:ahead]
        early = {k: one for k, one in named.items() if k in sweeps.early}
        if late:
            backward.append(_late(rows, classes, w[ahead:], late, size))
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
        notes=tuple(notes_of_tanh(op.load, x.is_cuda and size < 8)),
    )


def _as_cast(factor: Tensor, dtype: torch.dtype) -> Tensor:
    """A factor as autocast hands it to the call, but that a cast one has no memory."""
    if factor.dtype is dtype:
        return factor
    wanted = factor.requires_grad
    return torch.empty_like(factor, dtype=dtype, device="meta", requires_grad=wanted)


def _products(wanted: Sequence[str]) -> str:
    made = [f"a product for {one}" for one in wanted if one in ("x", "w")]
    return " and ".join(made) or "a sum"


def _by_classes(logits: Logits, op: Any, size: int) -> tuple[str, int]:
    """What a forward pass runs that makes no gradient, in words, and how many kernels that are."""
    rows, classes, features = logits.count, *logits.w.shape
    whole = f"the logits of all classes would be {rows * classes * size} bytes"
    choice = explained(op.of_part.whole, logits.x, logits.w, logits.of_all)
    if choice.tiling is not None:
        tiles = -(-classes // choice.tiling.cols)
        numbers = f"one number a row of each of {counted(tiles, 'tile')}, {rows * tiles * 4} bytes"
        return f"one kernel that multiplies and writes {numbers}, {choice.why}; {whole}", 1
    columns = block_columns(features, classes)
    blocks = math.ceil(classes / columns)
    told = (
        f"{counted(blocks, 'block')} of {columns} classes: a product of {rows * columns * size} "
        f"bytes, then one kernel that reads it and writes a few numbers a row; {whole}; "
        f"{choice.why}"
    )
    return told, 2 * blocks


def _by_rows(
    op: Any, x: Tensor, w: Tensor, ahead: int, sweeps: Sweeps, size: int
) -> tuple[str, int]:
    """The same of one that makes gradients, that of w for the classes ahead."""
    rows, (classes, features) = math.prod(x.shape[:-1]), w.shape
    of_w = "w" in sweeps.wanted
    taken = chunk_of(op, x, w, of_w=of_w, ahead=ahead)
    chunks, logits = math.ceil(rows / taken), taken * classes * size
    made = [f"a product of {logits} bytes", "a kernel for the loss"]
    made += ["one for the gradient of the logits in their memory"]
    made += [f"a product for {name}" for name in ("x", "w") if name in sweeps.early]
    told = f"{counted(chunks, 'chunk')} of {taken} rows: {', '.join(made)}"
    sums, of_gradient = 0, w.numel() * size * of_w
    if "w" in sweeps.early:
        of = "w" if ahead == classes else f"the first {ahead} classes of w"
        said = "added up"
        if size < 4:
            said += " in float32"
        sums = ahead * features * max(size, 4)
        told += f"; the gradient of {of} is {said}, {sums} bytes"
    # When the chunks are gone, a block of classes comes, or a gradient is multiplied by that of the
    # loss, beside all gradients.
    columns = min(block_columns(features, classes, backward=True), classes - ahead)
    again = max(rows * columns * of_w, rows * features, ahead * features) * size
    ending = ahead * features * (max(size, 4) + size) if sums else 0
    peak = max(sums + logits - of_gradient, ending - of_gradient, again)
    return f"{told}; at most {peak} bytes beside x, w and their gradients", chunks * len(made)


def _late(rows: int, every: int, w: Tensor, late: Sequence[str], size: int) -> str:
    """What the backward pass multiplies again, in words: these of every class."""
    classes, features = w.shape
    columns = min(block_columns(features, every, backward=True), classes)
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
