# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Trace a Python function and its derivative into programs for one element.

torch traces the function together with its ``torch.func.vjp``, so the derivatives are torch's own,
with its conventions at kinks and its care for large arguments. The samples have shapes and dtypes
but no values: nothing can depend on those. They are traced twice, in another shape and dtype, since
nothing may depend on these either. `op.unfused` runs what was traced, not the function: what this
reads from outside may change later.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from fusedops.errors import UnsupportedError
from fusedops.functors.bounds import bounds_of
from fusedops.functors.coordinates import NotGiven, positions
from fusedops.functors.definition import GRADIENT, VALUE, Program
from fusedops.functors.lowering import lower
from fusedops.functors.pointwise import SAME

#: Views of the sample's shape, which other tensors need not have.
_VIEWS = SAME - {"alias", "detach", "lift", "contiguous"}


def _any_shape(traced: fx.GraphModule, shape: tuple[int, ...]) -> Callable[..., Tensor]:
    """The traced operations as a torch function for an x of any shape and device.

    The value and the operands have this shape; all other tensors in the operations are single
    elements.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    attributes: dict[str, Tensor] = {}
    x: Any = None
    for node in traced.graph.nodes:
        if node.op == "call_function" and _name(node) in _VIEWS and _name(node) != "expand":
            copies[node] = copies[node.args[0]]
            continue
        copies[node] = copy = graph.node_copy(node, lambda one: copies[one])
        if node.op == "placeholder" and x is None:
            x = copy
            size = graph.call_function(getattr, (x, "shape"))
            device = graph.call_function(getattr, (x, "device"))
        elif node.op == "get_attr":  # a tensor may be written to
            attributes[str(node.target)] = getattr(traced, str(node.target)).detach().clone()
        elif node.op == "call_function":
            copy.args = tuple(size if _is(shape, one) else one for one in copy.args)
            copy.kwargs = {
                key: device if key == "device" and one is not None else one
                for key, one in copy.kwargs.items()
            }
    graph.lint()
    return fx.GraphModule(attributes, graph)


def _name(node: fx.Node) -> str:
    target = node.target
    return target.overloadpacket.__name__ if isinstance(target, torch._ops.OpOverload) else ""


def _is(shape: tuple[int, ...], argument: Any) -> bool:
    return isinstance(argument, (list, tuple)) and tuple(argument) == shape


#: So many seconds a trace in another thread may take; it takes a second or two.
_LONGEST = 60

_SAMPLES = (((2, 3), torch.float64), ((5,), torch.float32))


class Traced(NamedTuple):
    """A function as it was traced."""

    program: Program  # what it and its derivative do to an element
    #: The same of tensors, by the dtype of the arithmetic. None where torch could not differentiate
    #: it as the function itself (a `torch.autograd.Function`, a part under `torch.no_grad()`), or
    #: where C++ was given.
    forward: Mapping[torch.dtype, Callable[..., Tensor]] | None
    #: The dimensions of x whose coordinates it reads, in the order of the program's.
    positions: tuple[int, ...] = ()


class _Function(NamedTuple):
    """A function to be traced."""

    title: str  # what messages call it
    call: Callable[..., Tensor]  # the function, of x, of the operands and of the coordinates
    integers: tuple[bool, ...]  # of each operand and coordinate, whether it is of integers
    #: The dtype of what it returns; None where that is floating point.
    returns: torch.dtype | None = None

    @property
    def masks(self) -> bool:
        """Whether the function is a mask, which has no gradients."""
        return self.returns is not None


class _NotFloating(Exception):  # noqa: N818 (not an error: it tells how to trace)
    """A function that is traced returns this dtype, which is not floating point."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self.dtype = dtype


def trace(title: str, function: Callable[..., Tensor], integers: Sequence[bool]) -> Traced:
    """Trace the value of ``function(x, *operands)`` for one element, and its gradients.

    `integers` says of each operand whether it is of integers.

    Raises:
        UnsupportedError: It uses an operation that is not pointwise, or depends on values, shapes
            or dtypes; the message names the operation.
        TypeError: It does not return one floating-point tensor of x's shape, or truth values.
    """
    dims: list[int] = []
    returns: torch.dtype | None = None
    while True:  # until nothing is found that the function has to be given
        placed = with_positions(function, len(integers), dims)
        one = _Function(title, placed, (*integers, *(True for _ in dims)), returns)
        given = one, len(integers), tuple(dims)
        try:
            if not _is_traced():
                return _trace(*given)
            return _traced_apart(*given)
        except NotGiven as missing:
            dims.append(missing.dim)
        except _NotFloating as found:
            returns = found.dtype


