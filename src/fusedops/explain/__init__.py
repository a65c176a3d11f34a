# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`op.explain`: says in words what a call would run and why. Nothing runs.

May import: errors, _runtime, functors, declare, bind, reference, schedule, generate, plan, run.
"""
