# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Check the functors in load and store of a declaration, and collect the operands they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from fusedops.declare.operator import Operator
from fusedops.declare.options import OPTIONS
from fusedops.errors import shortened
from fusedops.functors import Functor, Operand, Role, TableOf, check_stream
from fusedops.functors.suggestions import for_functor

__all__ = [
    "check_chain",
    "check_free",
    "functors_of",
    "operands_of",
    "optional_of",
    "pair_of",
    "partners_of",
]

#: Names that no operand and no saved stream may have: results, options and x use them. So are
#: those of the operator's statistics.
_RESERVED = (*OPTIONS, "y", "x", "self")


def check_chain(op: Operator, side: str, functors: Iterable[Functor]) -> tuple[Functor, ...]:
    """Check the functors of one side of a declaration; return them as a tuple, in order.

    Raises:
        TypeError: One of them is no functor, or there is no sequence of functors.
        ValueError: A functor has no meaning on that side of this op.
    """
    name = op.title
    chain = functors_of(name, side, functors, lambda given: _of_row(op, given))
    for functor in chain:
        if functor.masks and not op.masks:
            raise ValueError(
                f"{name}: {functor!r} cannot stand here: a masked element leaves the row, for "
                "which this op has no meaning; masks belong in the load of a softmax, a norm or Map"
            )
        if functor.masks and side == "store":
            raise ValueError(
                f"{name}: {functor!r} cannot stand in store: what is masked must be known before "
                "the reduction; put it in load"
            )
        scores = op.masks and side == "load" and (functor.masks or not op.zeroes_masked)
        if functor.needs_query and not scores:
            raise ValueError(
                f"{name}: {functor!r} cannot stand here: it compares queries with keys, which only "
                "scores have; it belongs in the load of Softmax, LogSoftmax or Map"
            )
        if functor.saves is not None and side == "store":
            raise ValueError(
                f"{name}: {functor!r} cannot save in store: the value there is the output itself; "
                "save= belongs in load"
            )
        if functor.taps is not None and side == "store" and op.zeroes:
            raise ValueError(
                f"{name}: {functor!r} cannot stand in the store of a norm whose load masks "
                "elements, which are zero in y alone; call a norm without a store, and what "
                "follows it as a Map of its y"
            )
        if functor.taps is not None and side == "load":
            raise ValueError(
                f"{name}: {functor!r} cannot stand in load, parts of which are not computed; what "
                "a load returns is a Save"
            )
        if functor.quantizes is not None or functor.block is not None:
            _check_last(op, side, functor, chain)
        _check_traits(functor)
    return chain


def pair_of(op: Operator) -> Functor | None:
    """The functor that reads a partner column, if there is one.

    Raises:
        ValueError: It has no meaning in this op, or beside one of the others.
    """
    name, chains = op.title, (*op.load, *op.store)
    pairing = [functor for functor in chains if functor.pairs]
    if not pairing:
        return None
    one = pairing[0]
    if not op.pairs:
        raise ValueError(
            f"{name}: {one!r} cannot stand here: it reads a partner column, which the load and the "
            "store of LayerNorm, RMSNorm and L2Norm and the load of Map can; call a Map with it "
            "before or after"
        )
    if len(pairing) > 1:
        raise ValueError(
            f"{name}: {pairing[1]!r} cannot stand beside {one!r}: of functors that read a partner "
            "column a declaration has one; call a Map with the other"
        )
    before = op.store[: op.store.index(one)] if one in op.store else ()
    for other in chains:
        in_blocks = other.block is not None and one in op.store
        tapped = other.taps is not None and other in before
        if other.masks or other.saves is not None or tapped or in_blocks:
            raise ValueError(
                f"{name}: {other!r} cannot stand beside {one!r}, before which the chain is "
                "computed twice, at a column and at its partner; call a Map with one of them"
            )
    return one


