# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Both flagship chains on the CPU in float32, on as many threads as torch's eager chain."""

from collections.abc import Iterator

import torch
from results import Result
from timing import wall_seconds

from fusedops import flagship

# Make, shape, dropout, and how many times as fast as the eager chain.
CASES = (
    (flagship.attention, (2, 8, 512, 512), 0.1, 5.0),
    (flagship.attention, (2, 8, 512, 512), 0.0, 2.2),
    (flagship.add_norm, (4096, 1024), 0.1, 5.0),
    (flagship.add_norm, (4096, 1024), 0.0, 1.4),
)


def chains() -> Iterator[Result]:
    """Fused and eager, in turn."""
    device = torch.device("cpu")
    for make, shape, p, target in CASES:
        case = make(shape, p=p, dtype=torch.float32, device=device)
        fused, eager = wall_seconds([case.fused, case.unfused], device)
        name = f"{case.title}, p = {p}"
        yield Result(
            "cpu",
            name,
            "fusedops",
            fused,
            case.bytes,
            against=eager,
            target=f">= {target} x eager",
            met=eager / fused >= target,
        )
        yield Result("cpu", name, "torch eager", eager, case.bytes)
