# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""An op as a value: what it prints, compares and pickles by, whether of rows or of products."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from fusedops.declare.interactive import ShownToUsers, check_assignment, for_users
from fusedops.declare.options import OPTIONS
from fusedops.functors import Functor, Operand


class Op(metaclass=ShownToUsers):
    """A class of ops, the functors of each chain, and constants: a value that does not change.

    Attributes:
        chains: The functors of each chain in the order in which they apply, by the name of the
            declaration's argument.
        constants: The other arguments of the declaration by name, such as eps or empty_row.
        operands: The operands that a call is given, in order of first use, each once.
        slots: The number of each operand by its name, counted from 1.
        outputs: The names of the results: "y", then the saved streams, the taps, and what else the
            op returns.
        saves: The operand whose dtype each saved stream has, or None, by the stream's name.
        optional: The names of the operands that a call may leave out.
        probabilities: The operand of each functor that draws, such as `Dropout`.
        dropouts: The number of functors that draw.
        causal: Whether some functor depends on the query index of a row.
    """

    chains: Mapping[str, tuple[Functor, ...]]
    constants: Mapping[str, Any]
    operands: tuple[Operand, ...]
    slots: dict[str, int]
    outputs: tuple[str, ...]
    saves: dict[str, str | None]
    optional: tuple[str, ...]
    probabilities: list[str]
    dropouts: int
    causal: bool

    def __setattr__(self, name: str, value: Any) -> None:
        check_assignment(self, type(self).__name__, name, OPTIONS)
        super().__setattr__(name, value)

    @property
    def name(self) -> str:
        """The name of the op in error messages, its class's name."""
        return type(self).__name__

    @property
    def title(self) -> str:
        """The name of the op in errors while it is made, when it is no op yet that has a `name`."""
        return type(self).__name__

    @property
    def functors(self) -> tuple[Functor, ...]:
        """Those of all chains, in order."""
        return tuple(one for chain in self.chains.values() for one in chain)

    @functools.cached_property
    def declaration(self) -> str:
        """The declaration as it prints, computed once."""
        return repr(self)

    def _key(self) -> tuple[Any, ...]:
        return (type(self), *self.chains.values(), *self.constants.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        parts = [f"{side}={list(chain)!r}" for side, chain in self.chains.items() if chain]
        parts += [f"{key}={value!r}" for key, value in self.constants.items()]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __dir__(self) -> list[str]:
        return for_users(type(self), super().__dir__())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.chains, self.constants)


def _rebuild(
    kind: Any, chains: Mapping[str, tuple[Functor, ...]], constants: Mapping[str, Any]
) -> Any:
    return kind(**chains, **constants)
