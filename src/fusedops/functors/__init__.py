# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Functors: the elementwise steps before (LOAD) and after (STORE) a row reduction.

Each class is a declaration, a value that holds names and constants. ``apply`` (for masks:
``masked``) is its meaning in torch, which ``op.unfused`` runs; ``emit`` names the C++ struct of
the same name in ``include/fusedops/functor/`` and lists the struct's members in order.

May import: errors.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fusedops.functors import base, coordinates, fields, operands, shipped
from fusedops.functors.arithmetic import AddedBias as AddedBias
from fusedops.functors.base import *
from fusedops.functors.coordinates import *
from fusedops.functors.fields import *
from fusedops.functors.operands import *
from fusedops.functors.shipped import *

if TYPE_CHECKING:
    from fusedops.functors.cpp import cpp_functor as cpp_functor
    from fusedops.functors.dynamic_quantize import DynamicQuantize as DynamicQuantize
    from fusedops.functors.user import functor as functor
else:
    __all__ = [
        *base.__all__,
        *coordinates.__all__,
        *fields.__all__,
        *shipped.__all__,
        *operands.__all__,
        "DynamicQuantize",
        "cpp_functor",
        "functor",
    ]

#: The modules of the names that are imported when they are first asked for.
_HOMES = {"DynamicQuantize": "dynamic_quantize", "cpp_functor": "cpp", "functor": "user"}


def __getattr__(name: str) -> Any:
    """Import lazily what few programs use; functors of the user's own bring a compiler along."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"fusedops.functors.{_HOMES[name]}")
    globals()[name] = found = getattr(home, name)
    return found
