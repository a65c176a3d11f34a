# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The operands whose gradient is a tensor that there is already: that of x, or that of y.

It is so of a residual that is added to x before all else, or to y after all else. No kernel writes
such a gradient, and autograd gets one tensor twice, as it does from a sum of torch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from fusedops.declare.declaration import Declaration
    from fusedops.functors import Functor
    from fusedops.plan.wanted_gradients import WantedGradients


def shared_gradients(
    op: Declaration, wanted: frozenset[str], arguments: Mapping[str, Any], dy: torch.dtype | None
) -> dict[str, str]:
    """The operands whose gradient is another tensor that there is: "x" for x's, "y" for that of y.

    A kernel makes one of the wanted ones at least. An argument may be its dtype and shape; the
    dtype of the gradient of y is None where none comes in.
    """
    found: dict[str, str] = {}
    if wanted.issubset(op.sharing_gradients):
        return found
    x = arguments["x"]
    like = x if type(x) is tuple else (x.dtype, x.shape)
    there = {"x": "x" in wanted, "y": dy is like[0]}
    for name, whose in op.sharing_gradients.items():
        if name in wanted and there[whose]:
            one = arguments[name]
            if like == (one if type(one) is tuple else (one.dtype, one.shape)):
                found[name] = whose
    return found


def stream_as_row(load: Sequence[Functor], wanted: WantedGradients) -> str | None:
    """The saved stream that is the row of a backward pass, if its gradient and that of x are one.

    The LOAD then only adds to x and saves the sum, and no gradient of what it adds is wanted. The
    kernel reads the stream in the place of x, and only adds its gradient on the way back.
    """
    last = load[-1].saves if load else None
    if last is None or last.name not in wanted.joining:
        return None
    if last.name not in wanted.needed.streams or wanted.needed.x:
        return None
    if any(one.side == "load" for one in wanted.occurrences):
        return None
    passes = all(one.passes_gradient for one in load)
    return last.name if passes and not any(one.saves for one in load[:-1]) else None
