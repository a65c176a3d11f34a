# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Build the kernels that a call needs, its backward pass included, and run nothing."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fusedops.bind.bind import Bound, bind
from fusedops.plan import placing
from fusedops.run import contiguous, forward
from fusedops.run.fallback_arch import serve
from fusedops.run.gradient import described, gradient_of

if TYPE_CHECKING:
    from fusedops.generate.target import Target
    from fusedops.run.runnable import Runnable


def bound_to_run(bound: Bound) -> Bound:
    """The call that kernels run for a checked call: one on dense copies, where it takes these."""
    if not placing.columns_apart(bound):
        return bound
    x, operands = contiguous.copies(bound)
    return bind(bound.op, x, operands, contiguous.options(bound))


def build_kernels(op: Runnable, bound: Bound) -> None:
    """Build the kernels of a checked call on a device's tensors, none for an empty x.

    Of a call in grad mode with tensors that require grad that are those of its backward pass, too,
    for contiguous gradients of all results that can have one, and of y alone.

    Raises:
        CompileError, CompilerNotFound, MissingVariantError: A kernel cannot be had.
    """
    if bound.x.numel() == 0:
        return
    named = {"x": bound.x, **bound.operands}
    wanted = {name for name, t in named.items() if isinstance(t, Tensor) and t.requires_grad}
    trains = torch.is_grad_enabled() and bool(wanted)
    bound = bound_to_run(bound)._replace(keep=trains)
    call = functools.partial(op.observer.of_call, bound)

    def of_forward(target: Target) -> None:
        forward.resolve(bound, target).variant.kernel()

    serve(bound.x.device, of_forward, call)
    if not trains or op.forward_only:
        return
    for joining in dict.fromkeys((frozenset(op.joining), frozenset[str]())):
        gradient = gradient_of(bound, frozenset(wanted), joining)
        dy, given, options = described(bound, gradient)

        def of_backward(target: Target) -> None:
            told = gradient.describe(dy, given, options, target)  # noqa: B023 (called at once)
            for variant in () if told is None else told.variants:  # else dense copies are made
                variant.kernel()

        serve(bound.x.device, of_backward, call)
