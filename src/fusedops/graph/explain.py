# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`explain_graph`: what the backend would fuse in a program, without building a kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from fusedops.graph.products import rewrite_products
from fusedops.graph.report import GraphReport, OneGraph, drawn
from fusedops.graph.rewrite import rewrite

__all__ = ["copied", "explain_graph", "explained"]


def explain_graph(model: Callable[..., Any], *inputs: Any, **named: Any) -> GraphReport:
    """Say what ``torch.compile(model, backend="fusedops")`` would fuse, and what not and why.

    The model is captured and runs once, as it is: no kernel is built. In grad mode or not, in
    training or not, the graph is that of this call. The backend's options are what they are if
    left out.

    Args:
        model: A module or a function.
        inputs: What it is called with.
        named: The same by keyword.

    Returns:
        A `GraphReport`: print it for a table; ``svg()`` and ``dot()`` give a picture.

    Raises:
        TypeError: model cannot be called, or not with these inputs.

    >>> import torch, fusedops as fo
    >>> def attention(scores, bias):
    ...     return torch.softmax(scores * 0.125 + bias, -1)
    >>> fo.explain_graph(attention, torch.randn(2, 4, 8), torch.randn(4, 8))
    fusedops.explain_graph(attention): 1 graph, 1 row op fused, 0 left; 1664 -> 640 bytes forward
      softmax: softmax
        Softmax(load=[Scale(scale='scale'), Bias(bias='bias')], empty_row='nan')
        from   mul, add, softmax
        bytes  1664 -> 640
    """
    if not callable(model):
        raise TypeError(f"explain_graph: model must be a module or a function, got {model!r}")
    check_inputs("explain_graph", model, inputs, named)
    return explained(model, inputs, named)


def explained(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    named: Mapping[str, Any],
    products: str = "auto",
) -> GraphReport:
    """What the backend would do with this option ``"products"``."""
    graphs: list[OneGraph] = []

    def backend(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        other = copied(graph_module)
        calls = drawn(other.graph)
        found = tuple(rewrite(other))
        graphs.append(OneGraph(found, tuple(rewrite_products(other, products)), calls))
        return graph_module.forward

    torch.compile(model, backend=backend)(*inputs, **named)
    named_by = type(model) if isinstance(model, nn.Module) else model
    return GraphReport(str(getattr(named_by, "__name__", repr(model))), tuple(graphs))


def check_inputs(
    name: str, model: Callable[..., Any], inputs: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """Raise TypeError if the model cannot be called with these inputs."""
    function = model.forward if isinstance(model, nn.Module) else model
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of something built in
        return
    try:
        signature.bind(*inputs, **named)
    except TypeError as error:
        takes = ", ".join(signature.parameters)
        raise TypeError(
            f"{name}: the model is called once and takes ({takes}): {error}; give what it is "
            f"called with after the model, {name}(model, {takes})"
        ) from None


def copied(graph_module: fx.GraphModule) -> fx.GraphModule:
    """The same graph with nodes of its own; examples and submodules are shared."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    return fx.GraphModule(graph_module, graph)
