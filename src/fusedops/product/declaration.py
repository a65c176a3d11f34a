# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What all ops with a matrix product are: a declaration of chains that follow products."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops._runtime import Reason
from fusedops.bind.generator import draw, draw_in_memory
from fusedops.declare.chains import functors_of
from fusedops.declare.hints import nearest
from fusedops.declare.interactive import CallSignature
from fusedops.declare.operator import own_operators
from fusedops.declare.options import OPTIONS
from fusedops.declare.text import spell
from fusedops.errors import FusedOpsError, shortened
from fusedops.functors import Functor
from fusedops.product.epilogue import Epilogue
from fusedops.product.factors import check_broadcast
from fusedops.run.runnable import CalledOp

if TYPE_CHECKING:
    from typing_extensions import Self

    from fusedops.declare.results import Result

#: The options of a call that an op with a product takes, and those that it refuses.
TAKEN = ("dtype", "out", "training", "generator")
_FOREIGN = {*OPTIONS} - {*TAKEN}


class ProductOp(CalledOp):
    """A declaration of chains of functors, each of which follows a matrix product.

    What runs a call is chosen where the C++ runtime looks its plan up, once for each kind of call
    (`implementation`).

    Attributes:
        epilogues: The `Map` of each chain.
        counted: The names of the operands whose numbers are integers.
        text: The declaration as a line of text (`declare.text.spell`).
    """

    #: The tensors that a call gives by position.
    inputs: ClassVar[tuple[str, ...]]
    #: The module that holds weights of its own for such an op; empty for none.
    module: ClassVar[str] = ""

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Check the names of the declaration's arguments; `__init__` reads their values."""
        if "load" in named:
            raise TypeError(
                f"{cls.__name__}: unknown argument 'load' of the declaration: a product reads "
                f"{cls.inputs[0]} as it is; let a Map or a norm make it, in a kernel of its own"
            )
        module = cls.module
        if module and arguments and isinstance(arguments[0], int):
            raise TypeError(
                f"{cls.__name__}: a declaration holds functors, not sizes, got "
                f"{shortened(arguments)}; the module of that name is {module}"
            )
        return super().__new__(cls, *arguments, **named)

    def __init__(self, chains: Mapping[str, Iterable[Functor]], **constants: Any) -> None:
        name = self.title
        self.constants: dict[str, Any] = constants
        self.chains = {side: functors_of(name, side, each) for side, each in chains.items()}
        self.epilogues = tuple(Epilogue(name, each) for each in self.chains.values())
        for each in self.epilogues:
            if each.packed > 1:
                raise ValueError(
                    f"{name}: {each.store[-1]!r} makes two columns a byte, which a product does "
                    "not; call a Map with it of its y"
                )
        for each in self.epilogues[:-1]:
            if each.quantized is not None or each.block is not None:
                raise ValueError(
                    f"{name}: {each.store[-1]!r} cannot stand before a product, which reads what "
                    "it makes; it may be the last functor of the op"
                )
        operands = [operand for each in self.epilogues for operand in each.operands]
        known = {operand.name: operand for operand in operands}
        # Kernels and reports call the second factor w, whatever a call names it.
        taken = [*dict.fromkeys((*self.inputs, "w"))]
        for operand in operands:
            if operand.name in taken:
                raise ValueError(
                    f"{name}: operand {operand.name!r} has the name of a factor; choose another "
                    f"than {', '.join(taken)}"
                )
            if known[operand.name].role is not operand.role:
                raise ValueError(
                    f"{name}: operand {operand.name!r} is named twice, as "
                    f"{known[operand.name].role.value} and as {operand.role.value}; use two names"
                )
        self.operands = tuple(known.values())
        self.slots = {operand: number for number, operand in enumerate(known, 1)}
        self.optional = tuple(
            dict.fromkeys(one for each in self.epilogues for one in each.optional)
        )
        further = [output for each in self.epilogues for output in each.outputs[1:]]
        if len({*further}) != len(further):
            raise ValueError(f"{name}: names of saved streams and taps must differ, got {further}")
        self.outputs = ("y", *further)
        self.saves = {key: one for each in self.epilogues for key, one in each.saves.items()}
        self.probabilities = [one for each in self.epilogues for one in each.probabilities]
        self.dropouts = len(self.probabilities)
        self.counted = [one for each in self.epilogues for one in each.counted]
        self.causal = any(each.causal for each in self.epilogues)
        self.text = spell(self)

    __signature__ = CallSignature(("x",), TAKEN)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _runtime.call_at_once(cls)
        if "inputs" in vars(cls) and cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
            own_operators[cls.__name__] = cls

    def dispatch(
        self,
        kinds: Iterable[tuple[str, int]],
        result: type[tuple[Any, ...]] | None,
        label: str | None,
    ) -> None:
        """Take calls of operands of these kinds; result and label as `_runtime.Dispatcher` says."""
        further = [(name, _runtime.SLOT_TENSOR) for name in self.inputs[1:]]
        _runtime.Dispatcher.__init__(
            self,
            self.title,
            [*kinds, *further],
            self._slow,
            functools.partial(draw, op=self.title),
            result,
            None,
            label,
            inputs=len(self.inputs),
            delegates=True,
        )

    def __call__(self, /, *factors: Tensor, **arguments: Any) -> Result:
        """Run the op: as the class says.

        Raises:
            TypeError, ValueError: An argument does not fit.
            UnsupportedError: The tensors or an active mode do not go with a fused kernel.
        """
        # Dynamo traces this method. Python itself calls the C++ runtime directly instead.
        result: Result = self.run(*self.given(factors, arguments), arguments)
        return result

    def unfused(self, /, *factors: Tensor, **arguments: Any) -> Result:
        """Compute a call as a chain of torch operations: products, and each functor.

        It takes the same arguments, returns the same outputs and drops the same elements; torch
        differentiates it as often as needed.
        """
        result: Result = self.run_unfused(*self.given(factors, arguments), arguments)
        return result

    def check(self, *factors: Any) -> None:
        """Raise TypeError or ValueError for factors that do not fit."""
        raise NotImplementedError

    def implementation(self, *factors_and_arguments: Any) -> _runtime.Plan | _runtime.Delegate:
        """What runs all calls like this one: of checked factors, and operands and options."""
        raise NotImplementedError

    def run(self, *factors_and_arguments: Any) -> Any:
        """Run a call of checked factors where torch compiles, or a mode or a class takes part."""
        raise NotImplementedError

    def run_unfused(self, *factors_and_arguments: Any) -> Any:
        """Run a call of checked factors as torch operations."""
        raise NotImplementedError

    def _slow(
        self,
        reason: Reason,
        factors: tuple[Any, ...],
        operands: dict[str, Any],
        options: dict[str, Any],
    ) -> Any:
        """Handle a call that the C++ path cannot: return what runs it, or its result, or raise."""
        arguments = {**operands, **options}
        if reason is Reason.CAPTURE:
            count, generator = self.dropouts, options.get("generator")
            arguments["generator"] = draw_in_memory(factors[0].device, count, generator, self.name)
            return self(*factors, **arguments)
        factors = self.given(factors, arguments)
        how = self.implementation if reason is Reason.MISS else self.run
        return how(*factors, arguments)

    def dropout_mask(
        self, shape: Sequence[int], seed: int, offset: int, p: float, *, slot: int = 0
    ) -> Tensor:
        """Compute which elements a dropout of this op keeps: as `RowOp.dropout_mask`.

        Args:
            shape: The shape of the product that the dropout stands after.
            seed: The seed that the call took from its generator (docs/explanation/dropout.md).
            offset: The offset that the call took from its generator; 0 on a CPU.
            p: The probability with which an element is dropped, in [0, 1].
            slot: The number of the `Dropout` in the declaration, counted from 0.

        Raises:
            TypeError, ValueError: An argument is of the wrong kind or out of its range.
        """
        number = slot
        for each in self.epilogues:
            if number < each.dropouts or each is self.epilogues[-1]:
                break
            number, offset = number - each.dropouts, offset + each.dropouts
        return each.dropout_mask(shape, seed, offset, p, slot=number)

    def run_store(
        self, epilogue: Epilogue, z: Tensor, arguments: Mapping[str, Any], way: str = "__call__"
    ) -> Any:
        """Run a chain on its product; what is wrong with the call is found out once it has failed.

        Arguments are the operands of the chain and the options of the call, mixed; `way` is the
        method of the chain: "__call__", "unfused" or "explain".
        """
        run = epilogue if way == "__call__" else getattr(epilogue, way)
        if torch.compiler.is_compiling():
            self.check_arguments(arguments)
            return run(z, **arguments)
        if arguments.keys() & _FOREIGN:
            self.check_arguments(arguments)
        try:
            return run(z, **arguments)
        except FusedOpsError:
            raise
        except (TypeError, ValueError):
            self.check_broadcast(epilogue, z, arguments)
            raise

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Raise TypeError for an option that a product does not take."""
        for key in _FOREIGN:
            if arguments.get(key) is not None:
                raise TypeError(
                    f"{self.name}: {key} is no option of this op, got {shortened(arguments[key])}: "
                    "a row of the product is its last dimension; leave it away"
                )

    def check_names(self, arguments: Mapping[str, Any]) -> None:
        """Raise TypeError for an argument that the op does not take, or lacks. Dynamo traces it."""
        self.check_arguments(arguments)
        wanted = f"this op takes {', '.join(map(repr, self.slots)) or 'no operands'}"
        for key in arguments:
            if key not in self.slots and key not in TAKEN:
                near = nearest(key, (*self.slots, *TAKEN))
                raise TypeError(f"{self.name}: unknown operand {key!r}; {wanted}{near}")
        for key in self.slots:
            if key not in arguments and key not in self.optional:
                raise TypeError(
                    f"{self.name}: operand {key!r} is missing; {wanted}: pass {key}=..."
                )

    def given(self, factors: tuple[Any, ...], arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        """The factors, checked.

        `factors` are what the call gave by position, None for what it did not give; `arguments`
        what it gave by name.

        Raises:
            TypeError, ValueError: One does not fit, or is given by name or not at all, or there are
                more.
        """
        return given_factors(self, TAKEN, factors, arguments)

    def check_broadcast(self, epilogue: Epilogue, z: Tensor, arguments: Mapping[str, Any]) -> None:
        """Raise the error of an operand that does not fit, in words that know no x."""
        given = {key: arguments.get(key) for key in epilogue.slots if key not in epilogue.tables}
        check_broadcast(epilogue.name, "the product", z.shape, given)

    def _repr_html_(self) -> str:
        """The declaration as a notebook shows it."""
        from fusedops.explain.picture import declaration_html

        chains = {side: ("product", *chain) for side, chain in self.chains.items()}
        return declaration_html(self.name, chains, self.inputs, self.slots, self.outputs)


def given_factors(
    op: Any, options: Collection[str], factors: tuple[Any, ...], arguments: Mapping[str, Any]
) -> tuple[Any, ...]:
    """As `ProductOp.given`, of an op with `inputs`, `slots` and `check` that has these options."""
    count = len(op.inputs)
    if len(factors) == count and all(one is not None for one in factors):
        op.check(*factors)
        return factors
    wanted = f"a call is op({', '.join(op.inputs)}, ...)"
    for key in op.inputs:
        if key in arguments:
            raise TypeError(f"{op.name}: {key} is given by position: {wanted}")
    known = (*factors, *[None] * count)[:count]
    missing = [key for key, one in zip(op.inputs, known, strict=True) if one is None]
    if missing:
        near = [key for key in arguments if key not in op.slots and key not in options]
        by_name = f", not by name as {near[0]!r}" if near else ""
        raise TypeError(f"{op.name}: {missing[0]} is missing; {wanted}, these by position{by_name}")
    operands = f", here {', '.join(f'{key}=' for key in op.slots)}" if op.slots else ""
    raise TypeError(
        f"{op.name} takes {count} positional arguments, {', '.join(op.inputs)}, got "
        f"{len(factors)}; operands and options are given by keyword{operands}"
    )
