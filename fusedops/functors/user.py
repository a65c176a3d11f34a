# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Functors of the user's own: a Python function, from which C++ and derivative are derived."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fusedops.errors import IN_COMPILED_CODE, UnsupportedError
from fusedops.functors.base import Functor, Operand, Reads, Role, check_name
from fusedops.functors.definition import VALUE, Definition, define
from fusedops.functors.trace import Traced, trace

if TYPE_CHECKING:
    from fusedops.functors.protocols import Chain, Writer

__all__ = ["UserFunctor", "functor"]


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class UserFunctor(Functor):
    """Base of the classes of functors that `functor` and `cpp_functor` make.

    Attributes:
        arguments: For each parameter after x the name of an operand, or a number: a constant of the
            declaration.
    """

    arguments: tuple[str | float, ...]
    _made: Definition = dataclasses.field(compare=False)
    _traced: Traced = dataclasses.field(compare=False)
    header: ClassVar[str] = "core/pointwise.cuh"
    #: Its meaning in torch: the value, then the operands.
    function: ClassVar[Callable[..., Tensor] | None]
    parameters: ClassVar[inspect.Signature]
    #: What was derived, by the constants and by which operands are the same.
    derived: ClassVar[dict[tuple[int | str, ...], tuple[Definition, Traced]]]

    def __init__(self, *arguments: str | float, **named: str | float) -> None:
        title = type(self).__name__
        try:
            bound = self.parameters.bind(*arguments, **named)
        except TypeError as error:
            raise TypeError(
                f"{title}: {error}; name an operand for each of {title}{self.parameters}"
            ) from None
        bound.apply_defaults()
        for parameter, argument in bound.arguments.items():
            if isinstance(argument, (bool, int, float)) and self._takes_numbers():
                if math.isnan(argument):
                    raise ValueError(f"{title}: {parameter} must be a number, got NaN")
            else:
                check_name(self, parameter, argument)
        object.__setattr__(self, "arguments", tuple(bound.arguments.values()))
        made, traced = self._define()  # refuses what cannot be fused
        object.__setattr__(self, "_made", made)
        object.__setattr__(self, "_traced", traced)

    def operands(self) -> tuple[Operand, ...]:
        return tuple(Operand(name, Role.VALUE) for name in self._names())

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        forward = self._traced.forward
        if forward is None:
            self._check_unchanged()
        values = [
            torch.as_tensor(chain.value(name), dtype=x.dtype, device=x.device)
            for name in self._names()
        ]
        function = self._of_operands() if forward is None else forward[x.dtype]
        return function(x, *values).to(x.dtype).expand(x.shape)

    def reads(self, wanted: Collection[str]) -> Reads:
        program, names = self._made.program, self._names()
        used = program.gradient_reads([k for k, name in enumerate(names) if name in wanted])
        fetched = zip(names, program.operands, strict=True)
        return Reads(VALUE in used, tuple(name for name, spelled in fetched if spelled in used))

    def emit(self, writer: Writer) -> str:
        types = [writer.operand(name) for name in self._names()]
        if not types:
            writer.constant(0)
        return f"{self._made.name}<{', '.join(types)}>" if types else self._made.name

    @property
    def headers(self) -> tuple[str, ...]:
        return ("row/view.cuh", self.header)

    @property
    def definition(self) -> str:
        return self._made.text

    def _names(self) -> list[str]:
        """The names of the operands, each once, in order of first use."""
        return list(dict.fromkeys(one for one in self.arguments if isinstance(one, str)))

    def _takes_numbers(self) -> bool:
        return True

    def _define(self) -> tuple[Definition, Traced]:
        """Derive the C++, once for all declarations that say the same."""
        if torch.compiler.is_dynamo_compiling():
            raise UnsupportedError(f"{type(self).__name__}: {IN_COMPILED_CODE}")
        names = self._names()
        # Text tells 0.0 from -0.0 and 1 from True, which compare equal.
        key = tuple(names.index(a) if isinstance(a, str) else repr(a) for a in self.arguments)
        known = self.derived.get(key)
        if known is None:
            traced = self._derive()
            known = self.derived[key] = define(type(self).__name__, traced.program), traced
        return known

    def _derive(self) -> Traced:
        return trace(type(self).__name__, self._of_operands(), len(self._names()))

    def _of_operands(self) -> Callable[..., Tensor]:
        """The function as one of x and of each operand once."""
        names, function = self._names(), type(self).function
        assert function is not None

        def of_operands(x: Tensor, *values: Tensor) -> Tensor:
            # An operand that is named twice is one value.
            given = [values[names.index(a)] if isinstance(a, str) else a for a in self.arguments]
            return function(x, *given)

        return of_operands

    def _check_unchanged(self) -> None:
        """Raise UnsupportedError if a change of an outside value has changed the function."""
        if torch.compiler.is_compiling():
            return
        if self._derive().program != self._traced.program:
            raise UnsupportedError(
                f"{type(self).__name__}: what it reads from outside (a global, a default, an "
                "attribute) has changed since it was declared, which the kernel does not follow; "
                "make that an operand, or a number of the declaration"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.arguments))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.arguments


def make_class(
    name: str,
    base: type[UserFunctor],
    parameters: inspect.Signature,
    module: str,
    attributes: Mapping[str, Any],
) -> type[UserFunctor]:
    """Make a class of functors; instances are pickled by the name of the class in its module."""
    shown = parameters.replace(return_annotation=inspect.Signature.empty)
    content = {
        "parameters": parameters,
        "derived": {},
        "__signature__": shown,
        "__module__": module,
        "__qualname__": name,
        **attributes,
    }
    return type(name, (base,), content)


def functor(function: Callable[..., Tensor]) -> type[UserFunctor]:
    """Make a functor of a Python function of torch operations, elementwise over its arguments.

    The function gets the value first, then its operands, all of them tensors in the compute type;
    it returns a tensor. Its C++ and its derivative are derived from it. What it makes is a class: a
    declaration gives each parameter after the first a string, the name of the operand that the call
    passes, or a number, a constant of the declaration.

    The function must be made of pointwise torch operations. Reductions, changes of shape, random
    numbers and Python control flow over values are refused at declaration, by name. What the
    function reads from outside is read once, at the first declaration with these constants.

    >>> import torch, fusedops as fo
    >>> @fo.functor
    ... def softcap(x, cap):
    ...     return cap * torch.tanh(x / cap)
    >>> op = fo.Softmax(load=[fo.Scale("scale"), softcap("cap")])
    >>> op
    Softmax(load=[Scale(scale='scale'), softcap('cap')], empty_row='zero')
    >>> op(torch.tensor([[0.0, 1000.0]]), scale=2.0, cap=1.0)
    tensor([[0.2689, 0.7311]])

    Args:
        function: Of the value and any number of operands, all positional.
    """
    if torch.compiler.is_dynamo_compiling():
        raise UnsupportedError(f"functor: {IN_COMPILED_CODE}")
    if not inspect.isfunction(function):
        raise TypeError(f"functor: it decorates a Python function, got {function!r}")
    every = list(inspect.signature(function).parameters.values())
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    if not every or any(one.kind not in plain for one in every):
        raise TypeError(
            f"functor: {function.__name__} must take the value and then its operands, each as a "
            f"plain parameter, got {function.__name__}{inspect.signature(function)}"
        )
    attributes = {
        "function": staticmethod(function),
        "__doc__": function.__doc__,
        "__wrapped__": staticmethod(function),
        "__qualname__": function.__qualname__,
    }
    parameters = inspect.Signature(every[1:])
    return make_class(function.__name__, UserFunctor, parameters, function.__module__, attributes)
