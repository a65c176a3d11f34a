# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The pointwise operations of torch that a functor may use, and the C++ of each.

A spelling is a format string over the names of the operation's arguments, or a function of them
where the text depends on a number. ``pointwise::`` is include/fusedops/core/pointwise.cuh. What is
not here is refused by name.

Integer operands and positions are computed in 64 bits as torch does (``whole::``, core/whole.cuh),
apart from the truth values and small counts of `functors.integers`, which a kernel holds in
floating point: an id may have any 64 bits. What torch computes of integers in another type than
int64 is refused, but for comparisons and conversions to floating point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

#: The C++ type of integers, and the kind of a `Step` that holds one.
WHOLE = "int64_t"

#: Operations on integers whose result is an integer: their C++.
_INTEGER_SPELLINGS = {
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

#: Comparisons, of integers and of floating point: their C++.
COMPARISONS = {
    name: f"{{self}} {sign} {{other}}"
    for name, sign in zip(
        ("eq", "ne", "lt", "le", "gt", "ge"), ("==", "!=", "<", "<=", ">", ">="), strict=True
    )
}

#: Divisions of integers, by constants other than 0.
DIVISIONS = ("floor_divide", "div", "remainder")

#: Exponents up to this are products; what is larger loses digits that a library's pow keeps.
_LARGEST_POWER = 4

#: The names of arguments that are truth values.
CONDITIONS = ("condition", "mask")


def integer_literal(value: int) -> str:
    """An integer in C++."""
    least = -(1 << 63)
    return "(-int64_t(9223372036854775807) - 1)" if value == least else f"int64_t({value})"


def integer_text(name: str, given: Mapping[str, Any]) -> str | None:
    """The C++ of an operation on integers that gives an integer; None if there is none.

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
            second = f"whole::mul({integer_literal(given['alpha'])}, {second})"
        return f"whole::{'add' if name == 'add' else 'sub'}({first}, {second})"
    if name in ("clamp", "clamp_min", "clamp_max"):
        return _clamp(given, "whole")
    if name == "pow" and given["exponent"] in range(1, _LARGEST_POWER + 1):
        text = str(given["self"])
        for _ in range(given["exponent"] - 1):
            text = f"whole::mul({text}, {given['self']})"
        return text
    if name == "div" and given.get("rounding_mode") != "floor":
        return None
    spelling = _INTEGER_SPELLINGS.get(name)
    return None if spelling is None else spelling.format_map(given)


Spelling: TypeAlias = str | Callable[[Mapping[str, Any]], str]


def literal(value: float) -> str:
    """A number in the compute type."""
    value = float(value)
    if math.isnan(value):
        return "quiet_nan<Compute>()"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}infinity<Compute>()"
    return f"Compute({value!r})"


def _sum(sign: str, first: str = "self", second: str = "other") -> Spelling:
    def text_of(given: Mapping[str, Any]) -> str:
        alpha = given.get("alpha", 1)
        factor = "" if alpha == 1 else f"{literal(alpha)} * "
        return f"{given[first]} {sign} {factor}{given[second]}"

    return text_of


#: The smallest normal float, of a divisor and of its reciprocal.
_SMALLEST = 2.0**-126


def _pow(given: Mapping[str, Any]) -> str:
    base, exponent = given["self"], given["exponent"]
    if isinstance(base, (int, float)):
        base = literal(base)
    if not isinstance(exponent, (int, float)):
        return f"pointwise::pow({base}, {exponent})"
    if exponent == 0:
        return literal(1)
    if abs(exponent) == 0.5:  # so torch, for -inf and -0
        return f"pointwise::{'sqrt' if exponent > 0 else 'rsqrt'}({base})"
    if exponent == int(exponent) and abs(exponent) <= _LARGEST_POWER:
        power = f"pointwise::power<{abs(int(exponent))}>({base})"
        return power if exponent > 0 else f"{literal(1)} / {power}"
    return f"pointwise::pow({base}, {literal(exponent)})"


def _div(given: Mapping[str, Any]) -> str:
    by = given["other"]
    if isinstance(by, (int, float)) and _SMALLEST <= abs(by) <= 1 / _SMALLEST:
        return f"pointwise::over({given['self']}, {literal(by)})"
    return f"{given['self']} / {_text(by)}"


def _clamp(given: Mapping[str, Any], space: str = "pointwise") -> str:
    text = _text(given["self"])
    if given.get("min") is not None:
        text = f"{space}::maximum({text}, {_text(given['min'])})"
    if given.get("max") is not None:
        text = f"{space}::minimum({text}, {_text(given['max'])})"
    return text


def _text(value: Any) -> str:
    return literal(value) if isinstance(value, (int, float)) else str(value)


def _calls(names: str, arguments: str) -> dict[str, Spelling]:
    """Operations that pointwise.cuh has under torch's own names."""
    return {name: f"pointwise::{name}({arguments})" for name in names.split()}


#: By the operation's name; one that works in place has an underscore more and the same spelling.
SPELLINGS: dict[str, Spelling] = {
    # arithmetic
    "add": _sum("+"),
    "sub": _sum("-"),
    "rsub": _sum("-", "other", "self"),
    "mul": "{self} * {other}",
    "div": _div,
    "neg": "-{self}",
    "reciprocal": "Compute(1) / {self}",
    "addcmul": "{self} + {value} * {tensor1} * {tensor2}",
    "addcdiv": "{self} + {value} * {tensor1} / {tensor2}",
    "square": "{self} * {self}",
    "pow": _pow,
    "lerp": "pointwise::lerp({self}, {end}, {weight})",
    # comparisons and choices
    **COMPARISONS,
    "isnan": "pointwise::is_nan({self})",
    "isinf": "pointwise::fabs({self}) == infinity<Compute>()",
    "where": "{condition} ? {self} : {other}",
    "masked_fill": "{mask} ? {value} : {self}",
    **_calls("maximum minimum fmax fmin", "{self}, {other}"),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    # logic, on truth values; without && and ||, whose branches would keep a loop from being vectors
    "logical_and": "{self} & {other}",
    "logical_or": "{self} | {other}",
    "logical_xor": "{self} != {other}",
    "logical_not": "!{self}",
    "bitwise_and": "{self} & {other}",
    "bitwise_or": "{self} | {other}",
    "bitwise_xor": "{self} != {other}",
    "bitwise_not": "!{self}",
    # functions of one number
    **_calls("exp exp2 expm1 log log1p log2 log10 sqrt rsqrt erf erfc sigmoid", "{self}"),
    **_calls("sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh", "{self}"),
    **_calls("floor ceil trunc sign", "{self}"),
    "abs": "pointwise::fabs({self})",
    "sgn": "pointwise::sign({self})",
    "round": "pointwise::rint({self})",
    "frac": "{self} - pointwise::trunc({self})",
    # functions of two
    **_calls("atan2 logaddexp xlogy", "{self}, {other}"),
    # activations, and the gradients that torch gives them
    "tanh_backward": "{grad_output} * (Compute(1) - {output} * {output})",
    "sigmoid_backward": "{grad_output} * (Compute(1) - {output}) * {output}",
    "relu": "pointwise::maximum({self}, Compute(0))",
    "threshold": "{self} <= {threshold} ? {value} : {self}",
    "threshold_backward": "{self} <= {threshold} ? Compute(0) : {grad_output}",
    "leaky_relu": "{self} > 0 ? {self} : {self} * {negative_slope}",
    "leaky_relu_backward": "{self} > 0 ? {grad_output} : {grad_output} * {negative_slope}",
    "gelu": "pointwise::gelu_{approximate}({self})",
    "gelu_backward": "pointwise::gelu_{approximate}_backward({grad_output}, {self})",
    **_calls("silu mish hardswish hardsigmoid", "{self}"),
    **_calls(
        "silu_backward mish_backward hardswish_backward hardsigmoid_backward",
        "{grad_output}, {self}",
    ),
    "log_sigmoid_forward": "pointwise::log_sigmoid({self})",
    "log_sigmoid_backward": "pointwise::log_sigmoid_backward({grad_output}, {self})",
    **_calls("softplus", "{self}, {beta}, {threshold}"),
    **_calls("softplus_backward", "{grad_output}, {self}, {beta}, {threshold}"),
    "elu": "pointwise::elu({self}, {alpha}, {scale}, {input_scale})",
    "celu": "pointwise::elu({self}, {alpha}, Compute(1), Compute(1) / {alpha})",
    "elu_backward": (
        "pointwise::elu_backward({grad_output}, {alpha}, {scale}, {input_scale}, {is_result}, "
        "{self_or_result})"
    ),
    "hardtanh": "pointwise::minimum(pointwise::maximum({self}, {min_val}), {max_val})",
    **_calls("hardtanh_backward", "{grad_output}, {self}, {min_val}, {max_val}"),
    "softshrink": "pointwise::softshrink({self}, {lambd})",
    "softshrink_backward": "pointwise::shrink_backward({grad_output}, {self}, {lambd})",
    "hardshrink": "pointwise::shrink_backward({self}, {self}, {lambd})",
    "hardshrink_backward": "pointwise::shrink_backward({grad_out}, {self}, {lambd})",
    # constants
    **dict.fromkeys(
        ["zeros_like", "zeros", "new_zeros", "zero", "_efficientzerotensor"], "Compute(0)"
    ),
    **dict.fromkeys(["ones_like", "ones", "new_ones"], "Compute(1)"),
    **dict.fromkeys(["full_like", "full", "new_full"], "{fill_value}"),
    "fill": "{value}",
    "scalar_tensor": "{s}",
}

#: Their arguments are truth values.
LOGICAL = frozenset(name for name in SPELLINGS if name.startswith(("logical_", "bitwise_")))

#: Their results are truth values.
PREDICATES = LOGICAL | COMPARISONS.keys() | {"isnan", "isinf"}

#: The result is the same tensor as the argument, in the same shape: what is written to one is in
#: the other.
SAME = frozenset(
    [
        *("alias", "detach", "view", "_unsafe_view", "reshape", "expand", "lift", "contiguous"),
        "_reshape_alias",
    ]
)

#: The result has the same values.
COPIES = frozenset(["clone", "_to_copy", "lift_fresh_copy", "lift_fresh", "positive"])

#: Memory without content, which a later operation fills.
EMPTY = frozenset(["empty", "empty_like", "new_empty"])

#: Arguments that do not change an element's value.
IDLE = frozenset(
    [
        *("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"),
        *("size", "stride", "implicit", "buffer", "self_is_result"),
    ]
)
