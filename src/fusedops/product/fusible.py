# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""An op with one product that one kernel may run together with its STORE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.functors import Functor, Save
from fusedops.jit import env
from fusedops.product.choice import Choice
from fusedops.product.declaration import TAKEN
from fusedops.product.factors import HALVES, factor_dtype
from fusedops.product.fused import (
    OneKernel,
    able,
    as_multiplied,
    chosen,
    explained,
    reads_product,
)
from fusedops.product.recorded import record
from fusedops.product.single import SingleProduct
from fusedops.product.traced import call_operator, remember

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FusibleProduct"]


class FusibleProduct(SingleProduct):
    """An op of one product, which is run as one kernel where that is faster."""

    def __init__(self, store: Iterable[Functor] = ()) -> None:
        super().__init__(store)
        self._taken = {*self.slots, *TAKEN}
        self._able = bool(self.store) and able(self.epilogue)
        self._fused: OneKernel | None = None
        self._keeping: Self | None = None
        remember(self)

    def run(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Any:
        """Run a call whose factors have been checked."""
        adds = self.that_adds(second, arguments)
        if adds is not self:
            return adds.run(first, second, arguments)
        if not self._able or self.alone(first, arguments):
            return super().run(first, second, arguments)
        if torch.compiler.is_compiling():
            outputs = call_operator(self, first, self.turned(second), arguments)
            if outputs is not None:
                return outputs
        elif factor_dtype(first) in HALVES:
            w = self.turned(second)
            if env.record_file() is not None:
                op = self
                if reads_product(self.epilogue, first, second, arguments):
                    op = self.that_keeps()
                record(op.epilogue, first, w, arguments)
            if self._fuses(first, w, arguments):
                if self._fused is None:
                    self._fused = OneKernel(self)
                if self._fused.able:
                    return self._fused(*as_multiplied(first, w), arguments)
        return super().run(first, second, arguments)

    def run_keeping(
        self, first: Tensor, second: Tensor, arguments: dict[str, Any]
    ) -> tuple[Tensor, Any]:
        """The product, which a gradient of the STORE reads, and what `run` returns.

        The op is one that runs calls (`that_adds`).
        """
        if not self._able:
            return super().run_keeping(first, second, arguments)
        found, w = None, self.turned(second)
        if torch.compiler.is_compiling():  # where no op can be made
            found = call_operator(self, first, w, arguments, keeps=True)
        elif factor_dtype(first) in HALVES:
            keeping = self.that_keeps()
            if env.record_file() is not None:
                record(keeping.epilogue, first, w, arguments)
            if keeping._fuses(first, w, arguments):
                found = keeping.run(first, second, arguments)
        if found is None:
            return super().run_keeping(first, second, arguments)
        y, z, *others = found
        return z, self.epilogue.result_type(y, *others) if others else y

    def that_keeps(self) -> Self:
        """The same op with the product as a saved stream."""
        if self._keeping is None:
            name = "z"
            while name in (*self.outputs, *self.slots):
                name += "_"
            first = int(self.has_added is not None)
            chain = [*self.store[:first], Save(name), *self.store[first:]]
            self._keeping = type(self)(chain)
        return self._keeping

    def vehicle(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Choice:
        """Whether one kernel runs a call of an op that runs calls, or two do, and why."""
        if self._able and reads_product(self.epilogue, first, second, arguments):
            return self.that_keeps().vehicle(first, second, arguments)  # which is run
        if self._fused is not None and not self._fused.able:
            return Choice(None, "one kernel for both could not be had, as a warning said")
        return explained(self.epilogue, first, self.turned(second), arguments)

    def _fuses(self, x: Tensor, w: Tensor, arguments: dict[str, Any]) -> bool:
        """Whether one kernel runs a call that needs a kernel, as far as each call can tell.

        w is the second factor, `turned`.
        """
        if not x.is_cuda or arguments.keys() - self._taken:
            return False
        return chosen(self.epilogue, x, w, arguments).tiling is not None
