# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Row ops and linear layers found in programs: a backend of torch.compile that fuses what is near.

May import: errors, functors, generate, row_op, ops, group_norm, product, nn.
"""

__all__: list[str] = []
