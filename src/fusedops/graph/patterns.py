# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Match softmaxes and norms written in elementary operations, such as Llama's RMSNorm.

Each is found from its last node, the product or quotient of a value and a number of its row. All
nodes between must serve it alone, or there is something else that a kernel would have to return.
A conversion that rounds nothing may stand anywhere between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusedops.functors.operands import FLOATING
from fusedops.graph.nodes import (
    arguments,
    example,
    first_of,
    name_of,
    number,
    same_shape,
    widens,
)
from fusedops.graph.reductions import Reduction, Refused


def match(node: fx.Node) -> Reduction | None:
    """The softmax or norm whose pattern ends in a node; None if no pattern matches.

    Raises:
        Refused: There is one, and parts of it are used elsewhere.
    """
    found = _Match(node).find()
    if found is None:
        return None
    kind, source, dim, eps, nodes = found
    own = {*nodes, node}
    for one in nodes:
        if one is not node and {*one.users} - own:
            raise Refused(
                f"a part of the {kind} that is spelled out, {one.name}, is used elsewhere"
            )
    made, given = example(node), example(source)
    if made is None or given is None or made.dtype not in FLOATING or given.dtype not in FLOATING:
        return None
    if not same_shape(made.shape, given.shape) or not 0 < given.dim() <= 6:
        return None
    dtypes = [each.dtype for one in own if (each := example(one)) is not None]
    if len({dtype is torch.float64 for dtype in dtypes}) > 1:
        raise Refused("parts of it are computed in different precisions")
    constants: dict[str, Any] = {"eps": eps} if "Norm" in kind else {"empty_row": "nan"}
    return Reduction(kind, node, source, (dim,), constants, inner=(*nodes, node))


