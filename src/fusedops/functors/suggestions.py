# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Suggestions in errors: the functor to write for an argument's name or an activation of torch."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

#: The functor to declare, by the name of the argument that other libraries have in its place.
FUNCTORS = {
    "scale": "Scale('scale')",
    "temperature": "Scale('inverse_temperature')",
    "softcap": "Softcap('cap')",
    "logit_softcapping": "Softcap('cap')",
    "bias": "Bias('bias')",
    "mask": "Mask('mask')",
    "attn_mask": "Mask('mask')",
    "causal": "Causal()",
    "is_causal": "Causal()",
    "window": "Window(left)",
    "lengths": "Lengths('lengths')",
    "alibi": "Alibi('slopes')",
    "p": "Dropout('p')",
    "dropout": "Dropout('p')",
    "dropout_p": "Dropout('p')",
    "residual": "Residual('residual')",
    "gamma": "Affine('gamma', 'beta')",
    "beta": "Affine('gamma', 'beta')",
    "weight": "Affine('weight', 'bias')",
    "elementwise_affine": "Affine('weight', 'bias')",
    "unit_offset": "Affine('weight', None, zero_centred=True)",
    "add_unit_offset": "Affine('weight', None, zero_centred=True)",
    "zero_centred": "Affine('weight', None, zero_centred=True)",
    "zero_centered": "Affine('weight', None, zero_centred=True)",
    "zero_centered_gamma": "Affine('weight', None, zero_centred=True)",
}


def for_functor(given: Any) -> str:
    """The cure for a name, function, module or op in a chain; empty for anything else."""
    if isinstance(given, str):
        known = FUNCTORS.get(given, f"Scale({given!r})")
        return f"; a name is given to a functor: write fusedops.{known}, say"
    kind = given if isinstance(given, type) else type(given)
    if hasattr(kind, "unfused"):
        return "; an op cannot stand in a chain: call one after the other"
    if issubclass(kind, nn.Module):
        title = kind.__name__.lower()
        if title in FUNCTORS:
            return f"; the functor for that is fusedops.{FUNCTORS[title]}"
        if kind.__module__.startswith("torch.nn.") and not activation_of(given):
            return "; a module cannot stand in a chain: call it before or after the op"
        return f"; {made_into_functor(given)}"
    if not callable(given):
        return ""
    own = inspect.isfunction(given) and not given.__module__.startswith("torch.")
    if own and given.__name__.isidentifier():
        operands = ", ".join(map(repr, [*inspect.signature(given).parameters][1:]))
        return f"; make a functor of it: write fusedops.functor({given.__name__})({operands})"
    if activation_of(given):
        return f"; {made_into_functor(given)}"
    return "; write a Python function that calls it, decorated with fusedops.functor"


#: The activations in torch.nn.functional that work in a functor and need no more than the value.
_NAMES = (
    "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 "
    "selu sigmoid silu softplus softshrink softsign tanh tanhshrink"
)
_ACTIVATIONS = {"swish": "silu", **{one.replace("_", ""): one for one in _NAMES.split()}}

#: Those that the library has as functors.
_SHIPPED = {"gelu": "GELU", "silu": "SiLU", "relu": "ReLU", "sigmoid": "Sigmoid", "tanh": "Tanh"}


def made_into_functor(given: Any) -> str:
    """The cure for an activation that is no functor: its name, or a function or module of torch."""
    own = inspect.isfunction(given) and not given.__module__.startswith("torch.")
    if own and given.__name__.isidentifier():
        return f"write '@fusedops.functor' above it, and pass {given.__name__}()"
    known = activation_of(given)
    if known in _SHIPPED:
        return f"write fusedops.{_SHIPPED[known]}({_settings(given).removeprefix(', ')})"
    call = f"torch.nn.functional.{known}(v{_settings(given)})" if known else "..."
    known = known or "activation"
    return (
        "write a function of the value, with '@fusedops.functor' above it: "
        f"def {known}(v): return {call}; then pass {known}()"
    )


def activation_of(given: Any) -> str:
    """The name in torch.nn.functional of an activation, given by name, function or module."""
    name = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    return _ACTIVATIONS.get(name.lower().replace("_", ""), "")


def _settings(given: Any) -> str:
    """The further arguments of an activation's function, as a module of torch's has them."""
    kind = type(given)
    if not isinstance(given, nn.Module) or not kind.__module__.startswith("torch.nn."):
        return ""
    shown = given.extra_repr().removesuffix("inplace=True").removesuffix(", ")
    return "" if shown == kind().extra_repr() else f", {shown}"
