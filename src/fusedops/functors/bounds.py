# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Column bounds of a mask made from indices, derived from its traced comparisons.

A comparison bounds the column where one side is the column, plus or minus numbers of the row, and
the other a number of the row: ``key <= query + 3``, ``(query - key).abs() < width``. Of two masks
that both hold the range is the intersection, of two of which one holds it is the hull. Any other
truth value bounds nothing. A range may be too wide and is never too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fusedops.functors.definition import Bounds, names
from fusedops.functors.integers import Memory, Tree, is_whole
from fusedops.functors.pointwise import COMPARISONS, integer_literal, integer_text

#: Larger than every coordinate.
_POSITION = 1 << 40

#: Sums of a few numbers up to this size do not wrap.
_SAFE = 1 << 60

#: Longer expressions are not worth their columns.
_LONGEST = 1000

_NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}

#: Operations whose result is no larger than the largest argument.
_NO_LARGER = (
    *("floor_divide", "div", "remainder", "minimum", "maximum", "clamp", "clamp_min", "clamp_max"),
    *("neg", "abs"),
)


class _Line(NamedTuple):
    """An integer expression: the column index times -1, 0 or 1, plus a number per row."""

    column: int  # that factor
    rest: str | None  # the number of the row as an expression; None for 0
    most: float  # the largest size that it can have

    def times(self, sign: int) -> _Line:
        rest = self.rest
        return self if sign > 0 else _Line(-self.column, rest and f"whole::neg({rest})", self.most)

    def plus(self, other: _Line) -> _Line | None:
        column = self.column + other.column
        if abs(column) > 1:
            return None
        rest = self.rest or other.rest
        if self.rest and other.rest:
            rest = f"whole::add({self.rest}, {other.rest})"
        return _Line(column, rest, self.most + other.most)


class _Range(NamedTuple):
    """A range of columns, half open, as expressions; None is no limit on that side."""

    begin: str | None = None
    end: str | None = None

    def and_also(self, other: _Range) -> _Range:
        def one(name: str, first: str | None, second: str | None) -> str | None:
            return f"whole::{name}({first}, {second})" if first and second else first or second

        return _Range(one("maximum", self.begin, other.begin), one("minimum", self.end, other.end))

    def or_else(self, other: _Range) -> _Range:
        def one(name: str, first: str | None, second: str | None) -> str | None:
            return f"whole::{name}({first}, {second})" if first and second else None

        return _Range(one("minimum", self.begin, other.begin), one("maximum", self.end, other.end))


