# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Serialise a declaration as text, by which a torch operator names its op, and read it back.

The text is the declaration as it prints. Where the operator or a functor is not part of fusedops,
the places of all classes follow after a ``#``, with a digest of the C++ that each means. Reading
evaluates and unpickles nothing, and imports no module but those of fusedops: what is not a known
class with plain values is refused.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from fusedops import functors
from fusedops.declare.declaration import Declaration
from fusedops.declare.op import Op
from fusedops.declare.operator import own_operators
from fusedops.errors import UnsupportedError
from fusedops.functors import Functor

#: The live ops of this process by their text; a text whose op no longer exists is parsed.
_spelled: weakref.WeakValueDictionary[str, Op] = weakref.WeakValueDictionary()

#: Classes that are not part of fusedops, by their places in a text. A class made in a function
#: cannot be found in its module.
_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()

_OWN = "-"
_MARK = "  # "
_LACKS = "without "


def spell(op: Op) -> str:
    """Write a declaration as text, from which `read` makes an equal one.

    >>> import fusedops as fo
    >>> spell(fo.Softmax(load=[fo.Scale("s")]))
    "Softmax(load=[Scale(scale='s')], empty_row='zero')"
    """
    said: tuple[Functor | Op, ...] = (op, *op.functors)
    places = list(map(_place, said))
    kinds = [type(one) for one in said]
    _classes.update((one, kind) for one, kind in zip(places, kinds, strict=True) if one != _OWN)
    text = op.declaration + (_MARK + " ".join(places) if {*places} != {_OWN} else "")
    _spelled.setdefault(text, op)
    return text


def read(text: str) -> Any:
    """Return the op, which can be called, whose text `spell` wrote in this or another process.

    Raises:
        UnsupportedError: A class in the text is not imported or has changed since, or the text was
            not written by `spell`.
    """
    return _spelled.get(text) or _read(text)


def lacking_text(text: str, names: tuple[str, ...]) -> str:
    """The text of a declaration whose call leaves out these optional operands, from its own.

    Dynamo traces it, so it makes no op; `read` does.
    """
    return f"{_LACKS}{' '.join(names)}: {text}"


def modules(text: str) -> list[str] | None:
    """The names of the modules to import before `text` is read in another process, each once.

    None if some class in the text can be imported from no module: it is defined in the main program
    or in a function.
    """
    _, _, places = text.partition(_MARK)
    found = [place.partition("@")[0].partition(":") for place in places.split() if place != _OWN]
    if any(module == "__main__" or "<locals>" in path for module, _, path in found):
        return None
    return list(dict.fromkeys(module for module, _, _ in found))


@functools.lru_cache(maxsize=1024)
def _read(text: str) -> Op:
    if text.startswith(_LACKS):
        names, _, whole = text.removeprefix(_LACKS).partition(": ")
        op: Op = read(whole)
        if not isinstance(op, Declaration) or not {*names.split()} <= {*op.optional}:
            raise _no_declaration(text)
        return op.without(tuple(names.split()))  # type: ignore[no-any-return]
    body, _, places = text.partition(_MARK)
    order = iter(places.split())  # of the op and its functors, as they are called
    try:
        made = _value(ast.parse(body, mode="eval").body, order, text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise _no_declaration(text) from error
    if not isinstance(made, Op):
        raise _no_declaration(text)
    called: tuple[Functor | Op, ...] = (made, *made.functors)
    wanted = places.split() or [_OWN] * len(called)
    if len(wanted) != len(called):
        raise _no_declaration(text)
    for one, place in zip(called, wanted, strict=True):
        if place != _place(one):
            kind = "operator" if isinstance(one, Op) else "functor"
            raise UnsupportedError(
                f"{type(one).__name__}: the {kind} of that name computes something else than "
                f"where {body} was traced; trace or export the program again"
            )
    return made


def _value(node: ast.expr, order: Iterator[str], text: str) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items):
            return [_value(item, order, text) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item, order, text) for item in items)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return -torch.inf
        case ast.Name(id="inf"):
            return torch.inf
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            dtype = getattr(torch, name, None)
            if isinstance(dtype, torch.dtype):
                return dtype
        case ast.Call(func=ast.Name(id=name), args=given, keywords=named):
            kind = _class(name, order, text)
            arguments = [_value(one, order, text) for one in given]
            options = {str(one.arg): _value(one.value, order, text) for one in named}
            return kind(*arguments, **options)
    raise _no_declaration(text)


def _no_declaration(text: str) -> UnsupportedError:
    return UnsupportedError(f"{text[:200]!r} is not the text of a fusedops declaration")


def _class(name: str, order: Iterator[str], text: str) -> Any:
    """The class of this name in the text; raises UnsupportedError if it is unknown."""
    place = next(order, _OWN)
    if place != _OWN:
        return _find(name, place)
    kind = own_operators.get(name) or getattr(functors, name, None)
    if isinstance(kind, type) and _is_own(kind):
        return kind
    raise UnsupportedError(f"{text!r}: fusedops has no {name}")


def _find(name: str, place: str) -> Any:
    """A class that is no shipped functor, from a module that is imported already or of fusedops."""
    module, _, path = place.partition("@")[0].partition(":")
    found: Any = _classes.get(place)
    if found is None:
        package, *parts = module.split(".")
        if package == __name__.partition(".")[0] and "__main__" not in parts:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        found = sys.modules.get(module)
        for part in path.split("."):  # not getattr: a module's __getattr__ may import
            found = getattr(found, "__dict__", {}).get(part)
    if isinstance(found, type) and issubclass(found, (Functor, Op)):
        return found
    if module == "__main__":
        cure = f"define {name} in a module that can be imported, not in the program itself"
    else:
        cure = (
            f"import {module} before the program is run (fusedops build: --import {module}), and "
            f"define {name} at its top level"
        )
    raise UnsupportedError(
        f"{name}: this program uses {path!r} of the module {module!r}, which is not there; {cure}"
    )


def _is_own(kind: type) -> bool:
    return kind in (own_operators.get(kind.__name__), getattr(functors, kind.__name__, None))


def _said(op: Declaration) -> tuple[object, ...]:
    """What an operator's class says of its C++, of which another class of its name may say else."""
    operands = [f"Operand{number}" for number in range(len(op.row_operands))]
    able = [f"Of{name}" for name, one in op.statistics.items() if one.differentiable]
    types = (op.cpp("float", *operands), op.gradient_cpp("float", *operands, *able))
    facts = (op.kept, op.numbers, tuple(op.statistics.items()), op.masks, op.logarithmic)
    return (*types, *facts)


def _place(one: Functor | Op) -> str:
    """Where the class of a functor or an operator is, and a digest of its C++ source.

    `_OWN` for one that is part of fusedops.
    """
    kind = type(one)
    if _is_own(kind):
        return _OWN
    headers: tuple[object, ...] = ()  # a product has no C++ of its own
    definition = ""
    if isinstance(one, Functor):
        headers, definition = tuple(one.headers), one.definition
    elif isinstance(one, Declaration):
        headers = (*one.headers(), *one.headers(gradient=True), *_said(one))
        definition = one.definition
    digest = hashlib.sha256(f"{headers} {definition}".encode()).hexdigest()
    return f"{kind.__module__}:{kind.__qualname__}@{digest[:16]}"
