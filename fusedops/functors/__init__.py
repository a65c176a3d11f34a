# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The functors: what can stand before and after a row reduction.

Each class is a declaration, a value that holds names and constants. ``apply`` (for masks:
``masked``) is its meaning in torch, which ``op.unfused`` runs; ``spell`` names the C++ struct of
the same name in ``include/fusedops/functor/`` and lists the struct's members in order.

May import: errors.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fusedops.functors.alibi import Alibi
from fusedops.functors.arithmetic import Affine, Bias, Cast, Scale
from fusedops.functors.base import (
    Functor,
    Operand,
    Reads,
    Role,
    Stream,
    check_name,
    check_stream,
    is_finite,
    rounded,
)
from fusedops.functors.dropout import Dropout
from fusedops.functors.masks import Causal, Lengths, Mask, Window
from fusedops.functors.residual import Residual

if TYPE_CHECKING:
    from fusedops.functors.cpp import cpp_functor
    from fusedops.functors.user import functor

__all__ = [
    "Affine",
    "Alibi",
    "Bias",
    "Cast",
    "Causal",
    "Dropout",
    "Functor",
    "Lengths",
    "Mask",
    "Operand",
    "Reads",
    "Residual",
    "Role",
    "Scale",
    "Stream",
    "Window",
    "check_name",
    "check_stream",
    "cpp_functor",
    "functor",
    "is_finite",
    "rounded",
]


def __getattr__(name: str) -> Any:
    """What makes functors of the user's own: it brings a compiler along, which few programs use."""
    if name not in ("cpp_functor", "functor"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module("fusedops.functors." + ("user" if name == "functor" else "cpp"))
    globals()[name] = found = getattr(home, name)
    return found
