# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""From a call to its rows and columns: arguments are checked and shapes are merged.

`op(...)`, `op.unfused(...)` and `op.explain(...)` all begin here, so they refuse the same calls in
the same words. Where dropout takes its random numbers from is here as well.

May import: errors, _runtime, functors, declare.
"""
