# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""torch's gradients of a chain, of which parts may have none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def gradients_of(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], upstream: Sequence[Tensor]
) -> list[Tensor]:
    """Gradients of all inputs, zero where no output depends on one; the graph is kept."""
    made = [(one, g) for one, g in zip(outputs, upstream, strict=True) if one.requires_grad]
    able = [one for one in inputs if one.requires_grad]
    found: Iterable[Tensor] = map(torch.zeros_like, able)
    if made and able:
        found = torch.autograd.grad(
            [one for one, _ in made],
            able,
            [g for _, g in made],
            retain_graph=True,
            materialize_grads=True,
        )
    of_able = iter(found)
    return [next(of_able) if one.requires_grad else torch.zeros_like(one) for one in inputs]
