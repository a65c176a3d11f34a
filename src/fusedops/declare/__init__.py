# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Declarations: their chains of functors, their operands and outputs, and their text.

A declaration is data. It compiles nothing, calls nothing and needs no GPU.

May import: errors, functors.
"""
