# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Fill the cache ahead of a run: record calls as lines of text, and build their kernels.

May import: errors, jit, declare, bind, schedule, generate, plan, run.
"""
