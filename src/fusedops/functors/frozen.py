# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A functor's function as it was traced, to be run by torch on tensors of any shape.

The function itself may read what changes later: a global, a default, an attribute. The kernel does
not, so `op.unfused` must not either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from fusedops.functors.pointwise import SAME

#: Views of the sample's shape, which other tensors need not have.
_VIEWS = SAME - {"alias", "detach", "lift", "contiguous"}


def freeze(traced: fx.GraphModule, shape: tuple[int, ...]) -> Callable[..., Tensor]:
    """The same operations for an x of any shape, on its device, and operands that broadcast.

    Args:
        traced: The operations, of the value and the operands, all of the same shape.
        shape: That shape, of no other tensor in them but single elements.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    attributes: dict[str, Tensor] = {}
    x: Any = None
    for node in traced.graph.nodes:
        if node.op == "call_function" and _name(node) in _VIEWS and _name(node) != "expand":
            copies[node] = copies[node.args[0]]
            continue
        copies[node] = copy = graph.node_copy(node, lambda one: copies[one])
        if node.op == "placeholder" and x is None:
            x = copy
            size = graph.call_function(getattr, (x, "shape"))
            device = graph.call_function(getattr, (x, "device"))
        elif node.op == "get_attr":  # a tensor may be written to
            attributes[str(node.target)] = getattr(traced, str(node.target)).detach().clone()
        elif node.op == "call_function":
            copy.args = tuple(size if _is(shape, one) else one for one in copy.args)
            copy.kwargs = {
                key: device if key == "device" and one is not None else one
                for key, one in copy.kwargs.items()
            }
    graph.lint()
    return fx.GraphModule(attributes, graph)


def _name(node: fx.Node) -> str:
    target = node.target
    return target.overloadpacket.__name__ if isinstance(target, torch._ops.OpOverload) else ""


def _is(shape: tuple[int, ...], argument: Any) -> bool:
    return isinstance(argument, (list, tuple)) and tuple(argument) == shape
