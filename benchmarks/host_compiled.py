# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the host pays for a call in compiled code: of CALLS residual LayerNorms in a row.

What torch takes for the compiled function itself is shared by all of them.
"""

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch._inductor
from host import SHAPES, devices, dtype_of
from results import Result
from timing import Call, host_seconds
from torch import Tensor
from training import step

from fusedops import flagship
from fusedops.torch_ops import lowering

CALLS = 10
SHAPE = SHAPES[-1]  # One row: on a CPU a call includes the arithmetic.


def calls() -> Iterator[Result]:
    """Host seconds of one call, forward alone and with its backward pass, in three ways."""
    for device in devices():
        for p in (0.1, 0.0):
            case = flagship.add_norm(SHAPE, p=p, dtype=dtype_of(device), device=device)
            for what, made in (("forward", _forward), ("forward and backward", _step)):
                ways = _ways(case, made)
                for by, seconds in zip(
                    ways, host_seconds(list(ways.values()), device), strict=True
                ):
                    title = f"{SHAPE} on {device}, p = {p:g}, {what}"
                    yield Result("host_compiled", title, by, seconds / CALLS)


def _ways(case: flagship.Case, made: Callable[[flagship.Case, Any], Call]) -> dict[str, Call]:
    def chain(x: Tensor, residual: Tensor, operands: dict[str, Any]) -> Tensor:
        for _ in range(CALLS):
            x, residual = case.op(x, residual=residual, **operands)
        return x + residual

    with torch._inductor.config.patch(force_disable_caches=True):
        torch._dynamo.reset()
        ways = {
            "eager": made(case, chain),
            "torch.compile": made(case, torch.compile(chain, dynamic=False)),
        }
        ways["torch.compile"]()
        # Another function, since Dynamo would find the code of the last.
        with mock.patch.object(lowering, "_change"):
            compiled = torch.compile(lambda *given: chain(*given), dynamic=False)
            ways["torch.compile, by torch's dispatcher"] = made(case, compiled)
            ways["torch.compile, by torch's dispatcher"]()
    return ways


def _forward(case: flagship.Case, chain: Callable[..., Tensor]) -> Call:
    given = dict(case.operands)
    residual = given.pop("residual")
    return torch.no_grad()(lambda: chain(case.x, residual, given))


def _step(case: flagship.Case, chain: Callable[..., Tensor]) -> Call:
    given = {"x": case.x, **case.operands}
    leaves = {
        name: one.detach().clone().requires_grad_() if isinstance(one, Tensor) else one
        for name, one in given.items()
    }
    inputs = [one for one in leaves.values() if isinstance(one, Tensor)]
    x, residual = leaves.pop("x"), leaves.pop("residual")
    return step(lambda: chain(x, residual, leaves), inputs)
