# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of the command line, a module each; `cli` puts them together.

A command reads its arguments and prints; what it does lives elsewhere in the package. It imports
what it needs when it runs: none may keep another from starting, and torch takes seconds.

May import: errors, terminal, jit, bind, generate, prebuild, row_op, ops, map, product, exporting,
demo, doctor, tuning.
"""
