# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the tile and the launch configuration of a kernel: functions of integers alone.

A tile decides in which order a row is summed, and so the bits of the result. Everything else in a
schedule (storage, blocks per cluster, occupancy target, L2 prefetch) decides the speed alone. One
pair of modules is for the forward pass, one for the backward pass.

May import: functors, bind.
"""

from fusedops.schedule.forward import Schedule

__all__ = ["Schedule"]
