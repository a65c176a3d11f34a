# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""From a checked call to a launch: what is built and returned to the runtime, and autograd.

This is the slow path of a dispatcher. It runs once for each new key (shapes, strides and dtypes),
and the C++ runtime caches the plan that it returns.

May import: errors, _runtime, jit, functors, declare, bind, reference, generate, plan.
"""
