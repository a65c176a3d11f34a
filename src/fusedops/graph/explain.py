# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`explain_graph`: a report of what the backend would fuse; no kernel is built."""

from __future__ import annotations

import dataclasses
import inspect
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from fusedops.errors import UnsupportedError, counted
from fusedops.graph.bytes_moved import Moved
from fusedops.graph.nodes import name_of
from fusedops.graph.products import rewrite_products
from fusedops.graph.rewrite import Found, rewrite
from fusedops.graph.rotations import rewrite_rotations
from fusedops.graph.segments import source_of
from fusedops.product import Linear
from fusedops.row_op import RowOp


@dataclasses.dataclass(frozen=True)
class OneGraph:
    """One captured graph, with the reductions and linear layers found in it.

    Attributes:
        found: The row reductions, in order.
        products: The linear layers, in order; none where the backend is told to leave them.
        calls: Each node that computes: its name, what it calls, and the names of what it reads.
    """

    found: tuple[Found[RowOp], ...]
    products: tuple[Found[Linear], ...]
    calls: tuple[tuple[str, str, tuple[str, ...]], ...]


@dataclasses.dataclass(frozen=True)
class GraphReport:
    """What `explain_graph` found: prints as a table, draws with Graphviz.

    Attributes:
        name: The name of the model or function.
        graphs: Its graphs: one, unless Dynamo broke it.
    """

    name: str
    graphs: tuple[OneGraph, ...]

    @property
    def found(self) -> list[Found[RowOp]]:
        """The row reductions of all graphs."""
        return [one for graph in self.graphs for one in graph.found]

    @property
    def fused(self) -> list[Found[RowOp]]:
        """The row reductions that are fused."""
        return [one for one in self.found if one.op is not None]

    @property
    def left(self) -> list[Found[RowOp]]:
        """The row reductions that are left unfused."""
        return [one for one in self.found if one.op is None]

    @property
    def products(self) -> list[Found[Linear]]:
        """The linear layers of all graphs, fused or left."""
        return [one for graph in self.graphs for one in graph.products]

    @property
    def moved(self) -> Moved:
        """The bytes of all row ops that are fused, before and after."""
        known = [one.moved for one in self.fused if one.moved is not None]
        return Moved(sum(one.before for one in known), sum(one.after for one in known))

    def __str__(self) -> str:
        fused, left = self.fused, self.left
        total = f"{self.moved.before} -> {self.moved.after} bytes forward" if fused else "no bytes"
        lines = [
            f"fusedops.explain_graph({self.name}): {counted(len(self.graphs), 'graph')}, "
            f"{counted(len(fused), 'row op')} fused, {len(left)} left; "
            f"{total}{_of_layers(self.products)}"
        ]
        lines += [line for one in fused for line in _of_fused(one)]
        if left:
            lines.append("  left:")
            width = max(len(one.name) for one in left)
            for one in left:
                why = "; ".join(reasons(one.why, one.name))
                lines.append(f"    {one.name:<{width}}  {one.what}: {why}")
        return "\n".join([*lines, *_of_products(self.products)])

    __repr__ = __str__

    def dot(self) -> str:
        """The graphs in Graphviz's language, with a box around each fused kernel."""
        lines = ["digraph {", '  node [shape=box, fontname="sans-serif", fontsize=10];']
        for number, graph in enumerate(self.graphs):
            every: list[Found[Any]] = [*graph.found, *graph.products]
            fused = [one for one in every if one.op is not None]
            boxes = {name for one in fused for name in one.nodes}
            known = {name for name, _, _ in graph.calls}
            for count, one in enumerate(fused):
                title, name, colour = repr(one.op), f"{number}_product_{count}", "#cfdff3"
                if one.moved is not None:
                    title += f"\n{one.moved.before} -> {one.moved.after} bytes"
                    name, colour = f"{number}_{count}", "#cfe8cf"
                lines.append(f"  subgraph cluster_{name} {{")
                lines.append(f'    label={_quoted(title)}; style=filled; color="{colour}";')
                lines += [f"    {_quoted(f'{number}.{node}')};" for node in one.nodes]
                lines.append("  }")
            left = {one.name for one in graph.found if one.op is None}
            for name, calls, read in graph.calls:
                colour = ', style=filled, fillcolor="#f3d9c4"' if name in left else ""
                bold = ', style=filled, fillcolor="white"' if name in boxes else ""
                lines.append(
                    f"  {_quoted(f'{number}.{name}')} [label={_quoted(calls)}{colour}{bold}];"
                )
                lines += [
                    f"  {_quoted(f'{number}.{one}')} -> {_quoted(f'{number}.{name}')};"
                    for one in read
                    if one in known
                ]
        return "\n".join([*lines, "}"])

    def svg(self, path: str | Path | None = None) -> str:
        """The picture, drawn by the program ``dot`` of Graphviz, and written to a path if given.

        Raises:
            UnsupportedError: Graphviz is not installed.
        """
        program = shutil.which("dot")
        if program is None:
            raise UnsupportedError(
                "explain_graph: a picture is drawn by the program dot, which is not on the PATH; "
                "install Graphviz (apt install graphviz, say), or draw what dot() returns elsewhere"
            )
        done = subprocess.run(
            [program, "-Tsvg"], input=self.dot(), capture_output=True, text=True, check=True
        )
        if path is not None:
            Path(path).write_text(done.stdout, encoding="utf-8")
        return done.stdout

    def _repr_svg_(self) -> str | None:
        return self.svg() if shutil.which("dot") else None


