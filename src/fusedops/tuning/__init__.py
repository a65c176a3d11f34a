# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Find the fastest launch configuration of a kernel by trial, on the GPU of this machine.

candidates.py says what can be tried, problem.py checks and times one call, search.py chooses, and
rows.py makes rows of tuning files of it. implementations.py tries, checks and times what runs a
product; product.py and product_backward.py are its calls. mlp.py and recorded.py say which of them
a call of an MLP has, or a recording.
`fusedops tune` and `benchmarks/tune.py` are its users.

May import: version, errors, _runtime, jit, declare, bind, schedule, generate, run, prebuild,
explain, row_op, product, testing.
"""

from __future__ import annotations

from fusedops.tuning.candidates import Kernel
from fusedops.tuning.search import Outcome, search

__all__ = ["Kernel", "Outcome", "search"]
