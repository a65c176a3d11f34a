# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Every operator on every GPU schedule, forward and backward, small, under compute-sanitizer.

    compute-sanitizer --tool memcheck --error-exitcode 1 python tests/sanitize.py
    compute-sanitizer --tool racecheck --error-exitcode 1 python tests/sanitize.py

Most of the time goes into compiling, so several processes may share the work: `python
tests/sanitize.py 0/4` takes every fourth case.
"""

import contextlib
import itertools
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

import fusedops as fo
from fusedops import testing
from fusedops.flagship import ADD_NORM, ATTENTION
from fusedops.row_op import RowOp
from fusedops.schedule.row_schedule import STORAGES

# Part of a warp, a warp, several warps with an odd end, several chunks, more than a cluster has
# blocks, and a cluster of which some blocks have none.
COLUMNS = (7, 256, 1024, 4099, 20001, 153600)
GRADIENT_COLUMNS = (7, 1000, 1024, 20001, 37632, 160000)
IN_SHARED = 50_000  # floats that the shared memory of every GPU from sm_90 on holds
ROWS = 5
HALF = torch.float16

Operands = dict[str, object]
Case = tuple[RowOp, int, Operands, str | None, bool]

TAIL = fo.Map(load=[fo.Bias("b"), fo.Dropout("p"), fo.Residual("r")])


def forward_cases(columns: int) -> dict[RowOp, Operands]:
    """The operators, and the two chains of the mission."""
    return {
        fo.Softmax(load=[fo.Causal(), fo.Lengths("n")]): {"n": 5},
        fo.LogSoftmax(): {},
        fo.LayerNorm(stats=True): {},
        fo.RMSNorm(): {},
        **chains(columns),
    }


def gradient_cases(columns: int) -> dict[RowOp, Operands]:
    """Gradients of every kind: each element's, a column's, a row's and a group's."""
    v = torch.randn(columns, device="cuda", dtype=HALF)
    row = torch.randn(ROWS, 1, device="cuda", dtype=HALF)
    return {
        fo.Softmax(load=[fo.Scale("s"), fo.Lengths("n")], store=[fo.Bias("b")]): {
            "s": row,
            "n": 5,
            "b": v,
        },
        fo.LogSoftmax(load=[fo.Scale("s")]): {"s": torch.tensor(0.5, device="cuda")},
        fo.RMSNorm(store=[fo.Affine("gamma", "beta")]): {"gamma": v, "beta": v.clone()},
        **chains(columns),
    }


def chains(columns: int) -> dict[RowOp, Operands]:
    """Both chains of the mission."""
    v, u, w = torch.randn(3, columns, device="cuda", dtype=HALF).unbind()
    mask = torch.zeros(columns, dtype=torch.bool, device="cuda")
    pair = torch.randn(1, ROWS, columns, device="cuda", dtype=HALF)
    x = torch.randn(2, ROWS, columns, device="cuda", dtype=HALF)
    return {
        ATTENTION: {"scale": 0.5, "pair_bias": pair, "padding": mask, "p": 0.1},
        ADD_NORM: {"bias": v, "p": 0.1, "residual": x, "gamma": u, "beta": w},
    }


def cases() -> Iterator[Case]:
    """What runs: op, columns, operands, schedule, and whether backward, too."""
    for backward, sizes, make in (
        (False, COLUMNS, forward_cases),
        (True, GRADIENT_COLUMNS, gradient_cases),
    ):
        for columns, schedule in itertools.product(sizes, STORAGES):
            if schedule == "chunks":
                b = torch.randn(columns, device="cuda", dtype=HALF)
                r = torch.randn(2, ROWS, columns, device="cuda", dtype=HALF)
                yield TAIL, columns, {"b": b, "p": 0.1, "r": r}, schedule, backward
                continue
            long = columns > 16384
            in_shared = columns <= (16384 if backward else IN_SHARED)
            if (long and schedule == "register") or (schedule == "shared" and not in_shared):
                continue
            if not long and schedule == "cluster":
                continue
            for op, operands in make(columns).items():
                yield op, columns, operands, schedule, backward
    # Rows that go through shared memory as they are: at any address, and of odd columns.
    for columns in (256, 1024, 4099, 20001):
        v = torch.randn(columns, device="cuda", dtype=HALF)
        yield fo.LogSoftmax(), columns, {}, None, False
        yield fo.LayerNorm(store=[fo.Affine("g")]), columns, {"g": v}, None, False


def run(
    op: RowOp, columns: int, operands: dict[str, object], schedule: str | None, backward: bool
) -> None:
    """One call, and its gradients."""
    x = torch.randn(2 * ROWS * columns + 1, device="cuda", dtype=HALF)
    x = x[int(schedule is None) :][: 2 * ROWS * columns].view(2, ROWS, columns)
    forced = testing.force_schedule(schedule) if schedule else contextlib.nullcontext()
    with forced, torch.set_grad_enabled(backward):
        if not backward:
            op(x, **operands)
            return
        leaves = {k: v for k, v in operands.items() if isinstance(v, Tensor)}
        leaves = {k: v.clone().requires_grad_() for k, v in leaves.items() if v.is_floating_point()}
        inputs = [x.requires_grad_(), *leaves.values()]
        outputs = op(x, **{**operands, **leaves})
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        torch.autograd.grad(outputs, inputs, [torch.randn_like(each) for each in outputs])


def main() -> None:
    """Runs everything once, or one part of it, and says how much that was."""
    part, parts = map(int, (sys.argv[1] if len(sys.argv) > 1 else "0/1").split("/"))
    chosen = list(itertools.islice(cases(), part, None, parts))
    for case in chosen:
        run(*case)
    torch.cuda.synchronize()
    print(f"{len(chosen)} cases ran")


if __name__ == "__main__":
    main()
