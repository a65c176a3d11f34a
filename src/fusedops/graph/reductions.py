# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes of a captured graph that call a row reduction or a linear layer of torch."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import fx
from torch.nn import functional

from fusedops.functors.operands import FLOATING
from fusedops.graph.nodes import arguments, example, name_of, number, same_shape
from fusedops.nn.norms import default_eps


class Refused(Exception):  # noqa: N818 (it is a reason, which the report has)
    """Why a reduction or a linear layer is left as it is."""


@dataclasses.dataclass(frozen=True)
class Reduction:
    """A softmax, a norm or a loss in a graph."""

    kind: str  # the class of op that computes it: "Softmax", "LayerNorm" and so on
    node: fx.Node  # the node whose result it is
    source: fx.Node  # the node that it reduces
    #: The reduced dimensions; None where the op finds them itself (GroupNorm).
    dim: tuple[int, ...] | None
    constants: dict[str, Any]  # the other arguments of the declaration
    #: What the result is multiplied by, and what is added, or None.
    gamma: fx.Node | None = None
    beta: fx.Node | None = None
    #: The nodes that compute it: the last alone, unless it is spelled out in operations.
    inner: tuple[fx.Node, ...] = ()
    target: fx.Node | None = None  # the class of each row, of a loss

    @property
    def has_result(self) -> bool:
        """Whether its result has the shape of what it reduces."""
        return self.target is None

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """The nodes that compute it, in order; the last one's result is its result."""
        return self.inner or (self.node,)

    @property
    def what(self) -> str:
        """The name in reports: the torch function's, or the pattern's."""
        return f"{self.kind}, spelled out" if self.inner else name_of(self.node)


@dataclasses.dataclass(frozen=True)
class Product:
    """A linear layer in a graph."""

    node: fx.Node  # the node whose result it is
    source: fx.Node  # the factor of shape (..., K)
    w: fx.Node  # the factor of shape (N, K)
    bias: fx.Node | None  # what is added, of shape (N,), or None

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """The node that computes it."""
        return (self.node,)

    @property
    def what(self) -> str:
        """The name in reports."""
        return "linear"


def called(node: fx.Node) -> Reduction | None:
    """The softmax, norm or loss that a node calls by name; None for other nodes.

    Raises:
        Refused: It is one for which there is no op.
    """
    reader = _READERS.get(name_of(node))
    if reader is None or (node.op == "call_method" and reader is not _softmax):
        return None
    made = example(node)
    if made is None:
        return None
    found: Reduction | None = reader(node)
    if found is None:
        return None
    source = example(found.source)
    if source is None or source.dtype not in FLOATING:
        raise Refused(f"x has dtype {source.dtype if source is not None else None}, not a float's")
    if made.dtype not in FLOATING:
        raise Refused(f"its result has dtype {made.dtype}, not a float's")
    if source.dim() == 0:
        raise Refused("x has no dimension")
    if source.dim() > 6:
        raise Refused("x has more than six dimensions")
    if made.dtype.itemsize < source.dtype.itemsize:
        raise Refused(f"x is rounded to {made.dtype} before the reduction; convert it explicitly")
    return found


def _softmax(node: fx.Node) -> Reduction | None:
    if _loss_of(node) is not None:
        return None  # which is found at that node
    given = arguments(node, "input dim")
    source, dim = given["input"], given.get("dim")
    if not isinstance(dim, int):
        raise Refused("no dim is given")
    kind = "LogSoftmax" if "log" in name_of(node) else "Softmax"
    dim %= max(_rank(source), 1)
    return Reduction(kind, node, source, (dim,), {"empty_row": "nan"})


def _layer_norm(node: fx.Node) -> Reduction:
    given = arguments(node, "input normalized_shape weight bias eps")
    return _norm("LayerNorm", node, given, number(given.get("eps", 1e-5)))


def _rms_norm(node: fx.Node) -> Reduction:
    given = arguments(node, "input normalized_shape weight eps")
    eps = given.get("eps")
    if eps is None:
        source = example(given["input"])
        return _norm(
            "RMSNorm", node, given, default_eps(source.dtype if source is not None else None)
        )
    return _norm("RMSNorm", node, given, number(eps))


def _norm(kind: str, node: fx.Node, given: dict[str, Any], eps: float | None) -> Reduction:
    if eps is None or eps < 0:
        raise Refused("eps is no constant")
    rank, count = _rank(given["input"]), len(given["normalized_shape"])
    dim = tuple(range(rank - count, rank))
    operands = (given.get("weight"), given.get("bias"))
    return Reduction(kind, node, given["input"], dim, {"eps": float(eps)}, *operands)


