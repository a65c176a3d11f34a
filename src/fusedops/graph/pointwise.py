# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a captured graph compute each element from the same elements of their inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusedops.graph.nodes import arguments, example, name_of, number

__all__ = [
    "CASTS",
    "FLOATS",
    "cast_of",
    "dropout_of",
    "is_double",
    "is_elementwise",
    "is_pointwise",
    "widens",
]

#: The dtypes that x, results and operands of values may have.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

#: What a generated functor may hold, by the names that functions, methods and operators share. How
#: each is computed is not written here: the functor's own trace says that, or refuses it.
_NAMES = frozenset(
    """
    add sub rsub mul truediv div neg reciprocal pow square addcmul addcdiv lerp subtract multiply
    divide true_divide negative eq ne lt le gt ge isnan isinf logical_and logical_or logical_xor
    logical_not and_ or_ invert bitwise_and bitwise_or bitwise_not where masked_fill maximum
    minimum fmax fmin clamp clamp_min clamp_max clip exp exp2 expm1 log log1p log2 log10 sqrt
    rsqrt erf erfc sigmoid sin cos tan sinh cosh tanh asinh acosh atanh atan abs absolute sgn sign
    floor ceil trunc round frac atan2 logaddexp xlogy relu relu6 leaky_relu elu celu selu gelu
    silu mish softplus logsigmoid log_sigmoid hardtanh hardswish hardsigmoid threshold softsign
    softshrink hardshrink tanhshrink special_expit expit special_expm1 special_log1p special_erf
    special_erfc
    """.split()  # noqa: SIM905
)

#: Conversions by name; what they convert to is read from their results.
CASTS = frozenset(["to", "float", "half", "bfloat16", "double", "type", "type_as"])

#: Conversions to what no functor computes.
_OTHER_CASTS = frozenset(["bool", "byte", "char", "int", "long", "short"])

#: Keywords that would change what a node computes, or where.
_OPTIONS = ("out", "inplace", "rounding_mode", "decimals")


def is_pointwise(node: fx.Node) -> bool:
    """Whether a functor of a Python function may hold the node."""
    if name_of(node) not in _NAMES or any(node.kwargs.get(one) for one in _OPTIONS):
        return False
    made = example(node)
    if made is None or (made.dtype not in FLOATS and made.dtype is not torch.bool):
        return False
    for argument in (*node.args, *node.kwargs.values()):
        if isinstance(argument, fx.Node):
            given = example(argument)
            if given is None and number(argument) is None:
                return False
            if given is not None and given.dtype not in (*FLOATS, torch.bool):
                return False
        elif not isinstance(argument, (bool, int, float, str, type(None))):
            return False
    return True


def is_elementwise(node: fx.Node) -> bool:
    """Whether a node computes each element from the same elements, by a functor or not."""
    name = name_of(node).rstrip("_")  # in place or not
    if name in _NAMES | CASTS | _OTHER_CASTS or name == "dropout":
        return True
    packet = getattr(torch.ops.aten, name, None) if name else None
    overloads = [] if packet is None else [getattr(packet, one) for one in packet.overloads()]
    return any(torch.Tag.pointwise in one.tags for one in overloads)


def cast_of(node: fx.Node) -> tuple[fx.Node, torch.dtype] | None:
    """What a node converts and to which dtype, if it is a conversion between floats alone."""
    if name_of(node) not in CASTS or not node.args:
        return None
    source, made, given = node.args[0], example(node), example(node.args[0])
    if made is None or given is None or made.device != given.device:
        return None
    if made.dtype not in FLOATS or given.dtype not in FLOATS:
        return None
    if node.kwargs.get("memory_format") is not None:
        return None
    assert isinstance(source, fx.Node)
    return source, made.dtype


def widens(node: fx.Node) -> bool:
    """Whether a node is a conversion that rounds nothing."""
    cast = cast_of(node)
    source = None if cast is None else example(cast[0])
    if cast is None or source is None:
        return False
    return torch.promote_types(source.dtype, cast[1]) is cast[1]


def dropout_of(node: fx.Node) -> tuple[fx.Node, float] | None:
    """What a node drops out and with which probability; 0 where it is not training."""
    if name_of(node) != "dropout" or node.op != "call_function" or example(node) is None:
        return None
    given: dict[str, Any] = {"p": 0.5, "training": True, "train": True}
    functional = getattr(node.target, "__module__", "") == "torch.nn.functional"
    flag = "training" if functional else "train"
    given.update(arguments(node, f"input p {flag} inplace"))
    p, training = number(given["p"]), given[flag]
    if given.get("inplace") or p is None or not isinstance(training, bool):
        return None
    return given["input"], float(p) if training else 0.0


def is_double(node: fx.Node) -> bool:
    """Whether the result is computed in double."""
    made = example(node)
    return made is not None and made.dtype is torch.float64
