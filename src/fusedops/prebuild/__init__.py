# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Fill the cache before anything runs: calls as lines of text, their recording, and their build.

May import: errors, jit, declare, bind, schedule, generate, run.
"""
