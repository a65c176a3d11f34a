# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""``fusedops::forward_agreed``: ``fusedops::forward`` on ranks that agree first, in compiled code.

Its arguments are those of ``forward``, and three more. ``agreement`` says what kind of call it is,
and then names the process groups whose ranks agree, the first time that they make such a call, that
all have its kernels (`ready`). ``trains`` names the tensors that have a gradient, ``sizes`` are
those of its tensors over all ranks.

It is one operator, not an agreement beside a ``forward``: the results depend on it, so no compiler
leaves the agreement out, or moves it behind what the ranks exchange.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedops.distributed.ready import make_operator_ready
from fusedops.torch_ops.calls import ForwardCall
from fusedops.torch_ops.lowering import enter
from fusedops.torch_ops.operators import arguments_of, define_forward, run_forward


def _run(*arguments: Any) -> list[Tensor]:
    call = ForwardCall.of(arguments)
    # torch leaves out last arguments that have their default.
    agreement, trains, sizes, *_ = *arguments[len(call) :], None, None, None
    called = call.called
    make_operator_ready(called, call, *arguments_of(called, call), agreement, trains, sizes)
    return run_forward(*call)


define_forward(
    "forward_agreed",
    _run,
    more=", str[]? agreement=None, str[]? trains=None, SymInt[]? sizes=None",
)
# Ranks have to agree in any case, so there is no way around torch's dispatcher.
enter("forward_agreed", torch.ops.fusedops.forward_agreed.default)
