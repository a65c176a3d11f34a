# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The short way of the operators: calls of a known kind go straight to the C++ that runs them.

What an operator is told in words (the declaration, names, dtypes) is looked up as a whole, and what
follows from it is found once. The dispatcher in C++ then finds the plan by the tensors, as in an
eager call. What is not known, or takes more than a launch, returns None here and is run in full by
the operator, which remembers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fusedops.bind.bind import KEPT
from fusedops.bind.generator import draw_in_memory
from fusedops.bind.scalars import check_draw
from fusedops.plan.saved_tensors import RESULT, joining_name
from fusedops.torch_ops.calls import BackwardCall, ForwardCall

if TYPE_CHECKING:
    from fusedops._runtime import Dispatcher
    from fusedops.run.gradient import Gradient
    from fusedops.run.runnable import Runnable


class _Forward(NamedTuple):
    """A kind of forward call: its dispatcher, and what it is called with besides what varies."""

    dispatcher: Dispatcher
    names: tuple[str, ...]  # of tensors, numbers, counts, the draw, constants
    constants: tuple[Any, ...]
    several: bool  # whether rows of several dimensions are made one
    alone: bool  # whether the tensors hold x alone, in place of none
    name: str


class _Backward(NamedTuple):
    """The same of a backward call; the gradients that it returns are results in this order."""

    gradient: Gradient
    names: tuple[str, ...]  # of gradients besides y's, statistics, tensors, and as above
    constants: tuple[Any, ...]
    order: tuple[int, ...]


_forwards: dict[tuple[Any, ...], _Forward] = {}
_backwards: dict[tuple[Any, ...], _Backward] = {}

#: The most kinds of calls of each pass that are remembered; they keep their ops alive.
_MOST_KINDS = 2048


def run_forward_at_once(*arguments: Any) -> Sequence[Tensor] | None:
    """The outputs of a call of a kind that is known, or None; the arguments are the operator's."""
    call = ForwardCall(*arguments)
    known = _forwards.get(call.kind)
    x, tensors, _, numbers, counts, draw = call[:6]
    if known is None or x.numel() == 0:
        return None
    if known.alone:
        tensors = ()
    if known.several:
        x, tensors = x.contiguous(), [tensor.contiguous() for tensor in tensors]
    drawn: tuple[Any, ...] = ()
    if draw is not None:
        if draw.is_cpu:
            check_draw(known.name, draw, x)
        drawn = (drawn_for(draw),)
    results = known.dispatcher.of_lists(
        known.names, x, tensors, numbers, counts or (), drawn, known.constants
    )
    return None if results is NotImplemented else results


def drawn_for(draw: Tensor | None) -> Any:
    """What `generator` is given: numbers on a CPU, where they are at hand."""
    if draw is None or not draw.is_cpu:
        return draw
    seed, offset = draw.tolist()
    return seed, offset


def remember_forward(call: ForwardCall, called: Runnable, options: dict[str, Any]) -> None:
    """Note the kind of a call that has been run with these options."""
    present = {*call.names}
    constants = {name: one for name, one in options.items() if name != "generator"}
    names = [
        *(name for name in call.names if name != "x"),
        *_names_of_numbers(called, present),
        *([] if call.draw is None else ["generator"]),
        *constants,
    ]
    _remember(
        _forwards,
        call.kind,
        _Forward(
            called.trained if call.keep else called.direct,
            tuple(names),
            tuple(constants.values()),
            len(call.dim) > 1,
            [*call.names] == ["x"],
            called.name,
        ),
    )


def _names_of_numbers(called: Runnable, present: set[str]) -> list[str]:
    """The operands that are numbers in the order of the operator's arguments."""
    absent = [name for name in called.slots if name not in present]
    reals = [name for name in absent if name not in called.counted]
    return reals + [name for name in absent if name in called.counted]


def _remember(table: dict[tuple[Any, ...], Any], kind: tuple[Any, ...], known: Any) -> None:
    if len(table) >= _MOST_KINDS:
        table.clear()
    table[kind] = known


def run_backward_at_once(*arguments: Any) -> Sequence[Tensor] | None:
    """The gradients of a call of a kind that is known, or None; the arguments as above."""
    call = BackwardCall(*arguments)
    known = _backwards.get(call.kind)
    dy, kept, draw = call.upstream[0], call.kept, call.draw
    if known is None or known.gradient.loose or dy.numel() == 0:
        return None
    if not kept.is_contiguous() or kept.data_ptr() % 16:  # a hook brought it back from elsewhere
        return None
    drawn = () if draw is None else (drawn_for(draw),)
    results = known.gradient.of_lists(
        known.names,
        dy,
        call.upstream[1:],
        (kept,),
        call.tensors,
        call.numbers,
        call.counts,
        drawn,
        known.constants,
    )
    if results is NotImplemented or known.gradient.loose:  # the latter is known with a new plan
        return None
    return [results[place] for place in known.order]


def remember_backward(call: BackwardCall, called: Runnable, options: dict[str, Any]) -> None:
    """Note the kind of a call that has been run, given its numbers, descriptions and options."""
    if not called.has_result:
        return
    if called.differentiated is not called or [*call.outputs[:1]] != [called.outputs[0]]:
        return  # y has no gradient
    joining = [*call.outputs[1:]]
    gradient = called.gradients.get((frozenset(call.wanted), RESULT in call.names, *joining))
    if gradient is None or gradient.loose:
        return
    varies = _names_of_numbers(called, {*call.names, *(one.split()[0] for one in call.described)})
    constants = {k: one for k, one in options.items() if k not in {*varies, "generator"}}
    names = [
        *map(joining_name, joining),
        KEPT,
        *call.names,
        *varies,
        *([] if call.draw is None else ["generator"]),
        *constants,
    ]
    places = dict(zip(("x", *called.slots), gradient.places, strict=True))
    order = tuple(places[name] for name in call.wanted)
    known = _Backward(gradient, tuple(names), tuple(constants.values()), order)
    _remember(_backwards, call.kind, known)


def draw_at_once(room: Tensor, count: int) -> Tensor:
    """Seed and offset for as many dropouts, in memory on the device of `room`."""
    return draw_in_memory(room.device, count)


# What Inductor's code calls in place of the operators (`lowering`): without torch's dispatcher,
# which would take most of the time of a call.


def _forward_entry(*arguments: Any) -> Any:
    found = run_forward_at_once(*arguments)
    return torch.ops.fusedops.forward.default(*arguments) if found is None else found


def _backward_entry(*arguments: Any) -> Any:
    found = run_backward_at_once(*arguments)
    return torch.ops.fusedops.backward.default(*arguments) if found is None else found


#: By the name of the operator.
ENTRIES: dict[str, Any] = {
    "forward": _forward_entry,
    "backward": _backward_entry,
    "draw": draw_at_once,
}
