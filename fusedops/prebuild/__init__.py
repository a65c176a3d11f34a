# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Filling the cache before anything runs: calls as lines of text, a recording, a build of all.

May import: errors, jit, declare, bind, generate, run.
"""
