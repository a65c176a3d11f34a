# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Fused row operations: softmax and norms with everything elementwise around them.

Declare what happens before and after a row reduction; get one kernel that moves every byte once.

>>> import torch, fusedops as fo
>>> attention_softmax = fo.Softmax(load=[fo.Scale("scale"), fo.Mask("padding")])
>>> attention_softmax(torch.zeros(1, 2), scale=0.125, padding=torch.tensor([False, True]))
tensor([[1., 0.]])

May import: version, renamed, errors, functors, declare, row_op, ops, exporting, nn.
"""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusedops import renamed
from fusedops.version import __version__ as __version__

__all__ = [
    "Affine",
    "Alibi",
    "Bias",
    "Cast",
    "Causal",
    "CompileError",
    "CompilerNotFound",
    "Dropout",
    "Exported",
    "Functor",
    "FusedOpsError",
    "L2Norm",
    "LayerNorm",
    "Lengths",
    "LogSoftmax",
    "Mask",
    "MissingVariantError",
    "RMSNorm",
    "Residual",
    "RowOp",
    "Scale",
    "Softmax",
    "UnsupportedError",
    "Window",
    "cpp_functor",
    "export",
    "functor",
    "nn",
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


if TYPE_CHECKING:
    from fusedops.exporting import Exported, export
    from fusedops.functors import cpp_functor, functor

renamed.install()

# Elsewhere at once: saved programs of torch need the operators that this registers.
if TYPE_CHECKING or not _is_command():
    from fusedops import nn
    from fusedops.errors import (
        CompileError,
        CompilerNotFound,
        FusedOpsError,
        MissingVariantError,
        UnsupportedError,
    )
    from fusedops.functors import (
        Affine,
        Alibi,
        Bias,
        Cast,
        Causal,
        Dropout,
        Functor,
        Lengths,
        Mask,
        Residual,
        Scale,
        Window,
    )
    from fusedops.ops import L2Norm, LayerNorm, LogSoftmax, RMSNorm, Softmax
    from fusedops.row_op import RowOp


def __getattr__(name: str) -> Any:
    """What few programs use; in the process of a command, everything."""
    if name not in __all__:
        said = f"module {__name__!r} has no attribute {name!r}"
        if name.startswith("_"):  # asked for by Python and its tools, not by people
            raise AttributeError(said)
        from fusedops.declare.hints import nearest

        raise AttributeError(f"{said}{nearest(name, __all__)}")
    if name == "nn":
        return importlib.import_module("fusedops.nn")
    for home in ("errors", "functors", "ops", "row_op", "exporting"):
        module = importlib.import_module(f"fusedops.{home}")
        if hasattr(module, name):
            globals()[name] = found = getattr(module, name)
            return found
    raise AttributeError(name)


def __dir__() -> list[str]:
    """The public names; packages and modules of the implementation are attributes as well."""
    return sorted([name for name in globals() if name.startswith("__")] + __all__)