def _check_last(op: Operator, side: str, functor: Functor, chain: tuple[Functor, ...]) -> None:
    """Raise ValueError for a functor that has to be the last of a STORE, and is not."""
    name = op.title
    if side == "load":
        raise ValueError(
            f"{name}: {functor!r} cannot stand in load: what it makes is the result; put it last "
            "in store"
        )
    if chain.index(functor) != len(chain) - 1:
        others = [one for one in chain if one is not functor]
        raise ValueError(
            f"{name}: {functor!r} must be the last functor of store, since nothing is computed "
            f"from its result; write store={[*others, functor]!r}"
        )
    if functor.maximum is not None and op.zeroes:
        raise ValueError(
            f"{name}: {functor!r} cannot return a maximum in the store of a norm whose load masks "
            "elements, which are zero in y alone; leave amax out, or call a norm without a store, "
            "and a Map with the functor of its y"
        )


def check_free(op: Any, functor: Functor | None, name: str) -> None:
    """Raise ValueError if an output of this name has the name of an operand or another output."""
    if name in op.outputs or name in op.slots:
        raise ValueError(f"{op.title}: {functor!r}: the name {name!r} is taken; choose another")


def functors_of(
    name: str, side: str, functors: Any, cure_of: Callable[[Any], str] = lambda given: ""
) -> tuple[Functor, ...]:
    """The functors of one argument of a declaration as a tuple, whatever they do.

    `cure_of` gives the cure in an error for what is none, or an empty text.

    Raises:
        TypeError: One of them is no functor, or there is no sequence of functors.
    """
    if isinstance(functors, Functor):
        return (functors,)
    if callable(functors) and not isinstance(functors, Iterable):
        functors = (functors,)  # a module, say: the error is that of one in a sequence
    odd = isinstance(functors, (str, bytes, Mapping, Tensor))  # which can be iterated, all the same
    if odd or not hasattr(functors, "__iter__"):
        if functors is None:
            cure = f"; leave {side} out where there are none"
        elif isinstance(functors, Tensor):
            cure = f"; tensors are given to the call: {name}()(x)"
        else:
            cure = cure_of(functors) or f"; write {side}=[fusedops.Scale('scale')], say"
        raise TypeError(
            f"{name}: {side} must hold functors, got {shortened(functors)} in place of a sequence "
            f"of them{cure}"
        )
    chain = tuple(functors)
    for functor in chain:
        if isinstance(functor, type) and issubclass(functor, Functor):
            title = functor.__name__
            raise TypeError(
                f"{name}: {side} must hold functors, got the class {title}; write {title}(...) "
                f"with the names of its operands, or {title}() if it has none"
            )
        if not isinstance(functor, Functor):
            said = f"{name}: {side} must hold functors, got {shortened(functor)}"
            raise TypeError(f"{said}{cure_of(chain) or for_functor(functor)}")
    return chain


def _check_traits(functor: Functor) -> None:
    """Raise TypeError or ValueError where a functor's traits do not fit its operands."""
    kind, operands = type(functor).__name__, functor.operands()
    odd = not isinstance(operands, (tuple, list))
    if odd or not all(isinstance(one, Operand) for one in operands):
        raise TypeError(
            f"{kind}: operands() must return a tuple of Operand, got {shortened(operands)}; write "
            "(Operand(self.name, Role.VALUE),), say"
        )
    roles = {one.name: one.role for one in operands}
    foreign = [name for name in functor.gradients() if name is not None and name not in roles]
    if foreign:
        raise ValueError(
            f"{kind}: gradients() names {foreign[0]!r}, but its operands are {[*roles]}; name one "
            "of them, or None for a number of the sink without a gradient"
        )
    if type(functor).headers is not Functor.headers:
        _check_headers(kind, functor.headers)
    stream, draws = functor.saves, functor.draws
    if stream is not None:
        check_stream(functor, "saves", stream.name)
        if stream.like is not None and roles.get(stream.like) is not Role.VALUE:
            raise ValueError(
                f"{kind}: saves a stream like {stream.like!r}, which is none of its operands of "
                f"Role.VALUE; name one of them, or None for x's dtype"
            )
    drawing = [name for name, role in roles.items() if role is Role.PROBABILITY]
    if drawing != ([] if draws is None else [draws]):
        raise ValueError(
            f"{kind}: draws is {draws!r}, but its operands of Role.PROBABILITY are {drawing}; a "
            "functor that draws has one such operand and returns its name from draws"
        )


