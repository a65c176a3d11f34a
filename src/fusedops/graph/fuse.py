# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fuse`: a function of torch operations as an op, whose declaration can be read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from fusedops.errors import UnsupportedError
from fusedops.graph.backend import fusedops
from fusedops.graph.explain import explained
from fusedops.graph.report import GraphReport, declared_text, reasons
from fusedops.graph.rewrite import Found
from fusedops.row_op import RowOp

__all__ = ["FusedFunction", "fuse"]


class FusedFunction:
    """A function whose row op is fused; calling it runs that, and the rest of it in eager torch.

    Attributes:
        function: The function.
        found: The row reductions that were found in it so far, once for each kind of inputs.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.found: list[Found] = []
        # What is declared is what `declaration` shows: row ops alone.
        options = {"inner": "eager", "products": "off"}
        backend = functools.partial(fusedops, options=options, report=self.found.extend)
        self._compiled = torch.compile(function, backend=backend, fullgraph=True)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run it.

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
        """The ops that it was made into so far, each once."""
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
    """Make an op of a function of torch operations; it shows the declaration that it became.

    The first call with inputs of new kinds finds the softmax or norm in the function with what is
    elementwise around it, as ``torch.compile(backend="fusedops")`` does, and declares it. What else
    the function does runs in eager torch. A dropout draws its mask by docs/dropout.md.

    Raises:
        TypeError: function cannot be called.
        UnsupportedError: A call: nothing in it is fused; the message has the reasons.

    >>> import torch, fusedops as fo
    >>> @fo.fuse
    ... def scores(x, bias):
    ...     return torch.softmax(torch.nn.functional.gelu(x) * 0.5 + bias, -1)
    >>> y = scores(torch.randn(2, 4, 8), torch.randn(4, 8))
    >>> print(scores.declaration)
    @fo.functor
    def gelu(x):
        return torch.nn.functional.gelu(x)
    <BLANKLINE>
    Softmax(load=[gelu(), Scale(scale='scale'), Bias(bias='bias')], empty_row='nan')
    """
    if isinstance(function, torch.nn.Module):
        raise TypeError(
            f"fuse: it takes a function, got the module {type(function).__name__}; write "
            'torch.compile(module, backend="fusedops"), or pass its forward'
        )
    if not callable(function):
        raise TypeError(f"fuse: it takes a function, got {function!r}")
    return FusedFunction(function)
