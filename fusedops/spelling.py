# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A declaration as text, and back: how an operator of torch knows which op it runs.

The text is the declaration as it prints. Functors that fusedops does not come with follow after a
``#``: where their class is, and a digest of the C++ that they mean. Reading evaluates, imports and
unpickles nothing: what is not a known class with plain values is refused.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch

from fusedops import functors
from fusedops.errors import UnsupportedError
from fusedops.functors import Functor

if TYPE_CHECKING:
    from fusedops.row_op import RowOp

__all__ = ["read", "spell"]

#: Ops of this process by their text; a text whose op is gone is read.
_spelled: weakref.WeakValueDictionary[str, RowOp] = weakref.WeakValueDictionary()

_OPS = ("Softmax", "LogSoftmax", "LayerNorm", "RMSNorm")
_MARK = "  # "


def spell(op: RowOp) -> str:
    """The text of a declaration, from which `read` makes an equal one.

    >>> import fusedops as fo
    >>> spell(fo.Softmax(load=[fo.Scale("s")]))
    "Softmax(load=[Scale(scale='s')], empty_row='zero')"
    """
    foreign = [one for one in (*op.load, *op.store) if not _is_own(type(one))]
    places = dict.fromkeys(_place(one) for one in foreign)
    if type(op).__module__ != "fusedops.ops":
        places[f"{type(op).__module__}:{type(op).__qualname__}"] = None
    text = repr(op) + (_MARK + " ".join(places) if places else "")
    _spelled.setdefault(text, op)
    return text


def read(text: str) -> RowOp:
    """The declaration of a text that `spell` made, in whichever process.

    Raises:
        UnsupportedError: A class of the text is not there, is another now, or the text is none of
            `spell`'s.
    """
    return _spelled.get(text) or _read(text)


@functools.lru_cache(maxsize=1024)
def _read(text: str) -> RowOp:
    body, _, places = text.partition(_MARK)
    foreign = {name: one for one in places.split() for name in [_name_in(one)]}
    try:
        tree = ast.parse(body, mode="eval").body
    except SyntaxError:
        tree = ast.Constant(None)
    made = _value(tree, foreign, text)
    from fusedops.row_op import RowOp

    if not isinstance(made, RowOp):
        raise UnsupportedError(f"{text!r} is not the text of a fusedops declaration")
    for functor in (*made.load, *made.store):
        if not _is_own(type(functor)) and _place(functor) not in places.split():
            raise UnsupportedError(
                f"{type(functor).__name__}: the functor of that name computes something else than "
                f"where {body} was traced; trace or export the program again"
            )
    return made


def _value(node: ast.expr, foreign: dict[str, str], text: str) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items):
            return [_value(item, foreign, text) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item, foreign, text) for item in items)
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
            kind = _class(name, foreign, text)
            arguments = [_value(one, foreign, text) for one in given]
            options = {str(one.arg): _value(one.value, foreign, text) for one in named}
            return kind(*arguments, **options)
    raise UnsupportedError(f"{text!r} is not the text of a fusedops declaration")


def _class(name: str, foreign: dict[str, str], text: str) -> Any:
    """A class by its name in the text."""
    from fusedops import ops

    if name in foreign:
        return _find(name, foreign[name])
    kind = getattr(ops, name) if name in _OPS else getattr(functors, name, None)
    if isinstance(kind, type) and (name in _OPS or _is_own(kind)):
        return kind
    raise UnsupportedError(f"{text!r}: fusedops has no {name}")


def _find(name: str, place: str) -> Any:
    """A class that fusedops does not come with, in a module that is imported."""
    from fusedops.row_op import RowOp

    module, _, path = place.partition("@")[0].partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, (Functor, RowOp)):
        return found
    raise UnsupportedError(
        f"{name}: this program uses a functor {path!r} of the module {module!r}, which is not "
        f"there; import {module} before the program is run, and define {name} at its top level"
    )


def _name_in(place: str) -> str:
    return place.partition("@")[0].rpartition(".")[2].rpartition(":")[2]


def _is_own(kind: type) -> bool:
    return getattr(functors, kind.__name__, None) is kind


def _place(functor: Functor) -> str:
    """Where a class is, and what it means."""
    kind = type(functor)
    digest = hashlib.sha256(f"{functor.headers} {functor.definition}".encode()).hexdigest()
    return f"{kind.__module__}:{kind.__qualname__}@{digest[:16]}"
