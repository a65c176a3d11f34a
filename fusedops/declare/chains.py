# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What may stand in the load and the store of a declaration, and which operands it names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fusedops.errors import shortened
from fusedops.functors import Functor, Operand, Residual

if TYPE_CHECKING:
    from typing import Protocol

    class Declaration(Protocol):
        """What is asked here of a declaration in the making."""

        load: tuple[Functor, ...]
        store: tuple[Functor, ...]

        @property
        def masks(self) -> bool:
            """Whether masked elements leave the row."""

        @property
        def normalizes(self) -> bool:
            """Whether it is a norm."""


__all__ = ["OPTIONS", "check_chain", "operands_of"]

#: Keywords that the call itself uses.
OPTIONS = ("dim", "normalized_shape", "dtype", "out", "training", "generator")

#: Names that results and options use.
_RESERVED = (*OPTIONS, "y", "mean", "rstd", "x", "self")


def check_chain(op: Declaration, side: str, functors: Iterable[Functor]) -> tuple[Functor, ...]:
    """The functors of one side of a declaration, in order.

    Raises:
        TypeError: One is no functor.
        ValueError: One has no meaning there.
    """
    name = type(op).__name__
    if isinstance(functors, Functor):
        functors = (functors,)
    chain = _sequence(op, side, functors)
    for functor in chain:
        if isinstance(functor, type) and issubclass(functor, Functor):
            title = functor.__name__
            raise TypeError(
                f"{name}: {side} must hold functors, got the class {title}; write {title}(...) "
                f"with the names of its operands, or {title}() if it has none"
            )
        if not isinstance(functor, Functor):
            said = f"{name}: {side} must hold functors, got {shortened(functor)}"
            raise TypeError(f"{said}{_of_row(op, functors)}")
        if functor.masks and not op.masks:
            raise ValueError(
                f"{name}: {functor!r} cannot stand here: a masked element leaves the row, which a "
                "norm has no meaning for; masks belong in the load of Softmax or LogSoftmax"
            )
        if functor.masks and side == "store":
            raise ValueError(
                f"{name}: {functor!r} cannot stand in store: what is masked must be known before "
                "the reduction; put it in load"
            )
        if functor.needs_query and not (op.masks and side == "load"):
            raise ValueError(
                f"{name}: {functor!r} cannot stand here: it compares queries with keys, which only "
                "a softmax's input has; it belongs in the load of Softmax or LogSoftmax"
            )
        if isinstance(functor, Residual) and functor.save is not None and side == "store":
            raise ValueError(
                f"{name}: {functor!r} cannot save in store: the value there is the output itself; "
                "save= belongs in load"
            )
    return chain


def _sequence(op: Declaration, side: str, functors: Any) -> tuple[Any, ...]:
    odd = isinstance(functors, (str, bytes, Mapping, Tensor))  # which can be iterated, all the same
    if not odd and hasattr(functors, "__iter__"):
        return tuple(functors)
    name = type(op).__name__
    if functors is None:
        cure = f"; leave {side} out where there are none"
    elif isinstance(functors, Tensor):
        cure = f"; tensors are given to the call: {name}()(x)"
    else:
        cure = _of_row(op, functors) or f"; write {side}=[fusedops.Scale('scale')], say"
    raise TypeError(
        f"{name}: {side} must hold functors, got {shortened(functors)} in place of a sequence of "
        f"them{cure}"
    )


def _of_row(op: Declaration, given: Any) -> str:
    """What is meant by numbers, as torch's modules take them."""
    several = isinstance(given, (tuple, list)) and given
    if not all(isinstance(one, int) for one in (given if several else [given])):
        return ""
    option = "normalized_shape" if op.normalizes else "dim"
    value = tuple(given) if several else given
    return f"; the call says what a row is: {type(op).__name__}()(x, {option}={shortened(value)})"


def operands_of(op: Declaration) -> tuple[Operand, ...]:
    """The operands that the functors of both sides name, in order, each once.

    Raises:
        ValueError: A name is taken, or stands for two kinds of operands.
    """
    name = type(op).__name__
    found: dict[str, Operand] = {}
    for functor in (*op.load, *op.store):
        saved = functor.save if isinstance(functor, Residual) else None
        for operand in functor.operands():
            if operand.name in _RESERVED:
                raise ValueError(
                    f"{name}: {functor!r} names its operand {operand.name!r}, which the call "
                    f"itself uses; choose another name than {', '.join(_RESERVED)}"
                )
            known = found.setdefault(operand.name, operand)
            if known.role is not operand.role:
                raise ValueError(
                    f"{name}: operand {operand.name!r} is named twice, as {known.role.value} and "
                    f"as {operand.role.value}; use two names"
                )
        if saved in _RESERVED and saved is not None:
            raise ValueError(f"{name}: {functor!r}: save={saved!r} is taken; choose another name")
    return tuple(found.values())
