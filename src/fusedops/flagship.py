# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The two chains by which this project measures itself, fused and as one writes them in torch.

The demo and the benchmarks run them; they are also what to copy from when declaring an op.

May import: fusedops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import fusedops as fo

__all__ = ["ADD_NORM", "ATTENTION", "Case", "add_norm", "attention"]

ATTENTION = fo.Softmax(
    load=[fo.Scale("scale"), fo.Bias("pair_bias"), fo.Mask("padding")],
    store=[fo.Dropout("p")],
)

ADD_NORM = fo.LayerNorm(
    load=[fo.Bias("bias"), fo.Dropout("p"), fo.Residual("residual", save="stream")],
    store=[fo.Affine("gamma", "beta")],
)


def torch_attention(
    x: Tensor,
    *,
    scale: float,
    pair_bias: Tensor,
    padding: Tensor,
    p: float,
) -> Tensor:
    """ATTENTION as a chain of torch calls in x's dtype."""
    scores = (x * scale + pair_bias).masked_fill(padding, float("-inf"))
    return functional.dropout(torch.softmax(scores, -1), p)


def torch_add_norm(
    x: Tensor,
    *,
    bias: Tensor,
    p: float,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
) -> tuple[Tensor, Tensor]:
    """ADD_NORM as a chain of torch calls in x's dtype."""
    stream = functional.dropout(x + bias, p) + residual
    return functional.layer_norm(stream, stream.shape[-1:], gamma, beta), stream


@dataclasses.dataclass(frozen=True)
class Case:
    """An op, the arguments of a call, and the torch chain that takes the same arguments."""

    name: str
    op: Any
    chain: Callable[..., Any]
    x: Tensor
    operands: dict[str, Any]

    def fused(self) -> Any:
        """One call of the op."""
        return self.op(self.x, **self.operands)

    def unfused(self) -> Any:
        """One call of the torch chain, with torch's own dropout."""
        return self.chain(self.x, **self.operands)

    @property
    def title(self) -> str:
        """Name and shape."""
        return f"{self.name} {tuple(self.x.shape)}"

    @property
    def bytes(self) -> int:
        """The bytes that one call must move: each operand read once, each result written once."""
        tensors = [t for t in self.operands.values() if isinstance(t, Tensor)]
        outputs = 2 if self.op is ADD_NORM else 1
        return sum(t.nbytes for t in tensors) + self.x.nbytes * (1 + outputs)


def attention(
    shape: tuple[int, int, int, int], *, p: float, dtype: torch.dtype, device: torch.device | str
) -> Case:
    """Attention scores [batch, head, query, key] with a pair bias that the batch shares."""
    batch, heads, queries, keys = shape
    lengths = torch.linspace(keys // 2, keys, batch, device=device).long()
    padding = torch.arange(keys, device=device) >= lengths[:, None]
    return Case(
        name="attention softmax",
        op=ATTENTION,
        chain=torch_attention,
        x=torch.randn(shape, dtype=dtype, device=device) * 8,
        operands={
            "scale": 0.125,
            "pair_bias": torch.randn((1, heads, queries, keys), dtype=dtype, device=device),
            "padding": padding[:, None, None, :],
            "p": p,
        },
    )


def add_norm(
    shape: tuple[int, int], *, p: float, dtype: torch.dtype, device: torch.device | str
) -> Case:
    """The residual LayerNorm of a transformer over [token, feature], its stream kept."""
    columns = shape[-1:]
    return Case(
        name="residual LayerNorm",
        op=ADD_NORM,
        chain=torch_add_norm,
        x=torch.randn(shape, dtype=dtype, device=device),
        operands={
            "bias": torch.randn(columns, dtype=dtype, device=device),
            "p": p,
            "residual": torch.randn(shape, dtype=dtype, device=device),
            "gamma": torch.randn(columns, dtype=dtype, device=device),
            "beta": torch.randn(columns, dtype=dtype, device=device),
        },
    )
