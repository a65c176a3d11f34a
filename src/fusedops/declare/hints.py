# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Suggestions that end errors about unknown names: near names, and other libraries' terms."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from fusedops.errors import counted, shortened
from fusedops.functors.suggestions import FUNCTORS

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration

#: The option of a call, by the name that other libraries have for it.
_OPTIONS = {"axis": "dim", "axes": "dim", "seed": "generator", "rng": "generator"}

#: The operand of a call, by the names that other libraries have for it.
_OPERANDS = dict.fromkeys(
    ("counts", "offs", "group_sizes", "batch_sizes", "tokens_per_expert"), "offsets"
)

#: Functors that may stand only in the load of an op that has masks, and where rows are scores.
_MASKS = ("Mask", "Causal", "Window", "Lengths")
_SCORES = "Alibi"
#: Those that count queries.
_OF_QUERIES = ("Causal", "Window")


#: The argument of another op that has the same purpose.
_ARGUMENTS = {"stats": "lse", "return_lse": "lse", "logsumexp": "lse"}


#: What to do in place of an argument that losses of other libraries have.
_OF_LOSSES = {
    "weight": 'with reduction="none" a call returns one loss a row: multiply it by weight[target]',
}


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """A suggestion of the most similar known name, ``; did you mean 'this'?``, or an empty text.

    `likeness` is near 1 where there are many names, of which one is always a little alike.
    """
    lower = {one.lower(): one for one in known}
    if (meant := _OPERANDS.get(name)) in lower:
        return f"; did you mean {meant!r}?"
    found = difflib.get_close_matches(name.lower(), lower, 1, likeness)
    return f"; did you mean {lower[found[0]]!r}?" if found else ""


def for_call(op: Declaration, name: str, options: Iterable[str]) -> str:
    """A suggestion for an unknown keyword of a call; empty if no known name is near."""
    kind = op.name
    if op.constants.get(name) in op.row_operands:
        return f"; the declaration names it {op.constants[name]!r}: pass {op.constants[name]}=..."
    if name in op.constants or name in inspect.signature(type(op)).parameters:
        return f"; {name} belongs to the declaration: {kind}({name}=...)"
    if name == "x":
        return "; x is given once, and by its position"
    if name in _OPTIONS:
        return f"; say {_OPTIONS[name]}="
    if name in FUNCTORS and not op.slots:
        return f"; declare a functor for it in load or store, such as {FUNCTORS[name]}"
    return nearest(name, (*op.slots, *options))


def check_declaration(
    kind: type, arguments: tuple[Any, ...], named: dict[str, Any], options: Collection[str]
) -> None:
    """Raise TypeError for arguments that a class of ops does not take, with a cure.

    Python's own error would name no cure.

    The error tells apart keywords that are `options` of a call.
    """
    takes = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    if any(one.kind is one.VAR_KEYWORD for one in takes):
        return
    title, known = kind.__name__, [one.name for one in takes]
    for name in named:
        if name not in known:
            raise TypeError(
                f"{title}: unknown argument {name!r} of the declaration, which takes "
                f"{', '.join(known)}{_for_declaration(kind, name, known, options)}"
            )
    by_place = [one for one in takes if one.kind is one.POSITIONAL_OR_KEYWORD]
    if len(arguments) > len(by_place) and not any(one.kind is one.VAR_POSITIONAL for one in takes):
        raise TypeError(
            f"{title}: a declaration takes {', '.join(one.name for one in by_place)} by position, "
            f"got {counted(len(arguments), 'argument')}: {shortened(arguments)}; name the "
            f"others, of {', '.join(known)}"
        )


def _for_declaration(kind: type, name: str, known: list[str], options: Collection[str]) -> str:
    title = kind.__name__
    option = _OPTIONS.get(name, name)
    if option in options:
        return f"; {option} is an option of the call: {title}(...)(x, {option}=...)"
    if _ARGUMENTS.get(name) in known:
        return f"; say {title}({_ARGUMENTS[name]}=True)"
    if name in _OF_LOSSES and "reduction" in known:
        return f"; {_OF_LOSSES[name]}"
    functor = FUNCTORS.get(name, "")
    side = _side_of(kind, functor, known) if functor else ""
    if side:
        return (
            "; that is declared by a functor, and its value is given to the call: "
            f"{title}({side}=[{functor}])"
        )
    return nearest(name, known)


def _side_of(kind: type, functor: str, known: Collection[str]) -> str:
    """The chain of a class of ops in which a functor can stand; empty if there is none."""
    blocks = "load" in known and "store" not in known  # which LinearCrossEntropy runs it on
    channels = hasattr(kind, "together")  # of which a row is made, without queries
    masks = getattr(kind, "masks", True) and not getattr(kind, "together", False)
    scores = masks and not getattr(kind, "zeroes_masked", False)
    if functor.startswith(_MASKS) and not masks:
        return ""
    if functor.startswith(_SCORES) and not scores:
        return ""
    if functor.startswith(_OF_QUERIES) and channels:
        return ""
    if functor.startswith((*_OF_QUERIES, _SCORES, "Lengths", "Dropout")) and blocks:
        return ""
    late = functor.startswith(("Affine", "Dropout"))
    late = late and getattr(kind, "reduces", True) and getattr(kind, "has_result", True)
    return "store" if "load" not in known or (late and not blocks) else "load"
