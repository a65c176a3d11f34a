# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The jobs that people come for and what to write, by fusedops or by something else.

The README's table is made of these, and so are the hints for names that people look for here and
that the library has not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fusedops.declare.hints import nearest
from fusedops.functors.suggestions import activation_of, made_into_functor


class Wanted(NamedTuple):
    """One job."""

    #: Names for it that the library has not, in CamelCase or with underscores.
    names: tuple[str, ...] = ()
    sentence: str = ""  # what an error says that asked for one of the names
    code: str = ""  # the expression to write, of torch and fusedops and of tensors; empty for none
    job: str = ""  # what the README's table calls it; empty if it is not in the table
    page: str = ""  # its page below docs/
    write: str = ""  # what the table has in place of `code`


WANTED = (
    Wanted(
        ("FusedSoftmax", "ScaledMaskedSoftmax", "ScaleMaskSoftmax", "MaskedSoftmax"),
        "what stands before a softmax is its load, what stands after it its store",
        "fusedops.Softmax(load=[fusedops.Scale('scale'), fusedops.Mask('mask')], "
        "store=[fusedops.Dropout('p')])",
        "softmax of attention scores, with scale, bias, mask and dropout",
        "tutorials/attention-softmax.md",
        "fo.nn.AttentionSoftmax(scale=0.125, p=0.1, causal=True)",
    ),
    Wanted(
        ("AddNorm", "AddLayerNorm", "AddRMSNorm", "FusedAddRMSNorm", "ResidualNorm"),
        "it is a norm with a Residual in its load, as ResidualRMSNorm of fusedops.nn is",
        "fusedops.RMSNorm(load=[fusedops.Residual('residual', save='stream')], "
        "store=[fusedops.Affine('weight', None)])",
        "dropout, residual sum and norm",
        "tutorials/residual-norm.md",
        "fo.nn.ResidualRMSNorm(512, p=0.1, return_stream=True)",
    ),
    Wanted(
        ("QuantizedRMSNorm", "RMSNormQuant", "LayerNormQuant", "NormQuantize"),
        "it is a norm with DynamicQuantize at the end of its store, or Quantize by a given scale",
        "fusedops.RMSNorm(store=[fusedops.Affine('weight', None), "
        "fusedops.DynamicQuantize(torch.float8_e4m3fn, per=128)])",
        "a norm whose result has 8 bits, with the scales that it finds",
        "how-to/results-of-8-bits.md",
        "fo.RMSNorm(store=[fo.Affine('weight', None), fo.DynamicQuantize(dtype, per=128)])",
    ),
    Wanted(
        ("Float8Linear", "FP8Linear", "scaled_mm", "ScaledLinear"),
        "it is a Linear of factors of 8 bits, whose scales are operands",
        "fusedops.Linear(store=[fusedops.Bias('b')], scales=('x_scales', 'w_scales'))",
        "a product of 8 bits, with their scales",
        "how-to/results-of-8-bits.md",
        "fo.Linear(store=[fo.Bias('b')], scales=('x_scales', 'w_scales'))",
    ),
    Wanted(
        ("patch_model", "AutoLigerKernelForCausalLM", "apply_liger_kernel"),
        "it is one call for a model of any kind",
        "fusedops.patch(model)",
        "a Hugging Face model, or any other, with fused norms and attention",
        "how-to/patch-a-model.md",
    ),
    Wanted(
        ("compile",),
        "it is a backend of torch's",
        "torch.compile(model, backend='fusedops')",
        "fusion found by `torch.compile`",
        "how-to/compile-backend.md",
    ),
    Wanted(
        ("Lambda", "Elementwise", "custom_functor", "register_functor"),
        "a functor of your own is a Python function",
        "fusedops.functor(lambda v: torch.tanh(v) * 2)",
        "a step of my own in the chain",
        "tutorials/own-functor.md",
        "@fo.functor",
    ),
    Wanted(
        ("FusedDense", "LinearGELU", "FusedLinear", "GEMMEpilogue"),
        "it is a Linear with its steps in the store",
        "fusedops.Linear(store=[fusedops.Bias('bias'), fusedops.Dropout('p')])",
        "bias, activation, dropout and residual after a matrix product",
        "tutorials/gemm-epilogue.md",
        "fo.Linear(store=[fo.Bias('b'), fo.GELU()])",
    ),
    Wanted(
        ("FFN", "FeedForward", "FusedMLP"),
        "it is an MLP",
        "fusedops.MLP(hidden=[fusedops.Bias('bias')])",
        "two linear layers that keep one tensor less",
        "how-to/products.md",
        "fo.nn.MLP(512, 2048, activation='gelu')",
    ),
    Wanted(
        ("GEMM", "BMM", "MM"),
        "a product of two tensors is Matmul, one with a weight Linear",
        "fusedops.Matmul(store=[fusedops.Scale('scale')])",
        "scores of attention, product included",
        "how-to/products.md",
        "fo.Matmul(store=[fo.Scale('scale'), fo.Causal()])",
    ),
    Wanted(
        ("GroupedGEMM", "grouped_mm", "GroupedMM", "RaggedDot"),
        "rows that are sorted by expert are those of a GroupedLinear",
        "fusedops.GroupedLinear(store=[fusedops.Scale('router')])",
        "linear layers of experts",
        "how-to/products.md",
        "fo.GroupedLinear(store=[fo.Bias('b')], by_expert=['b'])",
    ),
    Wanted(
        ("MoE", "MixtureOfExperts", "MoELayer", "SparseMoeBlock", "FusedMoE"),
        "the experts that a router chose are a module",
        "fusedops.nn.Experts(4, 16, 32)",
        "experts that a router chose",
        "how-to/products.md",
        "fo.nn.Experts(4, 16, 32)",
    ),
    Wanted(
        ("SwiGLU", "GEGLU", "ReGLU", "GLU", "silu_and_mul", "gelu_and_mul"),
        "the gate is a functor, in a Map or after a product; activation= names its function",
        "fusedops.Map(load=[fusedops.Gate('gate', activation='silu')])",
        "SwiGLU, GEGLU",
        "how-to/products.md",
    ),
    Wanted(
        ("QKNorm", "HeadNorm"),
        "it is a norm of the last dimension of queries and of keys",
        "fusedops.RMSNorm(store=[fusedops.Affine('weight', None)])",
        "QK-norm, Gemma's weights, adaptive LayerNorm",
        "how-to/norms.md",
    ),
    Wanted(
        ("AdaLN", "AdaLayerNorm", "AdaptiveLayerNorm", "ModulatedLayerNorm"),
        "it is a LayerNorm whose Affine has a scale and a shift for each sample",
        "fusedops.LayerNorm(store=[fusedops.Affine('scale', 'shift', zero_centred=True)])",
    ),
    Wanted(
        ("Varlen", "NestedTensor", "jagged", "cu_seqlens"),
        "sequences that are packed into one row are told apart by ids, padded ones by lengths",
        "fusedops.Softmax(load=[fusedops.Segments('q_ids', 'k_ids')])",
        "padded or packed sequences",
        "how-to/variable-lengths.md",
        "fo.Lengths('n')`, `fo.Segments('q_ids', 'k_ids')",
    ),
    Wanted(
        ("ColumnParallelLinear", "RowParallelLinear", "TensorParallel"),
        "layers are sharded by torch's parallelize_module; ops take the DTensors that come of it",
        job="tensor parallel training",
        page="how-to/many-gpus.md",
        write="op(dtensor, ...)",
    ),
    Wanted(
        job="these kernels in a C++ or CUDA project",
        page="tutorials/cmake.md",
        write="find_package(fusedops)",
    ),
    Wanted(
        job="one op as a C++ header, without Python",
        page="how-to/export-a-header.md",
        write="fusedops export my_ops:op",
    ),
    Wanted(
        job="to know what a call runs and why it is slow",
        page="how-to/slow-call.md",
        write="print(op.explain(x, ...))",
    ),
    Wanted(
        (
            *("MultiheadAttention", "Attention", "SelfAttention", "FlashAttention", "SDPA"),
            "scaled_dot_product_attention",
        ),
        "torch's attention does not write the scores; where they are wanted, AttentionSoftmax of "
        "fusedops.nn is all between the two products",
        "torch.nn.functional.scaled_dot_product_attention(q, k, v)",
        "attention whose probabilities nobody needs",
    ),
    Wanted(
        ("FlexAttention", "flex_attention", "score_mod"),
        "it is in torch.nn.attention.flex_attention; here a function of positions is a functor",
        job="scores changed by a function of their positions, on a GPU",
        write="flex_attention(q, k, v, score_mod)",
    ),
    Wanted(
        ("RoPE", "RotaryEmbedding", "RotaryPositionEmbedding", "Rotary", "apply_rotary_pos_emb"),
        "it is a functor, alone in a Map or behind the norm of queries and keys",
        "fusedops.RMSNorm(store=[fusedops.Affine('weight', None), fusedops.Rotate('cos', 'sin')])",
        "RoPE, and QK-norm with it",
        "how-to/norms.md",
        "fo.Map(load=[fo.Rotate('cos', 'sin')])",
    ),
    Wanted(
        ("FusedCrossEntropy", "SoftmaxCrossEntropy", "NLLLoss", "ZLoss", "LabelSmoothing"),
        "it is a loss with the functors of the logits in its load",
        "fusedops.CrossEntropy(load=[fusedops.Softcap('cap')], z_loss=1e-4)",
        "cross entropy, with softcap, mask, z-loss",
        "how-to/losses.md",
        "fo.CrossEntropy(load=[fo.Softcap('cap')])",
    ),
    Wanted(
        ("FusedLinearCrossEntropy", "CutCrossEntropy", "ChunkedCrossEntropy"),
        "a linear layer and its loss by blocks of classes, without all logits in memory, is",
        "fusedops.LinearCrossEntropy(load=[fusedops.Softcap('cap')])",
        "a linear layer and cross entropy without all logits",
        "how-to/losses.md",
        "fo.LinearCrossEntropy()",
    ),
    Wanted(
        ("KLDivLoss", "KLDiv", "DistillationLoss"),
        "the divergence from given probabilities is a cross entropy, less their entropy, which has "
        "no gradient",
        "fusedops.CrossEntropy(soft=True)",
    ),
    Wanted(("PReLU",), "it is a LeakyReLU", "fusedops.LeakyReLU('slope')"),
    Wanted(
        ("BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"),
        "its statistics are of columns over all rows, which no op here has; it is torch's",
        "torch.nn.BatchNorm2d(8)(images)",
        "batch norm",
        write="torch.nn.BatchNorm2d",
    ),
    Wanted(
        ("TopK", "Sort", "ArgMax"),
        "no op here sorts a row; torch does",
        "torch.topk(x, 2)",
        "the largest elements of a row",
    ),
    Wanted(
        ("Sparsemax", "Entmax", "Entmax15"),
        "no op here sorts a row; the package entmax has it",
    ),
    Wanted(
        ("Embedding", "EmbeddingBag"),
        "it is torch's; a bias that is looked up in a table is the functor Gather",
        "torch.nn.Embedding(99, 8)(target)",
    ),
    Wanted(
        ("Conv", "Conv1d", "Conv2d", "Conv3d"),
        "convolutions are torch's; the products here are Linear, MLP and Matmul",
        "torch.nn.Conv2d(8, 8, 3)(images)",
    ),
    Wanted(
        ("DropPath", "StochasticDepth", "Dropout1d", "Dropout2d"),
        "it is a Dropout with one draw along dimensions of x",
        "fusedops.Map(load=[fusedops.Dropout('p', shared=(-2, -1))])",
    ),
    Wanted(("Add",), "it is a functor", "fusedops.Residual('other')"),
    Wanted(("Mul", "Multiply"), "it is a functor", "fusedops.Scale('factor')"),
    Wanted(("Normalize", "CosineSimilarity"), "it is an op", "fusedops.L2Norm()"),
    Wanted(
        ("LogSumExp",),
        "it is a further result of Softmax and LogSoftmax",
        "fusedops.Softmax(lse=True)",
    ),
)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


_BY_NAME = {_plain(name): one for one in WANTED for name in one.names}


def missing(name: str, here: Iterable[str], other: str, there: Iterable[str]) -> str:
    """What an error says of a name that a module of fusedops has not; empty if there is nothing.

    `here` are the public names of the module, `there` those of the other one that people look in.
    """
    if name in there:
        return f"; {other}.{name} is there"
    found = _BY_NAME.get(_plain(name))
    if found:
        return f"; {found.sentence}{found.code and ': '}{found.code}"
    if activation_of(name):
        return f"; an activation is a functor: {made_into_functor(name)}"
    return nearest(name, here, 0.75)
