# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a declaration is: its chains, its operands and its outputs, and its text.

A declaration is data. It compiles nothing, calls nothing and needs no GPU.

May import: errors, functors.
"""
