# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The functors that errors suggest: for a name from elsewhere, and for what is no functor."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from fusedops.functors.from_torch import activation_of, made_into_functor

#: The functor to declare, by the name of the argument that other libraries have in its place.
FUNCTORS = {
    "scale": "Scale('scale')",
    "temperature": "Scale('inverse_temperature')",
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
