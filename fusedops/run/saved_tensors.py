# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The saved tensors: what the backward pass reads again, and so what the forward pass saves.

The backward kernel recomputes the values of the LOAD: from the last saved stream if there is one,
else from x. On its way back through the chains it recomputes the input of a functor if that
functor's gradient reads it. This module finds the tensors that this takes; no others are saved.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from fusedops.functors import Functor

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration


class Needed(NamedTuple):
    """The tensors that a backward pass reads, besides row statistics and incoming gradients.

    Attributes:
        x: Whether x is read.
        operands: The names of the operands that are read.
        streams: The names of the saved streams that are read.
    """

    x: bool
    operands: frozenset[str]
    streams: frozenset[str]


def needed(op: Declaration, wanted: Collection[str]) -> Needed:
    """The tensors that a backward pass reads for the gradients of the names in `wanted`."""
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
        for functor in chain[start:end]:
            operands.update(operand.name for operand in functor.operands())

    if op.reduces or any(functor.masks for functor in op.load):  # else no one reads the values
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
