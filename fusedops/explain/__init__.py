# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What `op.explain` answers: the facts that a plan is made of, in words. Nothing runs.

May import: functors, declare, bind, reference, schedule, generate, run.
"""
