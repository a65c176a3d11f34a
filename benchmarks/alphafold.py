# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The triangle attentions of AlphaFold in bfloat16, beside torch eager and torch.compile.

The block is that of examples/evoformer.py, in training: its row-wise dropouts draw at every call. A
step is forward and backward with the gradients of the pair and of all parameters.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from results import Result
from timing import queue_seconds
from torch import Tensor
from training import step

sys.path.append(
    str(Path(__file__).parent.parent / "examples")
)  # Last: its modules go by short names.

import evoformer

NODES = (128, 256)
DIM, HEADS = 128, 4  # As in AlphaFold 2.


def measured(device: str = "cuda") -> Iterator[Result]:
    """Forward passes and whole steps, fused and not, compiled and not."""
    for nodes in NODES:
        torch.manual_seed(0)
        block = evoformer.PairBlock(DIM, HEADS).to(device, torch.bfloat16)
        shape = 1, nodes, nodes, DIM
        pair = torch.randn(shape, dtype=torch.bfloat16, device=device).requires_grad_()
        mask = torch.ones(shape[:3], dtype=torch.bool, device=device)
        for name, seconds in _ways(block, pair, mask).items():
            ours = seconds["fusedops"]
            for by, taken in seconds.items():
                beside = 0.0 if by == "fusedops" else ours
                yield Result("evoformer", f"{shape}, {name}", by, taken, beside=beside)


def _ways(block: Any, pair: Tensor, mask: Tensor) -> dict[str, dict[str, float]]:
    """Seconds of each pass by each way."""
    torch._dynamo.reset()
    ways: dict[str, Callable[..., Tensor]] = {
        "fusedops": block,
        "fusedops in torch.compile": torch.compile(block, dynamic=False),
        "torch eager": functools.partial(_unfused, block),
        "torch.compile": torch.compile(functools.partial(_unfused, block), dynamic=False),
    }
    inputs = [pair, *block.parameters()]
    found: dict[str, dict[str, float]] = {"forward": {}, "forward and backward": {}}
    for by, way in ways.items():
        call = functools.partial(way, pair, mask)
        with torch.no_grad():
            found["forward"][by] = queue_seconds([call])
        found["forward and backward"][by] = queue_seconds([step(call, inputs)])
    return found


def _unfused(block: Any, pair: Tensor, mask: Tensor) -> Tensor:
    """The block in torch's own calls, each dropout a draw for a row of the pair."""
    shape = pair.shape[0], 1, *pair.shape[2:]
    kept = [torch.rand(shape, device=pair.device) >= evoformer.P for _ in range(2)]
    return block.unfused(pair, mask, [each.to(pair.dtype) for each in kept])
