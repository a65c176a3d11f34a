# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Generate the C++ source of one kernel and the content of its argument; hold loaded kernels.

One walk over the declaration gives both source and argument. What is compiled, and for which
architecture, is decided here; how it is compiled and cached is the business of `jit`.

May import: errors, _runtime, jit, functors, bind, schedule.
"""
