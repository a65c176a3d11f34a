# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which tensors a forward pass saves for autograd, by the set of gradients that are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fusedops.errors import UnsupportedError
from fusedops.jit.lock import guard
from fusedops.plan.saved_tensors import into_name, may_start_from_result, saved_name

if TYPE_CHECKING:
    from fusedops.run.gradient import Gradient
    from fusedops.run.runnable import Runnable

#: The mark of a gradient that is written to x's memory, in the keys of `op.gradients`.
_IN_PLACE = "in place"


class Recipe(NamedTuple):
    """Which tensors a forward pass saves for the backward pass, given the wanted gradients."""

    wanted: frozenset[str]  # the names whose gradients are wanted, "x" among them
    x: bool  # whether x is saved
    kept: tuple[bool, ...]  # whether each operand is saved, in the order of `op.slots`
    #: For each saved stream that is read again: the index of its output, and the keyword under
    #: which the backward call gets it.
    streams: tuple[tuple[int, str], ...]
    result: bool  # whether y is saved in place of x if it `reads_result`


def recipe_of(op: Runnable, needs: tuple[bool, ...]) -> Recipe:
    """`what_is_kept`, once for each of the needs.

    Raises:
        UnsupportedError: A functor has no derivative.
    """
    found: Recipe | None = op.recipes.get(needs)
    if found is None:
        op.check_differentiable()
        found = op.recipes[needs] = what_is_kept(op, needs)
    return found


def what_is_kept(op: Runnable, needs: Sequence[bool]) -> Recipe:
    """Which tensors a forward pass saves for the backward pass.

    `needs` says of x, then of each operand in the order of `op.slots`, if it needs a gradient.
    """
    names = ("x", *op.slots)
    wanted = frozenset(name for name, need in zip(names, needs, strict=True) if need)
    source: Runnable = op.differentiated
    if unable := wanted & op.undifferentiated:
        who = op.pair or op.store[-1]
        raise UnsupportedError(
            f"{op.name}: {', '.join(sorted(unable))} of {who!r} requires grad, and "
            f"{'a scale' if op.pair is None else 'it'} has no gradient; detach() it"
        )
    gradient = source.gradients.get((wanted, False)) or new_gradient(source, wanted, ())
    needed = gradient.needed
    streams = [
        (number, saved_name(name))
        for number, name in enumerate(op.outputs)
        if name in needed.streams
    ]
    kept = tuple(name in needed.operands for name in op.slots)
    return Recipe(wanted, needed.x, kept, tuple(streams), may_start_from_result(op))


def gradient_key(
    wanted: frozenset[str],
    from_result: bool,
    joining: Sequence[str],
    in_place: bool,
    into: Sequence[str],
) -> tuple[object, ...]:
    """The key of these gradients in `op.gradients`."""
    return (wanted, from_result, *joining, *[_IN_PLACE] * in_place, *map(into_name, into))


def new_gradient(
    op: Runnable,
    wanted: frozenset[str],
    joining: Sequence[str],
    from_result: bool = False,
    in_place: bool = False,
    into: Sequence[str] = (),
) -> Gradient:
    """The `Gradient` of these gradients, made at the first call and kept by the op."""
    with guard:
        from fusedops.run.gradient import Gradient  # a fifth of the package's import

    made = Gradient(op, wanted, frozenset(joining), op.observer, from_result, in_place, into)
    key = gradient_key(wanted, from_result, joining, in_place, into)
    # another thread's, if it was first
    kept: Gradient = op.gradients.setdefault(key, made)
    return kept
