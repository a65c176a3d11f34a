# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The row ops that users declare: softmax, log-softmax and norms with functors around them.

May import: errors, functors, declare, row_op.
"""

from fusedops.ops.norms import L2Norm, LayerNorm, RMSNorm
from fusedops.ops.softmax import LogSoftmax, Softmax

__all__ = ["L2Norm", "LayerNorm", "LogSoftmax", "RMSNorm", "Softmax"]
