# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Facts about a node of a captured graph: name, tensor, arguments, whether it is pointwise.

Dynamo's graphs hold functions, methods and operators of torch as the program calls them, and an
example of each result, a tensor with shape and dtype but without values.

Autocast converts when the graph runs, so no node stands for it. What tells of it are the dtypes
of a product: one of float32 gives 16 bits only there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from fusedops.functors.integers import CONSTANT, SMALL
from fusedops.functors.operands import FLOATING
from fusedops.functors.pointwise import SPELLINGS

#: The products that autocast computes in its dtype from factors that it converts as they are, by
#: the names of their factors. (einsum may add up a factor in float32 before it is converted.)
_FACTORS = {
    "matmul": "input other",
    "__matmul__": "input other",
    "__rmatmul__": "input other",
    "bmm": "input mat2",
    "mm": "input mat2",
    "linear": "input weight",
}


def read_as(result: fx.Node) -> torch.dtype | None:
    """The dtype to which autocast converts a result wherever it is read; None if it does not.

    Rounding is the same in a kernel. That its gradient is then of this dtype loses nothing either
    where one product alone reads it: two would have theirs added in float32.
    """
    made = example(result)
    if made is None or made.dtype is not torch.float32 or len(result.users) != 1:
        return None
    (user,) = result.users
    product = example(user)
    names = _FACTORS.get(name_of(user))
    if names is None or product is None or product.dtype not in (torch.float16, torch.bfloat16):
        return None
    times = sum(one is result for one in (*user.args, *user.kwargs.values()))
    given = arguments(user, names)
    is_factor = any(given.get(name) is result for name in names.split())
    return product.dtype if is_factor and times == 1 else None


#: Where the functions of a graph may come from for their names to mean what torch's do.
_MODULES = ("torch", "_operator", "math")

#: What changes the state in which later nodes run: gradients on or off, autocast, hooks.
_STATE = ("_set_", "_enter_", "_exit_", "_saved_tensors_hooks", "_disable_", "_functorch")

#: Functions that write to their input where an argument says so.
_IN_PLACE = frozenset(
    """
    alpha_dropout celu dropout elu feature_alpha_dropout hardsigmoid hardswish hardtanh
    leaky_relu mish relu relu6 rrelu selu silu threshold
    """.split()  # noqa: SIM905
)

#: The functions of `operator` that stand for augmented assignments, as x += y.
_AUGMENTED = frozenset(
    """
    iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor
    """.split()  # noqa: SIM905
)


def name_of(node: Any) -> str:
    """The name of the torch function, method or operator that a node calls; empty if none."""
    if not isinstance(node, fx.Node):
        return ""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    target: Any = node.target
    name = getattr(target, "__name__", "")
    module = getattr(target, "__module__", None) or ""
    if module.split(".")[0] in _MODULES or getattr(torch, name, None) is target:
        return str(name).split(".")[0]
    return ""


def example(node: Any) -> Tensor | None:
    """The example tensor of a node's result; None unless it is a plain tensor."""
    if not isinstance(node, fx.Node):
        return None
    value = node.meta.get("example_value", node.meta.get("val"))
    return value if isinstance(value, Tensor) else None


def tensor_of(node: Any) -> Tensor:
    """The example tensor of a node that is known to have one."""
    found = example(node)
    assert found is not None
    return found


def number(argument: Any) -> float | int | bool | None:
    """The constant that an argument is in every run of the graph; None for anything else."""
    if isinstance(argument, (bool, int, float)):
        return argument
    if isinstance(argument, fx.Node):
        value = argument.meta.get("example_value")
        if isinstance(value, (bool, int, float)):
            return value
        # A float of the program that Dynamo carries as a symbol, though it is a constant.
        if isinstance(value, (torch.SymFloat, torch.SymInt)) and value.node.expr.is_number:
            found = value.node.expr
            return float(found) if isinstance(value, torch.SymFloat) else int(found)
    return None