def _group_norm(node: fx.Node) -> Reduction:
    given = arguments(node, "input num_groups weight bias eps")
    eps, groups = number(given.get("eps", 1e-5)), number(given["num_groups"])
    made = example(given["input"])
    if eps is None or groups is None:
        raise Refused("eps or num_groups is no constant")
    if made is None or not made.is_contiguous():
        raise Refused("x is not contiguous (channels_last, say), and would be copied")
    constants = {"num_groups": int(groups), "eps": float(eps)}
    operands = (given.get("weight"), given.get("bias"))
    return Reduction("GroupNorm", node, given["input"], None, constants, *operands)


def _normalize(node: fx.Node) -> Reduction:
    given = arguments(node, "input p dim eps out")
    eps, dim = number(given.get("eps", 1e-12)), given.get("dim", 1)
    if number(given.get("p", 2.0)) != 2 or eps is None or not isinstance(dim, int):
        raise Refused("it is no L2 norm over one dimension")
    dim %= max(_rank(given["input"]), 1)
    return Reduction("L2Norm", node, given["input"], (dim,), {"eps": float(eps)})


def _cross_entropy(node: fx.Node) -> Reduction:
    names = "input target weight size_average ignore_index reduce reduction label_smoothing"
    return _loss(node, arguments(node, names))


def _nll_loss(node: fx.Node) -> Reduction | None:
    given = arguments(node, "input target weight size_average ignore_index reduce reduction")
    before = given["input"]
    if not isinstance(before, fx.Node) or _loss_of(before) is not node:
        return None
    source = arguments(before, "input dim")["input"]
    return _loss(node, {**given, "input": source}, (before, node))


def _loss_of(node: fx.Node) -> fx.Node | None:
    """The negative log-likelihood of which a node is the log-softmax, and nothing else."""
    if "log" not in name_of(node) or len(node.users) != 1:
        return None
    (user,) = node.users
    dim = arguments(node, "input dim").get("dim")
    rank = _rank(node)
    if name_of(user) != "nll_loss" or user.args[:1] != (node,) or not isinstance(dim, int):
        return None
    return user if dim % max(rank, 1) == (1 if rank > 1 else 0) else None


def _loss(node: fx.Node, given: dict[str, Any], inner: tuple[fx.Node, ...] = ()) -> Reduction:
    source, target = given["input"], given["target"]
    labels = example(target)
    if labels is None or labels.is_floating_point() or labels.dim() != _rank(source) - 1:
        raise Refused("its target is no class for each row")
    if any(given.get(name) is not None for name in ("weight", "size_average", "reduce")):
        raise Refused("its classes have weights, or it says size_average or reduce")
    ignored, smoothing = number(given.get("ignore_index", -100)), given.get("label_smoothing", 0.0)
    smoothing, reduction = number(smoothing), given.get("reduction", "mean")
    if ignored is None or smoothing is None or reduction not in ("none", "mean", "sum"):
        raise Refused("ignore_index, label_smoothing or reduction is no constant")
    constants = {"ignore_index": int(ignored), "label_smoothing": float(smoothing)}
    constants["reduction"] = reduction
    dim = (1,) if _rank(source) > 1 else (0,)
    return Reduction("CrossEntropy", node, source, dim, constants, inner=inner, target=target)


def _rank(node: Any) -> int:
    made = example(node)
    return made.dim() if made is not None else 0


_READERS: dict[str, Any] = {
    **dict.fromkeys(["softmax", "special_softmax", "log_softmax", "special_log_softmax"], _softmax),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "normalize": _normalize,
    "cross_entropy": _cross_entropy,
    "nll_loss": _nll_loss,
}


def product_of(node: fx.Node) -> Product | None:
    """The linear layer that a node calls; None for other nodes.

    Raises:
        Refused: It is one for which there is no op.
    """
    if node.op != "call_function" or node.target is not functional.linear:
        return None
    given = arguments(node, "input weight bias")
    x, w, bias = given.get("input"), given.get("weight"), given.get("bias")
    made, of_x, of_w = example(node), example(x), example(w)
    if made is None or of_x is None or of_w is None:
        return None
    if any(one.dtype not in FLOATING for one in (made, of_x, of_w)):
        raise Refused(f"it is computed in {made.dtype}, not in a float's dtype")
    if of_w.dim() != 2 or of_x.dim() == 0:
        raise Refused("its weight is no matrix")
    if made.dim() > 6:
        raise Refused("x has more than six dimensions")
    if bias is not None:
        of_bias = example(bias)
        if of_bias is None or not same_shape(of_bias.shape, of_w.shape[:1]):
            raise Refused("its bias is no vector")
    assert isinstance(x, fx.Node)
    assert isinstance(w, fx.Node)
    return Product(node, x, w, bias)
