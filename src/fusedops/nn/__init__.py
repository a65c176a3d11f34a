# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Drop-in modules with fused ops, in place of those of `torch.nn`.

A module with the name of one of torch's takes its arguments, has its parameters by name, shape and
initial value, and is an instance of its class. A module chooses its declaration by its own settings
and by which operands a call gives. Equal choices share one declaration in the whole process, and
with it the plans of its kernels. `op(...)` of a module returns it, to be printed, explained or
called.

May import: errors, functors, declare, bind, torch_ops, ops, group_norm, product.
"""

import sys
from typing import NoReturn

from fusedops.nn.attention import AttentionSoftmax
from fusedops.nn.experts import Experts
from fusedops.nn.group_norm import GroupNorm
from fusedops.nn.linear import MLP, Linear
from fusedops.nn.losses import CrossEntropyLoss, LinearCrossEntropyLoss
from fusedops.nn.norms import LayerNorm, RMSNorm
from fusedops.nn.residual import ResidualLayerNorm, ResidualRMSNorm

__all__ = [
    "MLP",
    "AttentionSoftmax",
    "CrossEntropyLoss",
    "Experts",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropyLoss",
    "RMSNorm",
    "ResidualLayerNorm",
    "ResidualRMSNorm",
]


def __getattr__(name: str) -> NoReturn:
    """Raise AttributeError with a hint for a name that is not here."""
    said = f"module {__name__!r} has no attribute {name!r}"
    if name.startswith("_"):  # asked for by Python and its tools, not by people
        raise AttributeError(said)
    from fusedops.declare.wanted import missing

    ops = sys.modules["fusedops"].__all__
    raise AttributeError(f"{said}{missing(name, __all__, 'fusedops', ops)}")
