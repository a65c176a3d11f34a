# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""From a checked call to a launch: plans of the forward and of the backward pass, and autograd.

This is the slow path of a dispatcher: it runs once for each new key, and the C++ runtime keeps the
plan that it returns.

May import: errors, _runtime, jit, functors, declare, bind, reference, schedule, generate.
"""
