# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Whole numbers in a functor: integer operands and positions, computed in 64 bits as torch does.

They are apart from the truth values and small counts of `functors.integers`, which a kernel holds
in floating point: an id may have any 64 bits. What torch computes of them in another type than
int64 is refused, but for comparisons and conversions to floating point.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The C++ type of these numbers, and the kind of a `Step` that holds one.
WHOLE = "int64_t"

#: Operations whose result is a whole number, of whole numbers: their C++.
_SPELLINGS = {
    "mul": "whole::mul({self}, {other})",
    "neg": "whole::neg({self})",
    "abs": "whole::abs({self})",
    "sign": "whole::sign({self})",
    "sgn": "whole::sign({self})",
    "minimum": "whole::minimum({self}, {other})",
    "maximum": "whole::maximum({self}, {other})",
    "bitwise_and": "{self} & {other}",
    "bitwise_or": "{self} | {other}",
    "bitwise_xor": "{self} ^ {other}",
    "bitwise_not": "~{self}",
    "where": "{condition} ? {self} : {other}",
    "masked_fill": "{mask} ? {value} : {self}",
    "floor_divide": "whole::floor_divide({self}, {other})",
    "div": "whole::floor_divide({self}, {other})",
    "remainder": "whole::remainder({self}, {other})",
    "fill": "{value}",
}

#: Operations whose result is a truth value.
COMPARISONS = {
    name: f"{{self}} {sign} {{other}}"
    for name, sign in zip(
        ("eq", "ne", "lt", "le", "gt", "ge"), ("==", "!=", "<", "<=", ">", ">="), strict=True
    )
}

#: Their divisors are constants other than 0.
DIVISIONS = ("floor_divide", "div", "remainder")

#: Exponents of powers that are products.
_POWERS = (1, 2, 3, 4)

#: The names of arguments that are truth values.
CONDITIONS = ("condition", "mask")


def literal(value: int) -> str:
    """A whole number in C++."""
    least = -(1 << 63)
    return "(-int64_t(9223372036854775807) - 1)" if value == least else f"int64_t({value})"


def spelled(name: str, given: Mapping[str, Any]) -> str | None:
    """The C++ of an operation that makes a whole number; None if there is none.

    Args:
        name: The operation's.
        given: Its arguments: text of whole numbers, of truth values for `CONDITIONS`, and None for
            what is not given. The factor `alpha` of a sum and an `exponent` are numbers.
    """
    if name in ("add", "sub", "rsub"):
        first, second = given["self"], given["other"]
        if name == "rsub":
            first, second = second, first
        if given.get("alpha", 1) != 1:
            second = f"whole::mul({literal(given['alpha'])}, {second})"
        return f"whole::{'add' if name == 'add' else 'sub'}({first}, {second})"
    if name in ("clamp", "clamp_min", "clamp_max"):
        text = str(given["self"])
        if given.get("min") is not None:
            text = f"whole::maximum({text}, {given['min']})"
        if given.get("max") is not None:
            text = f"whole::minimum({text}, {given['max']})"
        return text
    if name == "pow" and given["exponent"] in _POWERS:
        text = str(given["self"])
        for _ in range(given["exponent"] - 1):
            text = f"whole::mul({text}, {given['self']})"
        return text
    if name == "div" and given.get("rounding_mode") != "floor":
        return None
    spelling = _SPELLINGS.get(name)
    return None if spelling is None else spelling.format_map(given)
