# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Find the fastest launch configuration of a kernel by trial, on the GPU of this machine.

parts.py says what there is to tune of a call, problem.py and product.py check and time it, clock.py
takes the time, search.py says what is tried and chooses, and tuner.py makes rows of tuning files of
what is found. `fusedops tune` and `benchmarks/tune.py` are its users.

May import: version, errors, _runtime, jit, declare, bind, schedule, generate, plan, run,
prebuild, explain, row_op, product, testing.
"""

from __future__ import annotations

from fusedops.tuning.search import Kernel, Outcome, search

__all__ = ["Kernel", "Outcome", "search"]
