# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Fused row operations: softmax and norms with everything elementwise around them.

Declare what happens before and after a row reduction; get one kernel that moves every byte once.

>>> import torch, fusedops as fo
>>> attention_softmax = fo.Softmax(load=[fo.Scale("scale"), fo.Mask("padding")])
>>> attention_softmax(torch.zeros(1, 2), scale=0.125, padding=torch.tensor([False, True]))
tensor([[1., 0.]])

May import: version, errors, functors, declare, row_op, ops, map, group_norm, product,
exporting, nn, integrations, graph.
"""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusedops.version import __version__ as __version__

#: The public names beside those of the functors, which `fusedops.functors.shipped` lists.
_NAMES = [
    "CompileError",
    "CompilerNotFound",
    "CrossEntropy",
    "DynamicQuantize",
    "Exported",
    "Functor",
    "FusedOpsError",
    "GroupNorm",
    "GroupedLinear",
    "InstanceNorm",
    "L2Norm",
    "L2NormResult",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropy",
    "LogSoftmax",
    "MLP",
    "Map",
    "Matmul",
    "MissingVariantError",
    "NormResult",
    "ProbsLseResult",
    "ProbsResult",
    "RMSNorm",
    "RowOp",
    "Softmax",
    "SoftmaxResult",
    "StreamResult",
    "UnsupportedError",
    "cpp_functor",
    "explain_graph",
    "export",
    "functor",
    "fuse",
    "nn",
    "patch",
    "position",
    "unpatch",
]


def _is_command() -> bool:
    """Whether this is the process of `fusedops ...` or `python -m fusedops ...`.

    There nothing is imported before it is used: `fusedops doctor` has to run where torch does not,
    and `--help` should not wait for it.
    """
    if sys.argv[:1] == ["-m"]:  # what Python puts there while it looks for the module
        at = sys.orig_argv.index("-m") if "-m" in sys.orig_argv else len(sys.orig_argv)
        return sys.orig_argv[at + 1 : at + 2] == ["fusedops"]
    return Path(sys.argv[0] if sys.argv else "").name == "fusedops"


if TYPE_CHECKING:  # imported by __getattr__
    from fusedops import nn as nn
    from fusedops.exporting import Exported as Exported
    from fusedops.exporting import export as export
    from fusedops.functors import DynamicQuantize as DynamicQuantize
    from fusedops.functors import cpp_functor as cpp_functor
    from fusedops.functors import functor as functor
    from fusedops.graph.backend import fuse as fuse
    from fusedops.graph.explain import explain_graph as explain_graph
    from fusedops.integrations.patch import patch as patch
    from fusedops.integrations.patch import unpatch as unpatch
    from fusedops.product import MLP as MLP
    from fusedops.product import GroupedLinear as GroupedLinear
    from fusedops.product import Linear as Linear
    from fusedops.product import LinearCrossEntropy as LinearCrossEntropy
    from fusedops.product import Matmul as Matmul

# Elsewhere at once: saved programs of torch need the operators that this registers.
if TYPE_CHECKING or not _is_command():
    from fusedops.declare.results import L2NormResult as L2NormResult
    from fusedops.declare.results import NormResult as NormResult
    from fusedops.declare.results import ProbsLseResult as ProbsLseResult
    from fusedops.declare.results import ProbsResult as ProbsResult
    from fusedops.declare.results import SoftmaxResult as SoftmaxResult
    from fusedops.declare.results import StreamResult as StreamResult
    from fusedops.errors import CompileError as CompileError
    from fusedops.errors import CompilerNotFound as CompilerNotFound
    from fusedops.errors import FusedOpsError as FusedOpsError
    from fusedops.errors import MissingVariantError as MissingVariantError
    from fusedops.errors import UnsupportedError as UnsupportedError
    from fusedops.functors import Functor as Functor
    from fusedops.functors import position as position
    from fusedops.functors import shipped as _shipped
    from fusedops.functors.shipped import *
    from fusedops.group_norm import GroupNorm as GroupNorm
    from fusedops.group_norm import InstanceNorm as InstanceNorm
    from fusedops.map import Map as Map
    from fusedops.ops import CrossEntropy as CrossEntropy
    from fusedops.ops import L2Norm as L2Norm
    from fusedops.ops import LayerNorm as LayerNorm
    from fusedops.ops import LogSoftmax as LogSoftmax
    from fusedops.ops import RMSNorm as RMSNorm
    from fusedops.ops import Softmax as Softmax
    from fusedops.row_op import RowOp as RowOp

    if not TYPE_CHECKING:  # type checkers follow the imports, but cannot compute a list
        __all__ = [*_NAMES, *_shipped.__all__]


def _public() -> list[str]:
    """The public names. In the process of a command, where there is no list yet, this makes it."""
    if "__all__" not in globals():
        shipped = importlib.import_module("fusedops.functors.shipped")
        globals()["__all__"] = [*_NAMES, *shipped.__all__]
    public: list[str] = globals()["__all__"]
    return public


def __getattr__(name: str) -> Any:
    """Import lazily: rarely used names, and in a command's process every name."""
    if name == "__all__":
        return _public()
    if name in ("nn", "testing"):
        return importlib.import_module(f"fusedops.{name}")
    known = globals().get("__all__", _NAMES)
    # Functors are classes: torch need not be imported for other names, such as those of modules.
    if name not in known and not (name[:1].isupper() and name in _public()):
        said = f"module {__name__!r} has no attribute {name!r}"
        if name.startswith("_"):  # asked for by Python and its tools, not by people
            raise AttributeError(said)
        from fusedops.declare.wanted import missing

        modules = importlib.import_module("fusedops.nn").__all__
        raise AttributeError(f"{said}{missing(name, known, 'fusedops.nn', modules)}")
    homes = "errors functors ops map group_norm product row_op declare.results exporting"
    homes += " integrations.patch graph.explain graph.backend"
    for home in homes.split():
        module = importlib.import_module(f"fusedops.{home}")
        if hasattr(module, name):
            globals()[name] = found = getattr(module, name)
            return found
    raise AttributeError(name)


def __dir__() -> list[str]:
    """The public names; packages and modules of the implementation are attributes as well."""
    return sorted({name for name in globals() if name.startswith("__")} | {"__all__", *_public()})