def _check_headers(kind: str, headers: Any) -> None:
    """Raise TypeError or ValueError unless these are paths below include/fusedops/."""
    if isinstance(headers, str):
        raise TypeError(
            f"{kind}: headers must be a tuple of paths, got {headers!r}; write headers = "
            f"({headers!r},)"
        )
    for path in headers:
        if path.startswith("fusedops/"):
            raise ValueError(
                f"{kind}: headers are paths below include/fusedops/, got {path!r}; write "
                f"{path.removeprefix('fusedops/')!r}"
            )


def _of_row(op: Operator, given: Any) -> str:
    """The cure in an error for numbers in place of functors: torch's modules take a row's sizes."""
    several = isinstance(given, (tuple, list)) and given
    if not all(isinstance(one, int) for one in (given if several else [given])):
        return ""
    option = "normalized_shape" if op.several_dims else "dim"
    value = tuple(given) if several else given
    return f"; the call says what a row is: {op.title}()(x, {option}={shortened(value)})"


def optional_of(op: Operator) -> tuple[str, ...]:
    """The operands that a call may leave out, in order of first use, each once.

    Raises:
        ValueError: One functor needs an operand that another can do without.
    """
    functors = (*op.load, *op.store)
    names = tuple(dict.fromkeys(name for one in functors for name in one.may_lack))
    for functor in functors if names else ():
        for operand in functor.operands():
            if operand.name in names and operand.name not in functor.may_lack:
                raise ValueError(
                    f"{op.title}: {functor!r} needs its operand {operand.name!r}, which "
                    "another functor declares as optional; say optional=True of both, or use two "
                    "names"
                )
    for name in op.row_operands:
        if name in names:
            raise ValueError(
                f"{op.title}: the op itself needs its operand {name!r}, which a functor "
                "declares as optional; use two names"
            )
    return names


def names_of(chain: Iterable[Functor]) -> list[str]:
    """The names of the operands that functors read, in their order, as often as they do."""
    return [operand.name for functor in chain for operand in functor.operands()]


def partners_of(op: Operator) -> dict[str, tuple[str, ...]]:
    """By operand: the optional ones without which the functors that take it are left out."""
    found: dict[str, list[str]] = {}
    functors = (*op.load, *op.store)
    for functor in functors:
        users = [one.name for each in functors if each is not functor for one in each.operands()]
        for name in functor.may_lack:
            left = functor.without((name,))
            stays = {name, *users, *(one.name for one in (left.operands() if left else ()))}
            for operand in functor.operands():
                if operand.name not in stays:
                    found.setdefault(operand.name, []).append(name)
    return {name: tuple(partners) for name, partners in found.items()}


def operands_of(op: Operator) -> tuple[Operand, ...]:
    """The operands that functors and operator name, in order of first use, each once.

    Raises:
        ValueError: A name is reserved for the call, or stands for operands of two roles, or for a
            table of two dimensions of x.
    """
    name = op.title
    reserved = (*_RESERVED, *op.statistics)
    found: dict[str, Operand] = {}
    tables: dict[str, TableOf] = {}
    own = tuple(Operand(one, op.row_roles.get(one, Role.ROW)) for one in op.row_operands)
    users: list[tuple[Functor | None, tuple[Operand, ...]]] = [
        *((functor, functor.operands()) for functor in op.load),
        (None, own),
        *((functor, functor.operands()) for functor in op.store),
    ]
    for functor, operands in users:
        stream = None if functor is None else functor.saves or functor.taps
        for table in () if functor is None else functor.tables:
            if tables.setdefault(table.table, table).dim != table.dim:
                raise ValueError(
                    f"{name}: the table {table.table!r} stands for two dimensions of x, "
                    f"{tables[table.table].dim} and {table.dim}; use two names"
                )
        for operand in operands:
            if operand.name in reserved:
                who = name if functor is None else repr(functor)
                raise ValueError(
                    f"{name}: {who} names its operand {operand.name!r}, which the "
                    f"call itself uses; choose another name than {', '.join(reserved)}"
                )
            known = found.setdefault(operand.name, operand)
            if known.role is not operand.role:
                raise ValueError(
                    f"{name}: operand {operand.name!r} is named twice, as {known.role.value} and "
                    f"as {operand.role.value}; use two names"
                )
        if stream is not None and stream.name in reserved:
            raise ValueError(
                f"{name}: {functor!r}: the name {stream.name!r} is taken; choose another"
            )
    return tuple(found.values())
