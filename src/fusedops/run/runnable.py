# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Ops that can be called: their dispatchers, and what these cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fusedops import _runtime
from fusedops.declare.declaration import Declaration
from fusedops.declare.hints import check_declaration
from fusedops.declare.op import Op
from fusedops.declare.options import OPTIONS
from fusedops.errors import IN_COMPILED_CODE, UnsupportedError
from fusedops.functors import Role
from fusedops.jit.lock import guard

if TYPE_CHECKING:
    from typing_extensions import Self

    from fusedops.plan.reading import Hints
    from fusedops.run.observer import Observer


def flags_of(role: Role) -> int:
    """What a call may pass for an operand of this role, as flags of the runtime."""
    if role is Role.PROBABILITY:
        return _runtime.SLOT_PROBABILITY | _runtime.SLOT_NUMBER
    if role in (Role.VALUE, Role.COUNT, Role.INTEGER, Role.ROW):
        return _runtime.SLOT_NUMBER | _runtime.SLOT_TENSOR
    return _runtime.SLOT_TENSOR


class CalledOp(_runtime.Dispatcher, Op):
    """An op whose calls the C++ runtime finds a plan for (csrc/dispatch.cpp).

    A Python method in between would take longer than finding the plan does.
    """

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Check the names of the declaration's arguments; `__init__` reads their values."""
        if torch.compiler.is_dynamo_compiling():
            raise UnsupportedError(f"{cls.__name__}: {IN_COMPILED_CODE}")
        if len(arguments) > 1 or not named.keys() <= {"load", "store"}:
            check_declaration(cls, arguments, named, OPTIONS)
        made: Self = super().__new__(cls)
        return made


class Runnable(CalledOp, Declaration):
    """A declaration that can be called.

    Its dispatchers run the calls. The derived class, `RowOp`, says what they do for a call that has
    no plan yet.

    Attributes:
        trained: The dispatcher of calls that also return row statistics for the backward pass, as
            the last element of a tuple.
        recipes: Which tensors a forward pass saves (`recipe.Recipe`), by which of x and the
            operands need gradients.
        merging: The layouts of calls whose reduced dimensions are known to merge (`contiguous`).
        gradients: The backward passes (`gradient.Gradient`), by the set of names whose gradients
            are wanted, whether y is read in place of x, and the names of the saved streams that
            have a gradient.
        observer: The object that is notified of calls that need a kernel.
        offered: Whether it is settled if differentiable calls run in C++ (`cpp_library.offer`).
    """

    trained: _runtime.Dispatcher
    recipes: dict[tuple[bool, ...], Any]
    merging: set[tuple[Any, ...]]
    gradients: dict[tuple[Any, ...], Any]
    observer: Observer
    offered = False

    @property
    def hints(self) -> Hints:
        """By which readings calls are served for which no kernel of their own is loaded."""
        known: Hints | None = self.__dict__.get("_hints")
        if known is None:
            # A cached_property holds a lock before Python 3.12, and a child may be forked then.
            with guard:
                from fusedops.plan.reading import Hints

            known = self.__dict__.setdefault("_hints", Hints())  # another thread's, if it was first
        return known

    @property
    def direct(self) -> _runtime.Dispatcher:
        """The dispatcher of the torch operator: runs on memory even in tracing; returns a tuple."""
        raise NotImplementedError
