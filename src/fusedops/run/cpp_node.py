# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the autograd node in C++ (cpp_node.cpp) does for calls of one kind.

Calls are of one kind if their arguments are of the same kinds, the same of them need gradients, x
has the same dtype and rank, and the options are equal. For the first of them a `Program` is made.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fusedops.bind.bind import KEPT
from fusedops.plan.saved_tensors import RESULT, joining_name, reads_result
from fusedops.plan.shared_gradients import shared_gradients
from fusedops.run.autograd import drawn_for, named, options_of
from fusedops.run.backward import Saved, gradients_once
from fusedops.run.contiguous import reduces_several
from fusedops.run.recipe import recipe_of

if TYPE_CHECKING:
    from fusedops.run.runnable import Runnable

__all__ = ["make_program"]


class Source(enum.IntEnum):
    """Where an argument of the backward call comes from, and what the number beside it counts."""

    CONSTANT = 0  # what stands beside it
    ARGUMENT = 1  # an argument of the call, options and x among them
    DESCRIPTION = 2  # dtype and shape of an argument
    DRAWN = 3  # the random numbers of the forward call
    SAVED_ARGUMENT = 4
    SAVED_OUTPUT = 5  # of `trained`


class Program(NamedTuple):
    """What the node does for calls of one kind; in C++ a tuple, with its members in this order."""

    run: Callable[..., Any]  # runs the forward call
    #: The keywords of the forward call: of operands, of options, and for drawn numbers.
    names: tuple[str, ...]
    given: tuple[int, ...]  # the numbers of the operands among the arguments: options, x, operands
    #: Draws the random numbers of a call, of the same arguments; None if there are none.
    draw: Callable[..., Any] | None
    sources: tuple[Any, ...]  # the `Source` of each argument of the backward call, and its number
    differentiable: tuple[bool, ...]  # whether each output has a gradient
    result_type: type | None  # the named tuple of several outputs
    resume: Callable[..., Any]  # runs the backward pass in Python: `_resume`
    #: By which outputs besides y have a gradient that comes in, bit i for output i: the backward
    #: kernel's dispatcher, its keywords, and the place of each gradient among its results; -1 where
    #: it is that of y.
    known: dict[int, Any]


def make_program(
    op: Runnable, options: dict[str, Any] | None, x: Tensor, *values: Any
) -> Program | None:
    """The program of calls like this one; None if `differentiate` has to run them.

    Raises:
        UnsupportedError: A functor has no derivative.
    """
    options = options or {}
    if op.lacking(named(op, values)) or reduces_several(op, options):
        return None
    recipe = recipe_of(op, tuple(isinstance(t, Tensor) and t.requires_grad for t in (x, *values)))
    backward: dict[str, tuple[Source, Any]] = {KEPT: (Source.SAVED_OUTPUT, len(op.outputs))}
    given: dict[str, int] = {}
    slots = zip(op.slots, values, recipe.kept, strict=True)
    for number, (name, value, keep) in enumerate(slots, 2):
        if value is None:
            backward[name] = Source.CONSTANT, None
            continue
        given[name] = number
        if not isinstance(value, Tensor):
            backward[name] = Source.ARGUMENT, number
        else:
            backward[name] = Source.SAVED_ARGUMENT if keep else Source.DESCRIPTION, number
    for name, value in options_of(op, options, x):
        backward[name] = Source.CONSTANT, value
    names = (*given, *options)
    draw = None
    if op.dropouts:
        names += ("generator",)
        draw = functools.partial(_draw, op)
        backward["generator"] = Source.DRAWN, 0
    dtype = options.get("dtype", x.dtype)
    if recipe.result and reads_result(op, dtype, x.dtype):
        backward[RESULT] = Source.SAVED_OUTPUT, 0
        backward["x"] = Source.DESCRIPTION, 1
    else:
        backward["x"] = Source.SAVED_ARGUMENT if recipe.x else Source.DESCRIPTION, 1
    for number, name in recipe.streams:
        backward[name] = Source.SAVED_OUTPUT, number
    known: dict[int, Any] = {}
    return Program(
        op.trained,
        names,
        tuple(given.values()),
        draw,
        tuple(part for source in backward.values() for part in source),
        tuple(name in op.able for name in op.outputs),
        op.result_type if len(op.outputs) > 1 else None,
        functools.partial(_resume, op, recipe.wanted, dtype, tuple(backward), known),
        known,
    )


def _draw(op: Runnable, options: dict[str, Any] | None, x: Tensor, *values: Any) -> Any:
    return drawn_for(op, x, {**named(op, values), **(options or {})})


def _resume(
    op: Runnable,
    wanted: frozenset[str],
    dtype: torch.dtype,
    names: tuple[str, ...],
    known: dict[int, Any],
    shape: tuple[int, ...],
    arguments: Sequence[Any],
    incoming: Sequence[Tensor | None],
) -> tuple[Any, ...]:
    """Run a backward pass in Python, and note in `known` what the kernel is called with.

    `wanted` are the names whose gradients are wanted, "x" among them if x's is. `dtype` is that of
    y, `shape` that of x. `names` are those of the arguments of the backward call, of which every
    tensor was saved; `known` is that of the `Program`. An output without a gradient has None among
    the incoming ones.
    """
    given = dict(zip(names, arguments, strict=True))
    tensors = {name: one for name, one in given.items() if isinstance(one, Tensor)}
    rest = {name: one for name, one in given.items() if name not in tensors}
    kept, *saved = tensors.items()
    note = Saved(op, wanted, [name for name, _ in saved], rest, dtype, shape)
    results = gradients_once(note, (kept[1], *[one for _, one in saved]), incoming)
    arrived = [at for at, one in enumerate(incoming) if at and one is not None]
    joining = [op.outputs[at] for at in arrived]
    of_y = incoming[0] if op.has_result else None
    shared = shared_gradients(op, wanted, given, None if of_y is None else dtype)
    gradient = op.gradients.get((wanted.difference(shared), RESULT in given, *joining))
    if gradient is not None and op.differentiated is op and not gradient.loose:
        keywords = (*names, *map(joining_name, joining))
        places = dict(zip(("x", *op.slots), gradient.places, strict=True))
        places.update((name, places["x"] if like == "x" else -1) for name, like in shared.items())
        known[sum(1 << at for at in arrived)] = gradient, keywords, tuple(places.values())
    return tuple(results)
