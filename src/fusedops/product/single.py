# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""An op with one product: how a call is run, whichever the product is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fusedops.functors import Functor
from fusedops.product.choice import Choice
from fusedops.product.declaration import ProductOp
from fusedops.product.epilogue import Epilogue
from fusedops.product.factors import as_factor, factor_dtype
from fusedops.product.report import ProductExplanation, explain_product

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SingleProduct"]


class SingleProduct(ProductOp):
    """An op of one product and the functors after it.

    Attributes:
        store: The functors after the product, in order.
        epilogue: The `Map` that runs them.
        has_added: The operand that the product adds by itself, as the first functor says, or None.
    """

    #: The product as it is written, in the names of the inputs.
    formula: ClassVar[str]

    def __init__(self, store: Iterable[Functor] = ()) -> None:
        super().__init__({"store": store})
        self.store = self.chains["store"]
        self.epilogue: Epilogue = self.epilogues[0]
        self.has_added = self.store[0].has_added if self.store else None

    def __call__(
        self,
        first: Tensor | None = None,
        second: Tensor | None = None,
        /,
        *further: Any,
        **arguments: Any,
    ) -> Any:
        """Run the op: as the class says.

        Raises:
            TypeError, ValueError: An argument does not fit.
            UnsupportedError: The tensors or an active mode do not go with a fused kernel.
        """
        first, second = self.given((first, second), arguments, further)
        self.check(first, second)
        return self.run(first, second, arguments)

    def unfused(
        self, first: Tensor | None = None, second: Tensor | None = None, /, **arguments: Any
    ) -> Any:
        """Compute a call as a chain of torch operations: the product, then each functor.

        It takes the same arguments, returns the same outputs and drops the same elements; torch
        differentiates it as often as needed.
        """
        first, second = self.given((first, second), arguments)
        self.check(first, second)
        return self.run_unfused(first, second, arguments)

    def explain(
        self, first: Tensor | None = None, second: Tensor | None = None, /, **arguments: Any
    ) -> ProductExplanation:
        """Say what a call with these arguments would run and why, without running it.

        Returns a `ProductExplanation`; print it. Its line *vehicle* says by what the product and
        the STORE are run, with the reason and the bytes.

        Raises:
            TypeError, ValueError: An argument does not fit, as in a call.
        """
        first, second = self.given((first, second), arguments)
        self.check(first, second)
        self.check_arguments(arguments)
        return explain_product(self, first, second, arguments)

    def check(self, first: Any, second: Any) -> None:
        """Raise TypeError or ValueError for factors that do not fit."""
        raise NotImplementedError

    def shape(self, first: Tensor, second: Tensor) -> tuple[int, ...]:
        """The shape of the product of checked factors."""
        raise NotImplementedError

    def product(self, first: Tensor, second: Tensor, operand: Tensor | None = None) -> Tensor:
        """The product, by torch; plus what it adds by itself, in the same call."""
        raise NotImplementedError

    def that_adds(self, second: Tensor, arguments: dict[str, Any]) -> Self:
        """The op that runs a call: this one, or that whose product adds what this STORE would."""
        return self

    @staticmethod
    def turned(second: Tensor) -> Tensor:
        """The second factor in the shape (..., N, K), and from there as it was."""
        return second

    def run(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Any:
        """Run a call whose factors have been checked."""
        op = self.that_adds(second, arguments)
        return op.run_apart(first, second, arguments, op.product)

    def run_unfused(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Any:
        """Run a call whose factors have been checked as torch operations."""
        op = self.that_adds(second, arguments)
        if op.alone(first, arguments):
            return op.run_apart(first, second, arguments, op.product)
        operand = op.has_added
        if operand is None:
            z = op.product(first, second)
        else:
            z = op.product(first, second, arguments[operand])  # which has its gradient
            arguments = {**arguments, operand: arguments[operand].detach()}
        return op.run_store(op.epilogue, z, arguments, "unfused")

    def run_apart(
        self, first: Tensor, second: Tensor, arguments: dict[str, Any], product: Any
    ) -> Any:
        """Run such a call by a kernel after the product, with `product` as that of this class.

        The op is one that runs calls (`that_adds`).
        """
        if not self.alone(first, arguments):
            z = self._multiplied(first, second, arguments, product)
            return self.run_store(self.epilogue, z, arguments)
        given = () if self.has_added is None else (arguments[self.has_added],)
        z = product(first, second, *given)
        if len(arguments) > len(given):
            self._check_unread(z, arguments)
        return z

    def run_keeping(
        self, first: Tensor, second: Tensor, arguments: dict[str, Any]
    ) -> tuple[Tensor, Any]:
        """The product, and what `run` returns."""
        z = self._multiplied(first, second, arguments, self.product)
        return z, self.run_store(self.epilogue, z, arguments)

    def vehicle(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Choice:
        """Whether one kernel runs a call, or two do, and why."""
        raise NotImplementedError

    def alone(self, first: Tensor, arguments: dict[str, Any]) -> bool:
        """Whether a call of an op that runs calls needs no kernel after torch's product."""
        if len(self.store) > (self.has_added is not None):
            return False
        dtype = arguments.get("dtype")
        return arguments.get("out") is None and dtype in (None, factor_dtype(first))

    def _multiplied(
        self, first: Tensor, second: Tensor, arguments: dict[str, Any], product: Any
    ) -> Tensor:
        """What the STORE gets; the gradient of what the product adds is that of the STORE."""
        if self.has_added is None:
            return product(first, second)  # type: ignore[no-any-return]
        added = as_factor(arguments[self.has_added].detach(), factor_dtype(first))
        return product(first, second, added)  # type: ignore[no-any-return]

    def _check_unread(self, z: Tensor, arguments: dict[str, Any]) -> None:
        """Check the arguments of a call that runs no kernel, which would have."""
        self.check_names(arguments)
        if not torch.compiler.is_compiling():
            self.epilogue.bind(z, arguments)
