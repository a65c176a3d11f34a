# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Reference of an op: a chain of torch calls, and bounds on a result's error.

Nothing here generates or launches a kernel.

May import: errors, functors, bind.
"""
