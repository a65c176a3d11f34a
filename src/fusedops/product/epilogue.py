# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The epilogue: the `Map` that runs the functors after a matrix product, in one kernel."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from fusedops.declare.declaration import named_result
from fusedops.declare.results import known_results
from fusedops.declare.text import spell
from fusedops.functors import Functor
from fusedops.map import Map, only_in_store


class Epilogue(Map):
    """The `Map` of the functors after a product; errors and profilers name the op that it is of.

    As text, which programs are saved with, it is a plain Map, and so it is in the cache.

    Args:
        of: The name of the op.
        functors: The functors after the product, in order, a Tap among them where one is wanted.

    Raises:
        ValueError: A functor has no meaning after a product, or behind a Tap.
    """

    pairs = False  # the partner may be another thread's, in the kernel of the product

    def __init__(self, of: str, functors: Iterable[Functor]) -> None:
        self._of = of
        chain = tuple(functors)
        taps = [place for place, functor in enumerate(chain) if only_in_store(functor)]
        first = taps[0] if taps else len(chain)
        for functor in chain[first:]:
            if functor.masks or functor.saves is not None or functor.needs_query:
                raise ValueError(
                    f"{of}: {functor!r} cannot stand behind {chain[first]!r}, which returns the "
                    "value that all masks and saved streams have made; put the Tap behind it, or "
                    "return the value by Save"
                )
        super().__init__(chain[:first], chain[first:])
        self.plain = Map(self.load, self.store)
        self.text = spell(self.plain)

    @property
    def name(self) -> str:
        """The name of the op in error messages."""
        return self._of

    @property
    def title(self) -> str:
        """The same while it is made."""
        return self._of

    @property
    def kernels(self) -> str:
        """The name of the op in the names of its kernels."""
        return "Map"

    @property
    def kinds(self) -> list[tuple[str, int]]:
        """The operands, each with the flags of what it may be given (`_runtime.SLOT_...`)."""
        return self._kinds

    @functools.cached_property
    def label(self) -> str:
        """What profilers show: ``Linear(Bias, Dropout)``."""
        chain = (*self.load, *self.store)
        return f"{self._of}({', '.join(type(functor).__name__ for functor in chain)})"

    @functools.cached_property
    def result_type(self) -> Any:
        """The named-tuple class of a result with several outputs."""
        return known_results.get(self.outputs) or named_result(f"{self._of}Result", self.outputs)

    def of(self, load: Iterable[Functor], store: Iterable[Functor]) -> Epilogue:
        """The epilogue of the same op with other functors."""
        return Epilogue(self._of, (*load, *store))

    def __reduce__(self) -> tuple[Any, ...]:
        return Epilogue, (self._of, (*self.load, *self.store))
