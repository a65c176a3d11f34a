# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Turn a region of a graph into a declaration: its functors, and the operands of the call.

A functor of the library stands where it means exactly what the nodes compute; the others are
written from the nodes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import fx

from fusedops import ops
from fusedops.functors import (
    Affine,
    Bias,
    Cast,
    Dropout,
    Functor,
    Gate,
    LeakyReLU,
    Mask,
    Residual,
    Save,
    Scale,
    Softcap,
    SquaredReLU,
)
from fusedops.functors.activations import activation_named
from fusedops.graph.nodes import (
    CASTS,
    arguments,
    dropout_of,
    example,
    first_of,
    name_of,
    number,
    same_shape,
    tensor_of,
    tensors_of,
)
from fusedops.graph.reductions import Product, Reduction
from fusedops.graph.region import Region
from fusedops.graph.segments import Segment, generated
from fusedops.group_norm import GroupNorm
from fusedops.product import Linear
from fusedops.row_op import RowOp

#: The ops by their text: a graph names an op by it, and may outlive the region that it is of.
_ops: dict[str, RowOp] = {}
_layers: dict[str, Linear] = {}  # by the text of the STORE

#: The class of a declaration.
Op = TypeVar("Op", bound=RowOp | Linear)

#: The activations of torch that are functors without operands, and their words.
_ACTIVATIONS = ("silu", "gelu", "sigmoid", "tanh", "relu")


@dataclasses.dataclass
class Declared(Generic[Op]):
    """The op that replaces a region, with the arguments of its call."""

    op: Op
    operands: dict[str, fx.Node | float]  # what the call passes, by name: nodes, or numbers
    outputs: list[fx.Node]  # the node of each further output, in the op's order
    dtype: torch.dtype  # the dtype of y
    dim: tuple[int, ...] | None = None  # the option of this name, or None


def declare(region: Region[Reduction]) -> Declared[RowOp]:
    """The declaration of a region around a reduction.

    Raises:
        UnsupportedError: A functor cannot hold one of its nodes.
    """
    root = region.root
    chains = _Chains(root.kind)
    if root.target is not None:
        chains.operands["target"] = root.target
    load = chains.side(region.load, before=True)
    store = chains.affine(root) + chains.side(region.store, before=False)
    kind: Any = GroupNorm if root.kind == "GroupNorm" else getattr(ops, root.kind)
    constants = dict(root.constants)
    first = (constants.pop("num_groups"),) if "num_groups" in constants else ()
    op: RowOp = kind(*first, load=load, store=_joined(store, root, chains), **constants)
    op = _ops.setdefault(op.text, op)
    given = {name: chains.operands[name] for name in op.slots}
    return Declared(op, given, chains.saved, tensor_of(region.result).dtype, root.dim)


def declare_layer(region: Region[Product]) -> Declared[Linear]:
    """The declaration of a region after a linear layer.

    Raises:
        UnsupportedError: A functor cannot hold one of its nodes.
    """
    chains, bias = _Chains("Linear"), region.root.bias
    store: list[Functor] = [] if bias is None else [Bias(chains.name("bias", bias))]
    op = Linear([*store, *chains.side(region.store, before=False)])
    op = _layers.setdefault(op.epilogue.text, op)
    given = {name: chains.operands[name] for name in op.slots}
    return Declared(op, given, chains.saved, tensor_of(region.result).dtype)


