# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Row ops found in programs: a backend of torch.compile that fuses what is around them.

May import: errors, functors, row_op, ops, group_norm, nn.
"""

__all__: list[str] = []
