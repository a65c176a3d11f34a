# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which tile and which launch configuration a kernel gets: functions of integers alone.

A tile decides in which order a row is summed, and so the bits of the result; all else in a schedule
decides the speed alone. One pair of modules is for the forward pass, one for the backward pass.

May import: functors, bind.
"""

from fusedops.schedule.forward import Schedule

__all__ = ["Schedule"]