def _traced_apart(one: _Function, operands: int, dims: tuple[int, ...]) -> Traced:
    """What `_trace` gives, in a thread of its own: a compiler and a transform set what is of one.

    The function may import the module that is declaring it, and then waits for this thread.
    """
    other = concurrent.futures.ThreadPoolExecutor(1)
    try:
        made = other.submit(_trace, one, operands, dims)
        concurrent.futures.wait([made], _LONGEST)
        if not made.done():
            raise UnsupportedError(
                f"{one.title}: tracing it has not ended after {_LONGEST} s; if it imports the "
                "module that declares an op of it, each waits for the other under a compiler, a "
                "transform or a mode: import in it what is complete, or declare the op before"
            )
        return made.result()
    finally:
        other.shutdown(wait=False)


def with_positions(
    function: Callable[..., Tensor], operands: int, dims: Sequence[int]
) -> Callable[..., Tensor]:
    """The function as one of x, of the operands and of its coordinates along these dimensions."""

    def placed(x: Tensor, *values: Tensor) -> Tensor:
        with positions(dict(zip(dims, values[operands:], strict=True))):
            return function(x, *values[:operands])

    return placed


def _trace(one: _Function, operands: int, dims: tuple[int, ...]) -> Traced:
    names = tuple(f"a{k}" for k in range(operands))
    places = tuple(f"p{k}" for k in range(len(dims)))
    whole = frozenset(name for name, is_one in zip(names, one.integers, strict=False) if is_one)

    def program(graph: fx.GraphModule, shape: tuple[int, ...], rounds: bool) -> Program:
        inputs = (VALUE, *names, *places)
        inputs = inputs if one.masks else (GRADIENT, *inputs)
        lowered = lower(one.title, graph, inputs, shape, rounds=rounds)
        value, *pulled = lowered.results
        if one.masks:
            bounds = bounds_of(value, lowered.trees, names, places)
            return Program(names, lowered.steps, value, (), whole, places, True, bounds)
        rest = iter(pulled[1:])
        of_operands = ("" if name in whole else next(rest) for name in names)
        gradients = (pulled[0], *of_operands)
        return Program(names, lowered.steps, value, gradients, whole, places)

    (shape, dtype), (other_shape, other_dtype) = _SAMPLES
    graph = _graph(one, shape, dtype)
    result = program(graph, shape, rounds=True)
    if one.returns not in (None, torch.bool):  # of exact integers: all others are refused above
        raise TypeError(
            f"{one.title}: it must return floating point, or truth values if it is a mask, got "
            f"{one.returns}; convert it with .to(x.dtype)"
        )
    other = _graph(one, other_shape, other_dtype)
    if program(graph, shape, rounds=False) != program(other, other_shape, rounds=False):
        raise UnsupportedError(
            f"{one.title}: what it computes depends on x's shape or dtype (x.shape, x.numel(), "
            "torch.finfo(x.dtype), say), but a functor sees one element at a time, in the compute "
            "type; pass such a number as an operand"
        )
    if one.masks and VALUE in result.reads([result.value]):
        raise TypeError(
            f"{one.title}: it must return floating point, or truth values that do not depend on "
            "the value if it is a mask, got torch.bool; convert it with .to(x.dtype), or compute "
            "the mask of fusedops.position and operands: masks apply last, whatever follows them"
        )
    frozen = _freeze(one)
    try:
        again = program(_graph(one._replace(call=frozen[dtype]), shape, dtype), shape, rounds=True)
    except UnsupportedError:  # of what the function keeps from autograd
        return Traced(result, None, dims)
    return Traced(result, frozen if again == result else None, dims)


def _freeze(one: _Function) -> dict[torch.dtype, Callable[..., Tensor]]:
    """The value of the function as torch operations, by dtype."""
    found = {}
    for shape, dtype in _SAMPLES:
        found[dtype] = _any_shape(_traced(one, one.call, one.integers, shape, dtype), shape)
    return found


