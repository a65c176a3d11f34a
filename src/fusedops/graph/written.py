# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Functors made of nodes of a graph: a Python function is written, and `fusedops.functor` reads it.

What a node computes, and its derivative, is left to the functor's own trace: the function calls
what the node calls. Equal nodes give equal text, so that a class is made once in a process, and a
graph that is compiled again names the same class.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from fusedops.functors import Functor, functor
from fusedops.graph.nodes import example, name_of, number
from fusedops.graph.pointwise import CASTS

__all__ = ["SOURCES", "source_of", "written"]

#: The classes by the text of their functions, which live as long as the process, as kernels do.
_made: dict[str, Any] = {}

#: The text of each class's function, for people to read.
SOURCES: dict[type[Functor], str] = {}

_SYMBOLS = {
    **{"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"},
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    **{"and_": "&", "or_": "|", "xor": "^"},
}


def source_of(declared: Functor) -> str | None:
    """The Python function of a functor that was made here; None of any other."""
    return SOURCES.get(type(declared))


def written(
    nodes: Sequence[fx.Node], entry: fx.Node, operands: Mapping[fx.Node, str], label: str
) -> Functor:
    """A functor that computes nodes, in order, from the value and from operands by name.

    Args:
        nodes: The nodes, in order; the last one's result is the functor's.
        entry: The node whose result is the value.
        operands: The names of the other tensors that the nodes read.
        label: What the function is called.

    Raises:
        UnsupportedError: No functor can hold an operation.
    """
    names: dict[fx.Node, str] = {entry: "x"}
    parameters, integers = [], []
    lines = []
    for count, (node, _) in enumerate(operands.items()):
        names[node] = parameter = _letter(count)
        parameters.append(parameter)
        if _example(node).dtype is torch.bool:
            integers.append(parameter)
            names[node] = f"({parameter} != 0)"
    for count, node in enumerate(nodes):
        text = _call(node, names)
        if text in names.values():  # a conversion that rounds nothing
            names[node] = text
            continue
        last = node is nodes[-1]
        name = f"t{count}"
        lines.append(f"    return {text}" if last else f"    {name} = {text}")
        names[node] = name
    if not lines or not lines[-1].startswith("    return"):
        lines.append(f"    return {names[nodes[-1]]}")
    head = f"def {label}({', '.join(['x', *parameters])}):"
    body = "\n".join([head, *lines, ""])
    mark = f"@fo.functor(integers={integers!r})" if integers else "@fo.functor"
    text = f"{mark}\n{body}".rstrip()
    kind = _made.get(text)
    if kind is None:
        space: dict[str, Any] = {
            "torch": torch,
            "inf": torch.inf,
            "nan": torch.nan,
            "_operator": operator,
        }
        exec(body, space)
        function = space[label]
        function.__module__ = "fusedops.graph.written"
        kind = _made[text] = functor(integers=integers)(function)
        SOURCES[kind] = text
    made: Functor = kind(*operands.values())
    return made


def _example(node: fx.Node) -> torch.Tensor:
    found = example(node)
    assert found is not None
    return found


def _letter(count: int) -> str:
    return "abcdefghijklmnopqrsuvw"[count] if count < 22 else f"a{count}"


def _call(node: fx.Node, names: Mapping[fx.Node, str]) -> str:
    """The expression of one node."""

    def of(one: Any) -> str:
        if isinstance(one, fx.Node):
            return names[one] if one in names else repr(number(one))
        return repr(one)

    name = name_of(node)
    if name in (*CASTS, "dropout"):
        return of(node.args[0] if node.args else node.kwargs["input"])
    given = [of(one) for one in node.args]
    named = [f"{key}={of(one)}" for key, one in node.kwargs.items()]
    if node.op == "call_method":
        return f"{given[0]}.{name}({', '.join([*given[1:], *named])})"
    plain = getattr(node.target, "__module__", "") == "_operator"
    if plain and name == "neg":
        return f"-{given[0]}"
    if plain and name in _SYMBOLS and len(given) == 2:
        return f"{given[0]} {_SYMBOLS[name]} {given[1]}"
    target: Any = node.target
    place = fx.node._get_qualified_name(target).replace("torch._C._nn.", "torch.nn.functional.")
    return f"{place}({', '.join([*given, *named])})"
