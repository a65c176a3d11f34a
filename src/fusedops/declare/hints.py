# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Suggestions that end errors about unknown names: near names, and other libraries' terms."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from fusedops.errors import counted, shortened
from fusedops.functors.suggestions import FUNCTORS, activation_of, made_into_functor

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration

__all__ = ["ELSEWHERE", "Elsewhere", "check_declaration", "for_call", "missing", "nearest"]

#: The option of a call, by the name that other libraries have for it.
_OPTIONS = {"axis": "dim", "axes": "dim", "seed": "generator", "rng": "generator"}

#: Functors that may stand only in the load of an op that has masks, and where rows are scores.
_MASKS = ("Mask", "Causal", "Window", "Lengths")
_SCORES = "Alibi"


#: The argument of another op that has the same purpose.
_ARGUMENTS = {"stats": "lse", "return_lse": "lse", "logsumexp": "lse"}


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """A suggestion of the most similar known name, ``; did you mean 'this'?``, or an empty text.

    `likeness` is near 1 where there are many names, of which one is always a little alike.
    """
    lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), lower, 1, likeness)
    return f"; did you mean {lower[found[0]]!r}?" if found else ""


def for_call(op: Declaration, name: str, options: Iterable[str]) -> str:
    """A suggestion for an unknown keyword of a call; empty if no known name is near."""
    kind = op.name
    if op.constants.get(name) in op.row_operands:
        return f"; the declaration names it {op.constants[name]!r}: pass {op.constants[name]}=..."
    if name in op.constants or name in inspect.signature(type(op)).parameters:
        return f"; {name} belongs to the declaration: {kind}({name}=...)"
    if name == "x":
        return "; x is given once, and by its position"
    if name in _OPTIONS:
        return f"; say {_OPTIONS[name]}="
    if name in FUNCTORS and not op.slots:
        return f"; declare a functor for it in load or store, such as {FUNCTORS[name]}"
    return nearest(name, (*op.slots, *options))


def check_declaration(
    kind: type, arguments: tuple[Any, ...], named: dict[str, Any], options: Collection[str]
) -> None:
    """Raise TypeError for arguments that a class of ops does not take, with a cure.

    Python's own error would name no cure.

    Args:
        kind: The class of ops.
        arguments: The positional arguments of the declaration.
        named: The keyword arguments of the declaration.
        options: The keywords that are options of a call, which the error tells apart.
    """
    takes = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    if any(one.kind is one.VAR_KEYWORD for one in takes):
        return
    title, known = kind.__name__, [one.name for one in takes]
    for name in named:
        if name not in known:
            raise TypeError(
                f"{title}: unknown argument {name!r} of the declaration, which takes "
                f"{', '.join(known)}{_for_declaration(kind, name, known, options)}"
            )
    by_place = [one for one in takes if one.kind is one.POSITIONAL_OR_KEYWORD]
    if len(arguments) > len(by_place) and not any(one.kind is one.VAR_POSITIONAL for one in takes):
        raise TypeError(
            f"{title}: a declaration takes {', '.join(one.name for one in by_place)} by position, "
            f"got {counted(len(arguments), 'argument')}: {shortened(arguments)}; name the "
            f"others, of {', '.join(known)}"
        )


def _for_declaration(kind: type, name: str, known: list[str], options: Collection[str]) -> str:
    title = kind.__name__
    masks = getattr(kind, "masks", True) and not getattr(kind, "together", False)
    scores = masks and not getattr(kind, "zeroes_masked", False)
    option = _OPTIONS.get(name, name)
    if option in options:
        return f"; {option} is an option of the call: {title}(...)(x, {option}=...)"
    if _ARGUMENTS.get(name) in known:
        return f"; say {title}({_ARGUMENTS[name]}=True)"
    functor = FUNCTORS.get(name, "")
    stands = masks if functor.startswith(_MASKS) else scores or not functor.startswith(_SCORES)
    if functor and stands:
        side = "store" if functor.startswith(("Affine", "Dropout")) else "load"
        return (
            "; that is declared by a functor, and its value is given to the call: "
            f"{title}({side}=[{functor}])"
        )
    return nearest(name, known)


class Elsewhere(NamedTuple):
    """A name that other libraries have, with the expression that replaces it here.

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
    """The hint of an AttributeError for a name that a module lacks; empty if there is none.

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
