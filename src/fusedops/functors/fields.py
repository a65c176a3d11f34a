# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Repr and validation of a functor's fields; `Named`, whose fields name its operands."""

from __future__ import annotations

import ctypes
import dataclasses
import keyword
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from fusedops.errors import check_flag, shortened
from fusedops.functors.base import Functor
from fusedops.functors.operands import FLOATING, Operand, Role

__all__ = [
    "check_arguments",
    "check_dtype",
    "check_name",
    "check_stream",
    "is_finite",
    "plain_number",
    "rounded",
    "shown",
]


def shown(functor: Any, *quiet: str) -> str:
    """The repr of a functor; keyword-only fields, and those in `quiet`, only if not default.

    A field that joins a class after its first release is one of these, so that declarations which
    do not use it keep their text.
    """
    fields = [
        f"{one.name}={getattr(functor, one.name)!r}"
        for one in sorted(dataclasses.fields(functor), key=lambda one: bool(one.kw_only))
        if not (one.kw_only or one.name in quiet) or getattr(functor, one.name) != one.default
    ]
    return f"{type(functor).__name__}({', '.join(fields)})"


def check_name(functor: object, field: str, name: object) -> None:
    """Raise TypeError or ValueError if an operand cannot have this name."""
    kind = type(functor).__name__
    if not isinstance(name, str):
        raise TypeError(
            f"{kind}: {field} names an operand and must be a string, got {shortened(name)}; the "
            "value itself is given at the call"
        )
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{kind}: {field} must be usable as a keyword argument, got {name!r}")


def check_stream(functor: object, field: str, name: object) -> None:
    """Raise TypeError or ValueError if a saved stream cannot have this name."""
    if not isinstance(name, str):
        raise TypeError(
            f"{type(functor).__name__}: {field} names an output of the call and must be a string, "
            f"got {shortened(name)}; write {field}='stream', say"
        )
    check_name(functor, field, name)
    if name.startswith("_") or hasattr(tuple, name):
        raise ValueError(
            f"{type(functor).__name__}: {field} names a field of the result, a named tuple, so it "
            "must neither begin with an underscore nor be a method of tuples (count, index), got "
            f"{name!r}"
        )


def check_dtype(functor: object, field: str, dtype: object) -> None:
    """Raise TypeError unless this is a floating dtype that kernels write."""
    if not isinstance(dtype, torch.dtype) or dtype not in FLOATING:
        known = ", ".join(map(str, FLOATING))
        raise TypeError(
            f"{type(functor).__name__}: {field} must be one of {known}, got {shortened(dtype)}"
        )


def check_arguments(kind: type, given: Sequence[object], options: Mapping[str, object]) -> None:
    """Raise TypeError for arguments that no field of a dataclass is for."""
    fields = dataclasses.fields(kind)
    by_place = sum(not one.kw_only for one in fields)
    known = [f"{one.name}={' by name' if one.kw_only else ''}" for one in fields]
    wrong = [shortened(value) for value in given[by_place:]]
    unknown = options.keys() - {one.name for one in fields}
    wrong += [f"{name}={shortened(options[name])}" for name in sorted(unknown)]
    if wrong:
        cure = f"it has {', '.join(known)}" if known else "it has none, so leave that out"
        raise TypeError(f"{kind.__name__}: {wrong[0]} is no argument of it; {cure}")


def is_finite(value: object) -> bool:
    """Whether a constant is a number, numpy's among them, that a double can hold."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the largest double
        return False


def plain_number(value: Any) -> Any:
    """A number of another type, numpy's say, as an int or a float, whose repr is read anywhere.

    Anything else is returned as it is.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def rounded(value: float, compute: str) -> float:
    """A constant rounded to the compute type; infinite, as in torch, beyond the largest float."""
    return ctypes.c_float(value).value if compute == "float" else value


class Named(Functor):
    """Base of functors that have a field for the name of each operand, and may have flags.

    Attributes:
        roles: The role of each operand by its field, in the order of the C++ struct's members.
    """

    roles: ClassVar[Mapping[str, Role]]

    def __post_init__(self) -> None:
        for field in self.roles:
            check_name(self, field, getattr(self, field))
        check_flag(type(self).__name__, "optional", self.optional)
        check_flag(type(self).__name__, "hardware_tanh", self.hardware_tanh)

    def operands(self) -> tuple[Operand, ...]:
        return tuple(Operand(getattr(self, field), role) for field, role in self.roles.items())

    __repr__ = shown
