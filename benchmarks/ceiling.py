# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The ceiling itself as a part of the benchmark (`fusedops.tuning.clock`)."""

from collections.abc import Iterator

from points import MAIN, ROWS
from results import Result

from fusedops.tuning.clock import bandwidth, of_bytes, seconds

__all__ = ["bandwidth", "measured", "of_bytes", "seconds"]

STREAMS = ((1, 1), (2, 1), (2, 2))


def measured() -> Iterator[Result]:
    """The ceiling itself: large, and at sizes of the sweep, 16 bit a value."""
    for elements in (2**29, *(ROWS * columns for columns in MAIN)):
        for reads, writes in STREAMS:
            yield Result(
                "ceiling",
                f"{elements * 2 / 2**20:.0f} MiB a stream",
                f"{reads} read, {writes} written",
                of_bytes(elements * 2, reads, writes),
                elements * 2 * (reads + writes),
            )
