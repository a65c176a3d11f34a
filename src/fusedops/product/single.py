# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""An op with one product: what runs a call, chosen once for each kind of call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fusedops._runtime import Delegate, Plan
from fusedops.errors import FusedOpsError
from fusedops.explain.report import ProductExplanation
from fusedops.functors import Functor, Save
from fusedops.jit import env
from fusedops.plan.planner import plan
from fusedops.product.autograd import factor_gradients
from fusedops.product.choice import (
    Choice,
    able,
    as_multiplied,
    bind_store,
    chosen,
    explained,
    reads_product,
)
from fusedops.product.declaration import ProductOp
from fusedops.product.epilogue import Epilogue
from fusedops.product.factors import (
    MULTIPLIED,
    as_factor,
    factor_dtype,
    product_sizes,
    read_dtype,
    wants_gradient,
)
from fusedops.product.product_kernel import Product, build_or_warn
from fusedops.product.recorded import record
from fusedops.product.report import explain_product
from fusedops.product.torch_op import AsOperator, call_operator
from fusedops.run.autograd import differentiate_product, without_memory
from fusedops.run.backward import ProductInput

if TYPE_CHECKING:
    from typing_extensions import Self


class SingleProduct(ProductOp):
    """An op of one product and the functors after it.

    A call is run by torch's product and a kernel of the functors, or, where that was measured to be
    faster, by one kernel for both. `implementation` chooses at the first call of its kind: of its
    shapes, strides and dtypes, the gradients that are wanted, and autocast's dtype.

    Attributes:
        store: The functors after the product, in order.
        epilogue: The `Map` that runs them.
        has_added: The operand that the product adds by itself, as the first functor says, or None.
        available: Whether one kernel for both can be had: False once one could not be built.
    """

    #: The product as it is written, in the names of the inputs.
    formula: ClassVar[str]

    def __init__(self, store: Iterable[Functor] = (), **constants: Any) -> None:
        super().__init__({"store": store}, **constants)
        self.store = self.chains["store"]
        self.has_added = self.store[0].has_added if self.store else None
        self.available = True
        self._able = bool(self.store) and able(self.epilogues[0])
        self._keeping: Self | None = None
        self.called(self.epilogues[0])
        #: What the operator of torch calls, and what it calls where there may be gradients.
        self.direct, self.trained = AsOperator(self), AsOperator(self, keep=True)

    def called(self, epilogue: Epilogue) -> None:
        """Run calls by this epilogue, whose op's name errors and profilers give."""
        self.epilogue = epilogue
        several = epilogue.result_type if len(epilogue.outputs) > 1 else None
        self.dispatch(self.called_with, several, epilogue.label)

    @property
    def called_with(self) -> list[tuple[str, int]]:
        """The operands of a call, each with the flags of what it may be given."""
        return self.epilogue.kinds

    def explain(
        self, first: Tensor | None = None, second: Tensor | None = None, /, **arguments: Any
    ) -> ProductExplanation:
        """Say what a call with these arguments would run and why, without running it.

        Returns a `ProductExplanation`; print it. Its line *implementation* says by what the product
        and the STORE are run, with the reason and the bytes.

        Raises:
            TypeError, ValueError: An argument does not fit, as in a call.
        """
        first, second = self.given((first, second), arguments)
        self.check_arguments(arguments)
        return explain_product(self, first, second, arguments)

    def shape(self, first: Tensor, second: Tensor) -> tuple[int, ...]:
        """The shape of the product of checked factors."""
        raise NotImplementedError

    def product(self, first: Tensor, second: Tensor, operand: Tensor | None = None, /) -> Tensor:
        """The product, by torch; plus what it adds by itself, in the same call."""
        raise NotImplementedError

    def that_adds(self, second: Tensor, arguments: dict[str, Any]) -> Self:
        """The variant that runs a call: with `AddedBias` if the GEMM adds the leading bias."""
        return self

    @property
    def undifferentiated(self) -> frozenset[str]:
        """The operands that have no gradient beside those of the STORE that have none."""
        return frozenset()

    @property
    def of_product(self) -> tuple[str, ...]:
        """The operands of the STORE that are parts of the product."""
        return ()

    def read_by_store(self, z: Tensor, arguments: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """What the STORE gets of a product as its x, and its operands."""
        return z, arguments

    factor_gradients = staticmethod(factor_gradients)

    @staticmethod
    def without_memory(x: Tensor, w: Tensor) -> Tensor:
        """A tensor in the place of the product; w is the second factor, `turned`."""
        return without_memory(x, product_sizes(x, w)[0])

    @staticmethod
    def turned(second: Tensor) -> Tensor:
        """The second factor in the shape (..., N, K), and from there as it was."""
        return second

    # ------------------------------------------------------------------------- the implementations

    def implementation(
        self, first: Tensor, second: Tensor, arguments: dict[str, Any]
    ) -> Plan | Delegate:
        """What runs all calls like this one, whose factors have been checked."""
        op = self.that_adds(second, arguments)
        if op.alone(first, arguments):
            op.check_unread(first, second, arguments)
            return Delegate(op.run_alone)
        self.check_arguments(arguments)
        by_one = op.by_one_kernel(first, second, arguments)
        return Delegate(op.run_apart) if by_one is None else by_one

    def by_one_kernel(
        self, first: Tensor, second: Tensor, arguments: dict[str, Any]
    ) -> Plan | Delegate | None:
        """What runs such calls by one kernel for product and STORE; None where two are better.

        The op is one that runs calls (`that_adds`).
        """
        dtype = read_dtype(first)
        if not self._able or dtype not in MULTIPLIED:
            return None
        w = self.turned(second)
        keeps = reads_product(self.epilogue, first, w, arguments)
        op = self.that_keeps() if keeps else self
        if env.record_file() is not None:
            record(op.epilogue, first, w, arguments)
        if not op.fuses(first, w, arguments):
            return None
        if first.dtype is not dtype or w.dtype is not dtype:
            return Delegate(self._run_cast)
        if wants_gradient((first, second, *arguments.values())):
            if arguments.get("out") is not None:
                return None  # the Map refuses it
            self.epilogue.check_differentiable()
            return Delegate(self._train_keeping if keeps else self._train)
        if self.has_added is not None and arguments[self.has_added].dtype is not dtype:
            return Delegate(self._run_with_cast_operand)
        return self._plan(first, w, arguments)

    def fuses(self, first: Tensor, w: Tensor, arguments: dict[str, Any]) -> bool:
        """Whether one kernel is faster for a call; w is the second factor, `turned`."""
        if not self.available or not first.is_cuda or self.epilogue.lacking(arguments):
            return False
        return chosen(self.epilogue, first, w, arguments).tiling is not None

    def _plan(
        self,
        first: Tensor,
        w: Tensor,
        arguments: dict[str, Any],
        scales: tuple[Tensor, ...] = (),
    ) -> Plan | None:
        """The plan of one kernel, or None if it cannot run the call or cannot be had."""
        tiling = chosen(self.epilogue, first, w, arguments, along_k=bool(scales)).tiling
        if tiling is None:
            return None
        bound = bind_store(self.epilogue, first, w, arguments)
        planned = plan(Product(bound, first, w, tiling, scales))
        if planned is None:
            return None
        made = build_or_warn(planned, self.declaration)
        self.available = made is not None
        return made

    def run_alone(self, first: Tensor, second: Tensor, /, **arguments: Any) -> Tensor:
        """Run a call by torch's product alone."""
        if self.has_added is None:
            return self.product(first, second)
        return self.product(first, second, arguments[self.has_added])

    def run_apart(self, first: Tensor, second: Tensor, /, **arguments: Any) -> Any:
        """Run a call by torch's product and a kernel of the functors."""
        z = self.multiplied(first, second, arguments)
        try:
            return self.epilogue(z, **arguments)
        except FusedOpsError:
            raise
        except (TypeError, ValueError):
            self.check_arguments(arguments)
            self.check_broadcast(self.epilogue, z, arguments)
            raise

    def _run_cast(self, first: Tensor, second: Tensor, /, **arguments: Any) -> Any:
        """Run a call whose factors autocast casts."""
        return self(*as_multiplied(first, second), **arguments)

    def _run_with_cast_operand(self, first: Tensor, second: Tensor, /, **arguments: Any) -> Any:
        """Run a call, without gradients, whose product adds an operand of another dtype."""
        assert self.has_added is not None
        added = as_factor(arguments[self.has_added].detach(), first.dtype)
        return self(first, second, **{**arguments, self.has_added: added})

    def _train(self, first: Tensor, second: Tensor, /, **arguments: Any) -> Any:
        """Run a call that wants gradients by one kernel, and record it for autograd."""
        epilogue, w = self.epilogue, self.turned(second)
        values = [arguments.pop(name, None) for name in epilogue.slots]
        shape = product_sizes(first, w)[0]
        product = ProductInput(self._outputs, shape, factor_gradients)
        outputs = differentiate_product(epilogue, arguments or None, product, first, w, *values)
        return outputs[0] if len(outputs) == 1 else epilogue.result_type._make(outputs)

    def _train_keeping(self, first: Tensor, second: Tensor, /, **arguments: Any) -> Any:
        """Run such a call of an op whose gradient reads the product, which the kernel writes."""
        y, _, *others = self.that_keeps()._train(first, second, **arguments)
        return self.epilogue.result_type(y, *others) if others else y

    def _outputs(self, x: Tensor, w: Tensor, arguments: Mapping[str, Any]) -> Sequence[Tensor]:
        found = self(x, self.turned(w), **arguments)
        return (found,) if isinstance(found, Tensor) else found

    # ------------------------------------------------------------------------- calls in other hands

    def run(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Any:
        """Run a call whose factors have been checked, in code that torch compiles, or in a mode."""
        op = self.that_adds(second, arguments)
        if op.alone(first, arguments):
            op.check_unread(first, second, arguments)
            return op.run_alone(first, second, **arguments)
        if op._able and torch.compiler.is_compiling():
            outputs = call_operator(op, first, op.turned(second), arguments)
            if outputs is not None:
                return outputs
        z = op.multiplied(first, second, arguments)
        return op.run_store(op.epilogue, z, arguments)

    def run_unfused(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Any:
        """Run a call whose factors have been checked as torch operations."""
        op = self.that_adds(second, arguments)
        if op.alone(first, arguments):
            op.check_unread(first, second, arguments)
            return op.run_alone(first, second, **arguments)
        operand = op.has_added
        if operand is None:
            z = op.product(first, second)
        else:
            z = op.product(first, second, arguments[operand])  # which has its gradient
            arguments = {**arguments, operand: arguments[operand].detach()}
        return op.run_store(op.epilogue, z, arguments, "unfused")

    def keeps_by_one_kernel(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> bool:
        """Whether one kernel is faster for product and STORE where the product is kept, too."""
        if not self._able or read_dtype(first) not in MULTIPLIED:
            return False
        keeping, w = self.that_keeps(), self.turned(second)
        if env.record_file() is not None:
            record(keeping.epilogue, first, w, arguments)
        return keeping.fuses(first, w, arguments)

    def run_keeping(
        self,
        first: Tensor,
        second: Tensor,
        arguments: dict[str, Any],
        by_one: bool | None = None,
    ) -> tuple[Tensor, Any]:
        """The product, which a gradient of the STORE reads, and what a call returns.

        The op is one that runs calls (`that_adds`); `by_one` is what `keeps_by_one_kernel` says.
        """
        found = None
        if by_one is None and torch.compiler.is_compiling():  # where no op can be made
            if self._able:
                found = call_operator(self, first, self.turned(second), arguments, keeps=True)
        elif by_one or (by_one is None and self.keeps_by_one_kernel(first, second, arguments)):
            found = self.that_keeps()(first, second, **arguments)
        if found is None:
            z = self.multiplied(first, second, arguments)
            return z, self.run_store(self.epilogue, z, arguments)
        y, z, *others = found
        return z, self.epilogue.result_type(y, *others) if others else y

    def multiplied(
        self,
        first: Tensor,
        second: Tensor,
        arguments: dict[str, Any],
        product: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """What the STORE gets, by `product` in the place of torch's.

        The gradient of what the product adds is that of the STORE.
        """
        if product is None:
            product = self.product
        if self.has_added is None:
            return product(first, second)
        added = arguments[self.has_added].detach()
        if added.dtype is not first.dtype:
            added = as_factor(added, factor_dtype(first))
        return product(first, second, added)

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

    def choice(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Choice:
        """Whether one kernel runs a call of an op that runs calls, or two do, and why."""
        if self._able and reads_product(self.epilogue, first, second, arguments):
            return self.that_keeps().choice(first, second, arguments)  # which is run
        if not self.available:
            return Choice(None, "one kernel for both could not be had, as a warning said")
        return explained(self.epilogue, first, self.turned(second), arguments)

    def alone(self, first: Tensor, arguments: dict[str, Any]) -> bool:
        """Whether a call of an op that runs calls needs no kernel after torch's product."""
        if len(self.store) > (self.has_added is not None):
            return False
        dtype = arguments.get("dtype")
        return arguments.get("out") is None and dtype in (None, factor_dtype(first))

    def check_unread(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> None:
        """Check the arguments of a call that runs no kernel, which would have."""
        if len(arguments) == (self.has_added is not None):
            return
        self.check_names(arguments)
        if not torch.compiler.is_compiling():
            z = first.new_empty(self.shape(first, second), dtype=factor_dtype(first))
            self.epilogue.bind(z, arguments)
