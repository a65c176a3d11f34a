# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Find the fastest launch configuration of a kernel by trial, on the GPU of this machine.

candidates.py says what can be tried, problem.py checks and times one call, search.py chooses, and
rows.py makes rows of tuning files of it. vehicles.py tries, checks and times what runs a product;
product.py and hidden_gradient.py are its calls, and mlp.py says which of them an MLP has.
`fusedops tune` and `benchmarks/tune.py` are its users.

May import: version, errors, _runtime, jit, bind, schedule, generate, run, explain, row_op,
product, testing.
"""

from __future__ import annotations

from fusedops.tuning.candidates import Kernel
from fusedops.tuning.search import Outcome, search

__all__ = ["Kernel", "Outcome", "search"]
