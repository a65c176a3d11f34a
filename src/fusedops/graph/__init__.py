# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A torch.compile backend that fuses softmaxes, norms and linear layers with pointwise neighbours.

May import: errors, functors, generate, row_op, ops, map, group_norm, product, nn.
"""

__all__: list[str] = []