class _Chains:
    """Builds the functors of LOAD and STORE for a region, and names their operands."""

    def __init__(self, kind: str) -> None:
        self.kind = kind  # the class of the op
        self.operands: dict[str, fx.Node | float] = {}  # what the call passes, by name
        self.saved: list[fx.Node] = []  # the nodes of the saved streams, in order
        # The functors made here that may yet become another one: residuals that save nothing,
        # factors and summands by the name of the operand, and an `Affine` without beta.
        self.residuals: dict[Functor, Residual] = {}
        self.factors: dict[Functor, str] = {}
        self.summands: dict[Functor, str] = {}
        self.without_beta: dict[Functor, Affine] = {}

    def name(self, wanted: str, value: Any) -> str:
        """A free name for an operand: the wanted one, numbered if another operand has it."""
        name, count = wanted, 1
        while name in self.operands and self.operands[name] is not value:
            count += 1
            name = f"{wanted}{count}"
        self.operands[name] = value
        return name

    def affine(self, reduction: Reduction) -> list[Functor]:
        """The `Affine` of a norm whose call passes a weight or a bias."""
        gamma, beta = reduction.gamma, reduction.beta
        if gamma is None and beta is None:
            return []
        made = Affine(
            None if gamma is None else self.name("gamma", gamma),
            None if beta is None else self.name("beta", beta),
        )
        if beta is None:
            self.without_beta[made] = made
        return [made]

    def side(self, segments: Sequence[Segment], before: bool) -> list[Functor]:
        """The functors of the segments before the reduction, or after it."""
        made: list[Functor] = []
        for at, segment in enumerate(segments):
            if segment.kind == "save":
                self._save(made, segment.entry)
            elif segment.kind == "dropout":
                found = dropout_of(segment.nodes[0])
                assert found is not None
                made.append(Dropout(self.name("p", found[1])))
            elif segment.kind == "cast":
                made.append(Cast(tensor_of(segment.nodes[0]).dtype))
            else:
                last = before and all(one.kind != "pointwise" for one in segments[at + 1 :])
                made += self._pointwise(segment, last and at == len(segments) - 1)
        return made

    def _save(self, made: list[Functor], node: fx.Node) -> None:
        name = f"stream{len(self.saved) + 1 if self.saved else ''}"
        self.saved.append(node)
        dtype = tensor_of(node).dtype
        if made and made[-1] in self.residuals:
            made[-1] = dataclasses.replace(self.residuals[made[-1]], save=name, dtype=dtype)
        else:
            made.append(Save(name, dtype=dtype))

    def _pointwise(self, segment: Segment, last: bool) -> list[Functor]:
        """The functors of a pointwise segment: the library's where one matches, else generated."""
        path = _path(segment)
        if path is None:
            return self._generated(list(segment.nodes), segment.entry)
        made: list[Functor] = []
        waiting: list[fx.Node] = []
        entry, value = segment.entry, segment.entry
        at = 0
        while at < len(path):
            node, sides = path[at]
            found, taken = self._softcap(path[at:], value)
            if found is None:
                found, taken = _squared_relu(path[at:], value)
            if found is None:
                found, taken = self._known(node, sides, value, last and at == len(path) - 1), 1
            if found is None and not _is_nothing(node):
                waiting += [*sides, node]
                value = node
                at += 1
                continue
            if waiting:
                made += self._generated(waiting, entry)
                waiting = []
            if found is not None:
                made.append(found)
            at += taken
            entry = value = path[at - 1][0]
        return made + (self._generated(waiting, entry) if waiting else [])

    def _generated(self, nodes: list[fx.Node], entry: fx.Node) -> list[Functor]:
        inside = {*nodes, entry}
        read = [one for node in nodes for one in tensors_of(node) if one not in inside]
        words = [name_of(node) for node in nodes if not _is_nothing(node)]
        if not words:
            return []
        operands = {one: self.name("operand", one) for one in dict.fromkeys(read)}
        label = "_".join(word.strip("_") for word in dict.fromkeys(words[:4]))
        return [generated(nodes, entry, operands, label)]

    def _softcap(
        self, path: list[tuple[fx.Node, list[fx.Node]]], value: fx.Node
    ) -> tuple[Functor | None, int]:
        """The functor for ``cap * tanh(x / cap)``, with the same number."""
        nodes = [node for node, _ in path[:3]]
        names = [name_of(one) for one in nodes]
        if names not in (["truediv", "tanh", "mul"], ["div", "tanh", "mul"]):
            return None, 0
        if any(sides for _, sides in path[:3]) or nodes[0].args[:1] != (value,):
            return None, 0
        cap = number(nodes[0].args[-1])
        times = [number(one) for one in nodes[2].args if one is not nodes[1]]
        if cap is None or times != [cap]:
            return None, 0
        return Softcap(self.name("cap", float(cap))), 3

    def _known(
        self, node: fx.Node, sides: list[fx.Node], value: fx.Node, last: bool
    ) -> Functor | None:
        """The library's functor with exactly the meaning of a node; None if there is none."""
        name, args = name_of(node), list(node.args)
        if name in ("mul", "multiply") and len(args) == 2:
            other = args[1] if args[0] is value else args[0]
            if sides:
                return self._gate(sides, other)
            return None if other is value else self._scale(other)
        if sides or not args:
            return None
        if args == [value]:
            word = _activation(node)
            return None if word is None else activation_named(word)
        if name == "leaky_relu":
            return self._leaky_relu(node, value)
        if name in ("truediv", "div") and len(args) == 2 and args[0] is value:
            divisor = float(number(args[1]) or 0.0)
            exact = not node.kwargs and math.frexp(abs(divisor))[0] == 0.5  # by a power of two
            return Scale(self.name("scale", 1.0 / divisor)) if exact else None
        if name in ("add", "sub") and len(args) == 2 and (name == "add" or args[0] is value):
            return self._sum(node, args[1] if args[0] is value else args[0], value)
        softmax = self.kind in ("Softmax", "LogSoftmax")
        if last and softmax:
            given = arguments(node, "input mask value")
            if name == "masked_fill" and args[0] is value and given.get("value") == -torch.inf:
                return Mask(self.name("mask", given["mask"]))
            if name == "where" and args[1:] in ([value, -torch.inf], [-torch.inf, value]):
                return Mask(self.name("mask", args[0]), keep=args[1] is value)
        return None

    def _scale(self, other: Any) -> Functor | None:
        constant = number(other)
        if constant is not None:
            return Scale(self.name("scale", float(constant)))
        found = example(other)
        if found is None or not found.dtype.is_floating_point:
            return None
        scale = Scale(self.name("scale", other))
        self.factors[scale] = scale.scale
        return scale

    def _sum(self, node: fx.Node, other: Any, value: fx.Node) -> Functor | None:
        if other is value or not {*node.kwargs} <= {"alpha"}:
            return None
        alpha = number(node.kwargs.get("alpha", 1))
        if alpha is None:
            return None
        alpha = alpha if name_of(node) == "add" else -alpha
        constant, tensor = number(other), example(other)
        if constant is not None:
            return Bias(self.name("bias", float(alpha * constant)))
        if tensor is None or not tensor.dtype.is_floating_point:
            return None
        if same_shape(tensor.shape, tensor_of(value).shape) or alpha != 1:
            residual = Residual(self.name("residual", other), float(alpha))
            self.residuals[residual] = residual
            return residual
        bias = Bias(self.name("bias", other))
        self.summands[bias] = bias.bias
        return bias

    def _gate(self, sides: list[fx.Node], other: Any) -> Functor | None:
        """The functor for ``x * act(gate)``, the gate being a tensor from outside."""
        if len(sides) != 1 or sides[0] is not other or name_of(other) not in _ACTIVATIONS:
            return None
        source, activation = first_of(other), _activation(other)
        given = example(source)
        if activation is None or given is None or not given.dtype.is_floating_point:
            return None
        return Gate(self.name("gate", source), activation)

    def _leaky_relu(self, node: fx.Node, value: fx.Node) -> Functor | None:
        given = arguments(node, "input negative_slope inplace")
        slope = number(given.get("negative_slope", 0.01))
        if slope is None or given.get("input") is not value:
            return None
        return LeakyReLU(self.name("slope", float(slope)))