def known(statement: Any) -> bool:
    """Whether a comparison of sizes holds for every size that the graph may meet."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(statement)


def hint(size: Any) -> int:
    """A size as the graph was captured with, without a guard on it."""
    if isinstance(size, int):
        return size
    found = size.node.hint
    return int(found) if found is not None else 1024  # of a size that only the data knows


def same_shape(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes are equal for every size that the graph may meet."""
    return len(one) == len(other) and all(known(a == b) for a, b in zip(one, other, strict=True))


def arguments(node: fx.Node, names: str) -> dict[str, Any]:
    """The arguments of a call by the names of its parameters, in their order."""
    return {**dict(zip(names.split(), node.args, strict=False)), **node.kwargs}


def first_of(node: fx.Node) -> Any:
    """The first argument of a call, by position or by its name in torch."""
    return node.args[0] if node.args else node.kwargs.get("input")


def tensors_of(node: fx.Node) -> list[fx.Node]:
    """The nodes among a node's arguments whose results are tensors."""
    return [one for one in node.all_input_nodes if example(one) is not None]


def barriers(graph: fx.Graph) -> dict[fx.Node, int]:
    """How many nodes before each node write to memory or change a state.

    Between two nodes of equal numbers nothing is written, so what is read there may be read
    earlier or later.
    """
    count, found = 0, {}
    for node in graph.nodes:
        own = _is_barrier(node)
        found[node] = count + own
        count += 2 * own
    return found


def transforms(graph: fx.Graph) -> Iterator[str]:
    """The transforms of torch.func (vmap, grad, jvp) that are part of a graph."""
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "")
        if "increment_nesting" in name:
            yield name


def _is_barrier(node: fx.Node) -> bool:
    if node.op == "call_module":
        return True
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name.startswith(_STATE) or "nesting" in name or name in ("setitem", "delitem", "setattr"):
        return True
    operators = getattr(node.target, "__module__", "") == "_operator"
    if operators and name in _AUGMENTED:
        return True
    if not operators and name.endswith("_") and not name.endswith("__"):
        return True
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace"):
        return True
    # dropout(input, p, training, inplace) has a flag more.
    flags = node.args[3:] if "dropout" in name else node.args[1:]
    return name in _IN_PLACE and any(one is True for one in flags)


#: What a generated functor may hold, by the names that functions, methods and operators share: what
#: has a spelling in C++ and is no constant, and what torch makes of that. The functor's own trace
#: refuses what it cannot compute all the same.
_NAMES = (SPELLINGS.keys() - CONSTANT - (SMALL - {"sign", "sgn"})) | set(
    """
    absolute and_ clip divide expit invert log_sigmoid logsigmoid multiply negative or_ relu6 selu
    softsign special_erf special_erfc special_expit special_expm1 special_log1p subtract tanhshrink
    true_divide truediv xor
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
    if made is None or (made.dtype not in FLOATING and made.dtype is not torch.bool):
        return False
    for argument in (*node.args, *node.kwargs.values()):
        if isinstance(argument, fx.Node):
            given = example(argument)
            if given is None and number(argument) is None:
                return False
            if given is not None and given.dtype not in (*FLOATING, torch.bool):
                return False
        elif not isinstance(argument, (bool, int, float, str, type(None))):
            return False
    return True


def is_elementwise(node: fx.Node) -> bool:
    """Whether a node is pointwise, even if no functor can hold it."""
    name = name_of(node).rstrip("_")  # in place or not
    if name in _NAMES | CASTS | _OTHER_CASTS or name == "dropout":
        return True
    packet = getattr(torch.ops.aten, name, None) if name else None
    overloads = [] if packet is None else [getattr(packet, one) for one in packet.overloads()]
    return any(torch.Tag.pointwise in one.tags for one in overloads)


def cast_of(node: fx.Node) -> tuple[fx.Node, torch.dtype] | None:
    """Source and dtype of a conversion between floating dtypes; None for other nodes."""
    if name_of(node) not in CASTS or not node.args:
        return None
    source, made, given = node.args[0], example(node), example(node.args[0])
    if made is None or given is None or made.device != given.device:
        return None
    if made.dtype not in FLOATING or given.dtype not in FLOATING:
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
    """Input and probability of a dropout, 0 in evaluation; None for other nodes."""
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
