# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The pass over a captured graph for rotary embeddings: each becomes a `Rotate`.

Models write ``x * cos + rotate_half(x) * sin``, where ``rotate_half`` swaps the halves of a row and
negates the first of the result. x is a transpose, as a rule, of what a projection or a norm of
queries and keys has made; the op then runs before the transpose, and in the kernel of the norm
where the pass for row ops has fused one. It runs behind that pass.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from fusedops import ops
from fusedops.functors import Affine, Rotate
from fusedops.functors.operands import FLOATING
from fusedops.graph.nodes import (
    arguments,
    example,
    first_of,
    known,
    name_of,
    number,
    tensor_of,
)
from fusedops.graph.reductions import Refused, called
from fusedops.graph.rewrite import Found, call_of, check_tensors, fuse_each
from fusedops.graph.segments import Place
from fusedops.map import Map
from fusedops.row_op import RowOp

__all__ = ["rewrite_rotations"]


@dataclasses.dataclass(frozen=True)
class Rotation:
    """A rotary embedding in a graph."""

    node: fx.Node  # the sum whose result it is
    source: fx.Node  # what is turned
    #: The tables, of one number for each column.
    cos: fx.Node
    sin: fx.Node
    nodes: tuple[fx.Node, ...]  # the nodes that compute it, the sum last

    @property
    def what(self) -> str:
        """The name in reports."""
        return "rotary embedding"


def rewrite_rotations(graph_module: fx.GraphModule) -> list[Found[RowOp]]:
    """Replace rotary embeddings of a graph by fused ops, in place; report on each."""
    return fuse_each(graph_module, _rotation_of, _fuse)  # type: ignore[type-var]


def _rotation_of(node: fx.Node) -> Rotation | None:
    """The rotary embedding whose last operation a node is; None for other nodes."""
    if name_of(node) != "add" or len(node.args) != 2 or node.kwargs:
        return None
    products = [one for one in node.args if isinstance(one, fx.Node) and name_of(one) == "mul"]
    if len(products) != 2 or any(len(one.args) != 2 for one in products):
        return None
    for kept, other in (products, products[::-1]):
        for turned, sin in (other.args, other.args[::-1]):
            found = _half_turned(turned)
            if found is None or not isinstance(sin, fx.Node):
                continue
            source, inner = found
            if source in kept.args:
                cos = kept.args[1] if kept.args[0] is source else kept.args[0]
                if isinstance(cos, fx.Node) and cos is not source:
                    return Rotation(node, source, cos, sin, (*inner, other, kept, node))
    return None


def _half_turned(node: Any) -> tuple[fx.Node, tuple[fx.Node, ...]] | None:
    """What a node swaps the halves of, the first of them negated, and the nodes that do it."""
    if name_of(node) not in ("cat", "concat"):
        return None
    given = arguments(node, "tensors dim")
    parts, dim, made = given.get("tensors"), given.get("dim", 0), example(node)
    if not isinstance(parts, (tuple, list)) or len(parts) != 2 or made is None:
        return None
    negated, first = parts
    if not isinstance(dim, int) or dim % made.dim() != made.dim() - 1 or name_of(negated) != "neg":
        return None
    second = first_of(negated)
    halves = [_half(one) for one in (first, second)]
    if None in halves or halves[0][0] is not halves[1][0]:  # type: ignore[index]
        return None
    if [one[1] for one in halves] != [0, 1]:  # type: ignore[index]
        return None
    source = halves[0][0]  # type: ignore[index]
    chunks = [one.args[0] for one in (first, second) if name_of(one.args[0]) == "chunk"]
    return source, (*dict.fromkeys(chunks), first, second, negated, node)


def _half(node: Any) -> tuple[fx.Node, int] | None:
    """What a node is a half of along the last dimension, and which."""
    if name_of(node) != "getitem" or len(node.args) != 2:
        return None
    source, index = node.args
    if name_of(source) == "chunk":
        given = arguments(source, "input chunks dim")
        whole = example(given["input"])
        last = whole is not None and given.get("dim", 0) in (-1, whole.dim() - 1)
        if last and given.get("chunks") == 2 and index in (0, 1):
            return given["input"], index
        return None
    whole = example(source)
    if whole is None or not isinstance(index, tuple) or len(index) != 2 or index[0] is not ...:
        return None
    piece = index[1]
    if not isinstance(piece, slice) or piece.step not in (None, 1):
        return None
    half = whole.shape[-1] // 2
    begin, end = (None if one is None else number(one) for one in (piece.start, piece.stop))
    if begin in (None, 0) and end == half:
        return source, 0
    if begin == half and (end is None or end == whole.shape[-1]):
        return source, 1
    return None