def _activation(node: fx.Node) -> str | None:
    """What `Gate` calls the activation that a node is of its only argument; None for others."""
    name = name_of(node)
    if name not in _ACTIVATIONS or len(node.args) != 1:
        return None
    if name == "gelu":
        return {"none": "gelu", "tanh": "gelu_tanh"}[str(node.kwargs.get("approximate", "none"))]
    return name


def _squared_relu(
    path: Sequence[tuple[fx.Node, list[fx.Node]]], value: fx.Node
) -> tuple[Functor | None, int]:
    """The functor for ``relu(x).square()``, however the square is written, and its nodes."""
    nodes = [node for node, _ in path[:2]]
    if len(nodes) < 2 or any(sides for _, sides in path[:2]) or list(nodes[0].args) != [value]:
        return None, 0
    first, second = nodes
    is_square = name_of(second) == "square" or (
        name_of(second) == "pow" and list(second.args) == [first, 2]
    )
    return (SquaredReLU(), 2) if name_of(first) == "relu" and is_square else (None, 0)


def _path(segment: Segment) -> list[tuple[fx.Node, list[fx.Node]]] | None:
    """The nodes that the value passes one by one, each with its private side inputs.

    None where the value is read by more than one node on its way.
    """
    depends = {segment.entry}
    path: list[tuple[fx.Node, list[fx.Node]]] = []
    value, sides = segment.entry, []
    for node in segment.nodes:
        reads = [one for one in tensors_of(node) if one in depends]
        if not reads:
            sides.append(node)
            continue
        if reads != [value] or list(node.args).count(value) != 1:
            return None
        own = [one for one in sides if node in one.users or any(u in sides for u in one.users)]
        if own != sides:
            return None
        path.append((node, sides))
        depends.add(node)
        value, sides = node, []
    return path if not sides else None


def _joined(store: list[Functor], reduction: Reduction, chains: _Chains) -> list[Functor]:
    """The STORE with a factor and a summand per column joined into one `Affine`."""
    if reduction.kind not in ("LayerNorm", "RMSNorm", "GroupNorm"):
        return store
    made: list[Functor] = []
    for one in store:
        factor, summand = chains.factors.get(one), chains.summands.get(one)
        if factor is not None and _is_vector(chains.operands[factor], reduction):
            affine = Affine(factor)
            chains.without_beta[affine] = affine
            made.append(affine)
        elif (
            summand is not None
            and made
            and made[-1] in chains.without_beta
            and _is_vector(chains.operands[summand], reduction)
        ):
            made[-1] = dataclasses.replace(chains.without_beta[made[-1]], beta=summand)
        else:
            made.append(one)
    return made


def _is_vector(value: fx.Node | float, reduction: Reduction) -> bool:
    """Whether an operand has one element per column."""
    found, dims = example(value), reduction.dim
    return found is not None and dims is not None and 0 < found.dim() <= len(dims)


def _is_nothing(node: fx.Node) -> bool:
    """Whether a node leaves the value unchanged, as a widening cast or an inactive dropout."""
    return name_of(node) in (*CASTS, "dropout")
