# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Fused row operations: softmax and norms with everything elementwise around them.

Declare what happens before and after a row reduction; get one kernel that moves every byte once.

>>> import torch, fusedops as fo
>>> attention_softmax = fo.Softmax(load=[fo.Scale("scale"), fo.Mask("padding")])
>>> attention_softmax(torch.zeros(1, 2), scale=0.125, padding=torch.tensor([False, True]))
tensor([[1., 0.]])
"""

from fusedops import nn
from fusedops.errors import (
    CompileError,
    CompilerNotFound,
    FusedOpsError,
    MissingVariantError,
    UnsupportedError,
)
from fusedops.exporting import Exported, export
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
    cpp_functor,
    functor,
)
from fusedops.ops import LayerNorm, LogSoftmax, RMSNorm, Softmax
from fusedops.row_op import RowOp

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

__version__ = "0.1.0"
