# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the backward pass reads again, and so what the forward pass keeps for it.

The gradient's kernel makes the LOAD's values anew: from the last saved stream if there is one, else
from x. Going back through the chains it makes anew what a functor saw where that functor's gradient
asks for it. This module finds the tensors that takes; nothing else is kept.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from fusedops.functors import Functor, Residual

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration

__all__ = ["Needed", "joining_name", "needed", "saved_name"]


class Needed(NamedTuple):
    """The tensors that a gradient reads, besides the gradients that come in.

    Attributes:
        x: Whether x is among them.
        operands: Operands by name.
        streams: Saved streams by name.
    """

    x: bool
    operands: frozenset[str]
    streams: frozenset[str]


def needed(op: Declaration, wanted: Collection[str]) -> Needed:
    """What is read for the gradients of x and of the operands in `wanted`."""
    x = False
    operands: set[str] = set()
    streams: set[str] = set()

    def remake(chain: tuple[Functor, ...], end: int) -> None:
        """The value that functor number `end` saw."""
        nonlocal x
        start = 0
        for place, functor in enumerate(chain[:end]):
            if isinstance(functor, Residual) and functor.save is not None:
                start = place + 1
        if start:
            streams.add(str(chain[start - 1].save))  # type: ignore[attr-defined]
        elif chain is op.load:
            x = True
        for functor in chain[start:end]:
            operands.update(operand.name for operand in functor.operands())

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
    return Needed(x, frozenset(operands), frozenset(streams))


def saved_name(stream: str) -> str:
    """The keyword under which a backward call gets a saved stream."""
    return f"saved {stream}"


def joining_name(stream: str) -> str:
    """The keyword under which a backward call gets the gradient of a saved stream."""
    return f"gradient of {stream}"
