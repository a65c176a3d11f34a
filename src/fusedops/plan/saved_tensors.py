# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The saved tensors: what the backward pass reads again, and so what the forward pass saves.

The backward kernel recomputes the values of the LOAD: from the last saved stream if there is one,
else from x. On its way back through the chains it recomputes the input of a functor if that
functor's gradient reads it. This module finds the tensors that this takes; no others are saved.

An operator may have a gradient that starts from its result instead (`Operator.from_result`). Then y
is saved in place of x where it is that result: without functors, and not rounded, unless the
declaration allows that (`Operator.from_rounded_result`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import torch

from fusedops.functors import Functor

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration

#: The keyword under which a backward call gets y, if it reads it in place of x.
RESULT = "saved y"


class Needed(NamedTuple):
    """The tensors that a backward pass reads, besides row statistics and incoming gradients."""

    x: bool  # whether x is read
    operands: frozenset[str]  # the names of the operands that are read
    streams: frozenset[str]  # the names of the saved streams that are read
    result: bool = False  # whether y is read in place of x


def may_start_from_result(op: Declaration) -> bool:
    """Whether a backward pass of the op can read y in place of x, if it `reads_result`."""
    return op.from_result and not op.load and not op.store


def reads_result(op: Declaration, y: torch.dtype, x: torch.dtype) -> bool:
    """Whether it reads y in place of x, of these dtypes, where it can."""
    # A y of the compute type was not rounded when it was stored.
    exact = y is torch.float64 or (y is torch.float32 and x is not torch.float64)
    return exact or op.from_rounded_result


def needed(op: Declaration, wanted: Collection[str], from_result: bool = False) -> Needed:
    """The tensors that a backward pass reads for the gradients of the names in `wanted`.

    `from_result`: y is read in place of x, which `may_start_from_result` has to allow.
    """
    if from_result:
        return Needed(False, frozenset(op.reads(wanted)), frozenset(), True)
    x = False
    operands: set[str] = set()
    streams: set[str] = set()

    def remake(chain: tuple[Functor, ...], end: int) -> None:
        """Add the tensors from which the input of functor number `end` is recomputed."""
        nonlocal x
        start, last = 0, None
        for place, functor in enumerate(chain[:end]):
            if functor.saves is not None:
                start, last = place + 1, functor.saves
        if last is not None:
            streams.add(last.name)
        elif chain is op.load:
            x = True
        elif not op.reduces:  # what the STORE starts from is the LOAD's value itself
            remake(op.load, len(op.load))
        for functor in chain[start:end]:
            operands.update(operand.name for operand in functor.operands())

    if op.reduces:  # else no one reads the values; what is masked, the masks say by themselves
        remake(op.load, len(op.load))
    for chain in (op.load, op.store):
        for place, functor in enumerate(chain):
            if functor.masks:
                operands.update(operand.name for operand in functor.operands())
                continue
            reads = functor.reads(wanted)
            operands.update(reads.operands)
            if reads.input:
                remake(chain, place)
    operands.update(op.reads(wanted))
    return Needed(x, frozenset(operands), frozenset(streams))


def saved_name(stream: str) -> str:
    """The keyword under which a backward call gets the saved stream of this name."""
    return f"saved {stream}"


def joining_name(stream: str) -> str:
    """The keyword under which a backward call gets the gradient of a result besides y."""
    return f"gradient of {stream}"


def into_name(name: str) -> str:
    """The keyword under which a backward call gets a tensor that this gradient is written to."""
    return f"into {name}"
