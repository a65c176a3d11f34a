# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A declaration: a reduction over rows, with a LOAD before it and a STORE after it.

It is a value: printable, hashable, comparable. It says what a call takes and returns and what that
means, and knows nothing of tensors at hand, of kernels and of devices.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from fusedops.declare.chains import check_chain, operands_of
from fusedops.errors import UnsupportedError
from fusedops.functors import Dropout, Functor, Residual, Role

__all__ = ["Declaration"]


class Declaration:
    """A reduction over rows, with a LOAD before it and a STORE after it.

    Attributes:
        load, store: The functors, in the order in which they apply.
        constants: What else the declaration was given, by name.
        operands: The operands that a call gives, in order, each once.
        slots: The number of each operand, counted from 1, by its name; x is number 0.
        outputs: The names of the results: "y", saved streams, then statistics.
        saves: The residual that each saved stream is named for.
        dropouts: How many dropouts there are.
        probabilities: The operand of each dropout, in order.
        counted: The operands that count columns.
        causal: Whether a functor asks which query a row is.
        forward_only: The functors that have no derivative.
        text: The declaration as a line of text (`declare.text`); set as it becomes an op that can
            be called, for which the text stands.
    """

    text: str

    header: ClassVar[str]
    gradient_header: ClassVar[str]
    #: Numbers of a row that the backward pass wants: as kKept in the C++.
    kept: ClassVar[int]
    normalizes: ClassVar[bool]
    masks: ClassVar[bool]
    #: Whether a row's mean is subtracted.
    centred: ClassVar[bool] = False
    #: Whether the result is a logarithm.
    logarithmic: ClassVar[bool] = False

    def __init__(
        self, load: Iterable[Functor] = (), store: Iterable[Functor] = (), **constants: Any
    ) -> None:
        self.load = check_chain(self, "load", load)
        self.store = check_chain(self, "store", store)
        self.constants = constants
        self.operands = operands_of(self)
        self.slots = {operand.name: slot for slot, operand in enumerate(self.operands, 1)}
        saving = [f for f in self.load if isinstance(f, Residual) and f.save is not None]
        self.saves = {str(f.save): f.residual for f in saving}
        if len(self.saves) != len(saving):
            names = [f.save for f in saving]
            raise ValueError(f"{type(self).__name__}: save= names must differ, got {names}")
        statistics = ("mean", "rstd") if constants.get("stats") else ()
        self.outputs: tuple[str, ...] = ("y", *self.saves, *statistics)
        chains = (*self.load, *self.store)
        self.probabilities = [str(f.p) for f in chains if isinstance(f, Dropout)]
        self.dropouts = len(self.probabilities)
        self.counted = [operand.name for operand in self.operands if operand.role is Role.COUNT]
        self.causal = any(f.needs_query for f in self.load)
        self.forward_only = [f for f in (*self.load, *self.store) if not f.differentiable]

    @property
    def name(self) -> str:
        """What errors call the op."""
        return type(self).__name__

    def reference(self, value: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The reduction in torch over the last dimension, and its statistics (no gradients)."""
        raise NotImplementedError

    def cpp(self, compute: str) -> str:
        """The C++ type of the operator."""
        raise NotImplementedError

    def gradient_cpp(self, compute: str) -> str:
        """The C++ type of its gradient."""
        raise NotImplementedError

    @property
    def eps(self) -> float | None:
        """What a norm adds to the variance; None for a softmax."""
        return self.constants.get("eps")

    def check_differentiable(self) -> None:
        """Raise UnsupportedError if the op has no gradient."""
        for functor in self.forward_only:
            raise UnsupportedError(
                f"{self.name}: {functor!r} has no derivative, so the op has none; give the functor "
                "one, call the op under torch.no_grad(), or detach() what needs no gradient"
            )

    @functools.cached_property
    def declaration(self) -> str:
        """The text of the declaration."""
        return repr(self)

    @functools.cached_property
    def definitions(self) -> tuple[str, ...]:
        """The C++ of functors that the headers do not hold."""
        return tuple(f.definition for f in (*self.load, *self.store) if f.definition)

    @functools.cached_property
    def result_type(self) -> Any:
        """The class of a result with several outputs."""
        return collections.namedtuple(f"{type(self).__name__}Result", self.outputs)

    def wrap(self, outputs: Mapping[str, Tensor]) -> Any:
        """What a call returns: the tensor, or all of them as a named tuple."""
        return outputs["y"] if len(self.outputs) == 1 else self.result_type(**outputs)

    def _key(self) -> tuple[Any, ...]:
        return (type(self), self.load, self.store, tuple(self.constants.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Declaration) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        parts = [f"{side}={list(chain)!r}" for side, chain in self._sides() if chain]
        parts += [f"{key}={value!r}" for key, value in self.constants.items()]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _sides(self) -> tuple[tuple[str, tuple[Functor, ...]], ...]:
        return (("load", self.load), ("store", self.store))
