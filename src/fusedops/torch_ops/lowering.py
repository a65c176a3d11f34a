# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What Inductor makes of the operators: calls of `known_calls`, whose results lie well.

Inductor would call an operator of another library through torch's dispatcher, where arguments go
from Python to C++ and back twice. It also takes results for badly aligned where some argument is.
An Inductor that cannot be told so calls the operators, with the same results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from fusedops.torch_ops.known_calls import ENTRIES

#: How the entries are called in Inductor's code, which finds them among torch's operators.
_PREFIX = "at_once_"

_lowered = False


def enter(name: str, entry: Callable[..., Any]) -> None:
    """Have Inductor's code call `entry` in place of the operator of this name in fusedops."""
    global _lowered
    _lowered = False  # Inductor has been told of earlier ones alone
    ENTRIES[name] = entry
    setattr(torch.ops.fusedops, _PREFIX + name, entry)


for _name, _entry in [*ENTRIES.items()]:
    enter(_name, _entry)


def lower() -> None:
    """Tell Inductor, if it has been imported."""
    global _lowered
    module = sys.modules.get("torch._inductor.lowering")
    if _lowered or module is None:
        return
    _lowered = True
    try:
        for name in ENTRIES:
            target = getattr(torch.ops.fusedops, name).default
            if target not in module.lowerings:
                module.make_fallback(target, warn=False)
                module.lowerings[target] = _called_at_once(
                    target, _PREFIX + name, module.lowerings[target]
                )
    except (AttributeError, TypeError):  # of a later torch
        return


def _called_at_once(target: Any, entry: str, usual: Callable[..., Any]) -> Callable[..., Any]:
    """A lowering of an operator that calls an entry in its place; `usual` calls the operator."""

    def lowered(*args: Any, **kwargs: Any) -> Any:
        results = usual(*args, **kwargs)
        _change(target, entry)
        return results

    return lowered


def _change(target: Any, entry: str) -> None:
    """Change the call of an operator that was added last to Inductor's graph."""
    from torch._inductor import config
    from torch._inductor.virtualized import V

    graph: Any = V.graph
    if graph.cpp_wrapper:  # C++ knows operators alone
        return
    for node in reversed(graph.operations):
        if getattr(node, "op_overload", None) is target:
            break
    else:
        return
    node.python_kernel_name = f"torch.ops.fusedops.{entry}"
    # Results are new memory, however the arguments lie.
    if not getattr(config, "assume_unaligned_fallback_output", False):
        for output in node.outputs:
            graph.unaligned_buffers.discard(output.get_name())