class _Reading:
    """One interpretation of a mask: which of its coordinates is the column index.

    Attributes:
        members: The types of the struct's members, by what expressions call what they hold.
    """

    def __init__(self, trees: Mapping[str, Tree], members: Mapping[str, str], column: str) -> None:
        self.trees = trees
        self.members = members
        self.column = column

    def range(self, truth: Any, wanted: bool = True) -> _Range:
        """The columns in which a boolean expression can have the wanted value."""
        tree = self.trees.get(str(truth.text)) if isinstance(truth, Memory) else None
        if tree is None:
            return _Range()
        given = tree.given
        if tree.name in ("logical_not", "bitwise_not"):
            return self.range(given["self"], not wanted)
        if tree.name in ("logical_and", "bitwise_and", "logical_or", "bitwise_or"):
            both = tree.name.endswith("and") == wanted
            first, second = (self.range(given[key], wanted) for key in ("self", "other"))
            return first.and_also(second) if both else first.or_else(second)
        if tree.name in COMPARISONS:
            name = tree.name if wanted else _NEGATED[tree.name]
            return self._compared(name, given["self"], given["other"])
        return _Range()

    def _compared(self, name: str, first: Any, second: Any) -> _Range:
        """The columns in which a comparison can hold."""
        tree = self.trees.get(first.text) if is_whole(first) else None
        if tree is not None and tree.name == "abs" and name in ("lt", "le"):
            inner, limit = self.line(tree.given["self"]), self.line(second)
            if inner is None or limit is None:
                return _Range()
            below = self._solved(name, inner, limit)
            return below.and_also(self._solved(_MIRRORED[name], inner, limit.times(-1)))
        other = self.trees.get(second.text) if is_whole(second) else None
        if other is not None and other.name == "abs" and name in ("gt", "ge"):
            return self._compared(_MIRRORED[name], second, first)
        left, right = self.line(first), self.line(second)
        return _Range() if left is None or right is None else self._solved(name, left, right)

    def _solved(self, name: str, left: _Line, right: _Line) -> _Range:
        """The columns in which a comparison of two lines can hold."""
        if left.column == 0 and right.column:
            left, right, name = right, left, _MIRRORED[name]
        if right.column or not left.column:
            return _Range()
        limit = right
        if left.rest is not None or left.column < 0:
            if left.most + right.most > _SAFE:  # it might wrap
                return _Range()
            moved = right.plus(left._replace(column=0).times(-1))
            assert moved is not None
            limit = moved.times(left.column)
            name = name if left.column > 0 else _MIRRORED[name]
        at = limit.rest or integer_literal(0)
        if len(at) > _LONGEST:
            return _Range()
        known = " && ".join(
            f"detail::IsOfRow<{self.members[one]}>::value"
            for one in sorted(names(at) & self.members.keys())
        )

        def guarded(text: str, otherwise: str) -> str:
            return f"({known} ? {text} : {otherwise})" if known else text

        begin = {"ge": at, "gt": f"whole::after({at})", "eq": at}.get(name)
        end = {"lt": at, "le": f"whole::after({at})", "eq": f"whole::after({at})"}.get(name)
        return _Range(begin and guarded(begin, "0"), end and guarded(end, "whole::kMost"))

    def line(self, one: Any) -> _Line | None:
        """An integer expression as a line in the column index; None if it is not linear."""
        if isinstance(one, Memory) and one.number is not None:
            one = one.number
        if isinstance(one, int):
            return _Line(0, integer_literal(one), abs(one))
        if not is_whole(one):
            return None
        if one.text == self.column:
            return _Line(1, None, _POSITION)
        if one.text in self.members:
            position = self.members[one.text].startswith("Position")
            return _Line(0, one.text, _POSITION if position else float("inf"))
        tree = self.trees.get(one.text)
        return None if tree is None else self._computed(tree)

    def _computed(self, tree: Tree) -> _Line | None:
        given = tree.given
        if tree.name in ("add", "sub", "rsub") and given.get("alpha", 1) == 1:
            first, second = self.line(given["self"]), self.line(given["other"])
            if first is None or second is None:
                return None
            sign = 1 if tree.name == "add" else -1
            return (
                second.plus(first.times(-1))
                if tree.name == "rsub"
                else first.plus(second.times(sign))
            )
        lines = {
            key: self.line(value)
            for key, value in given.items()
            if isinstance(value, (Memory, int)) and not isinstance(value, bool) and key != "alpha"
        }
        if tree.name == "neg" and (inner := lines["self"]) is not None:
            return inner.times(-1)
        rests = {key: line.rest for key, line in lines.items() if line and not line.column}
        if len(rests) < len(lines):
            return None
        text = integer_text(tree.name, {**given, **{k: r or "0" for k, r in rests.items()}})
        sizes = [line.most for line in lines.values() if line]
        most = max(sizes) if tree.name in _NO_LARGER else float("inf")
        return None if text is None else _Line(0, text, most)


def bounds_of(
    value: str, trees: Mapping[str, Tree], operands: Sequence[str], positions: Sequence[str]
) -> tuple[Bounds, ...]:
    """The columns that a mask can keep, for each coordinate that bounds them if it is the column.

    `value` is what expressions call the truth value that says what is kept; `trees` says what names
    of truth values and of whole numbers stand for.
    """
    members = {name: f"Operand{k}" for k, name in enumerate(operands)}
    members |= {name: f"Position{k}" for k, name in enumerate(positions)}
    found = []
    for column in positions:
        begin, end = _Reading(trees, members, column).range(Memory(value))
        if begin or end:
            found.append(Bounds(column, begin or "0", end or "whole::kMost"))
    return tuple(found)