class _Match:
    """A pattern match, upwards from the last node; it collects the nodes that belong to it."""

    def __init__(self, last: fx.Node) -> None:
        self.last = last
        self.nodes: list[fx.Node] = []

    def find(self) -> Any:
        """Try each pattern: the op's class, its input, dimension and eps, and the inner nodes."""
        name, args = name_of(self.last), self.last.args
        if name not in ("mul", "multiply", "div", "truediv", "true_divide", "sub", "subtract"):
            return None
        if len(args) != 2 or self.last.kwargs or not all(isinstance(a, fx.Node) for a in args):
            return None
        attempts: tuple[Callable[..., Any], ...] = (self._norm, self._softmax, self._l2)
        if name in ("sub", "subtract"):
            attempts = (self._log_softmax,)
        divides = name in ("div", "truediv", "true_divide")
        for value, other in [args, args[::-1]] if name in ("mul", "multiply") else [args]:
            for attempt in attempts:
                self.nodes = []
                found = attempt(value, other, divides)
                if found is not None:
                    order = [one for one in self.last.graph.nodes if one in {*self.nodes}]
                    return (*found, order)
        return None

    # ------------------------------------------------------------------------------------ patterns

    def _norm(self, value: Any, factor: Any, divides: bool) -> Any:
        """The value times ``rsqrt(mean(value ** 2) + eps)``, the value centred or not."""
        total = self._root(factor, divides)
        if total is None:
            return None
        found = self._plus(total)
        if found is None:
            return None
        mean, eps = found
        name = name_of(mean)
        if name == "var":
            return self._with_variance(mean, value, eps)
        if name != "mean":
            return None
        dim = self._over(mean)
        if dim is None:
            return None
        self._take(mean)
        squared = self._squared(first_of(mean))
        if squared is None:
            return None
        if self._same_centred(value, squared):
            self._centred(squared, dim)
            source = self._centred(value, dim)
            if source is not None:
                return "LayerNorm", source, dim, eps
        source = self._same(value, squared)
        return None if source is None else ("RMSNorm", source, dim, eps)

    def _with_variance(self, variance: Any, value: Any, eps: float) -> Any:
        """The centred value times ``rsqrt(var(x, unbiased=False) + eps)``."""
        given = arguments(variance, "input dim unbiased keepdim")
        biased = given.get("unbiased", True) is False or given.get("correction", 1) == 0
        dim = _dimension(given.get("dim"), variance)
        if not biased or not given.get("keepdim") or dim is None:
            return None
        self._take(variance)
        source = self._centred(value, dim)
        source = None if source is None else self._same(source, given["input"])
        return None if source is None else ("LayerNorm", source, dim, eps)

    def _log_softmax(self, value: Any, total: Any, _: bool) -> Any:
        """``v - logsumexp(v)``."""
        if name_of(total) != "logsumexp":
            return None
        dim = self._over(total)
        self._take(total)
        source = self._same(value, first_of(total))
        return None if source is None or dim is None else ("LogSoftmax", source, dim, 0.0)

    def _softmax(self, value: Any, total: Any, divides: bool) -> Any:
        """``exp(v - max v) / sum``; without the maximum it may overflow, and is something else."""
        if not divides or name_of(total) != "sum":
            return None
        dim = self._over(total)
        if dim is None or name_of(value) != "exp" or first_of(total) is not value:
            return None
        self._take(total)
        self._take(value)
        less: Any = first_of(value)
        if name_of(less) not in ("sub", "subtract") or less.kwargs:
            return None
        source, largest = less.args
        if not isinstance(largest, fx.Node) or example(source) is None:
            return None
        self._take(less)
        top: Any = largest
        if name_of(top) == "detach":
            self._take(top)
            top = first_of(top)
        if name_of(top) == "getitem" and top.args[1] == 0:  # values and indices
            self._take(top)
            top = first_of(top)
            if name_of(top) != "max":
                return None
        elif name_of(top) != "amax":
            return None
        if first_of(top) is not source or self._over(top) != dim:
            return None
        self._take(top)
        return "Softmax", source, dim, 0.0

    def _l2(self, value: Any, length: Any, divides: bool) -> Any:
        """``v / norm(v)``, or with the norm held above eps."""
        if not divides:
            return None
        eps = 0.0
        if name_of(length) in ("clamp_min", "clamp"):
            given = arguments(length, "input min max")
            least = number(given.get("min"))
            if least is None or given.get("max") is not None:
                return None
            eps = float(least)
            self._take(length)
            length = given["input"]
        if name_of(length) not in ("norm", "vector_norm", "linalg_vector_norm"):
            return None
        own = name_of(length) == "norm"
        given = arguments(length, "input p dim keepdim" if own else "input ord dim keepdim")
        order = given.get("p" if own else "ord", 2)
        dim = _dimension(given.get("dim"), length)
        if order not in (2, 2.0, "fro", None) or not given.get("keepdim") or dim is None:
            return None
        if given.get("dtype") is not None or eps < 0:
            return None
        self._take(length)
        source = self._same(value, given["input"])
        return None if source is None else ("L2Norm", source, dim, eps)

    # --------------------------------------------------------------------------------------- parts

    def _take(self, node: Any) -> None:
        if node not in self.nodes:
            self.nodes.append(node)

    def _same(self, one: Any, other: Any) -> Any:
        """The tensor behind two nodes if it is the same one, seen through widening casts."""
        if one is other:
            return one if isinstance(one, fx.Node) else None
        ends = []
        for node in (one, other):
            while isinstance(node, fx.Node) and widens(node):
                self._take(node)
                node = node.args[0]
            ends.append(node)
        return ends[0] if ends[0] is ends[1] and isinstance(ends[0], fx.Node) else None

    def _root(self, factor: Any, divides: bool) -> Any:
        """The radicand of a factor that is a reciprocal square root."""
        name, given = name_of(factor), arguments(factor, "input other")
        if not divides and name in ("reciprocal", "truediv", "div"):
            inner = given.get("input" if name == "reciprocal" else "other")
            if name != "reciprocal" and number(given.get("input")) != 1:
                return None
            self._take(factor)
            return self._root(inner, divides=True) if name_of(inner) == "sqrt" else None
        root, exponent = ("sqrt", 0.5) if divides else ("rsqrt", -0.5)
        if name != root and _exponent(factor) != exponent:
            return None
        self._take(factor)
        found = given.get("input")
        return found if isinstance(found, fx.Node) else None

    def _plus(self, total: Any) -> Any:
        """A sum's tensor and number."""
        if name_of(total) != "add" or len(total.args) != 2 or total.kwargs:
            return None
        for one, other in (total.args, total.args[::-1]):
            eps = number(other)
            if isinstance(one, fx.Node) and number(one) is None and eps is not None and eps >= 0:
                self._take(total)
                return one, float(eps)
        return None

    def _over(self, node: Any) -> int | None:
        """The one dimension that a reduction with keepdim=True is over."""
        given = arguments(node, "input dim keepdim")
        if not given.get("keepdim") or given.get("dtype") is not None:
            return None
        return _dimension(given.get("dim"), node)

    def _squared(self, node: Any) -> Any:
        """The base of a square."""
        name = name_of(node)
        is_power = name == "square" or _exponent(node) == 2
        if not is_power and (name != "mul" or len(node.args) != 2 or len({*node.args}) != 1):
            return None
        self._take(node)
        return first_of(node)

    def _centred(self, node: Any, dim: int) -> Any:
        """The tensor from which a node subtracts its mean."""
        if name_of(node) not in ("sub", "subtract") or len(node.args) != 2 or node.kwargs:
            return None
        source, mean = node.args
        if not isinstance(mean, fx.Node) or name_of(mean) != "mean" or self._over(mean) != dim:
            return None
        if first_of(mean) is not source or not isinstance(source, fx.Node):
            return None
        self._take(node)
        self._take(mean)
        return source

    def _same_centred(self, one: Any, other: Any) -> bool:
        """Whether two nodes subtract the same mean of the same tensor."""
        if any(name_of(each) not in ("sub", "subtract") for each in (one, other)):
            return False
        return one is other or (one.args == other.args and not one.kwargs and not other.kwargs)


def _exponent(node: Any) -> float | None:
    """The number to which a node raises; None for other nodes."""
    if name_of(node) != "pow":
        return None
    return number(arguments(node, "input exponent").get("exponent"))


def _dimension(dim: Any, node: Any) -> int | None:
    """A dimension, given as itself or as the only one of several, counted from the first."""
    if isinstance(dim, (tuple, list)) and len(dim) == 1:
        (dim,) = dim
    made = example(node)
    if made is None:
        pair = node.meta.get("example_value")
        made = pair[0] if isinstance(pair, tuple) and pair else None
    if not isinstance(dim, int) or made is None:
        return None
    return dim % made.dim()
