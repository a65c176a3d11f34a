# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Experts of somebody else's models: which modules are such, and the class that runs them fused."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from torch import Tensor, nn

from fusedops.bind.operands import FLOATING
from fusedops.integrations.norms import agree, quiet, random, twin_of
from fusedops.integrations.swap import Replacement, Swapped
from fusedops.nn.expert_form import (
    BIASES,
    WEIGHTS,
    ExpertsForm,
    Parameters,
    form_of,
    parameters_of,
    run_experts,
)

#: What modules call the sizes that a probe changes, each with its size there.
_SIZES = {
    "num_experts": 3,
    **dict.fromkeys(("hidden_dim", "hidden_size"), 4),
    **dict.fromkeys(("intermediate_dim", "intermediate_size", "expert_dim"), 5),
}


class FusedExperts(Swapped):
    """Experts that were another module's: its parameters, and what `fusedops.nn.Experts` runs.

    Attributes:
        form: What the experts compute, and how their weights lie.
    """

    form: ExpertsForm

    @classmethod
    def facts(cls, options: tuple[Any, ...]) -> dict[str, Any]:
        """The form, of which the declarations are made here, before any call is compiled."""
        form = ExpertsForm(*options)
        form.layers()
        return {"form": form}

    def forward(self, hidden_states: Tensor, *given: Tensor, **named: Tensor) -> Tensor:
        """Run the experts, with the arguments of the stock module: tokens, experts, weights."""
        if named:
            bound = inspect.signature(self.stock.forward).bind(self, hidden_states, *given, **named)
            given = bound.args[2:]
        index, weights = given
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        y = run_experts(self.form, parameters_of(self), tokens, index, weights)
        return y.to(hidden_states.dtype).view(hidden_states.shape)


def recognise_experts(module: nn.Module) -> Replacement | str | None:
    """The fused experts for a module, or why it is left; None for a module that holds no such."""
    cls, own = type(module), module._parameters
    parts = [own.get(name) for name in WEIGHTS]
    if isinstance(module, Swapped) or re.search("Experts", cls.__name__) is None:
        return None
    if any(one is None or one.dim() != 3 for one in parts):
        return None
    if not {*own} <= {*WEIGHTS, *BIASES} or any(True for _ in module.buffers()):
        return "it has other parameters, or buffers"
    if any(one is not None and one.dtype not in FLOATING for one in own.values()):
        return "its weights are quantized"
    if any(True for child in module.children() for _ in child.parameters()):
        return "a module in it has parameters"
    if "forward" in module.__dict__ or cls.__call__ is not nn.Module.__call__:
        return "its forward was replaced"
    if getattr(module, "_is_expert_parallel", False):
        return "its experts are divided among devices"
    form = form_of(module)
    if isinstance(form, str):
        return form
    if not _computes(module, form):
        return "its forward computes something else"
    return Replacement(FusedExperts, form, "experts, their gate and the router's weights")


def _computes(module: nn.Module, form: ExpertsForm) -> bool:
    """Whether the forward is the formula, gradients included; one expert gets no token."""
    experts, features, hidden, tokens = 3, 4, 5, 6
    forward = inspect.unwrap(type(module).forward)
    with quiet() as generator:
        up, down = (2 * hidden, features), (features, hidden)
        if form.transposed:
            up, down = up[::-1], down[::-1]
        shapes: tuple[tuple[int, ...], ...] = (up, down, (2 * hidden,), (features,))
        names = (*WEIGHTS, *BIASES) if form.bias else WEIGHTS
        parameters = {
            name: random(generator, experts, *shape)
            for name, shape in zip(names, shapes, strict=False)
        }
        twin = twin_of(module, **parameters, **dict(module.named_children()))
        twin.__dict__.update((key, size) for key, size in _SIZES.items() if key in twin.__dict__)
        index = torch.tensor([[0, 2], [2, 0], [2, 0], [0, 2], [0, 2], [2, 0]])

        def formula(x: Tensor, weights: Tensor, **given: Tensor) -> Tensor:
            made = Parameters(*map(given.get, (*WEIGHTS, *BIASES)))  # type: ignore[arg-type]
            return run_experts(form, made, x, index, weights, unfused=True)

        inputs = [random(generator, tokens, features), random(generator, tokens, 2)]
        named = dict(twin.named_parameters())
        try:
            return agree(lambda x, w: forward(twin, x, index, w), formula, inputs, named, generator)
        except Exception:  # somebody else's code, which may raise anything
            return False
