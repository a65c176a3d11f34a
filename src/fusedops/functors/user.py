# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""User-defined functors, compiled from a Python function together with its derivative."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from fusedops.errors import IN_COMPILED_CODE, UnsupportedError, check_flag, shortened
from fusedops.functors.base import Functor
from fusedops.functors.definition import VALUE, Definition, define
from fusedops.functors.fields import check_name, plain_number
from fusedops.functors.hardware_tanh import InSteps, with_hardware_tanh
from fusedops.functors.operands import Operand, Reads, Role
from fusedops.functors.protocols import Chain, Writer
from fusedops.functors.suggestions import made_into_functor
from fusedops.functors.trace import Traced, trace, with_positions


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
    cancels: ClassVar[bool] = True  # nobody knows of a function of the user's own that it does not
    #: Its meaning in torch: the value, then the operands.
    function: ClassVar[Callable[..., Tensor] | None]
    parameters: ClassVar[inspect.Signature]
    #: The parameters that are integers.
    integers: ClassVar[frozenset[str]] = frozenset()
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
        for parameter, given in bound.arguments.items():
            argument = bound.arguments[parameter] = plain_number(given)
            if isinstance(argument, (bool, int, float)) and self._takes_numbers():
                if math.isnan(argument):
                    raise ValueError(f"{title}: {parameter} must be a number, got NaN")
            else:
                check_name(self, parameter, argument)
        object.__setattr__(self, "arguments", tuple(bound.arguments.values()))
        self._check_kinds()
        made, traced = self._define()  # refuses what cannot be fused
        object.__setattr__(self, "_made", made)
        object.__setattr__(self, "_traced", traced)

    def operands(self) -> tuple[Operand, ...]:
        return tuple(
            Operand(
                name, Role.INTEGER if whole else Role.VALUE, "" if whole else self._as_whole(name)
            )
            for name, whole in zip(self._names(), self._whole(), strict=True)
        )

    def _as_whole(self, operand: str) -> str:
        """The hint in errors on how to declare an integer operand; empty for C++ expressions."""
        if not self._takes_numbers():
            return ""
        own = zip(self.parameters.parameters, self.arguments, strict=True)
        wanted = sorted(self.integers | {name for name, argument in own if argument == operand})
        return f"declare it so, '@fusedops.functor(integers={wanted})'"

    @property
    def masks(self) -> bool:  # type: ignore[override]
        return self._made.program.masks

    @property
    def bounds(self) -> bool:  # type: ignore[override]
        return bool(self._made.program.bounds)

    def bounds_along(self, rank: int, reduced: Sequence[int]) -> bool:
        program = self._made.program
        columns = dict(zip(program.positions, self.positions, strict=True))
        return any((columns[one.column] % rank,) == tuple(reduced) for one in program.bounds)

    @property
    def elementwise(self) -> bool:  # type: ignore[override]
        return not self.positions

    @property
    def positions(self) -> tuple[int, ...]:
        return self._traced.positions

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return self._run(x, chain).to(x.dtype).expand(x.shape)

    def masked(self, chain: Chain) -> Tensor:
        return ~self._run(chain.nothing(), chain)

    def _run(self, x: Tensor, chain: Chain) -> Tensor:
        """The value of the traced function for x."""
        forward, names = self._traced.forward, self._names()
        if forward is None:
            self._check_unchanged()
        values = [
            torch.as_tensor(chain.tensor(name), dtype=torch.int64, device=x.device)
            if whole
            else torch.as_tensor(chain.value(name), dtype=x.dtype, device=x.device)
            for name, whole in zip(names, self._whole(), strict=True)
        ]
        values += [chain.position(dim) for dim in self.positions]
        function = with_positions(self._of_operands(), len(names), self.positions)
        return (function if forward is None else forward[x.dtype])(x, *values)

    def reads(self, wanted: Collection[str]) -> Reads:
        if self.masks:
            return Reads(False, ())  # what left the row is known before
        program, names = self._made.program, self._names()
        used = program.gradient_reads([k for k, name in enumerate(names) if name in wanted])
        fetched = zip(names, program.operands, strict=True)
        return Reads(VALUE in used, tuple(name for name, spelled in fetched if spelled in used))

    def emit(self, writer: Writer) -> str:
        types = [writer.operand(name) for name in self._names()]
        types += [writer.position(dim) for dim in self.positions]
        if not types:
            writer.constant(0)
        return f"{self._made.name}<{', '.join(types)}>" if types else self._made.name

    @property
    def headers(self) -> tuple[str, ...]:
        program = self._made.program
        whole = ("row/position.cuh", "core/whole.cuh")
        return (
            "row/view.cuh",
            self.header,
            *(whole if program.integers or program.positions else ()),
        )

    @property
    def definition(self) -> str:
        return self._made.text

    def _names(self) -> list[str]:
        """The names of the operands, each once, in order of first use."""
        return list(dict.fromkeys(one for one in self.arguments if isinstance(one, str)))

    def _whole(self) -> list[bool]:
        """Whether each of these operands is of integers."""
        own = dict(zip(self.parameters.parameters, self.arguments, strict=True))
        whole = {argument for name, argument in own.items() if name in self.integers}
        return [name in whole for name in self._names()]

    def _check_kinds(self) -> None:
        """Raise TypeError or ValueError for an argument that does not fit its parameter."""
        title = type(self).__name__
        own = dict(zip(self.parameters.parameters, self.arguments, strict=True))
        kinds: dict[str, bool] = {}
        for name, argument in own.items():
            whole = name in self.integers
            if isinstance(argument, float) and whole:
                raise TypeError(f"{title}: {name} is an integer, got {argument!r}; give an int")
            if isinstance(argument, str) and kinds.setdefault(argument, whole) != whole:
                raise ValueError(
                    f"{title}: operand {argument!r} is named twice, as an integer and as floating "
                    "point; use two names"
                )

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
        try:
            return self._trace()
        except TypeError as error:
            other = self._with_numbers() if self._names() else None
            if other is None:
                raise
            given = zip(self.parameters.parameters, self.arguments, other.arguments, strict=True)
            names = ", ".join(name for name, one, number in given if one != number)
            said = " ".join(str(error).partition(", but expected")[0].split())
            raise UnsupportedError(
                f"{type(self).__name__}: it takes a number for {names}, got the name of an operand "
                f"({said}); give the number in the declaration, {other!r} say, or write the "
                "function with torch.where and arithmetic, which take operands as well"
            ) from error

    def _trace(self) -> Traced:
        traced = trace(type(self).__name__, self._of_operands(), self._whole())
        if not self.hardware_tanh:
            return traced
        return traced._replace(program=with_hardware_tanh(traced.program))

    def _with_numbers(self) -> UserFunctor | None:
        """A copy with a number for each operand that cannot be a tensor; None if that fails."""
        found: UserFunctor | None = None
        pairs = list(zip(self.parameters.parameters, self.arguments, strict=True))
        arguments: list[str | float] = [
            (1 if name in self.integers else 0.1) if isinstance(one, str) else one
            for name, one in pairs
        ]
        names = [k for k, (_, one) in enumerate(pairs) if isinstance(one, str)]
        for at in (None, *names):  # numbers alone, then each name where it may stay
            tried = [pairs[k][1] if k == at else one for k, one in enumerate(arguments)]
            other = object.__new__(type(self))
            object.__setattr__(other, "arguments", tuple(tried))
            try:
                other._trace()
            except Exception:
                if at is None:
                    return None
            else:
                found, arguments = other, tried
        return found

    def _of_operands(self) -> Callable[..., Tensor]:
        """The function as one of x and of each operand once."""
        names, function = self._names(), type(self).function
        assert function is not None

        def of_operands(x: Tensor, *values: Tensor) -> Tensor:
            # An operand that is named twice is one value.
            given = [values[names.index(a)] if isinstance(a, str) else a for a in self.arguments]
            with InSteps() if self.hardware_tanh else contextlib.nullcontext():
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