def _fuse(graph: fx.Graph, one: Rotation) -> Found[RowOp]:
    """Fuse one rotary embedding, with the norm before it if there is one."""
    check_tensors(one.source, (one.source, one.cos, one.sin))
    place = Place.of(graph)
    if len({place.barriers[node] for node in one.nodes}) > 1:
        raise Refused("something is written in place between its operations")
    made, x = tensor_of(one.node), tensor_of(one.source)
    tables = [example(table) for table in (one.cos, one.sin)]
    columns = x.shape[-1]
    if made.dtype not in FLOATING or x.dtype not in FLOATING or x.dim() > 6:
        raise Refused(f"it is computed in {made.dtype}, of more than six dimensions, or no float")
    if not isinstance(columns, int) or columns % 2 or made.shape != x.shape:
        raise Refused("its rows have no even number of columns, or tables have more rows than x")
    for table in tables:
        if table is None or table.dtype not in FLOATING or not known(table.shape[-1] == columns):
            raise Refused("a table has not one number for each column")
        if table.requires_grad:
            raise Refused("a table requires grad, and has no gradient here")
    swapped = _swapped(one.source, [table.dim() for table in tables if table is not None])
    if swapped is not None and not made.transpose(*swapped).is_contiguous():
        swapped = None  # the sum has another order of dimensions than x
    source = one.source if swapped is None else first_of(one.source)
    assert isinstance(source, fx.Node)
    lies = made if swapped is None else made.transpose(*swapped)
    if not lies.is_contiguous():
        raise Refused("its result is not contiguous, as a kernel's is")
    norm = _norm(source, one)
    op: Any = Map()
    given: Any = source
    operands: dict[str, Any] = {}
    if norm is not None:
        op, given, operands = norm
    names = [_free("cos", op), _free("sin", op)]
    rotate = Rotate(names[0], names[1])
    op = Map([rotate]) if norm is None else op.of(op.load, (*op.store, rotate))

    def fused(x: torch.Tensor, /, **arguments: Any) -> Any:
        return op(x, **arguments)

    inside = [*one.nodes, *([] if norm is None else [source])]
    with graph.inserting_before(one.node):
        for name, given_table in zip(names, (one.cos, one.sin), strict=True):
            operands[name] = given_table
            if swapped is not None:
                operands[name] = graph.call_method("transpose", (given_table, *swapped))
        operands["dtype"] = made.dtype
        result = graph.call_function(call_of(op, fused, __name__), (given,), operands)
        result.meta["example_value"] = lies
        if swapped is not None:
            result = graph.call_method("transpose", (result, *swapped))
            inside.append(one.source)
    result.meta.update(one.node.meta)
    result.meta.pop("stack_trace", None)
    one.node.replace_all_uses_with(result)
    taken = [node.name for node in one.nodes if node is not one.source]
    for node in sorted(dict.fromkeys(inside), key=place.order.__getitem__, reverse=True):
        if not node.users:
            graph.erase_node(node)
    return Found(one.node.name, one.what, op, tuple(taken), {})


def _swapped(source: fx.Node, ranks: list[int]) -> tuple[int, int] | None:
    """The two dimensions that x is a transpose by, if the tables have as many dimensions."""
    x = example(source)
    if name_of(source) != "transpose" or x is None or any(one != x.dim() for one in ranks):
        return None
    given = arguments(source, "input dim0 dim1")
    dims = given.get("dim0"), given.get("dim1")
    if not all(isinstance(one, int) for one in dims):
        return None
    first, second = (one % x.dim() for one in dims)  # type: ignore[operator]
    return None if x.dim() - 1 in (first, second) else (first, second)


def _norm(source: fx.Node, one: Rotation) -> tuple[Any, fx.Node, dict[str, Any]] | None:
    """The norm that makes x alone, in whose kernel the rotation has a place.

    Returns:
        An op, what it norms and its operands; None if there is none.
    """
    if {*source.users} - {*one.nodes, one.source}:
        return None
    if source is not one.source and {*one.source.users} - {*one.nodes}:
        return None
    x = example(source)
    if x is None:
        return None
    op = getattr(source.target, "op", None)
    if isinstance(op, RowOp):
        last = source.kwargs.get("dim") in (None, x.dim() - 1)
        plain = op.outputs == ("y",) and not op.masked and op.quantized is None
        if not (last and plain and op.pairs and op.reduces and op.pair is None):
            return None
        x_of_norm = source.args[0]
        assert isinstance(x_of_norm, fx.Node)
        return op, x_of_norm, dict(source.kwargs)
    try:
        norm = called(source)
    except Refused:
        return None
    if norm is None or norm.kind not in ("LayerNorm", "RMSNorm") or norm.dim != (x.dim() - 1,):
        return None
    given = {"gamma": norm.gamma, "beta": norm.beta}
    operands = {word: node for word, node in given.items() if node is not None}
    affine = [Affine(*(word if word in operands else None for word in given))] if operands else []
    return getattr(ops, norm.kind)(store=affine, **norm.constants), norm.source, operands


def _free(word: str, op: RowOp) -> str:
    """A name for an operand that the op has not."""
    return f"{word}_of_columns" if word in op.slots else word
