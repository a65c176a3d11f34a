# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The functor that errors suggest in place of an activation of torch's."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

__all__ = ["activation_of", "made_into_functor"]

#: The activations in torch.nn.functional that work in a functor and need no more than the value.
_NAMES = (
    "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 "
    "selu sigmoid silu softplus softshrink softsign tanh tanhshrink"
)
_ACTIVATIONS = {"swish": "silu", **{one.replace("_", ""): one for one in _NAMES.split()}}


def made_into_functor(given: Any) -> str:
    """The cure for an activation that is no functor: its name, or a function or module of torch."""
    own = inspect.isfunction(given) and not given.__module__.startswith("torch.")
    if own and given.__name__.isidentifier():
        return f"write '@fusedops.functor' above it, and pass {given.__name__}()"
    known = activation_of(given)
    call = f"torch.nn.functional.{known}(v{_settings(given)})" if known else "..."
    known = known or "activation"
    return (
        "write a function of the value, with '@fusedops.functor' above it: "
        f"def {known}(v): return {call}; then pass {known}()"
    )


def activation_of(given: Any) -> str:
    """What torch.nn.functional calls an activation: its name, or a function or module; or empty."""
    name = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    return _ACTIVATIONS.get(name.lower().replace("_", ""), "")


def _settings(given: Any) -> str:
    """The further arguments of an activation's function, as a module of torch's has them."""
    kind = type(given)
    if not isinstance(given, nn.Module) or not kind.__module__.startswith("torch.nn."):
        return ""
    shown = given.extra_repr().removesuffix("inplace=True").removesuffix(", ")
    return "" if shown == kind().extra_repr() else f", {shown}"
