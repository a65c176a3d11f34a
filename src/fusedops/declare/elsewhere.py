# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What to write for a name that people look for here and that the library has not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fusedops.declare.hints import nearest
from fusedops.functors.from_torch import activation_of, made_into_functor

__all__ = ["ELSEWHERE", "Elsewhere", "missing"]


class Elsewhere(NamedTuple):
    """One thing that the library has not.

    Attributes:
        names: What it is called, in CamelCase or with underscores.
        sentence: What to do instead.
        code: The expression to write, of torch and fusedops and of tensors; empty for none.
    """

    names: tuple[str, ...]
    sentence: str
    code: str = ""


ELSEWHERE = (
    Elsewhere(
        ("RoPE", "RotaryEmbedding", "RotaryPositionEmbedding", "Rotary", "apply_rotary_pos_emb"),
        "a functor does not see other columns, which a rotary embedding adds; write it in torch",
        "x * cos + torch.cat((-x.chunk(2, -1)[1], x.chunk(2, -1)[0]), -1) * sin",
    ),
    Elsewhere(
        ("CrossEntropy", "CrossEntropyLoss", "NLLLoss"),
        "losses are torch's",
        "torch.nn.functional.cross_entropy(logits, target)",
    ),
    Elsewhere(
        ("LinearCrossEntropy", "LinearCrossEntropyLoss", "FusedLinearCrossEntropy"),
        "newer releases of torch (functional.linear_cross_entropy), Liger-Kernel and "
        "cut-cross-entropy have it without all logits in memory; the chain of all releases is",
        "torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, w), target)",
    ),
    Elsewhere(
        ("SwiGLU", "GEGLU", "ReGLU", "GLU", "silu_and_mul", "gelu_and_mul"),
        "the gate is a functor, in a Map or after a product; activation= names its function",
        "fusedops.Map(load=[fusedops.Gate('gate', activation='silu')])",
    ),
    Elsewhere(
        (
            *("MultiheadAttention", "Attention", "SelfAttention", "FlashAttention", "SDPA"),
            "scaled_dot_product_attention",
        ),
        "torch's attention does not write the scores; where they are wanted, AttentionSoftmax of "
        "fusedops.nn is all between the two products",
        "torch.nn.functional.scaled_dot_product_attention(q, k, v)",
    ),
    Elsewhere(
        ("BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"),
        "its statistics are of columns over all rows, which no op here has; it is torch's",
        "torch.nn.BatchNorm2d(8)(images)",
    ),
    Elsewhere(
        ("Sparsemax", "Entmax", "Entmax15"),
        "no op here sorts a row; the package entmax has it",
    ),
    Elsewhere(("TopK", "Sort", "ArgMax"), "no op here sorts a row; torch does", "torch.topk(x, 2)"),
    Elsewhere(
        ("Embedding", "EmbeddingBag"),
        "it is torch's; a bias that is looked up in a table is the functor Gather",
        "torch.nn.Embedding(99, 8)(target)",
    ),
    Elsewhere(
        ("Conv", "Conv1d", "Conv2d", "Conv3d"),
        "convolutions are torch's; the products here are Linear, MLP and Matmul",
        "torch.nn.Conv2d(8, 8, 3)(images)",
    ),
    Elsewhere(
        ("DropPath", "StochasticDepth", "Dropout1d", "Dropout2d"),
        "it is a Dropout with one draw along dimensions of x",
        "fusedops.Map(load=[fusedops.Dropout('p', shared=(-2, -1))])",
    ),
    Elsewhere(
        ("AddNorm", "AddLayerNorm", "AddRMSNorm", "FusedAddRMSNorm", "ResidualNorm"),
        "it is a norm with a Residual in its load, as ResidualRMSNorm of fusedops.nn is",
        "fusedops.RMSNorm(load=[fusedops.Residual('residual', save='stream')], "
        "store=[fusedops.Affine('weight', None)])",
    ),
    Elsewhere(("Add",), "it is a functor", "fusedops.Residual('other')"),
    Elsewhere(("Mul", "Multiply"), "it is a functor", "fusedops.Scale('factor')"),
    Elsewhere(("Normalize", "CosineSimilarity"), "it is an op", "fusedops.L2Norm()"),
    Elsewhere(
        ("LogSumExp",),
        "it is a further result of Softmax and LogSoftmax",
        "fusedops.Softmax(lse=True)",
    ),
    Elsewhere(
        ("GEMM", "BMM", "MM"),
        "a product of two tensors is Matmul, one with a weight Linear",
        "fusedops.Matmul(store=[fusedops.Scale('scale')])",
    ),
    Elsewhere(
        ("FFN", "FeedForward"), "it is an MLP", "fusedops.MLP(hidden=[fusedops.Bias('bias')])"
    ),
    Elsewhere(
        ("compile",), "it is a backend of torch's", "torch.compile(model, backend='fusedops')"
    ),
)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


_BY_NAME = {_plain(name): one for one in ELSEWHERE for name in one.names}


def missing(name: str, here: Iterable[str], other: str, there: Iterable[str]) -> str:
    """What an error says of a name that a module of fusedops has not; empty if there is nothing.

    Args:
        name: The name.
        here: The public names of the module.
        other: The other module that people look in, as they write it.
        there: The public names of that.
    """
    if name in there:
        return f"; {other}.{name} is there"
    found = _BY_NAME.get(_plain(name))
    if found:
        return f"; {found.sentence}{found.code and ': '}{found.code}"
    if activation_of(name):
        return f"; an activation is a functor of your own: {made_into_functor(name)}"
    return nearest(name, here, 0.75)