def _graph(one: _Function, shape: tuple[int, ...], dtype: torch.dtype) -> fx.GraphModule:
    """The function's value and gradients as a graph, of the upstream gradient and the inputs.

    That of a mask is of the inputs alone.
    """

    def checked(x: Tensor, *values: Tensor) -> Tensor:
        result = one.call(x, *values)
        _check_result(one, result, shape)
        return result

    if one.masks:
        return _traced(one, lambda *inputs: (checked(*inputs),), one.integers, shape, dtype)

    def both(upstream: Tensor, x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        floats = [v for v, whole in zip(values, one.integers, strict=True) if not whole]

        def of_floats(x: Tensor, *given: Tensor) -> Tensor:
            rest = iter(given)
            pairs = zip(values, one.integers, strict=True)
            return checked(x, *(value if whole else next(rest) for value, whole in pairs))

        value, pull = torch.func.vjp(of_floats, x, *floats)[:2]
        with torch.no_grad():  # else its formulas are those that can be differentiated again
            return (value, *pull(upstream.to(value.dtype)))

    return _traced(one, both, (False, *one.integers), shape, dtype)


def _traced(
    one: _Function,
    function: Callable[..., Any],
    integers: Sequence[bool],
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> fx.GraphModule:
    """The operations of a function as a graph: of a sample of x and of samples of these kinds."""
    # Imported here: it takes a second, and only functors of the user's own need it.
    from torch.fx.experimental.proxy_tensor import make_fx

    kinds = (dtype, *(torch.int64 if whole else dtype for whole in integers))
    # A table of one's own, though empty: by default torch makes x.detach() a plain view.
    maker = make_fx(
        function, decomposition_table={}, tracing_mode="fake", _allow_non_fake_inputs=True
    )
    with _plain_modes(), _explained(one.title):
        return maker(*[torch.empty(shape, dtype=kind) for kind in kinds])


def _is_traced() -> bool:
    """Whether a compiler, a transform of torch.func or a dispatch mode is at work."""
    modes: int = torch._C._len_torch_dispatch_stack()
    levels: int = torch._C._functorch.get_dynamic_layer_stack_depth()
    return modes + levels > 0 or torch._guards.TracingContext.try_get() is not None


def _check_result(one: _Function, result: Any, shape: Sequence[int]) -> None:
    title = one.title
    if not isinstance(result, Tensor):
        raise TypeError(f"{title}: it must return a tensor, got {type(result).__name__}")
    if tuple(result.shape) != tuple(shape):
        raise TypeError(
            f"{title}: it must return a value for each element of x, a tensor of x's shape; "
            f"got shape {tuple(result.shape)} for x of shape {tuple(shape)}"
        )
    if not result.dtype.is_floating_point and not one.masks:
        raise _NotFloating(result.dtype)


@contextlib.contextmanager
def _plain_modes() -> Any:
    """A context in which no mode of the surrounding program has an effect on the trace."""
    with (
        torch.device("cpu"),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        warnings.catch_warnings(),
    ):
        # Of a number made from a tensor, which is refused in words of our own.
        warnings.filterwarnings("ignore", "Converting a tensor with requires_grad=True")
        yield


_ON_A_VALUE = (
    "Python control flow or a number depends on a value (if, while, float(), .item(), math.exp(), "
    ".any(), say), but one kernel serves all values; choose with torch.where, and compute with "
    "torch's functions of tensors, such as torch.exp"
)

#: What torch says where a tensor is to be a number of Python's.
_NUMBERS = (
    "can be converted to Python scalars",
    "cannot be converted to Scalar",
    "can be converted to an index",
    "tolist()",
    "numpy()",
)


def _line_of(error: Exception) -> str:
    """The line of the functor's own text at which torch failed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent))
    lines = [one.line for one in frames if one.line and not one.filename.startswith(own)]
    return f"its line {lines[-1]!r}" if lines else "its gradient"


@contextlib.contextmanager
def _explained(title: str) -> Any:
    """A context that explains errors of torch's tracing; errors of the function itself pass."""
    from torch._subclasses.fake_tensor import DataDependentOutputException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    torchs_own = logging.getLogger("torch._subclasses.fake_tensor")  # prints a stack beside
    before, torchs_own.disabled = torchs_own.disabled, True
    try:
        yield
    except (GuardOnDataDependentSymNode, DataDependentOutputException) as error:
        raise UnsupportedError(f"{title}: {_ON_A_VALUE}") from error
    except UnsupportedError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        said = str(error)
        if "value of Tensor" in said:
            raise UnsupportedError(
                f"{title}: Python control flow (if, while, and, or) depends on a value, but one "
                "kernel serves all values; choose with torch.where"
            ) from error
        if any(text in said for text in _NUMBERS):
            raise UnsupportedError(f"{title}: {_ON_A_VALUE}") from error
        if not isinstance(error, (RuntimeError, IndexError)):
            raise
        first = said.strip().splitlines()[0] if said.strip() else repr(error)
        raise UnsupportedError(
            f"{title}: torch cannot trace {_line_of(error)}: {first.rstrip('.')}; a functor is "
            "made of pointwise operations on tensors of x's shape: compute what is none outside "
            "and pass the result as an operand, or give the functor as C++ with "
            "fusedops.cpp_functor"
        ) from error
    finally:
        torchs_own.disabled = before
