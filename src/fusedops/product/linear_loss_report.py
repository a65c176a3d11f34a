# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What `LinearCrossEntropy.explain` says: the way a call goes, its products and its memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops.errors import counted
from fusedops.explain.report import Kept, ProductExplanation
from fusedops.product.factors import factor_dtype
from fusedops.product.torch_op_linear_cross_entropy import block_columns
from fusedops.product.torch_op_linear_one_loss import (
    Sweeps,
    chunk_rows,
    columns_of_block,
    sweeps_of,
)

__all__ = ["explanation"]


class _Way(NamedTuple):
    """How the passes of a call go, in words, how many kernels come first, and what is kept."""

    forward: str
    backward: str | None
    kernels: int
    kept: tuple[Kept, ...]


def explanation(op: Any, x: Tensor, w: Tensor, operands: Mapping[str, Tensor]) -> Any:
    """The explanation of a call with these tensors."""
    rows, classes, size = math.prod(x.shape[:-1]), w.shape[0], factor_dtype(x).itemsize
    flops = 2 * rows * w.numel()
    named = {"x": x, "w": w}
    wanted = [k for k, one in named.items() if torch.is_grad_enabled() and one.requires_grad]
    kept = tuple(Kept.given(key, one) for key, one in named.items()) if wanted else ()
    sweeps = sweeps_of(op, x, w, operands)
    columns = block_columns(x.shape[-1], classes)
    if classes <= columns or x.numel() == 0:
        way = _one_block(rows * classes * size, wanted, kept)
    elif sweeps is None:
        way = _by_blocks(rows, classes, columns, size, flops, wanted, kept)
    else:
        way = _in_sweeps(x, w, sweeps, size, flops, kept)
    return ProductExplanation(
        op=op,
        kept=way.kept,
        backward=way.backward,
        flops=flops,
        bytes=x.nbytes + w.nbytes + 2 * rows * classes * size,
        product=f"z = x @ w.T: {tuple(x.shape)} and {tuple(w.shape)}, {flops} flops",
        implementation=way.forward,
        kernels=way.kernels,
    )


def _products(wanted: Sequence[str]) -> str:
    return " and ".join(f"a product for {one}" for one in wanted)


def _one_block(logits: int, wanted: Sequence[str], kept: tuple[Kept, ...]) -> _Way:
    backward = f"one kernel, and {_products(wanted)}" if wanted else None
    told = f"one block: the product, {logits} bytes, then a CrossEntropy"
    return _Way(told, backward, 2, kept)


def _by_blocks(
    rows: int,
    classes: int,
    columns: int,
    size: int,
    flops: int,
    wanted: Sequence[str],
    kept: tuple[Kept, ...],
) -> _Way:
    blocks = math.ceil(classes / columns)
    told = (
        f"{counted(blocks, 'block')} of {columns} classes: a product of {rows * columns * size} "
        "bytes, then one kernel that reads it and writes a few numbers a row; the logits of all "
        f"classes would be {rows * classes * size} bytes"
    )
    backward = None
    if wanted:
        backward = (
            f"each block is multiplied again, {flops} flops, then a kernel for its gradient, and "
            f"{_products(wanted)}"
        )
    return _Way(told, backward, 2 * blocks, kept)


def _in_sweeps(
    x: Tensor, w: Tensor, sweeps: Sweeps, size: int, flops: int, kept: tuple[Kept, ...]
) -> _Way:
    rows, (classes, features) = math.prod(x.shape[:-1]), w.shape
    taken = min(chunk_rows(rows, features, of_w="w" in sweeps.wanted), rows)
    chunks = math.ceil(rows / taken)
    early = {k: one for k, one in (("x", x), ("w", w)) if k in sweeps.early}
    made = [f"a product of {taken * classes * size} bytes", "a kernel for the loss"]
    made += ["one for the gradient of the logits in their memory"] * bool(sweeps.early)
    made += [f"a product for {name}" for name in early]
    told = f"{counted(chunks, 'chunk')} of {taken} rows: {', '.join(made)}"
    sums = w.numel() * max(size, 4)
    if "w" in early and size < 4:
        told += f"; the gradient of w is added up in float32, {sums} bytes"
    backward = "the gradients of the forward pass are multiplied by that of the loss"
    if "w" in sweeps.wanted and "w" not in early:
        columns = columns_of_block(features, classes)
        again = (
            f"{counted(math.ceil(classes / columns), 'block')} of {columns} classes: the product "
            f"again, {flops} flops in all, {rows * columns * size} bytes, a kernel for its "
            f"gradient, and a product for w; a sum of w's gradient would take {sums} bytes in the "
            "forward pass"
        )
        backward = f"{again}; {backward}" if sweeps.early else again
    else:
        kept = ()
    for name, one in early.items():
        of = one.numel() * size
        kept = (*kept, Kept(f"gradient of {name}", "made in the forward pass", of, of))
    return _Way(told, backward, chunks * len(made), kept)
