# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The operators of torch that stand for fused ops where torch traces: three for all declarations.

Importing this package's `operators` registers them.

May import: errors, _runtime, functors, declare, bind, reference, plan, run.
"""
