# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a node of a captured graph is: its name, its tensor, its arguments, what it writes to.

Dynamo's graphs hold functions, methods and operators of torch as the program calls them, and an
example of each result, a tensor with shape and dtype but without values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

__all__ = [
    "arguments",
    "barriers",
    "example",
    "hint",
    "known",
    "name_of",
    "number",
    "same_shape",
    "tensors_of",
    "users_of",
]

#: Where the functions of a graph may come from for their names to mean what torch's do.
_MODULES = ("torch", "_operator", "math")

#: What changes the state in which later nodes run: gradients on or off, autocast, hooks.
_STATE = ("_set_", "_enter_", "_exit_", "_saved_tensors_hooks", "_disable_", "_functorch")

#: Functions that write to their input where an argument says so.
_IN_PLACE = frozenset(
    """
    alpha_dropout celu dropout elu feature_alpha_dropout hardsigmoid hardswish hardtanh
    leaky_relu mish relu relu6 rrelu selu silu threshold
    """.split()  # noqa: SIM905
)


def name_of(node: Any) -> str:
    """The name of the torch function, method or operator that a node calls; empty if none."""
    if not isinstance(node, fx.Node):
        return ""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    target: Any = node.target
    name = getattr(target, "__name__", "")
    module = getattr(target, "__module__", None) or ""
    if module.split(".")[0] in _MODULES or getattr(torch, name, None) is target:
        return str(name).split(".")[0]
    return ""


def example(node: Any) -> Tensor | None:
    """The example of a node's result, if that is a plain tensor."""
    if not isinstance(node, fx.Node):
        return None
    value = node.meta.get("example_value", node.meta.get("val"))
    return value if isinstance(value, Tensor) else None


def number(argument: Any) -> float | int | bool | None:
    """The number that an argument is, for every run of the graph; None if it is none."""
    if isinstance(argument, (bool, int, float)):
        return argument
    if isinstance(argument, fx.Node):
        value = argument.meta.get("example_value")
        if isinstance(value, (bool, int, float)):
            return value
        # A float of the program that Dynamo carries as a symbol, though it is a constant.
        if isinstance(value, (torch.SymFloat, torch.SymInt)) and value.node.expr.is_number:
            found = value.node.expr
            return float(found) if isinstance(value, torch.SymFloat) else int(found)
    return None


def known(statement: Any) -> bool:
    """Whether a comparison of sizes holds for every size that the graph may meet."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(statement)


def hint(size: Any) -> int:
    """A size as the graph was captured with, without a guard on it."""
    if isinstance(size, int):
        return size
    found = size.node.hint
    return int(found) if found is not None else 1024  # of a size that only the data knows


def same_shape(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes are equal for every size that the graph may meet."""
    return len(one) == len(other) and all(known(a == b) for a, b in zip(one, other, strict=True))


def arguments(node: fx.Node, names: str) -> dict[str, Any]:
    """The arguments of a call by the names of its parameters, in their order."""
    return {**dict(zip(names.split(), node.args, strict=False)), **node.kwargs}


def tensors_of(node: fx.Node) -> list[fx.Node]:
    """The nodes among a node's arguments whose results are tensors."""
    return [one for one in node.all_input_nodes if example(one) is not None]


def users_of(node: fx.Node) -> list[fx.Node]:
    """The nodes that use a result, each once."""
    return list(node.users)


def barriers(graph: fx.Graph) -> dict[fx.Node, int]:
    """How many nodes before each node write to memory or change a state.

    Between two nodes of equal numbers nothing is written, so what is read there may be read
    earlier or later.
    """
    count, found = 0, {}
    for node in graph.nodes:
        count += _is_barrier(node)
        found[node] = count
        count += _is_barrier(node)
    return found


def transforms(graph: fx.Graph) -> Iterator[str]:
    """The transforms of torch.func (vmap, grad, jvp) that are part of a graph."""
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "")
        if "increment_nesting" in name:
            yield name


def _is_barrier(node: fx.Node) -> bool:
    if node.op == "call_module":
        return True
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name.startswith(_STATE) or "nesting" in name or name in ("setitem", "delitem", "setattr"):
        return True
    operators = getattr(node.target, "__module__", "") == "_operator"
    if operators and _is_augmented(name):
        return True
    if not operators and name.endswith("_") and not name.endswith("__"):
        return True
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    # dropout(input, p, training, inplace) has a flag more.
    flags = node.args[3:] if "dropout" in name else node.args[1:]
    return name in _IN_PLACE and any(one is True for one in flags)


def _is_augmented(name: str) -> bool:
    """Whether an operator's function is that of an augmented assignment, as in x += y."""
    plain = name.removeprefix("i").rstrip("_")
    return (
        name.startswith("i")
        and name not in ("index", "inv", "invert", "is_", "is_not")
        and (
            plain
            in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or")
            or plain in ("xor", "lshift", "rshift", "concat")
        )
    )
