# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Every operator on every GPU schedule, small, for compute-sanitizer to watch.

compute-sanitizer --tool memcheck --error-exitcode 1 python tests/sanitize.py
compute-sanitizer --tool racecheck --error-exitcode 1 python tests/sanitize.py
"""

import torch

import fusedops as fo
from fusedops import testing
from fusedops.flagship import ADD_NORM, ATTENTION

OPERATORS = {
    fo.Softmax(load=[fo.Causal(), fo.Lengths("n")]): {"n": 5},
    fo.LogSoftmax(): {},
    fo.LayerNorm(stats=True): {},
    fo.RMSNorm(): {},
}
# Part of a warp, a warp, several warps with an odd end, several chunks.
COLUMNS = (7, 256, 1024, 4099, 20001)
ROWS = 5


def main() -> None:
    """Runs everything once and says how much that was."""
    variants = 0
    for columns in COLUMNS:
        x = torch.randn(ROWS, columns, device="cuda", dtype=torch.float16)
        v = torch.randn(columns, device="cuda", dtype=torch.float16)
        mask = torch.zeros(columns, dtype=torch.bool, device="cuda")
        cases = {
            **OPERATORS,
            ATTENTION: {"scale": 0.5, "pair_bias": v, "padding": mask, "p": 0.1},
            ADD_NORM: {"bias": v, "p": 0.1, "residual": x, "gamma": v, "beta": v},
        }
        for schedule in ("register", "shared", "streaming"):
            if schedule == "register" and columns > 16384:
                continue
            with testing.force_schedule(schedule):
                for op, operands in cases.items():
                    op(x, **operands)
                    variants += 1
    torch.cuda.synchronize()
    print(f"{variants} variants ran")


if __name__ == "__main__":
    with torch.no_grad():
        main()