@overload
def functor(function: Callable[..., Tensor], /) -> type[UserFunctor]: ...
@overload
def functor(
    *, integers: Sequence[str] = (), hardware_tanh: bool = False
) -> Callable[[Callable[..., Tensor]], type[UserFunctor]]: ...
def functor(
    function: Callable[..., Tensor] | None = None,
    /,
    *,
    integers: Sequence[str] = (),
    hardware_tanh: bool = False,
) -> type[UserFunctor] | Callable[[Callable[..., Tensor]], type[UserFunctor]]:
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

    Inside, `fusedops.position` gives the coordinates of the element in x. A function that returns
    truth values is a mask, for the LOAD of a softmax: an element takes part where they are True,
    and columns that comparisons of positions rule out are not loaded.

    >>> @fo.functor(integers=["prefix"])
    ... def prefix_lm(x, prefix):
    ...     query, key = fo.position(-2), fo.position(-1)
    ...     return (key <= query) | (key < prefix)
    >>> fo.Softmax(load=[prefix_lm("n")])(torch.zeros(3, 3), n=2)
    tensor([[0.5000, 0.5000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])

    Args:
        function: Of the value and any number of operands, all positional.
        integers: The names of the parameters that are integers. The function gets them in int64,
            whatever the call passes: a tensor of integers or truth values, or an int. Arithmetic
            with them is that of int64, without rounding; they have no gradient.
        hardware_tanh: Whether a GPU computes tanh, sigmoid, SiLU and GELU by tanh by its own
            instruction, of 11 bits: as of `Softcap`.

    Raises:
        TypeError: It decorates no function, integers names no parameter after the first, or
            hardware_tanh is no bool.
    """
    check_flag("functor", "hardware_tanh", hardware_tanh)
    if function is None:
        return functools.partial(_functor, integers=integers, hardware_tanh=hardware_tanh)
    return _functor(function, integers, hardware_tanh)


def _functor(
    function: Callable[..., Tensor], integers: Sequence[str], hardware_tanh: bool
) -> type[UserFunctor]:
    """The class of the functors of a function."""
    if torch.compiler.is_dynamo_compiling():
        raise UnsupportedError(f"functor: {IN_COMPILED_CODE}")
    if not inspect.isfunction(function):
        raise TypeError(
            f"functor: it decorates a Python function, got {shortened(function)}; "
            f"{made_into_functor(function)}"
        )
    every = list(inspect.signature(function).parameters.values())
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    if not every or any(one.kind not in plain for one in every):
        raise TypeError(
            f"functor: {function.__name__} must take the value and then its operands, each as a "
            f"plain parameter, got {function.__name__}{inspect.signature(function)}"
        )
    names = [one.name for one in every[1:]]
    if isinstance(integers, str) or not all(one in names for one in integers):
        raise TypeError(
            f"functor: integers must list parameters of {function.__name__} after the first, "
            f"{names}, got {integers!r}"
        )
    attributes = {
        "function": staticmethod(function),
        "integers": frozenset(integers),
        "hardware_tanh": hardware_tanh,
        "header": "core/hardware_tanh.cuh" if hardware_tanh else UserFunctor.header,
        "__doc__": function.__doc__,
        "__wrapped__": staticmethod(function),
        "__qualname__": function.__qualname__,
    }
    parameters = inspect.Signature(every[1:])
    return make_class(function.__name__, UserFunctor, parameters, function.__module__, attributes)
