# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The three operators of torch that stand for fused ops where torch traces.

Importing this package's `operators` registers them.

May import: errors, _runtime, functors, declare, bind, reference, plan, run.
"""
