# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The backend of torch.compile, and `fuse`, which makes an op of a torch function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from fusedops.errors import UnsupportedError
from fusedops.graph.explain import GraphReport, declared_text, explained, reasons
from fusedops.graph.products import check_option, rewrite_products
from fusedops.graph.rewrite import Found, rewrite
from fusedops.graph.rotations import rewrite_rotations
from fusedops.product import Linear
from fusedops.row_op import RowOp


def fusedops(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    report: Callable[[list[Found[RowOp]]], None] | None = None,
    report_products: Callable[[list[Found[Linear]]], None] | None = None,
    **named: Any,
) -> Callable[..., Any]:
    """Compile a captured graph: fuse row ops and linear layers here, leave the rest to Inductor.

    ``torch.compile(model, backend="fusedops")`` finds it by its entry point. In each graph
    softmaxes, log-softmaxes and norms, called as functions of torch or spelled out in operations,
    become ops of this package together with what is elementwise before and after them, where that
    moves fewer bytes (`fusedops.graph.bytes_moved`). A dropout that is fused draws its mask by this
    package's contract (docs/explanation/dropout.md), so a seed gives other masks than in eager
    torch. Linear layers become a `Linear` with what is elementwise after them, where one kernel
    runs both and pays (`fusedops.graph.products`). Rotary embeddings become a `Rotate`, in the
    kernel of the norm of queries or keys before them if there is one. The rest of the graph is
    another backend's.

    Args:
        graph_module: The graph, as Dynamo captures it.
        example_inputs: Its inputs, fake or real.
        mode: For Inductor, as torch.compile's.
        options: ``"inner"`` names the backend of the rest, "inductor" if it is left out, or is one:
            "aot_eager" and "eager" compile nothing more. ``"products"`` says which linear layers
            are fused: "auto", where that pays; "off", none; "always", wherever it can be declared.
            All else is passed on to the inner backend.
        report: Called with the row reductions that were found in the graph.
        report_products: Called with the linear layers; with none where products are off.
        named: Passed on as well.

    Raises:
        ValueError: ``"products"`` is none of these, or mode or options are given for a backend that
            takes none.

    >>> import torch, fusedops as fo
    >>> def scores(q, k, mask):
    ...     return torch.softmax(q @ k.mT * 0.5 + mask, -1)
    >>> compiled = torch.compile(scores, backend="fusedops", options={"inner": "eager"})
    >>> q, k = torch.randn(2, 2, 4, 8)
    >>> mask = torch.zeros(4, 4)
    >>> torch.allclose(compiled(q, k, mask), scores(q, k, mask), atol=1e-6)
    True
    """
    given = dict(options or {})
    inner = given.pop("inner", "inductor")
    products = check_option(given.pop("products", "auto"))
    found = [*rewrite(graph_module), *rewrite_rotations(graph_module)]
    if report is not None:
        report(found)
    found_products = rewrite_products(graph_module, products)
    if report_products is not None:
        report_products(found_products)
    return _rest(inner, graph_module, example_inputs, mode, given, named)


def _rest(
    inner: Any,
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    mode: str | None,
    options: dict[str, Any],
    named: dict[str, Any],
) -> Callable[..., Any]:
    """Compile a graph with the inner backend, Inductor unless another is named."""
    if inner == "inductor":
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        patches = {**(list_mode_options(mode) if mode else {}), **options}
        compiled: Any = compile_fx(
            graph_module, example_inputs, config_patches=patches or None, **named
        )
        return compiled  # type: ignore[no-any-return]
    from torch._dynamo.backends.registry import lookup_backend

    if mode is not None:
        named["mode"] = mode
    if options:
        named["options"] = options
    made: Callable[..., Any] = lookup_backend(inner)(graph_module, list(example_inputs), **named)
    return made


class FusedFunction:
    """A function compiled with its row op fused and everything else in eager torch.

    Attributes:
        function: The function.
        found: The row reductions that were found in it so far, once for each kind of inputs.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.found: list[Found[RowOp]] = []
        # What is declared is what `declaration` shows: row ops alone.
        options = {"inner": "eager", "products": "off"}
        backend = functools.partial(fusedops, options=options, report=self.found.extend)
        self._compiled = torch.compile(function, backend=backend, fullgraph=True)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run the fused function.

        Raises:
            UnsupportedError: Nothing in it is fused.
        """
        result = self._compiled(*inputs, **named)
        if not self.ops:
            said = "; ".join(text for one in self.found for text in reasons(one.why))
            raise UnsupportedError(
                f"fuse: nothing in {self.__name__} is fused: "  # type: ignore[attr-defined]
                f"{said or 'it has no softmax and no norm over rows'}; call the function itself"
            )
        return result

    @property
    def ops(self) -> tuple[RowOp, ...]:
        """The distinct ops that calls so far have been fused into."""
        return tuple(dict.fromkeys(one.op for one in self.found if one.op is not None))

    @property
    def declaration(self) -> str:
        """The declarations as a program would write them; empty before the first call."""
        fused = [one for one in self.found if one.op is not None]
        return "\n\n".join(dict.fromkeys(map(declared_text, fused)))

    def explain(self, *inputs: Any, **named: Any) -> GraphReport:
        """What a call with these inputs fuses, what not and why; as `explain_graph`."""
        return explained(self.function, inputs, named, "off")

    def __repr__(self) -> str:
        name = getattr(self, "__name__", "")
        return f"fuse({name}): {self.declaration or 'declared by its first call'}"


def fuse(function: Callable[..., Any]) -> FusedFunction:
    """Find the softmax or norm in a torch function and run it fused, with its pointwise neighbours.

    The first call with inputs of new kinds finds the softmax or norm in the function with what is
    elementwise around it, as ``torch.compile(backend="fusedops")`` does, and declares it. What else
    the function does runs in eager torch. A dropout draws its mask by docs/explanation/dropout.md.

    Raises:
        TypeError: function cannot be called.
        UnsupportedError: A call: nothing in it is fused; the message has the reasons.

    >>> import torch, fusedops as fo
    >>> @fo.fuse
    ... def scores(x, bias):
    ...     return torch.softmax(torch.nn.functional.mish(x) * 0.5 + bias, -1)
    >>> y = scores(torch.randn(2, 4, 8), torch.randn(4, 8))
    >>> print(scores.declaration)
    @fo.functor
    def mish(x):
        return torch.nn.functional.mish(x)
    <BLANKLINE>
    Softmax(load=[mish(), Scale(scale='scale'), Bias(bias='bias')], empty_row='nan')
    """
    if isinstance(function, torch.nn.Module):
        raise TypeError(
            f"fuse: it takes a function, got the module {type(function).__name__}; write "
            'torch.compile(module, backend="fusedops"), or pass its forward'
        )
    if not callable(function):
        raise TypeError(f"fuse: it takes a function, got {function!r}")
    return FusedFunction(function)
