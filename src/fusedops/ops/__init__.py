# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The row ops that users declare: softmax, norms and losses with functors around them.

May import: errors, functors, declare, torch_ops, row_op.
"""

from fusedops.ops.losses import CrossEntropy
from fusedops.ops.norms import L2Norm, LayerNorm, RMSNorm
from fusedops.ops.softmax import LogSoftmax, Softmax

__all__ = ["CrossEntropy", "L2Norm", "LayerNorm", "LogSoftmax", "RMSNorm", "Softmax"]
