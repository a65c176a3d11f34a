# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The cached facts of a broadcast pattern: how operands lie against x, whatever the sizes.

Which operands rows share, what is read beside x and which gradients are sums follows from the
declaration, the functors that act, and the dimensions of each tensor that have size 1. A call with
a new length or a new number of rows has an outline that is known, most often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from fusedops import _runtime
from fusedops.bind.dimensions import read_positions
from fusedops.bind.shard_offset import shared_dims
from fusedops.schedule.traffic import Traffic, traffic_of, without_rows

if TYPE_CHECKING:
    from fusedops.bind.bind import Bound

__all__ = ["Outline", "is_shared", "outline_of"]

#: All that an outline follows from, beside the declaration.
_Key: TypeAlias = "tuple[object, ...]"

#: The most outlines that a declaration remembers.
MOST = 1024


class Outline:
    """What is known of a call by the dimensions of its tensors that have size 1.

    Attributes:
        shared: The names of the operands of which all rows read the same columns (`is_shared`),
            without and with `Reading.vectors`.
        drawn: The dimensions along which each functor that draws shares its draw.
        broadcasts: Whether rows differ by their places, or some of them share operands or draws
            with rows.
        traffic: The memory traffic of a row beside x and y.
        streams, beside: As in `Traffic`.
        blanks: What is known of the tensors of forward calls (`run.placing`), by what that depends
            on beside this.
        sums: The numbers of sums over rows that gradients can be (`run.backward_schedule`), by
            what they depend on beside this.
    """

    def __init__(self, bound: Bound) -> None:
        tensors = [(k, v) for k, v in bound.seen.items() if isinstance(v, Tensor)]
        self.shared = tuple(
            frozenset([name for name, value in tensors if is_shared(bound, name, value, vectors)])
            for vectors in (False, True)
        )
        rank = bound.x.dim()
        self.drawn = tuple([shared_dims(functor, rank) for functor in bound.drawing])
        self.broadcasts = _broadcasts(bound)
        self.traffic: Traffic = traffic_of(bound)
        self.streams, self.beside = self.traffic.streams, self.traffic.beside
        self.blanks: dict[tuple[object, ...], Any] = {}
        self.sums: dict[tuple[bool, bool, bool], tuple[int, ...]] = {}


def outline_of(bound: Bound) -> Outline:
    """The cached facts of a call's broadcast pattern, computed at its first use."""
    known: dict[_Key, Outline] = bound.op.outlines
    key = (
        _runtime.ones([bound.x, *bound.seen.values()]),
        bound.reduced,
        tuple(bound.dropout_slots.items()),
    )
    found = known.get(key)
    if found is None:
        if len(known) >= MOST:
            known.clear()
        found = known.setdefault(key, Outline(bound))
    return found


def is_shared(bound: Bound, name: str, value: Tensor, vectors: bool) -> bool:
    """Whether all rows of a call read the same columns of an operand, however many there are.

    `vectors` is that of the `Reading`.
    """
    if not without_rows(value, bound.x, bound.reduced):
        return False
    if bound.x.dim() > len(bound.reduced):
        return True
    if not vectors:
        return False
    saving = (functor for functor in (*bound.load, *bound.store) if functor.saves)
    return not any(operand.name == name for functor in saving for operand in functor.operands())


def _broadcasts(bound: Bound) -> bool:
    x, reduced = bound.x, bound.reduced
    if bound.op.causal or {*read_positions(bound.op, x.dim())} - {*reduced}:
        return True
    shape = x.shape
    for functor in bound.drawing:
        if any(dim not in reduced for dim in shared_dims(functor, len(shape))):
            return True
    rows = [dim for dim, size in enumerate(shape) if size > 1 and dim not in reduced]
    for value in bound.seen.values():
        if not isinstance(value, Tensor) or (own := value.shape) == shape:
            continue
        lead = len(shape) - len(own)
        if without_rows(value, x, reduced):
            continue
        if any(dim < lead or own[dim - lead] == 1 for dim in rows):
            return True
    return False
