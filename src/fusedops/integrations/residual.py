# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Modules that end in ``norm(dropout(dense(x)) + residual)``, as BERT's SelfOutput and Output do.

The product of the dense layer stays torch's. Its bias, the dropout, the residual and the norm are
one kernel.
"""

from __future__ import annotations

import re
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusedops.integrations.norms import (
    FusedLayerNorm,
    Norm,
    agree,
    parameters_of_forward,
    quiet,
    random,
    recognise,
    twin_of,
)
from fusedops.integrations.swap import Swapped

__all__ = ["FusedOutput", "is_output"]

#: The submodules by which such a module is known.
_PARTS = {"dense": nn.Linear, "dropout": nn.Dropout, "LayerNorm": nn.LayerNorm}

_TORCH_DROPOUT = nn.Dropout


class FusedOutput(Swapped):
    """``LayerNorm(dropout(dense(hidden_states)) + input_tensor)``, whose parts stay as they are.

    Each part is looked at in every call. A dense layer or a dropout that is no longer torch's own,
    or has hooks, is called as a module; without a fused LayerNorm, the stock forward runs.
    """

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """As the stock module, with the dtype that it gives."""
        norm: Any = self.LayerNorm
        if not isinstance(norm, FusedLayerNorm) or _has_hooks(norm):
            return cast(Tensor, self.stock.forward(self, hidden_states, input_tensor))
        dense, dropout = cast(nn.Linear, self.dense), cast(nn.Dropout, self.dropout)
        bias = None
        if type(dense) is nn.Linear and not _has_hooks(dense):
            bias = dense.bias
            product = functional.linear(hidden_states, dense.weight)
        else:
            product = dense(hidden_states)
        p = 0.0
        if type(dropout) is _TORCH_DROPOUT and not _has_hooks(dropout):
            p = dropout.p if dropout.training else 0.0
        else:
            product = dropout(product if bias is None else product + bias)
            bias = None
        return norm.add_norm(product, input_tensor, bias, p)


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        "forward" in module.__dict__
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def is_output(module: nn.Module) -> bool:
    """Whether a module is one of these: by its class's name, its parts and a probe."""
    cls = type(module)
    parts = dict(module.named_children())
    return (
        re.search(r"Output$", cls.__name__) is not None
        and {name: _stock_class(part) for name, part in parts.items()} == _PARTS
        and not any(True for _ in module.parameters(recurse=False))
        and not any(True for _ in module.buffers(recurse=False))
        and "forward" not in module.__dict__
        and cls.__call__ is nn.Module.__call__
        and len(parameters_of_forward(module) or ()) == 2
        and (isinstance(parts["LayerNorm"], FusedLayerNorm) or _is_fusable(parts["LayerNorm"]))
        and _computes(module)
    )


def _stock_class(module: nn.Module) -> type[nn.Module]:
    return module.stock if isinstance(module, Swapped) else type(module)


def _is_fusable(norm: nn.Module) -> bool:
    found = recognise(norm)
    return isinstance(found, Norm) and found.kind is FusedLayerNorm


def _computes(module: nn.Module) -> bool:
    """Whether the forward is the formula with dropout left out, and where all of it is dropped."""
    rows, inner, columns = 3, 5, 7
    own: Any = module
    with quiet() as generator:
        for p, training in ((0.5, False), (0.0, True), (1.0, True)):
            dense = nn.Linear(inner, columns, dtype=torch.float64, device="cpu")
            norm = nn.LayerNorm(columns, own.LayerNorm.eps, dtype=torch.float64, device="cpu")
            for parameter in (*dense.parameters(), *norm.parameters()):
                parameter.data = random(generator, *parameter.shape)
            dropout = nn.Dropout(p)
            twin = twin_of(module, dense=dense, dropout=dropout, LayerNorm=norm).train(training)

            def formula(
                x: Tensor,
                residual: Tensor,
                dense: nn.Linear = dense,
                norm: nn.LayerNorm = norm,
                kept: bool = p < 1,
                **parameters: Tensor,
            ) -> Tensor:
                product = functional.linear(x, dense.weight, dense.bias)
                total = (product if kept else 0.0 * product) + residual
                shape = norm.normalized_shape
                return functional.layer_norm(total, shape, norm.weight, norm.bias, norm.eps)

            inputs = [random(generator, rows, inner), random(generator, rows, columns)]
            named = {name.replace(".", "_"): each for name, each in twin.named_parameters()}
            try:
                if not agree(twin.forward, formula, inputs, named, generator):
                    return False
            except Exception:  # somebody else's code, which may raise anything
                return False
    return True
