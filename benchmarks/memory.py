# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the flagship attention softmax holds between its forward and its backward, in float16."""

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from results import Result
from torch import Tensor
from training import inputs_of, outputs_of, step

from fusedops import flagship

HALF = torch.float16
MOST_BYTES_A_ROW = 16.0


def held() -> Iterator[Result]:
    """Bytes a row beside inputs and output."""
    case = flagship.attention((8, 16, 1024, 1024), p=0.1, dtype=HALF, device="cuda")
    inputs = inputs_of(case)
    rows = case.x.numel() // case.x.shape[-1]
    torch._dynamo.reset()
    compiled = torch.compile(case.chain, dynamic=False)
    for by, call in {
        "fusedops": case.fused,
        "torch eager": case.unfused,
        "torch.compile": lambda: compiled(case.x, **case.operands),
    }.items():
        held, peak = _held(call, inputs)
        for when, count in (("between forward and backward", held), ("at the peak", peak)):
            ours = by == "fusedops"
            yield Result(
                "memory",
                f"{case.title}, {when}",
                by,
                held=count / rows,
                target=f"<= {MOST_BYTES_A_ROW:.0f} bytes a row" if ours else "",
                met=count / rows <= MOST_BYTES_A_ROW if ours else None,
            )


@torch.enable_grad()
def _held(call: Callable[[], Any], inputs: Sequence[Tensor]) -> tuple[int, int]:
    """Bytes beside the outputs that a forward pass leaves allocated, and that it had at most."""
    step(call, inputs)()  # What is built or kept at a first call is no part of it.
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs = outputs_of(call())
    torch.cuda.synchronize()
    own = sum(each.nbytes for each in outputs)
    held = torch.cuda.memory_allocated() - before - own
    return held, torch.cuda.max_memory_allocated() - before - own
