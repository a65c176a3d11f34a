# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""One step of training as one call: forward, then the gradients of all inputs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from timing import Call
from torch import Tensor

from fusedops.flagship import Case


def inputs_of(case: Case) -> list[Tensor]:
    """All floating tensors of a case, which shall have gradients."""
    tensors = [case.x, *(t for t in case.operands.values() if isinstance(t, Tensor))]
    return [each.requires_grad_() for each in tensors if each.is_floating_point()]


def outputs_of(result: Any) -> Sequence[Tensor]:
    """What a call returned, as a sequence."""
    return (result,) if isinstance(result, Tensor) else result


def step(forward: Callable[[], Any], inputs: Sequence[Tensor]) -> Call:
    """Forward and backward under a random gradient of each output; returns the gradients."""
    with torch.enable_grad():
        upstream = [torch.randn_like(each) for each in outputs_of(forward())]

    @torch.enable_grad()
    def run() -> tuple[Tensor, ...]:
        return torch.autograd.grad(outputs_of(forward()), inputs, upstream)

    return run
