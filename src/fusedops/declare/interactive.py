# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Names and call signatures of ops for help(), dir() and editors.

The ops of the library have many more public names: those with which an operator of one's own is
written, and those with which the package runs a call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from fusedops.declare.options import OPTIONS

if TYPE_CHECKING:
    from typing import Protocol

    class Called(Protocol):
        """Interface of an op that can be called: its operands, required and optional."""

        slots: dict[str, int]
        optional: tuple[str, ...]


def check_assignment(op: object, title: str, name: str, options: Collection[str]) -> None:
    """Raise for an assignment to a declaration, which would have no effect.

    Raises:
        AttributeError: `name` is an option or an operand of its calls, or a chain that it has.
    """
    has = vars(op)
    if name in options or name in has.get("slots", ()):
        raise AttributeError(
            f"{title}: {name} cannot be assigned to a declaration; it is given to each call: "
            f"op(..., {name}=...)"
        )
    if name in ("load", "store", "hidden", "constants") and name in has:
        raise AttributeError(
            f"{title}: a declaration does not change, and {name} was given when it was made; "
            f"make another: {type(op).__name__}({name}=...)"
        )


#: The names of an op that are for its users.
_FOR_USERS = frozenset(
    (
        *(
            "load",
            "hidden",
            "store",
            "constants",
            "operands",
            "slots",
            "outputs",
            "saves",
            "dropouts",
        ),
        *("causal", "launches", "unfused", "explain", "dropout_mask"),
    )
)


class ShownToUsers(type):
    """The class of the classes of ops, whose dir(), and so help(), lists the names for users."""

    def __dir__(cls) -> list[str]:
        return for_users(cls, super().__dir__())


def for_users(owner: type, names: Iterable[str]) -> list[str]:
    """The public names of a class of ops; all names if the class is the user's own."""
    if owner.__module__.partition(".")[0] != __name__.partition(".")[0]:
        return [*names]
    return [name for name in names if name.startswith("_") or name in _FOR_USERS]


class CallSignature:
    """The call signature of an op, with the names of its own operands, for help() and editors.

    `inputs` are the names of the tensors that a call gives by position, `options` the keywords that
    are options.
    """

    def __init__(
        self, inputs: tuple[str, ...] = ("x",), options: tuple[str, ...] = OPTIONS
    ) -> None:
        self._inputs = inputs
        self._options = options

    def __get__(self, op: Called | None, owner: type) -> inspect.Signature | None:
        if op is None:
            return None  # the class is called with what its __init__ says
        by_place = inspect.Parameter.POSITIONAL_ONLY
        inputs = [inspect.Parameter(one, by_place, annotation=Tensor) for one in self._inputs]
        keyword = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
        left = dict.fromkeys(op.optional)
        operands = [
            keyword(name, default=left.get(name, inspect.Parameter.empty)) for name in op.slots
        ]
        options = [keyword(name, default=name == "training" or None) for name in self._options]
        return inspect.Signature([*inputs, *operands, *options])
