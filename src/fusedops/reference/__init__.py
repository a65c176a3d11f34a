# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What an op means: its declaration as a chain of torch calls, and how exact a result must be.

Nothing here generates or launches a kernel.

May import: errors, functors, bind.
"""