def reasons(why: Mapping[str, str], own: str = "") -> list[str]:
    """Reasons without repetition, each preceded by the names of the nodes it applies to."""
    nodes: dict[str, list[str]] = {}
    for node, reason in why.items():
        nodes.setdefault(reason, []).append(node)
    return [
        reason if names == [own] else f"{', '.join(names)}: {reason}"
        for reason, names in nodes.items()
    ]


def _of_fused(one: Found[Any]) -> list[str]:
    """Report lines about one fused reduction or linear layer."""
    lines = [f"  {one.name}: {one.what}", f"    {one.op!r}", f"    from   {', '.join(one.nodes)}"]
    if one.moved is not None:
        lines.append(f"    bytes  {one.moved.before} -> {one.moved.after}")
    if one.drops:
        lines.append("    masks  dropout by the contract of fusedops, not torch's stream")
    return lines + [f"    ends at {why}" for why in reasons(one.why)]


def _of_layers(products: list[Found[Linear]]) -> str:
    """The number of linear layers in the heading of a report, if there are any."""
    fused = sum(one.op is not None for one in products)
    return f"; {fused} of {counted(len(products), 'linear layer')} fused" if products else ""


def _of_products(products: list[Found[Linear]]) -> list[str]:
    """Report lines about linear layers; layers left for the same reason share a line."""
    lines: list[str] = []
    left: dict[str, list[str]] = {}
    for one in products:
        if one.op is None:
            left.setdefault("; ".join(reasons(one.why, one.name)), []).append(one.name)
            continue
        lines += _of_fused(one)
    if left:
        lines.append("  linear layers left:")
        lines += [f"    {', '.join(names)}: {why}" for why, names in left.items()]
    return lines


def declared_text(found: Found[RowOp]) -> str:
    """A declaration as a program would write it, its functors of Python functions included."""
    assert found.op is not None
    sources = [source_of(one) for one in (*found.op.load, *found.op.store)]
    return "\n\n".join([*dict.fromkeys(one for one in sources if one), repr(found.op)])


def _drawn(graph: fx.Graph) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """The nodes of a graph that compute, for a picture."""
    return tuple(
        (node.name, name_of(node) or str(node.target), tuple(n.name for n in node.all_input_nodes))
        for node in graph.nodes
        if node.op in ("call_function", "call_method", "call_module")
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


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
    _check_inputs(model, inputs, named)
    return explained(model, inputs, named)


def explained(
    model: Callable[..., Any],
    inputs: Sequence[Any],
    named: Mapping[str, Any],
    products: str = "auto",
) -> GraphReport:
    """The report of what the backend does with a given option ``"products"``."""
    graphs: list[OneGraph] = []

    def backend(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        other = _copied(graph_module)
        calls = _drawn(other.graph)
        found = (*rewrite(other), *rewrite_rotations(other))
        graphs.append(OneGraph(found, tuple(rewrite_products(other, products)), calls))
        return graph_module.forward

    torch.compile(model, backend=backend)(*inputs, **named)
    named_by = type(model) if isinstance(model, nn.Module) else model
    return GraphReport(str(getattr(named_by, "__name__", repr(model))), tuple(graphs))


def _check_inputs(
    model: Callable[..., Any], inputs: Sequence[Any], named: Mapping[str, Any]
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
            f"explain_graph: the model is called once and takes ({takes}): {error}; give what it "
            f"is called with after the model, explain_graph(model, {takes})"
        ) from None


def _copied(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a graph with nodes of its own; examples and submodules are shared."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    return fx.GraphModule(graph_module, graph)
