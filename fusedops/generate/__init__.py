# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The C++ of one kernel and the words of its argument, and the kernels of this process.

One walk over the declaration gives both. What is compiled, and for which architecture, is decided
here; how it is compiled and cached is the business of `jit`.

May import: errors, _runtime, jit, functors, bind, schedule.
"""
