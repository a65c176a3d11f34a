# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Choose the tile and the launch configuration of a kernel, from integers and tuning files.

A tile (tiling.py, forward_tile.py, backward.py) decides in which order a row is summed, and so
the bits of the result. A launch configuration (launch.py) decides speed alone: it is looked up
(lookup.py) by the features of a kernel (features.py) in tuning files, one per architecture, which
were measured (tuning/, tuning_file.py). A schedule (row_schedule.py) is both, with the storage of a
row; forward.py and backward.py choose it for each pass. What is known of GPUs is in
architectures.py.

May import: errors, bind.
"""

from fusedops.schedule.row_schedule import Schedule

__all__ = ["Schedule"]
