# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The backward graph of compiled code has the draws of the forward graph.

AOTAutograd cuts a graph of both passes in two, and the backward graph computes again what the
forward graph does not save. A draw would draw anew there, so the node of a draw is marked with what
may be done. The operators that take a draw mark it as they are traced themselves, since a selective
checkpoint marks it with its own policy just after the draw has been traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx, library
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, get_proxy_slot
from torch.utils.checkpoint import CheckpointPolicy

#: Where `torch.autograd.graph.region_activation_memory_budget` notes its budget.
_REGION = "_region_activation_memory_budget"


def keep_draws(namespace: Any, name: str) -> None:
    """Have the operator of this name, which takes a ``draw``, mark the draw in graphs."""
    library.register_torch_dispatch(
        f"fusedops::{name}", ProxyTorchDispatchMode, _trace, lib=namespace
    )


def _trace(mode: ProxyTorchDispatchMode, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    at = [argument.name for argument in function._schema.arguments].index("draw")
    proxy = get_proxy_slot(args[at], mode.tracer, None) if isinstance(args[at], Tensor) else None
    if proxy is not None:
        for node in _draws(proxy.proxy.node):
            node.meta["recompute"] = _policy(node)
    return mode.__torch_dispatch__(function, types, args, kwargs)


def _draws(node: fx.Node) -> Iterator[fx.Node]:
    """The draws that a node is made of; a distributed one is shared by collectives."""
    found = {node: None}
    left = [node]
    while left:
        node = left.pop()
        if node.target is torch.ops.fusedops.draw.default:
            yield node
            continue
        new = [one for one in node.all_input_nodes if one not in found]
        found.update(dict.fromkeys(new))
        left += new


def _policy(node: fx.Node) -> CheckpointPolicy:
    """How a draw is marked: its two numbers must be saved.

    A memory budget of 0 saves the inputs of the graph alone, however nodes are marked. A draw that
    is marked as to be computed again is then repeated from the generator's state.
    """
    from torch._functorch import config  # a sixth of what an import of fusedops costs

    budget = node.meta.get("custom", {}).get(_REGION, config.activation_memory_budget)
    return CheckpointPolicy.MUST_SAVE if budget > 0 else CheckpointPolicy.MUST_RECOMPUTE
